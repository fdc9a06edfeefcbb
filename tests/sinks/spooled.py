"""Batches whose rows are on a spool, as a pipeline has them: a sink can read them in tasks, or let Spark read them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from dblog.capture.spool import LogFile, Spool
from dblog.core.event import Op, change_schema
from dblog.core.offset import Chunk, Extent, pinned
from dblog.core.schema import Column, TableName, TableSchema
from dblog.sinks.base import Batch, TableBatch
from dblog.spark.ranges import TableRange, ranges_of
from dblog.work.handover import RangeFiles
from dblog.work.tasks import Emit, Log, Window

ALL = TableSchema(
    TableName("public", "t"),
    (
        Column("id", "bigint", pa.int64()),
        Column("flag", "boolean", pa.bool_()),
        Column("small", "smallint", pa.int16()),
        Column("real", "real", pa.float32()),
        Column("double", "double precision", pa.float64()),
        Column("price", "numeric(10,2)", pa.decimal128(10, 2)),
        Column("large", "numeric(38,10)", pa.decimal128(38, 10)),
        Column("a note", "text", pa.string()),
        Column("bytes", "bytea", pa.binary()),
        Column("day", "date", pa.date32()),
        Column("at", "timestamp", pa.timestamp("us")),
        Column("at_utc", "timestamptz", pa.timestamp("us", "UTC")),
        Column("tags", "text[]", pa.list_(pa.string())),
        Column("times", "timestamptz[]", pa.list_(pa.timestamp("us", "UTC"))),
    ),
    ("id",),
)
"""A table with every kind of value."""
UTC = datetime.UTC


def row(number: int) -> dict[str, Any]:
    """Values of `ALL`."""
    at = datetime.datetime(1500, 1, 1) + datetime.timedelta(days=365 * number, microseconds=number)
    return {
        "id": number,
        "flag": number % 2 == 0,
        "small": -number,
        "real": number / 2,
        "double": float("nan") if number % 5 == 0 else number / 3,
        "price": Decimal(number).scaleb(-2),
        "large": None if number % 3 == 0 else Decimal(f"-{number}.0000000001"),
        "a note": f'"{number}"\t\u00e4 \U0001f40d',
        "bytes": bytes([number % 256, 0]),
        "day": at.date(),
        "at": at,
        "at_utc": at.replace(tzinfo=UTC),
        "tags": [] if number % 4 == 0 else ["x", None, str(number)],
        "times": None if number % 7 == 0 else [at.replace(tzinfo=UTC)],
    }


class SpooledBatch:
    """Changes and dump rows of a table, on a spool."""

    def __init__(self, spark: SparkSession, spool: Spool) -> None:
        self._spark = spark
        self._spool = spool
        self._files: list[LogFile] = []
        self._chunks: list[Chunk] = []

    def change(self, *numbers: int, table: TableSchema = ALL, op: Op = Op.create) -> None:
        """A file of the log, with changes at the positions 10 + number."""
        writer = self._spool.log_writer(f"l-{len(self._files)}", table, before=False)
        events = [{"_op": op, "_lsn": 10 + n, "_seq": 0, "_txid": n, "_committed_at": 0, **row(n)} for n in numbers]
        kept = change_schema(table.arrow)
        events = [{name: event[name] for name in kept.names if name in event} for event in events]
        writer.append(pa.RecordBatch.from_pylist(events, kept))
        self._files.append(writer.close())

    def dump(self, *numbers: int, table: TableSchema = ALL, dump: str = "initial") -> None:
        """A chunk."""
        batch = pa.RecordBatch.from_pylist([{n: row(k)[n] for n in table.names} for k in numbers], table.arrow)
        chunk = Chunk(f"c-{len(self._chunks)}", dump, table.table, Extent())
        staged = self._spool.stage(chunk.id, table, lambda take: take(batch))
        self._chunks.append(pinned(chunk, staged.stamp))

    def batch(self, number: int = 0, *, arrow: bool = True) -> Batch:
        """The batch; with `arrow=False` as Spark reads it."""
        window = Window(10, 100_000, tuple((file,) for file in self._files))
        work = [Log(window, tuple(self._chunks)), *(Emit(window, chunk) for chunk in self._chunks)]
        found = ranges_of(self._spark, RangeFiles(self._spool), work, before=False, tasks=2)
        return Batch(number, window.end, tuple(_table(one, arrow=arrow) for one in found))


def _table(found: TableRange, *, arrow: bool) -> TableBatch:
    return TableBatch(
        found.schema.table,
        found.schema,
        found.changes,
        found.rows,
        found.truncated,
        found.incomplete,
        found.arrow if arrow else None,
    )
