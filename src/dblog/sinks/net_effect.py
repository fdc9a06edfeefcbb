"""What a batch comes to for each key: one row, however often the key was changed.

The net effect of a key's changes is its last one, with a twist: a change may leave columns out (`_unchanged`). Such a
column has the value that an earlier change of the batch gave it, as long as the row was not deleted in between; else
the target's value stays, and the column is still named in `_unchanged`.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from dblog.core.event import WHOLE
from dblog.core.schema import TableSchema
from dblog.sinks.base import TableBatch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def net(table: TableBatch) -> DataFrame | None:
    """One row for each key of the batch: create, update, delete or read; None when there is nothing.

    It has the table's columns, `_op`, `_lsn`, `_seq`, `_unchanged` and `_whole`: whether the row began in this batch,
    so that nothing of what the target has of that key is left, and a column in `_unchanged` is null. What came before
    the table was emptied for the last time is left out: `TableBatch.truncated` is for the sink to obey first.
    """
    parts = [part for part in (_net_changes(table), _dump_rows(table)) if part is not None]
    return reduce(lambda a, b: a.unionByName(b), parts) if parts else None


def signed_key(schema: TableSchema) -> tuple[str, ...]:
    """The key columns that hold floats: 0 and -0 are one key to Spark and to every database, and two values. A target
    that has the one and is given the other must write the key too."""
    return tuple(name for name in schema.key if _has_floats(schema.column(name).arrow))


def _has_floats(kind: pa.DataType) -> bool:
    return _has_floats(kind.value_type) if pa.types.is_list(kind) else pa.types.is_floating(kind)


def _dump_rows(table: TableBatch) -> DataFrame | None:
    from pyspark.sql import functions as f

    if table.rows is None:
        return None
    names = [_quoted(name) for name in table.schema.names]
    return table.rows.select(*names, "_op", "_lsn", "_seq", "_unchanged", f.lit(False).alias(WHOLE))


def _net_changes(table: TableBatch) -> DataFrame | None:
    from pyspark.sql import functions as f

    if table.changes is None:
        return None
    changes = table.changes.where(f.col("_op") != "truncate")
    if table.truncated is not None:
        lsn, seq = table.truncated
        changes = changes.where((f.col("_lsn") > lsn) | ((f.col("_lsn") == lsn) & (f.col("_seq") > seq)))
    order = f.struct("_lsn", "_seq")
    rest = [name for name in table.schema.names if name not in table.schema.key]
    signed = signed_key(table.schema)  # grouping makes 0 of -0
    row = f.struct(
        *(_quoted(name) for name in (*signed, *rest)), f.col("_op"), f.col("_lsn"), f.col("_seq"), f.col("_unchanged")
    )
    begun = f.max(f.when(f.col("_op").isin("delete", "create"), order))
    found = [f.max_by(row, order).alias("_dblog_last"), begun.alias("_dblog_begun")]
    if table.incomplete:
        known = [
            f.max_by(
                f.struct(order.alias("at"), _quoted(name).alias("value")),
                f.when(~f.coalesce(f.array_contains("_unchanged", name), f.lit(False)), order),
            )
            for name in rest
        ]
        found += [column.alias(f"_dblog_known{n}") for n, column in enumerate(known)]
    grouped = changes.groupBy(*(_quoted(name) for name in table.schema.key)).agg(*found)
    last = f.col("_dblog_last")
    values = {name: last.getField(name) for name in rest}
    unchanged = last.getField("_unchanged")
    if table.incomplete:
        held = {name: _held(n) for n, name in enumerate(rest)}
        missing = {name: f.coalesce(f.array_contains(unchanged, name), f.lit(False)) for name in rest}
        values = {
            name: f.when(missing[name] & held[name], f.col(f"_dblog_known{n}").getField("value")).otherwise(
                values[name]
            )
            for n, name in enumerate(rest)
        }
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
        f.col("_dblog_begun").isNotNull().alias(WHOLE),
    )


def _held(number: int) -> Column:
    """Whether the batch has a value for the column that belongs to the row as it is at the end."""
    from pyspark.sql import functions as f

    known = f.col(f"_dblog_known{number}")
    begun = f.col("_dblog_begun")
    return known.isNotNull() & (begun.isNull() | (known.getField("at") >= begun))


def _quoted(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")
