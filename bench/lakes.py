"""Into a lake: dumps, catch-up, many tables, scattered changes, by the native writers of the lake sinks.

Beside dump and catch-up stands the same work into Spark's `noop`, which is what the source alone takes, and by others
(`bench.lake_peers`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from bench import lake_peers
from bench.cpu import metered
from bench.database import Stretch
from bench.figures import Cpu, Figure, Measured, Target, joined, ratio, rotated
from bench.lake_peers import SparkPeer, Work, spark_peer
from bench.machine import rest
from bench.ours import Ours, Stream, jvm
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
ENDS, WARM_UP = 10, 20
"""The batches that are compared with each other, the first and the last ones; and those before the first ones."""
LASTING_ROWS = 100_000
"""Rows of the table that gets many batches."""
NOOP = "readStream into noop"
SPARK, SPARK_PARQUET = "Spark's JDBC read and Delta write", "Spark's JDBC read and Parquet write"
SPARK_MERGE = "Spark's JDBC read and MERGE into Delta"
DEBEZIUM = "Debezium's JSON merged into Delta by Spark"
DEBEZIUM_SHARE = 2 / 15
"""The part of a table that Debezium copies: it does so at an even pace."""


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
        self._spark, self._database = ours.spark, ours.database
        self._checkpoint = stream.checkpoint

    def _query(self, **trigger: Any) -> StreamingQuery:
        delivery = Delivery(self._spark, self.sink, self._options)
        rows = self._spark.readStream.format("dblog").options(**self._options).load()
        writer = rows.writeStream.foreachBatch(delivery).option("checkpointLocation", self._checkpoint)
        return writer.trigger(**trigger).start()

    def drain(self) -> tuple[float, Cpu]:
        """Write everything that there is. Returns the seconds from the first batch's start to the last one's end, and
        the processor time of the whole query."""
        with metered(own=[jvm(self._spark)], source=[self._database.pid], here=True) as sides:
            query = self._query(availableNow=True)
            query.awaitTermination()
        full = [p for p in query.recentProgress if p["numInputRows"]]
        return sum(p["durationMs"]["triggerExecution"] for p in full) / 1000, sides.used

    def work(self, rows: int) -> Work:
        """Write rows or changes that wait."""
        seconds, cpu = self.drain()
        return Work(rows / seconds, cpu.per_million(rows))

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


@dataclass
class Side:
    """One way, round by round."""

    works: list[Work] = field(default_factory=list)

    def figure(self, part: str, what: str, unit: str) -> Figure:
        return Figure(part, what, tuple(w.rate for w in self.works), unit, cpu=tuple(w.cpu for w in self.works))


def measure(
    database: Postgres, ours: Ours, rows: int, changes: int, rounds: int, *, against_debezium: bool
) -> Measured:
    with ExitStack() as stack:
        peer = stack.enter_context(spark_peer(database)) if lake_peers.available() else None
        if peer is None:
            print(f"without another Spark: scripts/sparks.sh puts PySpark {lake_peers.MINOR} beside the environment's")
        dumps = _dumps(database, ours, peer, rows, rounds, against_debezium=against_debezium)
        catchup = _catchup(database, ours, peer, changes, rounds, against_debezium=against_debezium)
    return joined([dumps, catchup, _many(database, ours), _scattered(database, ours, rows // 2)])


def _dumps(
    database: Postgres, ours: Ours, peer: SparkPeer | None, rows: int, rounds: int, *, against_debezium: bool
) -> Measured:
    database.fill("big", rows)
    sides: dict[str, Side] = {}
    steps: dict[str, Callable[[], Work]] = {NOOP: lambda: _noop(ours, rows)}
    for form in FORMATS:
        steps[form] = lambda form=form: _into(ours, form, rows)  # type: ignore[misc]
    if peer is not None:
        steps[SPARK] = lambda: peer.dump("big", rows)
        steps[SPARK_PARQUET] = lambda: peer.dump("big", rows, "parquet")
        if against_debezium:
            steps[DEBEZIUM] = lambda: peer.debezium_dump("big", max(1, int(rows * DEBEZIUM_SHARE)))
    _noop(ours, rows)
    for number in range(rounds):
        _round(steps, sides, number)
    return _compared("dump", "rows/s", sides, 0.5, 0.8)


def _noop(ours: Ours, rows: int) -> Work:
    with ours.stream(table="public.big") as stream:
        drain = stream.drain()
    return Work(drain.rate, drain.cpu.per_million(rows))


def _into(ours: Ours, form: str, rows: int) -> Work:
    with ours.stream(tables="public.big") as stream:
        return LakeStream(ours, stream, form, stream.folder).work(rows)


def _catchup(
    database: Postgres, ours: Ours, peer: SparkPeer | None, changes: int, rounds: int, *, against_debezium: bool
) -> Measured:
    sides: dict[str, Side] = {}
    for number in range(rounds):
        with (
            database.readers(),
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
            copy = peer.copy_of("wide") if peer is not None else ""
            stretch = database.write_stretch(changes)
            _round(_waiting(plain, lakes, peer, copy, stretch, against_debezium=against_debezium), sides, number)
    return _compared("catch-up", "changes/s", sides, 0.4, 0.7)


def _waiting(
    plain: Stream, lakes: dict[str, LakeStream], peer: SparkPeer | None, copy: str, stretch: Stretch, *,
    against_debezium: bool,
) -> dict[str, Callable[[], Work]]:  # fmt: skip
    """The sides that bring the changes of a stretch to where each of them has its table."""

    def drain() -> Work:
        drained = plain.drain()
        return Work(drained.rate, drained.cpu.per_million(stretch.changes))

    steps: dict[str, Callable[[], Work]] = {NOOP: drain}
    for form, lake in lakes.items():
        steps[form] = lambda lake=lake: lake.work(stretch.changes)  # type: ignore[misc]
    if peer is not None:
        steps[SPARK_MERGE] = lambda: peer.refresh("wide", copy, stretch.changes)
        if against_debezium:
            steps[DEBEZIUM] = lambda: peer.debezium_catchup(stretch)
    return steps


def _round(steps: dict[str, Callable[[], Work]], sides: dict[str, Side], number: int) -> None:
    def step(name: str) -> Callable[[], None]:
        def work() -> None:
            rest()
            sides.setdefault(name, Side()).works.append(steps[name]())

        return work

    for side in rotated([step(name) for name in steps], number):
        side()


def _compared(part: str, unit: str, sides: dict[str, Side], least: float, aim: float) -> Measured:
    figures = {
        name: side.figure(f"lakes, {part}", f"into {name}, native writer" if name in FORMATS else name, unit)
        for name, side in sides.items()
    }
    targets = [ratio(f"{part} into {f}, against noop", figures[f], figures[NOOP], least, aim=aim) for f in FORMATS]
    for peer, bound, better in ((SPARK, None, None), (SPARK_MERGE, None, None), (DEBEZIUM, 5.0, 20.0)):
        if peer in figures:
            what = f"{part} into delta, against {peer}"
            targets.append(ratio(what, figures["delta"], figures[peer], bound, aim=better))
    return list(figures.values()), targets


def _many(database: Postgres, ours: Ours) -> Measured:
    figures: list[Figure] = []
    targets: list[Target] = []
    for count, dump_bound, change_bound in zip(MANY, ((5.0, 2.0), (30.0, 12.0)), ((1.5, 0.6), (8.0, 3.0)), strict=True):
        names = [f"many_{n:03}" for n in range(count)]
        for name in names:
            database.fill(name, SMALL_ROWS)
        for form in FORMATS:
            rest()
            with ours.stream(tables="public.many_*") as stream:
                lake = LakeStream(ours, stream, form, stream.folder)
                dumped, _ = lake.drain()
                took = []
                with lake.following():
                    for _ in range(REPEATED):
                        changed = database.change("; ".join(f"update {name} set n = n + 1" for name in names))
                        took.append(lake.until(changed))
            figures.append(Figure("lakes, many tables", f"first dump of {count} into {form}", (dumped,), "s"))
            figures.append(Figure("lakes, many tables", f"one transaction over {count} into {form}", tuple(took), "s"))
            for what, figure, (bound, aim) in zip(
                ("first dump of", "transaction over"), figures[-2:], (dump_bound, change_bound), strict=True
            ):
                targets.append(
                    Target(f"{what} {count} tables, {form}", figure.value, " s", bound, least=False, aim=aim)
                )
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
                    lake.until(database.change(f"update big set n = n + 1 where id % {step} = {number % step}"))
                found = tuple(lake.sink.seconds[before:])
        figures.append(Figure("lakes, scattered", f"1,000 changes into {rows:,} rows, {form}", found, "s"))
        targets.append(Target(f"1,000 scattered changes, {form}", figures[-1].value, " s", 2.0, least=False, aim=1.0))
    return figures, targets


def measure_batches(database: Postgres, ours: Ours, batches: int) -> Measured:
    """One small batch after the other, from commit to lake: do the last ones take as long as the first?"""
    batches = max(2 * ENDS, batches)
    database.fill("lasting", LASTING_ROWS)
    figures: list[Figure] = []
    targets: list[Target] = []
    for form in FORMATS:
        rest()
        with ours.stream(tables="public.lasting") as stream:
            lake = LakeStream(ours, stream, form, stream.folder)
            lake.drain()
            with lake.following():
                took = [_batch(database, lake, number) for number in range(WARM_UP + batches)][WARM_UP:]
        for what, some in ((f"first {ENDS}", took[:ENDS]), (f"last {ENDS} of {batches}", took[-ENDS:])):
            figures.append(Figure("lakes, many batches", f"50 changes into {form}, {what}", tuple(some), "s"))
        growth = figures[-1].value / figures[-2].value
        targets.append(Target(f"{form}, last batches against the first", growth, " x", 1.3, least=False, aim=1.1))
    database.run("drop table lasting")
    return figures, targets


def _batch(database: Postgres, lake: LakeStream, number: int) -> float:
    step = LASTING_ROWS // 50
    return lake.until(database.change(f"update lasting set n = n + 1 where id % {step} = {number % step}"))
