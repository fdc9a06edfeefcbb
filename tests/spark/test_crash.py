"""Processes that are killed at random moments, again and again, while others write: nothing is lost, nothing goes back.

Most lives are those of a query without Spark, because they are short; the last few are a whole Spark.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.engine.conftest import rows_of
from tests.engine.writers import create_hot, writers
from tests.history import History
from tests.spark.apps import ROOT, delivered, environment, running

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.parametrize("postgres", ["pg18"], indirect=True),
]
ROWS = 400


def check(history: History, database: Database) -> None:
    history.check_order()
    history.check_versions(database.execute("select id, version from audit.seen where name = 't'"))
    history.check_state(rows_of(database))


def converged(history: History, database: Database) -> bool:
    """Whether everything there is has been delivered; the writers have stopped."""
    rows = history.state()
    source = {(i,): v for i, v in database.execute("select id, version from t")}
    return rows.keys() == source.keys() and all(rows[k]["version"] == v for k, v in source.items())


def wait_until_converged(folder: Path, database: Database, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not converged(delivered(folder), database):
        assert time.monotonic() < deadline
        time.sleep(0.5)


def lives(folder: Path) -> int:
    """How many processes have finished a batch; the others were killed before."""
    return len({path.stem.split("-")[1] for path in (folder / "out").glob("*.json")})


def test_a_query_that_is_killed_twenty_times_converges(database: Database, tmp_path: Path) -> None:
    create_hot(database, ROWS)
    dice = random.Random(7)
    options = json.dumps({"url": database.url, "table": "public.t", "chunkRows": 5, "parallelism": 2})

    def live() -> subprocess.Popen[bytes]:
        command = [sys.executable, ROOT / "tests/engine/life.py", tmp_path, options]
        return subprocess.Popen(command, env=environment())

    with writers(database, 3, ROWS, rate=150):
        for _ in range(20):
            life = live()
            time.sleep(1.3 + dice.random() * 1.2)
            assert life.poll() is None, "it ended by itself"
            life.kill()
            life.wait()
    life = live()
    try:
        wait_until_converged(tmp_path, database)
    finally:
        life.kill()
        life.wait()
    history = delivered(tmp_path)
    check(history, database)
    assert all(history.count(op) for op in ("read", "create", "update", "delete"))
    assert lives(tmp_path) > 10


@pytest.mark.spark
def test_a_spark_application_that_is_killed_again_and_again_converges(database: Database, tmp_path: Path) -> None:
    create_hot(database, ROWS)
    dice = random.Random(7)
    options = {"url": database.url, "table": "public.t", "chunkRows": 5, "parallelism": 2}
    with writers(database, 3, ROWS, rate=50):
        for _ in range(5):
            with running(tmp_path, options) as app:
                more = lives(tmp_path) + 1
                app.until(lambda: lives(tmp_path) == more)  # noqa: B023
                time.sleep(dice.random() * 2)
    with running(tmp_path, options):
        wait_until_converged(tmp_path, database, 90)
    check(delivered(tmp_path), database)
    assert lives(tmp_path) == 6
