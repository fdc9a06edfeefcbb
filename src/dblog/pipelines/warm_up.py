"""Starts what the first batch of a stream needs, so that a standby which becomes the leader need not wait for it.

A small stream of Spark's own runs one batch: the JVM loads the classes of a streaming query, and its batch starts
Python workers, which load our modules. Nothing is read from the log, and nothing is written to a sink.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from dblog.pipelines.running import Stream
from dblog.sinks.task_job import run_in_tasks

WARM_SECONDS = 60.0
"""How long the first batch may take, in seconds. Without it the standby is ready, only slower."""


def warm_up(spark: SparkSession, streams: Sequence[Stream], work: Path) -> None:
    """Run a batch of a stream that has nothing to do with the pipeline, and let Spark load the format."""
    done = threading.Event()

    def batch(frame: DataFrame, number: int) -> None:
        if number == 0:
            frame.isEmpty()
            run_in_tasks(spark, [0, 1], _load_modules, driver=False)
        done.set()

    with suppress(Exception):  # the stream itself will show what is wrong
        rows = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        writer = rows.writeStream.foreachBatch(batch).queryName("dblog_warm_up")
        query = writer.option("checkpointLocation", f"file://{work}/warm-up").start()
        for stream in streams[:1]:
            spark.readStream.format("dblog").options(**stream.options).load()  # asks for the schema, as the stream will
        done.wait(WARM_SECONDS)
        query.stop()


def _load_modules(number: int) -> int:
    """What a task of a sink imports."""
    import dblog.spark.ranges  # noqa: F401

    return number
