"""The net effect of a batch: one row per key, no matter how many changes the key has.

The net effect is the key's last change. If that change lacks a column (`_unchanged`), the column gets the value of the
last change of the batch that has it, unless the row was deleted in between. If no change of the batch has it, the
target keeps its value, and `_unchanged` still names the column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from dblog.core.event import RAW, WHOLE
from dblog.core.schema import TableSchema
from dblog.sinks.base import TableBatch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def net(table: TableBatch) -> DataFrame | None:
    """One row for each key of the batch: create, update, delete or read. None for an empty batch.

    It has the table's columns, `_op`, `_lsn`, `_seq`, `_unchanged`, `_raw_values` and `_whole`. `_whole` is true if the
    row was created in this batch: then the target's old values of the key do not count, and a column in `_unchanged` is
    null.
    Changes before the last truncate are left out: the sink empties the table first (`TableBatch.truncated`). Cascade
    events are left out too: a sink that gets them applies them to its rows in the order of the log.
    """
    parts = [part for part in (_net_changes(table), _dump_rows(table)) if part is not None]
    return reduce(lambda a, b: a.unionByName(b), parts) if parts else None


def with_raw(frame: DataFrame) -> DataFrame:
    """The frame with the column `_raw_values`, which rows of other makers may lack."""
    from pyspark.sql import functions as f

    return frame if RAW in frame.columns else frame.withColumn(RAW, f.lit(None).cast("string"))


def signed_key(schema: TableSchema) -> tuple[str, ...]:
    """The key columns with floats. 0 and -0 are the same key for Spark and for every database, but two different
    values. So a target must also write the key when it updates such a row."""
    return tuple(name for name in schema.key if _has_floats(schema.column(name).arrow))


def _has_floats(kind: pa.DataType) -> bool:
    return _has_floats(kind.value_type) if pa.types.is_list(kind) else pa.types.is_floating(kind)


def _dump_rows(table: TableBatch) -> DataFrame | None:
    from pyspark.sql import functions as f

    if table.rows is None:
        return None
    names = [_quoted(name) for name in table.schema.names]
    return with_raw(table.rows).select(*names, "_op", "_lsn", "_seq", "_unchanged", RAW, f.lit(False).alias(WHOLE))


def _net_changes(table: TableBatch) -> DataFrame | None:
    from pyspark.sql import functions as f

    if table.changes is None:
        return None
    changes = with_raw(table.changes).where(~f.col("_op").isin("truncate", "cascade"))
    if table.truncated is not None:
        lsn, seq = table.truncated
        changes = changes.where((f.col("_lsn") > lsn) | ((f.col("_lsn") == lsn) & (f.col("_seq") > seq)))
    order = f.struct("_lsn", "_seq")
    rest = [name for name in table.schema.names if name not in table.schema.key]
    signed = signed_key(table.schema)  # groupBy turns -0 into 0
    row = f.struct(
        *(_quoted(name) for name in (*signed, *rest)),
        *map(f.col, ("_op", "_lsn", "_seq", "_unchanged", RAW)),
    )
    begun = f.max(f.when(f.col("_op").isin("delete", "create"), order))
    found = [f.max_by(row, order).alias("_dblog_last"), begun.alias("_dblog_begun")]
    if table.incomplete:
        known = [
            f.max_by(
                f.struct(order.alias("at"), _quoted(name).alias("value"), f.col(RAW).alias("raw")),
                f.when(~f.coalesce(f.array_contains("_unchanged", name), f.lit(False)), order),
            )
            for name in rest
        ]
        found += [column.alias(f"_dblog_known{n}") for n, column in enumerate(known)]
    grouped = changes.groupBy(*(_quoted(name) for name in table.schema.key)).agg(*found)
    last = f.col("_dblog_last")
    values = {name: last.getField(name) for name in rest}
    unchanged, raw = last.getField("_unchanged"), last.getField(RAW)
    if table.incomplete:
        held = {name: _held(n) for n, name in enumerate(rest)}
        missing = {name: f.coalesce(f.array_contains(unchanged, name), f.lit(False)) for name in rest}
        values = {
            name: f.when(missing[name] & held[name], f.col(f"_dblog_known{n}").getField("value")).otherwise(
                values[name]
            )
            for n, name in enumerate(rest)
        }
        raw = _raw(raw, {n: missing[name] & held[name] for n, name in enumerate(rest)}, rest)
        left = f.array_compact(f.array(*(f.when(missing[n] & ~held[n], f.lit(n)) for n in rest)))
        unchanged = f.when(f.size(left) > 0, left)
    values |= {name: _quoted(name) for name in table.schema.key}
    values |= {name: last.getField(name) for name in signed}
    return grouped.select(
        *(values[name].alias(name) for name in table.schema.names),
        last.getField("_op").alias("_op"),
        last.getField("_lsn").alias("_lsn"),
        last.getField("_seq").alias("_seq"),
        unchanged.alias("_unchanged"),
        raw.alias(RAW),
        f.col("_dblog_begun").isNotNull().alias(WHOLE),
    )


def _raw(last: Column, held: Mapping[int, Column], names: Sequence[str]) -> Column:
    """The raw values of the last change, and of the columns whose values are from earlier changes (`held`)."""
    from pyspark.sql import functions as f

    kind = "map<string,string>"
    nothing = f.from_json(f.lit("{}"), kind)
    earlier = []
    for number, here in held.items():
        given = f.from_json(f.col(f"_dblog_known{number}").getField("raw"), kind)
        one = f.map_filter(given, partial(_named, names[number]))
        earlier.append(f.when(here, f.coalesce(one, nothing)).otherwise(nothing))
    known = f.map_concat(f.coalesce(f.from_json(last, kind), nothing), *earlier)
    return f.when(f.size(known) > 0, f.to_json(known))


def _named(wanted: str, name: Column, _: Column) -> Column:
    return name == wanted


def _held(number: int) -> Column:
    """Whether the batch has a value of the column for the row in its final state."""
    from pyspark.sql import functions as f

    known = f.col(f"_dblog_known{number}")
    begun = f.col("_dblog_begun")
    return known.isNotNull() & (begun.isNull() | (known.getField("at") >= begun))


def _quoted(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")
