"""Commit-to-sink latency: the writer stamps a row just before its commit, foreachBatch looks at the same clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from bench.database import Database
from bench.figures import Figure, Target, percentile, ratio
from bench.ours import Ours, ended

COMMIT_SECONDS = 0.2
TABLE = "hot"


class Arrivals:
    """A sink that keeps when each stamped row was written and when it came."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def __call__(self, batch: DataFrame, number: int) -> None:
        # one action: the dump's rows are read and dropped in the same pass
        stamps = batch.filter("_op = 'update'").select("score").collect()
        now = time.time()
        self.seen += [(row.score, now) for row in stamps]

    def wait_for(self, written: float, query: StreamingQuery, timeout: float = 120.0) -> None:
        """Wait until a row has come that was written at this time or later: then all earlier ones have."""
        deadline = time.monotonic() + timeout
        while not self.seen or self.seen[-1][0] < written:
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
            if time.monotonic() > deadline:
                raise TimeoutError("a change did not arrive")
            time.sleep(0.02)

    def between(self, begin: float, end: float) -> list[float]:
        """Milliseconds from commit to sink of the rows that were written in between."""
        return [(came - wrote) * 1000 for wrote, came in self.seen if begin <= wrote < end]


def measure(
    database: Database, ours: Ours, rows: int, seconds: float, rounds: int
) -> tuple[list[Figure], list[Target]]:
    idle: list[list[float]] = []
    busy: list[list[float]] = []
    database.fill(TABLE, rows)
    for _ in range(rounds):
        idle.append(_idle(database, ours, seconds))
        busy.append(_dumping(database, ours))
    figures = [
        _figure("idle, median", idle, 0.5),
        _figure("idle, 95th percentile", idle, 0.95),
        _figure("idle, 99th percentile", idle, 0.99),
        _figure("during a dump of the same table, median", busy, 0.5),
        _figure("during a dump of the same table, 95th percentile", busy, 0.95),
    ]
    targets = [
        Target("latency when idle, median", figures[0].value, " ms", 80, least=False, aim=60),
        Target("latency when idle, 99th percentile", figures[2].value, " ms", 150, least=False, aim=120),
        ratio("latency during a dump, against idle", figures[3], figures[0], 2.5, least=False, aim=2.0),
    ]
    return figures, targets


def _figure(what: str, rounds: list[list[float]], share: float) -> Figure:
    values = tuple(percentile(samples, share) for samples in rounds)
    return Figure("latency", what, values, "ms", f"{sum(map(len, rounds))} commits")


def _idle(database: Database, ours: Ours, seconds: float) -> list[float]:
    arrivals = Arrivals()
    with (
        ours.stream(table=f"{database.schema}.{TABLE}", dump="never") as stream,
        stream.following(arrivals) as query,
        _writing(database),
    ):
        arrivals.wait_for(time.time() + 1.0, query)  # the first batches start processes and compile code
        begin = time.time()
        time.sleep(seconds)
        end = time.time()
        arrivals.wait_for(end, query)
    return arrivals.between(begin, end)


def _dumping(database: Database, ours: Ours) -> list[float]:
    arrivals = Arrivals()
    with (
        ours.stream(table=f"{database.schema}.{TABLE}") as stream,
        _writing(database),
        stream.following(arrivals) as query,
    ):
        begin = ended(query.recentProgress[0])
        while (end := _dump_end(query)) is None:
            time.sleep(0.1)
        arrivals.wait_for(end, query)
    return arrivals.between(begin, end)


def _dump_end(query: StreamingQuery) -> float | None:
    """When the last batch with chunks began, or None while there are more to come."""
    at = None
    for batch in query.recentProgress:
        offset = str(batch["sources"][0]["endOffset"])
        dumping = any(f'"{part}"' in offset or f"'{part}'" in offset for part in ("read", "emit", "dumps"))
        if dumping:
            at = None
        elif at is None and batch["batchId"] > 0:
            at = ended(batch) - batch["durationMs"]["triggerExecution"] / 1000
    return at


@contextmanager
def _writing(database: Database) -> Iterator[None]:
    """Somebody commits an update of one row every now and then."""
    stop = threading.Event()

    def write() -> None:
        connection = database.connect()
        with connection.cursor() as cursor:
            number = 0
            while not stop.wait(COMMIT_SECONDS):
                number = number % 1000 + 1
                cursor.execute(f"update {TABLE} set score = %s where id = %s", (time.time(), number))
        connection.close()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
