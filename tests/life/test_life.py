"""Random lives on real servers, for less than a minute each; `make chaos` lives longer, and others."""

from __future__ import annotations

import os

import pytest

from tests.life.life import SERVER_NAMES, Failure
from tests.life.run import live

SEED = int(os.environ.get("DBLOG_LIFE_SEED", "1"))
SECONDS = 25.0
"""No step begins after this time; then everything is delivered and compared."""


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("server", [name for name in ("pg18", "mariadb", "mysql") if name in SERVER_NAMES])
def test_everything_that_a_random_life_delivers_is_what_its_writers_wrote(server: str) -> None:
    live(server, SEED, steps=150, seconds=SECONDS)


BUSY = ["batches", "transactions", "dump tables", "dump all tables", "stick commits", "kill before the batch runs"]


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sabotage", "seed"),
    [("dump rows are kept that the log has newer", 1), ("rounds do not wait for commits that nobody sees", 1)],
)
def test_a_life_finds_a_product_that_is_broken(sabotage: str, seed: int) -> None:
    with pytest.raises(Failure, match=r"is stale|brings a deleted row back"):
        live("pg18", seed, steps=60, seconds=60, only=BUSY, sabotage=sabotage)
