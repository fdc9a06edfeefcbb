"""Small batches for the tests of what happens to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from dblog.core.event import Op
from dblog.core.schema import TableSchema
from dblog.sinks.base import TableBatch
from dblog.work.rows import Typed

Row = dict[str, Any]


def event(op: str, place: tuple[int, int], unchanged: list[str] | None = None, **values: Any) -> Row:
    assert op in Op.__members__
    return {"_op": op, "_lsn": place[0], "_seq": place[1], "_unchanged": unchanged, **values}


def frame(spark: SparkSession, schema: TableSchema, events: Iterable[Mapping[str, Any]], *, before: bool) -> DataFrame:
    """Events as the ranges of a batch have them."""
    shape = from_arrow_schema(Typed(schema, before).arrow, prefer_timestamp_ntz=True)
    return spark.createDataFrame([tuple(e.get(name) for name in shape.names) for e in events], shape)


def table_batch(
    spark: SparkSession,
    schema: TableSchema,
    changes: Iterable[Mapping[str, Any]] = (),
    rows: Iterable[Mapping[str, Any]] = (),
    *,
    before: bool = False,
) -> TableBatch:
    changes, rows = list(changes), list(rows)
    truncates = [(e["_lsn"], e["_seq"]) for e in changes if e["_op"] == "truncate"]
    return TableBatch(
        schema.table,
        schema,
        frame(spark, schema, changes, before=before) if changes else None,
        frame(spark, schema, rows, before=before) if rows else None,
        max(truncates, default=None),
        any(e["_unchanged"] for e in [*changes, *rows]),
    )


def collected(found: DataFrame) -> list[Row]:
    return [row.asDict(recursive=True) for row in found.collect()]
