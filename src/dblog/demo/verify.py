"""Compares the demo's result with the source. It reads only the delivered files, as any reader would.

It checks two things for every table. The last event of each key, by `(_lsn, _seq)`, equals the row of a plain select of
the source. And no key goes back in time: in the order of delivery its `(_lsn, _seq)` only grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as f

from dblog.demo.shop import ShopTable

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Difference:
    """A row that differs from the source."""

    table: str
    key: Row
    what: str


@dataclass(frozen=True)
class Findings:
    """The result of the check of one table."""

    rows: int
    """Rows in the source."""
    events: int
    """Changes of the log in the result."""
    dumped: int
    differences: tuple[Difference, ...]


def examine(spark: SparkSession, table: ShopTable, source: Sequence[Row], folder: Path) -> Findings:
    """Compare the delivered events of a table with the source's rows."""
    events = spark.read.parquet(str(folder)).withColumn("_order", f.struct("_lsn", "_seq")).cache()
    delivered = Window.partitionBy(*table.key).orderBy("batch", "_row")
    newest = Window.partitionBy(*table.key).orderBy(f.desc("_order"))
    ordered = events.withColumn("_earlier", f.lag("_order").over(delivered))
    late = ordered.where("_order <= _earlier").select(*table.key, "batch", "_op").collect()
    last = events.withColumn("_rank", f.row_number().over(newest)).where("_rank = 1 and _op <> 'delete'")
    counts = {row["_op"]: row["count"] for row in events.groupBy("_op").count().collect()}
    rows = [tuple(row.values()) for row in last.select(*table.columns).toArrow().to_pylist()]
    events.unpersist()
    dumped = counts.pop("read", 0)
    size = len(table.key)
    went_back = [
        Difference(
            table.name, tuple(row[:size]), f"{row['_op']} of batch {row['batch']} was delivered after a newer event"
        )
        for row in late
    ]
    return Findings(len(source), sum(counts.values()), dumped, (*went_back, *compare(table, source, rows)))


def compare(table: ShopTable, source: Sequence[Row], delivered: Sequence[Row]) -> list[Difference]:
    """The rows that differ."""
    at = [table.columns.index(name) for name in table.key]
    theirs = {tuple(row[i] for i in at): row for row in source}
    ours = {tuple(row[i] for i in at): row for row in delivered}
    found = [Difference(table.name, key, "is missing from the result") for key in theirs.keys() - ours.keys()]
    found += [Difference(table.name, key, "is no longer in the source") for key in ours.keys() - theirs.keys()]
    for key in theirs.keys() & ours.keys():
        wrong = [
            f"{name} is {_shown(mine)}, in the source {_shown(right)}"
            for name, mine, right in zip(table.columns, ours[key], theirs[key], strict=True)
            if mine != right
        ]
        if wrong:
            found.append(Difference(table.name, key, "; ".join(wrong)))
    return sorted(found, key=lambda difference: difference.key)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | list) else str(value)
