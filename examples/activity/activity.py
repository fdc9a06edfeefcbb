"""A database's activity: how often what was done to which table, by the second in which it was committed.

The counts are a plain aggregation of Spark's over the log. Each batch writes the new totals of the seconds that it has
touched, so that a batch which comes again writes the same totals again: every change counts exactly once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

LATE = "10 minutes"
"""So long Spark keeps the counts of a second in mind. The log comes in the order of commits, however late it is read:
only a clock that is set back by more than that would make changes be left out."""


def start(spark: SparkSession, url: str, folder: Path, file: Path) -> StreamingQuery:
    """Count what happens from now on, in a table `activity` of a SQLite file."""
    changes = (
        spark.readStream.format("dblog")
        .option("url", url)
        .option("tables", "public.*")
        .option("dump", "never")
        .option("slot", "activity")
        .option("spool", str(folder / "spool"))
        .option("state", "off")
        .load()
    )
    return (
        counts(changes)
        .writeStream.outputMode("update")
        .foreachBatch(into(file))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )


def counts(changes: DataFrame) -> DataFrame:
    """How many changes of each kind each table had in each second."""
    second = f.window("_committed_at", "1 second").start
    kinds = changes.withWatermark("_committed_at", LATE).groupBy(second.alias("second"), "table", "op")
    return kinds.count()


def into(file: Path) -> Callable[[DataFrame, int], None]:
    """Writes totals to a file. A batch has a row for each second, table and kind of change: few."""

    def write(totals: DataFrame, batch: int) -> None:
        rows = totals.selectExpr("date_format(second, 'yyyy-MM-dd HH:mm:ss')", "`table`", "op", "count").collect()
        with closing(sqlite3.connect(file)) as activity, activity:
            activity.execute(
                "create table if not exists activity (second, name, op, n, primary key (second, name, op))"
            )
            activity.executemany("insert or replace into activity values (?, ?, ?, ?)", rows)

    return write
