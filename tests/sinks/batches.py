"""Batches that a test makes up, for what no database is needed for."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from dblog.core.event import DUMP_SEQ
from dblog.core.schema import Column, TableName, TableSchema
from dblog.sinks.base import Batch, TableBatch
from dblog.work.rows import Typed

T = TableSchema(
    TableName("public", "t"), (Column("id", "integer", pa.int32()), Column("note", "text", pa.string())), ("id",)
)
COMMITTED = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)


def frame(
    spark: SparkSession, rows: list[dict[str, Any]], schema: TableSchema = T, partitions: int | None = None
) -> DataFrame:
    """Rows of a table: `op`, `lsn` and so on are the metadata, the others are columns."""
    told = ("op", "lsn", "seq", "txid", "committed_at", "dump", "schema", "unchanged", "raw_values")
    kind = from_arrow_schema(Typed(schema, before=False).arrow, prefer_timestamp_ntz=True)
    tuples = [(*(row.get(c) for c in schema.names), *(row.get(name) for name in told)) for row in rows]
    return spark.createDataFrame(spark.sparkContext.parallelize(tuples, partitions or 1), kind)


@dataclass(frozen=True)
class GivenRows:
    """Rows of a table for tasks, from memory: the log in parts that follow each other, and chunks."""

    log: tuple[tuple[pa.RecordBatch, ...], ...]
    chunks: tuple[pa.RecordBatch, ...] = ()
    weight: int = 1 << 30
    """By default so much that a job is needed."""
    overlapping: bool = False

    def changes(self) -> Iterator[pa.RecordBatch]:
        return (batch for part in self.log for batch in part)

    def dump_rows(self) -> Iterator[pa.RecordBatch]:
        return iter(self.chunks)

    def split(self) -> list[GivenRows]:
        return [self]

    def log_parts(self) -> list[GivenRows]:
        return [replace(self, log=(part,), chunks=()) for part in self.log]

    def dump_parts(self) -> list[GivenRows]:
        return [replace(self, log=(), chunks=(chunk,)) for chunk in self.chunks]


def change(op: str, lsn: int, key: int | None = None, note: str | None = None, **more: Any) -> dict[str, Any]:
    return {"op": op, "lsn": lsn, "seq": 0, "id": key, "note": note, "txid": lsn, "committed_at": COMMITTED} | more


def read(lsn: int, key: int, note: str | None = None) -> dict[str, Any]:
    return {"op": "read", "lsn": lsn, "seq": DUMP_SEQ, "id": key, "note": note, "dump": "initial"}


def batch(
    number: int,
    changes: DataFrame | None = None,
    rows: DataFrame | None = None,
    schema: TableSchema = T,
) -> Batch:
    return Batch(number, 1000 * (number + 1), (TableBatch(schema.table, schema, changes, rows, None, False),))
