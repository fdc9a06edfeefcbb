"""Replays what a stream has delivered into the sink `sql`, and compares the target's tables with the source's.

The child gives every attempt of a batch also as tables (`batch_of`), made by the product's own `ranges_of`, with Arrow
tables in the place of DataFrames. After the life, `replay` gives them to the sink, in their order. The target is
compared at every place at which the life itself compared, not only in the end: the dump of all tables with which a life
ends would hide a value that the sink has got wrong before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg2
import psycopg2.extras
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from dblog.capture.spool import Spool
from dblog.core.schema import TableSchema
from dblog.core.settings import read_settings
from dblog.sinks.base import Batch, SinkContext, TableBatch
from dblog.sinks.sql import SqlSink
from dblog.sinks.sql.ledger import Ledger
from dblog.spark.ranges import RangeReader, TableRange, ranges_of
from dblog.work.handover import RangeFiles
from dblog.work.lanes import Work
from dblog.work.tasks import Emit, Log
from tests.conftest import Database
from tests.life.checker import NEVER, Key, Row, Violation, check_state
from tests.life.world import as_text

SCHEMA = "life"
"""The schema of all tables in the target."""
FEW = 20
"""Fewer rows are not worth several Spark tasks."""


@dataclass(frozen=True)
class Delivered:
    """What a batch had for one table."""

    schema: TableSchema
    changes: Rows | None
    rows: Rows | None
    truncated: tuple[int, int] | None
    incomplete: bool


@dataclass(frozen=True)
class Attempt:
    """A batch as it was delivered once."""

    number: int
    position: int
    tables: tuple[Delivered, ...]


@dataclass(frozen=True)
class Settled:
    """A place at which everything was delivered and right: what the target must have there."""

    keys: Mapping[str, tuple[str, ...]]
    """The tables of the source and the columns of their keys."""
    rows: Mapping[tuple[str, Key], Row]
    """The rows, with the columns of which the values were delivered."""


# -- in the process of the stream ---------------------------------------------------------------------------


def batch_of(work: Sequence[Work], spool: Spool, tasks: int) -> Attempt:
    """The batch as `dblog run` makes it of the same work (`dblog.pipelines.delivery`)."""
    position = max((w.window.end for w in work if isinstance(w, (Log, Emit))), default=0)
    with RangeFiles(spool) as files:
        ranges = ranges_of(_Reader(), files, work, before=False, tasks=tasks)  # type: ignore[arg-type]
        return Attempt(-1, position, tuple(map(_delivered, ranges)))


def _delivered(table: TableRange) -> Delivered:
    def read(frame: Callable[[], Any] | None) -> Rows | None:
        return None if frame is None else frame()

    return Delivered(table.schema, read(table.changes), read(table.rows), table.truncated, table.incomplete)


@dataclass(frozen=True)
class Rows:
    """What Spark would have a DataFrame for."""

    table: pa.Table

    def dropDuplicates(self, names: Sequence[str]) -> Rows:  # noqa: N802  as DataFrame has it
        first: dict[Any, int] = {}
        for n, key in enumerate(zip(*(self.table.column(name).to_pylist() for name in names), strict=True)):
            first.setdefault(key, n)
        return Rows(self.table.take(list(first.values())))


@dataclass(frozen=True)
class _Reader:
    """Stands in for a Spark session: `ranges_of` only loads ranges with it."""

    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def read(self) -> _Reader:
        return self

    def format(self, name: str) -> _Reader:
        return self

    def options(self, **options: str) -> _Reader:
        return _Reader(options)

    def load(self) -> Rows:
        reader = RangeReader(self.given)
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return Rows(pa.Table.from_batches(batches, reader.range().shape.arrow if not batches else batches[0].schema))


# -- after the life -----------------------------------------------------------------------------------------


class _Died(Exception):
    """The process of the sink ended at the end of its transaction."""


def replay(history: Sequence[Attempt | Settled], spark: SparkSession, database: Database) -> list[Violation]:
    """Give the attempts to a sink that writes to the database, and compare at each `Settled`; what is wrong there.

    Before a batch is delivered again, the process has died, so a new sink takes it. Of every two such attempts, one is
    in the target by then, and one has died just before its commit."""
    sink = _sink(spark, database)
    number, repeated = -1, 0
    try:
        for item, following in zip_longest(history, history[1:]):
            if isinstance(item, Settled):
                if found := _compare(item, database):
                    return [replace(v, what=f"in the sql target, after batch {number}, {v.what}") for v in found]
                continue
            number = item.number
            again = isinstance(following, Attempt) and following.number == item.number
            repeated += again
            if again and repeated % 2:
                with suppress(_Died), mock.patch.object(Ledger, "record", side_effect=_Died):
                    sink.write(_batch(item, spark))
            else:
                sink.write(_batch(item, spark))
            if again:
                sink.close()
                sink = _sink(spark, database)
    finally:
        sink.close()
    return []


def _sink(spark: SparkSession, database: Database) -> SqlSink:
    given = read_settings("sink", {"url": database.url, "schema": SCHEMA}, SqlSink.settings)
    sink = SqlSink(given, SinkContext("life", Path()))
    sink.check()
    sink.open(spark)
    return sink


def _batch(attempt: Attempt, spark: SparkSession) -> Batch:
    def frame(rows: Any) -> DataFrame | None:
        if rows is None:
            return None
        kind = from_arrow_schema(rows.table.schema, prefer_timestamp_ntz=True)
        made = spark.createDataFrame(rows.table if rows.table.num_rows else [], kind)
        return made.coalesce(1) if rows.table.num_rows < FEW else made

    tables = [
        TableBatch(t.schema.table, t.schema, frame(t.changes), frame(t.rows), t.truncated, t.incomplete)
        for t in attempt.tables
    ]
    return Batch(attempt.number, attempt.position, tuple(tables))


def _compare(settled: Settled, database: Database) -> list[Violation]:
    """The target may have columns that the source has no more, and columns of rows that were never delivered."""
    target = {
        place: {name: value for name, value in row.items() if name in settled.rows.get(place, row)}
        for place, row in _state(database, settled.keys).items()
    }
    return check_state(target, settled.rows)


def _state(database: Database, keys: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, Key], dict[str, str | None]]:
    """What the target has, in the form of `World.state`."""
    found: dict[tuple[str, Key], dict[str, str | None]] = {}
    session = psycopg2.connect(database.url, cursor_factory=psycopg2.extras.RealDictCursor)
    try:
        with session.cursor() as cursor:
            cursor.execute("select tablename from pg_tables where schemaname = %s", [SCHEMA])
            there = {row["tablename"] for row in cursor.fetchall()}
            for table in there & keys.keys():
                cursor.execute(f"select * from {SCHEMA}.{table}")
                for row in cursor.fetchall():
                    key = tuple(str(row.pop(name)) for name in keys[table])
                    found[table, key] = {c: as_text(v) for c, v in row.items() if c not in ("_lsn", "_seq")}
    finally:
        session.close()
    return found


def settled(
    keys: Mapping[str, tuple[str, ...]], source: Mapping[tuple[str, Key], Row], delivered: Mapping[tuple[str, Key], Row]
) -> Settled:
    """What must be in the target, given the rows of the source, and the rows that the events come to: a column that was
    added has a value in the source which no event has."""
    rows = {
        place: {c: v for c, v in row.items() if delivered[place].get(c, NEVER) != NEVER}
        for place, row in source.items()
    }
    return Settled(keys, rows)
