"""Rows of a first dump that the sink `sql` inserts directly: nothing comes twice, and nothing comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog.core.event import DUMP_SEQ
from dblog.core.schema import Column, TableSchema
from dblog.sinks.base import Batch, TableBatch
from dblog.sinks.sql import SqlSink, load
from dblog.sinks.sql import sink as module
from tests.sinks.batches import GivenRows
from tests.sinks.test_sql_guard import (  # noqa: F401
    ARROW,
    TABLE,
    AnyTarget,
    Event,
    History,
    make,
    state,
    target,
    tombstones,
)

pytestmark = [pytest.mark.server, pytest.mark.spark]

Make = Callable[..., SqlSink]
FOUR = [Event(10 + n, "create", n, f"v{n}") for n in range(1, 5)]


class Job:
    """Watches the pieces of work of Spark jobs, and what they have loaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: list[load.Part] = []
        self.loaded: list[load.Loaded] = []
        self.times = 1
        self.before: Callable[[], None] = lambda: None
        self._run = module.run_in_tasks
        monkeypatch.setattr(module, "run_in_tasks", self)

    def __call__(self, spark: SparkSession, works: list[load.Part], *given: Any, **more: Any) -> list[load.Loaded]:
        self.before()
        self.parts = list(works)
        for _ in range(self.times):
            self.loaded = self._run(spark, works, *given, **more)
        return self.loaded

    @property
    def direct(self) -> list[bool]:
        """For each part of the last job, whether it had a token and nothing was staged."""
        return [bool(p.token) and not done.stages for p, done in zip(self.parts, self.loaded, strict=True)]

    def late(self) -> None:
        """The tasks of the last job run again, when nobody waits for them any more."""
        for part in self.parts:
            load.load_part(part)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def filling(target: AnyTarget) -> str:  # noqa: F811
    [(found,)] = target.execute(f"select filling from {target.ledger('tables')}")
    return str(found)


def test_a_first_dump_is_inserted_directly(target: AnyTarget, make: Make, spark: SparkSession, job: Job) -> None:  # noqa: F811
    history = History([*FOUR, Event(30, "delete", 1), Event(31, "update", 2, "new")])
    sink = make()
    sink.write(history.batch(spark, 0, 15, 20, dump=range(9), way="job"))
    assert job.direct == [True, True]
    assert state(target) == history.state(20)
    assert filling(target) == "open"
    sink.write(history.batch(spark, 1, 20, 40))
    assert state(target) == history.state(40)


def test_a_late_task_does_not_bring_back_a_deleted_row(
    target: AnyTarget, make: Make, spark: SparkSession, job: Job  # noqa: F811
) -> None:  # fmt: skip
    history = History([*FOUR, Event(30, "delete", 1), Event(31, "delete", 2), Event(32, "update", 3, "new")])
    sink = make()
    sink.write(history.batch(spark, 0, 15, 20, dump=range(9), way="job"))
    sink.write(history.batch(spark, 1, 20, 40, way="few"))
    job.late()
    assert state(target) == history.state(40)


def test_a_late_task_of_an_attempt_that_failed_inserts_nothing(
    target: AnyTarget, make: Make, spark: SparkSession, job: Job, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    """The driver dies; another one starts while a task of the first has not inserted anything yet."""
    history = History([*FOUR, Event(30, "delete", 1), Event(31, "delete", 2)])
    batch = history.batch(spark, 0, 15, 20, dump=range(9), way="job")
    with monkeypatch.context() as patched:
        patched.setattr(module, "run_in_tasks", stopped(job))
        with pytest.raises(KeyboardInterrupt):
            make().write(batch)
    late = list(job.parts)
    sink = make()
    sink.write(batch)
    job.parts = late
    job.late()
    assert state(target) == history.state(20)
    sink.write(history.batch(spark, 1, 20, 40, way="few"))
    job.late()
    assert state(target) == history.state(40)


def stopped(job: Job) -> Callable[..., Any]:
    def run(spark: SparkSession, works: list[load.Part], *given: Any, **more: Any) -> None:
        job.parts = list(works)
        raise KeyboardInterrupt

    return run


def test_a_batch_that_was_half_inserted_comes_again(
    target: AnyTarget, make: Make, spark: SparkSession, job: Job, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    history = History([*FOUR, Event(30, "delete", 1), Event(31, "update", 3, "new")])
    batch = history.batch(spark, 0, 15, 20, dump=range(9), way="job")

    def crash(spark: SparkSession, works: list[load.Part], *_: Any, **__: Any) -> None:
        load.load_part(works[0])  # and the second part is lost
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "run_in_tasks", crash)
        with pytest.raises(KeyboardInterrupt):
            make().write(batch)
    assert set(state(target)) == {1, 2}
    sink = make()
    sink.write(batch)
    assert job.direct == [False, True]
    assert state(target) == history.state(20)
    sink.write(history.batch(spark, 1, 20, 40))
    assert state(target) == history.state(40)


def test_a_task_that_runs_twice_inserts_once(target: AnyTarget, make: Make, spark: SparkSession, job: Job) -> None:  # noqa: F811
    history = History([*FOUR, Event(30, "delete", 1)])
    job.times = 2
    sink = make()
    sink.write(history.batch(spark, 0, 15, 20, dump=range(9), way="job"))
    assert job.direct == [False, False]
    assert state(target) == history.state(20)
    assert filling(target) == "open"


def test_another_pipeline_that_comes_in_between_ends_it(
    target: AnyTarget, make: Make, spark: SparkSession, job: Job  # noqa: F811
) -> None:  # fmt: skip
    """It deletes a row after the token was written and before the tasks begin."""
    history = History([*FOUR, Event(30, "delete", 1), Event(31, "update", 3, "new")])
    first, second = make("first"), make("second")

    def between() -> None:
        job.before = lambda: None
        second.write(history.batch(spark, 0, 0, 40, way="few"))

    job.before = between
    first.write(history.batch(spark, 0, 15, 20, dump=range(9), way="job"))
    assert not any(job.direct)
    assert state(target) == history.state(40)
    assert tombstones(target) == 1
    assert filling(target) == ""
    first.write(history.batch(spark, 1, 20, 40))
    assert state(target) == history.state(40)


def test_a_table_that_two_pipelines_write_is_not_inserted_into(
    target: AnyTarget, make: Make, spark: SparkSession, job: Job  # noqa: F811
) -> None:  # fmt: skip
    history = History([*FOUR, Event(30, "delete", 1)])
    first, second = make("first"), make("second")
    first.write(history.batch(spark, 0, 0, 12, way="few"))
    second.write(history.batch(spark, 0, 0, 13, way="few"))
    first.write(history.batch(spark, 1, 15, 20, dump=range(9), way="job"))
    assert not any(part.token for part in job.parts)
    assert state(target) == history.state(20)


def test_rows_that_the_log_has_written_before_are_staged(
    target: AnyTarget, make: Make, spark: SparkSession, job: Job  # noqa: F811
) -> None:  # fmt: skip
    """People write while the first dump runs: its other rows are still inserted directly."""
    history = History([*FOUR, Event(30, "update", 2, "new"), Event(50, "update", 4, "newer")])
    sink = make()
    sink.write(history.batch(spark, 0, 20, 40, way="few"))
    sink.write(history.batch(spark, 1, 40, 60, dump=range(9), way="job"))
    assert [p.log for p in job.parts] == [True, False, False]
    assert [len(done.stages) for done in job.loaded] == [1, 1, 0]
    assert state(target) == history.state(60)
    assert filling(target) == "open"


def test_a_key_that_servers_sort_in_their_own_way_is_tried_once(
    target: AnyTarget, make: Make, spark: SparkSession, job: Job  # noqa: F811
) -> None:  # fmt: skip
    columns = (Column("id", "text", pa.string()), Column("v", "text", pa.string()))
    schema = TableSchema(TABLE, columns, ("id",))

    def rows(number: int, *keys: str) -> Batch:
        lsn = 10 * number + 9
        values = [pa.array(keys), pa.array([f"{k}{number}" for k in keys]), pa.array(["read"] * len(keys))]
        order = [pa.array([lsn] * len(keys)), pa.array([DUMP_SEQ] * len(keys), pa.int32())]
        names = ["id", "v", "_op", "_lsn", "_seq", "_unchanged"]
        batch = pa.record_batch([*values, *order, pa.nulls(len(keys), ARROW.field("_unchanged").type)], names=names)
        table = TableBatch(TABLE, schema, None, None, None, False, GivenRows((), (batch,)))
        return Batch(number, lsn + 1, (table,))

    sink = make()
    sink.write(rows(0, "a", "B"))
    assert job.direct == [True]
    sink.write(rows(1, "c", "a"))
    assert job.direct == [False]
    assert filling(target) == ""
    sink.write(rows(2, "d"))
    assert not job.parts[0].token
    found = {key: row["v"] for (key,), row in target.rows(TABLE).items()}
    assert found == {"a": "a1", "B": "B0", "c": "c1", "d": "d2"}
