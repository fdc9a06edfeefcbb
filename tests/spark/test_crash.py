"""A Spark driver that is killed at random moments, again and again, while others write: nothing is lost, nothing goes
back.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dblog.spark.options import read_options
from dblog.state import open_store
from dblog.state.pipeline import Pipeline
from dblog.state.requests import State, read_request
from tests.conftest import Database
from tests.engine.conftest import rows_of
from tests.engine.writers import create_hot, writers
from tests.history import History
from tests.spark.apps import App, delivered, running

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.parametrize("postgres", ["pg18"], indirect=True),
]
ROWS = 1000
MOMENTS = [(False, 0.2), (True, 0.1), (True, 1.2), (False, 1.4), (True, 0.6), (True, 2.4), (False, 2.2)]
"""The kills: whether the driver has finished a batch, and how many seconds it goes on."""
ASKED = (2, 5, 9, 15)
"""The kills before which somebody asks for a dump."""


def random_moments(kills: int) -> list[tuple[bool, float]]:
    dice = random.Random(7)
    return [(bool(number % 3), dice.random() * 2.5) for number in range(kills)]


def check(history: History, database: Database) -> None:
    history.check_order()
    history.check_versions(database.execute("select id, version from audit.seen where name = 't'"))
    history.check_state(rows_of(database))


def converged(history: History, database: Database) -> bool:
    """Whether everything there is has been delivered; the writers have stopped."""
    rows = history.state()
    source = {(i,): v for i, v in database.execute("select id, version from t")}
    return rows.keys() == source.keys() and all(rows[k]["version"] == v for k, v in source.items())


def finished(app: App) -> list[Path]:
    """The batches that this life has finished."""
    return list((app.folder / "out").glob(f"[0-9]*-{app.process.pid}.json"))


def live(app: App, *, working: bool, seconds: float) -> None:
    """Until so long after its query started, mostly while it takes up the last batch; or after it finished a batch."""
    app.go()
    app.until(lambda: bool(finished(app)) if working else "started" in app.output)
    time.sleep(seconds)
    app.kill()


@pytest.mark.parametrize("moments", [MOMENTS, random_moments(20)], ids=["each", "twenty"])
def test_a_driver_that_is_killed_again_and_again_converges(
    database: Database, tmp_path: Path, moments: list[tuple[bool, float]]
) -> None:
    """On the way people ask for dumps: each is served to its end, and no row of it comes twice."""
    create_hot(database, ROWS)
    state = tmp_path / "state.db"
    options = {"url": database.url, "table": "public.t", "chunkRows": 5, "parallelism": 2, "state": state}
    pipeline = Pipeline(open_store(str(state)), read_options({k: str(v) for k, v in options.items()}).pipeline)
    asked: list[str] = []
    with ExitStack() as started:

        def held() -> App:
            return started.enter_context(running(tmp_path, options, held=True, conf={"spark.ui.enabled": "false"}))

        lives = [held()]
        with writers(database, 3, ROWS, rate=50):
            for number, (working, seconds) in enumerate(moments):
                lives.append(held())  # a Spark takes seconds to start: the next one does so while this one lives
                if number in ASKED:
                    asked.append(pipeline.submit(read_request("t")).id)
                live(lives[number], working=working, seconds=seconds)
        last = lives[-1]
        last.go()
        last.until(lambda: converged(delivered(tmp_path), database))
        last.until(lambda: all(pipeline.dump(dump).state.ended for dump in asked))
    history = delivered(tmp_path)
    check(history, database)
    assert all(history.count(op) for op in ("read", "create", "update", "delete"))
    assert sum(bool(finished(app)) for app in lives) > len(moments) // 2
    for dump in asked:
        assert pipeline.dump(dump).state is State.completed
        rows = [event["id"] for event in history.events if event["_dump"] == dump]
        assert len(rows) == len(set(rows)), "each row once, for a sink that takes a batch once"
        # a dump that shares the pass of another one has rows that carry the other's name
        assert len(rows) <= pipeline.dump(dump).emitted
        assert pipeline.dump(dump).emitted > 0
