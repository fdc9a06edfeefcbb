"""Concurrent writers on a small hot table, many small chunks: the place where a stale read would show."""

from __future__ import annotations

import pytest

from dblog.work.tasks import Emit, Log, Select
from tests.engine.conftest import MakeQuery, on_every, rows_of
from tests.engine.writers import create_hot, versions_of, writers
from tests.families import AnyDatabase
from tests.history import History

pytestmark = [pytest.mark.server, on_every]
ROWS = 200


@pytest.fixture
def hot(database: AnyDatabase) -> AnyDatabase:
    create_hot(database, ROWS)
    return database


def check(history: History, database: AnyDatabase) -> None:
    history.check_order()
    history.check_versions(versions_of(database))
    history.check_state(rows_of(database))


@pytest.mark.parametrize("watermark", ["table", "none"])
@pytest.mark.parametrize("clients", [1, 8])
def test_a_dump_under_concurrent_writers_converges_without_going_back(
    hot: AnyDatabase, query: MakeQuery, clients: int, watermark: str
) -> None:
    stream = query(chunkRows=4, parallelism=4, watermark=watermark)
    with writers(hot, clients, ROWS):
        stream.dump()
        for _ in range(10):
            stream.step()
    stream.catch_up()
    check(stream.history, hot)
    assert all(stream.history.count(op) for op in ("read", "create", "update", "delete"))


@pytest.mark.parametrize("watermark", ["table", "none"])
def test_every_batch_may_be_run_again_in_a_new_life(hot: AnyDatabase, query: MakeQuery, watermark: str) -> None:
    """The process is lost at another place each time: after planning, after the tasks, after the batch."""
    stream = query(chunkRows=20, parallelism=2, watermark=watermark)
    with writers(hot, 4, ROWS, rate=300):
        for turn in range(12):
            if not stream.plan():
                continue
            if turn % 3 == 1:
                stream.history.deliver(stream.done, stream.rows(stream.work(), Log, Emit, Select))
            if turn % 3 == 2:
                stream.finish()
            stream.restart()
        stream.dump()
    stream.catch_up()
    check(stream.history, hot)
