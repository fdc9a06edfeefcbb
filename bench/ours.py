"""Our side: queries of one Spark session, and what Spark itself says of how long their batches took."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dblog
from bench.cpu import metered
from bench.database import Database
from bench.figures import NO_CPU, Cpu
from dblog.spark.progress import batches

Progress = Mapping[str, Any]

WARM_ROWS = 200_000
"""Enough for Java to compile what every row passes through; Debezium's figures leave out its start as well."""


@dataclass(frozen=True)
class Drain:
    """A query that ended by itself when it had delivered everything."""

    rows: int
    seconds: float
    """From the start of its first trigger to the end of the last batch that had rows."""
    total_seconds: float
    """With the start of the query and its Python processes, and with the look that finds nothing more."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent in each phase of all triggers (Spark's durationMs), and the number of batches."""
    cpu: Cpu = NO_CPU
    """Processor seconds of the whole query, not yet per million."""

    @property
    def rate(self) -> float:
        return self.rows / max(self.seconds, 1e-9)


class Ours:
    """A Spark session, and queries on it that leave nothing behind."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._folder = Path(tempfile.mkdtemp(prefix="dblog-bench-"))
        self._names = (f"bench_{i}" for i in itertools.count())
        self.spark: SparkSession = dblog.session(
            "bench", spark__ui__enabled="false", spark__sql__streaming__numRecentProgressUpdates="100000"
        )
        self.spark.sparkContext.setLogLevel("OFF")  # a query that fails raises; one that is stopped logs stack traces
        database.fill("warm", WARM_ROWS)
        self.warm()

    def close(self) -> None:
        self.spark.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def stream(self, **options: str) -> Iterator[Stream]:
        """A stream with a slot, a spool and a checkpoint of its own, which go with it."""
        name = next(self._names)
        stream = Stream(self.spark, self.database, self._folder / name, {"slot": name, **options})
        try:
            yield stream
        finally:
            self.database.forget(name)
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def warm(self) -> None:
        """Deliver a small table, so that Java has compiled the path and Python's workers are there."""
        with self.stream(table=f"{self.database.schema}.warm") as stream:
            stream.drain()


class Stream:
    """One stream of ours: it may be stopped and gone on with."""

    def __init__(self, spark: SparkSession, database: Database, folder: Path, options: Mapping[str, str]) -> None:
        self._spark, self._database = spark, database
        self.folder = folder
        self.checkpoint = str(folder / "checkpoint")
        self.options = {"url": database.url, "spool": str(folder / "spool"), **options}

    def _changes(self) -> DataFrame:
        return self._spark.readStream.format("dblog").options(**self.options).load()

    def drain(self) -> Drain:
        """Deliver what there is into the void."""
        begin = time.monotonic()
        writer = self._changes().writeStream.format("noop").option("checkpointLocation", self.checkpoint)
        with metered(own=[jvm(self._spark)], source=[self._database.pid], here=True) as sides:
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
        return replace(_drain(query, time.monotonic() - begin), cpu=sides.used)

    @contextmanager
    def following(
        self, sink: Callable[[DataFrame, int], None] | None = None, *, every: str | None = None
    ) -> Iterator[StreamingQuery]:
        """Run until the block ends: into `sink`, or into the void; a batch at a time, or one `every` so often."""
        writer = self._changes().writeStream.option("checkpointLocation", self.checkpoint)
        if every is not None:
            writer = writer.trigger(processingTime=every)
        query = (writer.foreachBatch(sink) if sink else writer.format("noop")).start()
        try:
            wait_for_batch(query)
            yield query
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
        finally:
            query.stop()


def jvm(spark: SparkSession) -> int:
    """The process of Spark's driver: the workers and the source's process are below it."""
    gateway: Any = spark.sparkContext._gateway
    return int(gateway.proc.pid)


def wait_for_batch(query: StreamingQuery, timeout: float = 60.0) -> None:
    """Wait until the query has finished its first batch."""
    deadline = time.monotonic() + timeout
    while query.isActive and not query.recentProgress:
        if time.monotonic() > deadline:
            raise TimeoutError("the query did not finish a batch")
        time.sleep(0.02)


def _drain(query: StreamingQuery, total: float) -> Drain:
    done = batches(query)
    phases: dict[str, float] = {"batches": len(done)}
    for batch in done:
        for name, millis in batch["durationMs"].items():
            phases[name] = phases.get(name, 0.0) + millis / 1000
    rows = sum(p["numInputRows"] for p in done)
    full = [p for p in done if p["numInputRows"]]
    seconds = ended(full[-1]) - began(done[0]) if full else 0.0
    return Drain(rows, seconds, total, phases)


def began(batch: Progress) -> float:
    return datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()


def ended(batch: Progress) -> float:
    return began(batch) + float(batch["durationMs"]["triggerExecution"]) / 1000


def middle(drains: list[Drain]) -> Drain:
    """The drain of median speed."""
    return (
        sorted(drains, key=lambda d: d.rate)[len(drains) // 2]
        if len(drains) % 2
        else min(drains, key=lambda d: abs(d.rate - median(x.rate for x in drains)))
    )
