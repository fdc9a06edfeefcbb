"""The history of a table (SCD type 2): a row of the target is a version of a row, with the time from and to which it
was valid.

`valid_to` is null for the present version. A change closes it, at the time of its commit, and opens the next; a delete
or a truncate only closes it. `(_lsn, _seq)` is the order of the change that opened a version. The times of a key never
go back, even if the clocks of two commits do.

A dump row shows a row's state, but not since when. If the target has another version, or none, it opens a version that
is valid from the time of writing. If the target has the same version, it does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from dblog.sinks.base import TableBatch
from dblog.sinks.lake.by_spark.current import older, same_key
from dblog.sinks.lake.columns import HISTORY_COLUMNS, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Truncate = tuple[int, int, int]
"""A truncate: its `_lsn`, its `_seq`, and its time in microseconds since 1970."""


def truncates_of(table: TableBatch, now: int) -> list[Truncate]:
    """The batch's truncates of the table, in order."""
    if table.truncated is None or table.changes is None:
        return []
    at = f"coalesce(unix_micros(_committed_at), {now})"
    found = table.changes.where("_op = 'truncate'").selectExpr("_lsn", "_seq", at).collect()
    return sorted(tuple(row) for row in found)


def versions(
    table: TableBatch,
    target: DataFrame,
    columns: Sequence[str],
    values: Mapping[str, Column],
    truncates: Sequence[Truncate],
    now: int,
) -> DataFrame:
    """The versions that a batch opens (`_close` is false), and the keys whose open version it closes.

    `target` is the table before the batch. `values` has the batch's columns in the target's types. `now` is in
    microseconds.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    key = list(table.schema.key)
    rest = [c for c in columns if c not in key]
    facts = _facts(table, columns, values, now)
    opened = target.where("valid_to IS NULL").select(
        *(f.col(quoted(c)).alias(f"_k{n}") for n, c in enumerate(key)),
        f.struct("_lsn", "_seq").alias("_opened"),
        f.col("valid_from").alias("_since"),
        f.struct(*(f.col(quoted(c)).alias(f"v{n}") for n, c in enumerate(rest)), f.lit(True).alias("there")).alias(
            "_old"
        ),
    )
    on = reduce(lambda a, b: a & b, (f.col(quoted(c)) == f.col(f"_k{n}") for n, c in enumerate(key)))
    order = f.struct("_lsn", "_seq")
    known = facts.join(opened, on, "left").where(f.col("_opened").isNull() | (order > f.col("_opened")))
    ordered = Window.partitionBy(*(quoted(c) for c in key)).orderBy("_lsn", "_seq")
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ends = f.array(*(_literal(t) for t in truncates)) if truncates else f.array().cast(_ENDS)
    filled = known.select(
        *(quoted(c) for c in key),
        *(_carried(c, n, so_far).alias(c) for n, c in enumerate(rest)),
        "_op", "_lsn", "_seq", "_old",
        f.max(f.greatest("_at", "_since")).over(so_far).alias("valid_from"),
        f.row_number().over(ordered).alias("_number"),
    )  # fmt: skip
    same = reduce(
        lambda a, b: a & b,
        (f.col(quoted(c)).eqNullSafe(f.col(f"_old.v{n}")) for n, c in enumerate(rest)),
        f.col("_old").isNotNull(),
    )
    # After a truncate there is no open version that a dump row could match.
    told = filled if truncates else filled.where(~((f.col("_op") == "read") & same))
    later = f.lead(f.struct(order.alias("order"), f.col("valid_from").alias("at"))).over(ordered)
    emptied = f.get(f.filter(ends, lambda end: end["order"] > order), f.lit(0))
    told = told.withColumn("_end", f.least(later, emptied))
    first = f.when(f.size(ends) > 0, f.least(f.struct(order.alias("order"), f.col("valid_from").alias("at")), ends[0]))
    written = [*(quoted(c) for c in columns), "_lsn", "_seq"]
    opens = told.where("_op <> 'delete'").select(
        *written,
        "valid_from",
        f.greatest(f.col("_end.at"), f.when(f.col("_end").isNotNull(), f.col("valid_from"))).alias("valid_to"),
        f.lit(False).alias("_close"),
    )
    closes = told.where("_number = 1 AND _old IS NOT NULL").select(
        *written,
        f.lit(None).cast("timestamp").alias("valid_from"),
        f.coalesce(first.getField("at"), f.col("valid_from")).alias("valid_to"),
        f.lit(True).alias("_close"),
    )
    return opens.unionByName(closes)


_ENDS = "array<struct<order:struct<_lsn:bigint,_seq:int>,at:timestamp>>"


def _literal(truncate: Truncate) -> Column:
    from pyspark.sql import functions as f

    lsn, seq, at = truncate
    order = f.struct(f.lit(lsn).cast("bigint").alias("_lsn"), f.lit(seq).cast("int").alias("_seq"))
    return f.struct(order.alias("order"), f.timestamp_micros(f.lit(at)).alias("at"))


def _facts(table: TableBatch, columns: Sequence[str], values: Mapping[str, Column], now: int) -> DataFrame:
    """All rows of the batch: the changes, and the rows of dumps."""
    from pyspark.sql import functions as f

    at = f.coalesce("_committed_at", f.timestamp_micros(f.lit(now)))
    parts = [part for part in (table.changes, table.rows) if part is not None]
    return reduce(
        lambda a, b: a.unionByName(b),
        (
            part.where("_op <> 'truncate'").select(
                *(values[c].alias(c) for c in columns), "_op", "_lsn", "_seq", "_unchanged", at.alias("_at")
            )
            for part in parts
        ),
    )


def _carried(column: str, number: int, so_far: object) -> Column:
    """A column's value. If the log has left it out, the value of the version before."""
    from pyspark.sql import functions as f

    left_out = f.coalesce(f.array_contains("_unchanged", column), f.lit(False)) & ~f.col("_op").isin("create", "delete")
    given = f.when(~left_out, f.struct(f.col(quoted(column)).alias("v")))
    before = f.struct(f.col(f"_old.v{number}").alias("v"))
    return f.coalesce(f.last(given, ignorenulls=True).over(so_far), before).getField("v")  # type: ignore[arg-type]


def merge(target: str, source: str, key: Sequence[str], columns: Sequence[str], truncates: Sequence[Truncate]) -> str:
    """The statement that closes and opens versions."""
    written = [*columns, *HISTORY_COLUMNS]
    gone = ""
    if truncates:
        lsn, seq, at = truncates[0]
        when = f"greatest(t.valid_from, timestamp_micros({at}))"
        gone = f"""WHEN NOT MATCHED BY SOURCE AND t.valid_to IS NULL AND {older(lsn, seq)}
            THEN UPDATE SET t.valid_to = {when}"""
    return f"""
        MERGE INTO {target} t USING {source} s ON s._close AND t.valid_to IS NULL AND {same_key(key)}
        WHEN MATCHED THEN UPDATE SET t.valid_to = greatest(s.valid_to, t.valid_from)
        WHEN NOT MATCHED AND NOT s._close THEN INSERT ({", ".join(map(quoted, written))})
            VALUES ({", ".join(f"s.{quoted(c)}" for c in written)})
        {gone}"""
