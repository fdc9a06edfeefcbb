"""Into a lake: dumps, catch-up, many tables, scattered changes, by the native writers of the lake sinks.

Beside each figure stands the same work into Spark's `noop`: what the source alone takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from bench.figures import Figure, Target, ratio, rotated
from bench.machine import rest
from bench.ours import Drain, Ours, Stream, middle
from bench.postgres import Postgres
from dblog.core.settings import read_settings
from dblog.pipelines.delivery import Delivery
from dblog.pipelines.sink_kinds import sink_class
from dblog.sinks.base import Batch, Sink, SinkContext

FORMATS = ("delta", "iceberg")
MANY = (20, 200)
"""How many tables one transaction touches."""
SMALL_ROWS = 10
"""Rows of each of the many tables."""
REPEATED = 5
"""How often a small thing is measured in one stream."""

Measured = tuple[list[Figure], list[Target]]


class Timed(Sink):
    """Notes when a sink has written which batch, and how long it took."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink.given, sink.context)
        self._sink = sink
        self.seconds: list[float] = []
        self.positions: list[int] = []
        self.rows = 0

    def write(self, batch: Batch) -> None:
        begin = time.monotonic()
        self._sink.write(batch)
        self.seconds.append(time.monotonic() - begin)
        self.positions.append(batch.position)


class LakeStream:
    """A stream of ours into a lake."""

    def __init__(self, ours: Ours, stream: Stream, form: str, folder: Path) -> None:
        kind = sink_class(form)
        given = {"path": str(folder / form), "writer": "native"}
        self._made = kind(read_settings("sink", given, kind.settings), SinkContext("bench", folder))
        self._made.check()
        self._made.open(ours.spark)
        self.sink = Timed(self._made)
        self._options = {**stream.options, "deliver": "ranges"}
        self._spark = ours.spark
        self._checkpoint = stream.checkpoint

    def _query(self, **trigger: Any) -> StreamingQuery:
        delivery = Delivery(self._spark, self.sink, self._options)
        rows = self._spark.readStream.format("dblog").options(**self._options).load()
        writer = rows.writeStream.foreachBatch(delivery).option("checkpointLocation", self._checkpoint)
        return writer.trigger(**trigger).start()

    def drain(self) -> float:
        """Write everything that there is. Returns the seconds from the first batch's start to the last one's end."""
        query = self._query(availableNow=True)
        query.awaitTermination()
        return sum(p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]) / 1000

    @contextmanager
    def following(self) -> Iterator[None]:
        query = self._query(processingTime="0 seconds")
        try:
            yield
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
        finally:
            query.stop()
            self._made.close()

    def until(self, position: int, seconds: float = 300.0) -> float:
        """Wait until the log is in the lake up to a position. Returns the seconds that it took."""
        begin = time.monotonic()
        while not self.sink.positions or self.sink.positions[-1] < position:
            if time.monotonic() - begin > seconds:
                raise TimeoutError(f"the lake has not got there in {seconds:.0f} s")
            time.sleep(0.005)
        return time.monotonic() - begin


def measure(database: Postgres, ours: Ours, rows: int, changes: int, rounds: int) -> Measured:
    figures: list[Figure] = []
    targets: list[Target] = []
    for part in (
        lambda: _dumps(database, ours, rows, rounds),
        lambda: _catchup(database, ours, changes, rounds),
        lambda: _many(database, ours),
        lambda: _scattered(database, ours, rows // 2),
    ):
        more = part()
        figures += more[0]
        targets += more[1]
    return figures, targets


def _dumps(database: Postgres, ours: Ours, rows: int, rounds: int) -> Measured:
    database.fill("big", rows)
    noop: list[Drain] = []
    rates: dict[str, list[float]] = {form: [] for form in FORMATS}

    def drain() -> None:
        rest()
        with ours.stream(table="public.big") as stream:
            noop.append(stream.drain())

    def into(form: str) -> Callable[[], None]:
        def write() -> None:
            rest()
            with ours.stream(tables="public.big") as stream:
                rates[form].append(rows / LakeStream(ours, stream, form, stream.folder).drain())

        return write

    drain()
    noop.clear()
    for number in range(rounds):
        for side in rotated([drain, *map(into, FORMATS)], number):
            side()
    return _against_noop("dump", "rows/s", noop, rates, 0.5)


def _catchup(database: Postgres, ours: Ours, changes: int, rounds: int) -> Measured:
    noop: list[Drain] = []
    rates: dict[str, list[float]] = {form: [] for form in FORMATS}
    for number in range(rounds):
        with (
            ours.stream(table="public.wide", dump="never") as plain,
            ours.stream(tables="public.wide", dump="never") as delta,
            ours.stream(tables="public.wide", dump="never") as iceberg,
        ):
            lakes = {
                form: LakeStream(ours, stream, form, stream.folder)
                for form, stream in zip(FORMATS, (delta, iceberg), strict=True)
            }
            plain.drain()
            for lake in lakes.values():
                lake.drain()
            written = database.write_stretch(changes).changes

            def drain(plain: Stream = plain) -> None:
                rest()
                noop.append(plain.drain())

            def into(form: str, lake: LakeStream, written: int = written) -> Callable[[], None]:
                def write() -> None:
                    rest()
                    rates[form].append(written / lake.drain())

                return write

            for side in rotated([drain, *(into(form, lake) for form, lake in lakes.items())], number):
                side()
    return _against_noop("catch-up", "changes/s", noop, rates, 0.4)


def _against_noop(part: str, unit: str, noop: list[Drain], rates: dict[str, list[float]], least: float) -> Measured:
    plain = Figure(f"lakes, {part}", "readStream into noop", tuple(d.rate for d in noop), unit, _batches(noop))
    figures, targets = [plain], []
    for form, found in rates.items():
        figures.append(Figure(f"lakes, {part}", f"into {form}, native writer", tuple(found), unit))
        targets.append(ratio(f"{part} into {form}, against noop", figures[-1], plain, least))
    return figures, targets


def _batches(drains: list[Drain]) -> str:
    return f"{middle(drains).phases['batches']:.0f} batches"


def _many(database: Postgres, ours: Ours) -> Measured:
    figures: list[Figure] = []
    targets: list[Target] = []
    for count, dump_bound, change_bound in zip(MANY, (5.0, 30.0), (1.5, 8.0), strict=True):
        names = [f"many_{n:03}" for n in range(count)]
        for name in names:
            database.fill(name, SMALL_ROWS)
        for form in FORMATS:
            rest()
            with ours.stream(tables="public.many_*") as stream:
                lake = LakeStream(ours, stream, form, stream.folder)
                dumped = lake.drain()
                took = []
                with lake.following():
                    for _ in range(REPEATED):
                        database.run("; ".join(f"update {name} set n = n + 1" for name in names))  # one transaction
                        took.append(lake.until(_position(database)))
            figures.append(Figure("lakes, many tables", f"first dump of {count} into {form}", (dumped,), "s"))
            figures.append(Figure("lakes, many tables", f"one transaction over {count} into {form}", tuple(took), "s"))
            for what, figure, bound in zip(
                ("first dump of", "transaction over"), figures[-2:], (dump_bound, change_bound), strict=True
            ):
                targets.append(Target(f"{what} {count} tables, {form}", figure.value, " s", bound, least=False))
        for name in names:
            database.run(f"drop table {name}")
    return figures, targets


def _scattered(database: Postgres, ours: Ours, rows: int) -> Measured:
    """Changes of a thousand rows here and there in a large table: the sink's own time."""
    database.fill("big", rows)
    figures: list[Figure] = []
    targets: list[Target] = []
    for form in FORMATS:
        rest()
        with ours.stream(tables="public.big") as stream:
            lake = LakeStream(ours, stream, form, stream.folder)
            lake.drain()
            with lake.following():
                before = len(lake.sink.seconds)
                for number in range(REPEATED):
                    step = max(1, rows // 1000)
                    database.run(f"update big set n = n + 1 where id % {step} = {number % step}")
                    lake.until(_position(database))
                found = tuple(lake.sink.seconds[before:])
        figures.append(Figure("lakes, scattered", f"1,000 changes into {rows:,} rows, {form}", found, "s"))
        targets.append(Target(f"1,000 scattered changes, {form}", figures[-1].value, " s", 2.0, least=False))
    return figures, targets


def _position(database: Postgres) -> int:
    """The end of the log as a number."""
    high, low = database.position().split("/")
    return (int(high, 16) << 32) + int(low, 16)
