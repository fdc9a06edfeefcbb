"""The chunk selects of a batch in tasks of Spark, on a real server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from dblog.capture.spool import Spool
from dblog.core.offset import Chunk, Extent
from dblog.core.schema import TableName
from dblog.errors import ConfigError
from dblog.spark.failure import plain
from dblog.spark.selects import run_selects
from dblog.testing.postgres_server import PostgresServer
from dblog.work.tasks import Select
from tests.conftest import Database

pytestmark = [pytest.mark.server, pytest.mark.spark]

SELECTS = [
    Select(Chunk(f"c-{n}", "initial", TableName("public", "t"), Extent((str(n),), (str(n + 2),)))) for n in (0, 2, 4)
]


@pytest.fixture
def postgres(servers: dict[str, PostgresServer]) -> PostgresServer:
    """One is enough here."""
    return servers["pg18"].start()


@pytest.fixture
def table(database: Database) -> Database:
    database.execute("create table t (id int primary key)")
    database.execute("insert into t select i from generate_series(1, 5) i")
    return database


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool"))


def ids(spool: Spool, chunk: str) -> list[int]:
    staged = spool.staged(chunk)
    assert staged is not None
    return [row["id"] for batch in spool.read_chunk(chunk, staged.stamp)[1] for row in batch.to_pylist()]


def test_every_chunk_is_staged_by_one_job(spark: SparkSession, spool: Spool, table: Database) -> None:
    run_selects(spark, spool, {"url": table.url, "tables": "public.t"}, SELECTS, tasks=2)
    assert [ids(spool, select.chunk.id) for select in SELECTS] == [[1, 2], [3, 4], [5]]


def test_a_database_that_cannot_be_reached_fails_nothing(spark: SparkSession, spool: Spool, table: Database) -> None:
    """The planner selects the chunk itself, and the log must not wait for it."""
    at = table.url.rpartition("@")[0] + "@127.0.0.1:1/x"
    run_selects(spark, spool, {"url": at, "tables": "public.t"}, SELECTS, tasks=2)
    assert [spool.staged(select.chunk.id) for select in SELECTS] == [None] * 3


def test_any_other_error_comes_as_it_was_raised(spark: SparkSession, spool: Spool, table: Database) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        run_selects(spark, spool, {"url": table.url, "tables": "public.t", "dump": "soon"}, SELECTS, tasks=2)
    found = plain(raised.value)
    assert isinstance(found, ConfigError)
    assert "dump" in found.message


def test_stopping_a_query_ends_its_selects(spark: SparkSession, spool: Spool, table: Database) -> None:
    """A query's jobs have its group. The thread that runs the selects of a batch has the group of the query too."""
    lock = table.connect(autocommit=False)
    lock.cursor().execute("lock table t in access exclusive mode")
    ended: list[bool] = []

    def selects() -> None:
        with pytest.raises(Exception, match="cancelled"):
            run_selects(spark, spool, {"url": table.url, "tables": "public.t"}, SELECTS, tasks=2)
        ended.append(True)

    context = spark.sparkContext
    context.setJobGroup("a-query", "", interruptOnCancel=True)
    try:
        thread = InheritableThread(target=selects)
        thread.start()
        while not context.statusTracker().getJobIdsForGroup("a-query"):
            time.sleep(0.01)
        context.cancelJobGroup("a-query")
        thread.join(60)
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        lock.close()
    assert ended
