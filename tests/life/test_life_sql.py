"""What a random life has delivered, replayed into the sink `sql`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from dblog.sinks.sql.postgres import PostgresTarget
from dblog.testing.postgres_server import PostgresServer
from tests.conftest import Database
from tests.life.life import Failure, Life
from tests.life.run import live, replay_into
from tests.sinks.sql_targets import fresh_name

pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.slow]

STEPS = (
    "batches",
    "transactions",
    "kill while the batch runs",
    "kill before the batch is committed",
    "lose the spool",
    "dump tables",
    "dump keys",
    "add a column",
    "drop a column",
    "rename a column",
    "change a type",
    "truncate",
    "drop and create again",
)
"""What matters to a sink. Networks and servers that break show in the stream, not in its batches."""
SEED = 329
"""Of a short life with every one of these steps."""


@pytest.fixture
def database(servers: dict[str, PostgresServer]) -> Iterator[Database]:
    made = Database(servers["pg18"].start(), fresh_name())
    made.create()
    yield made
    made.drop()


@pytest.fixture(scope="module")
def life() -> Life:
    return live("pg18", SEED, steps=26, seconds=60, only=STEPS, replayed=True)


def test_the_sql_target_of_a_random_life_has_the_rows_of_its_source(
    life: Life, spark: SparkSession, database: Database
) -> None:
    replay_into((spark, database), life)


def test_a_life_finds_a_sink_that_is_broken(
    life: Life, spark: SparkSession, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresTarget, "deletes", lambda self, staged: "select 1")
    with pytest.raises(Failure, match=r"in the sql target, after batch .*, the state differs from the source"):
        replay_into((spark, database), life)
