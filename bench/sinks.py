"""`dblog run` into each kind of sink, beside PostgreSQL's own replication: dump, catch-up, dumps while people write.

Commands are measured as a whole, with `--once`. What the same command takes with next to nothing to do is subtracted.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import debezium_jdbc
from bench.command import Pipeline, Ran, net_rate
from bench.database import Stretch
from bench.figures import Cpu, Figure, Measured, Target, joined, ratio, rotated
from bench.machine import rest
from bench.ours import Ours, Stream
from bench.postgres import Postgres
from bench.replication import Subscription, copied, dumped, target_server
from bench.replication import Target as Server

FOLDERS = ("parquet", "delta", "iceberg")
KINDS = ("sql", *FOLDERS, "noop")
DEBEZIUM = "Debezium with its JDBC sink, without its first quarter"
DEBEZIUM_SHARE = 0.1
"""The part of the rows and changes that is measured of it: it goes through them at an even pace."""
SUBSCRIPTION, PG_DUMP, STREAM = "CREATE SUBSCRIPTION", "pg_dump | psql", "readStream into noop, without the command"
CHANGED = (0, 5, 100, 2_000)
"""Rows that change per second while a table is dumped."""
CHANGE_SECONDS = 0.2
"""How often a transaction changes rows."""


@dataclass(frozen=True)
class Sizes:
    """How many rows are dumped, how many changes are caught up with, and the rows of a dump while people write."""

    rows: int
    changes: int
    written: int


@dataclass
class Side:
    """One way, round by round."""

    rates: list[float] = field(default_factory=list)
    cpu: list[Cpu] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    """Seconds that are subtracted: those of the same command with nothing to do."""

    def add(self, rate: float, cpu: Cpu, rows: int, start: float | None = None) -> None:
        self.rates.append(rate)
        self.cpu.append(cpu.per_million(rows))
        if start is not None:
            self.starts.append(start)

    def figure(self, part: str, what: str, unit: str) -> Figure:
        note = f"{median(self.starts):.1f} s of start-up subtracted" if self.starts else ""
        return Figure(f"sinks, {part}", what, tuple(self.rates), unit, note, tuple(self.cpu))


def measure(source: Postgres, ours: Ours, sizes: Sizes, rounds: int, *, against_debezium: bool) -> Measured:
    if against_debezium and not debezium_jdbc.available():
        print("without Debezium's JDBC sink: scripts/debezium_jdbc.sh and scripts/kafka.sh fetch what it needs")
        against_debezium = False
    with tempfile.TemporaryDirectory(prefix="dblog-bench-") as folder, target_server() as target:
        bench = _Sinks(source, ours, target, Path(folder), against_debezium=against_debezium)
        source.fill("big", sizes.rows)
        source.fill("few", 1000)
        parts = [bench.dumps(sizes.rows, rounds), bench.catchup(sizes.changes, rounds)]
        source.run("drop table big")
        parts.append(bench.while_written(sizes.written))
        return joined(parts)


class _Sinks:
    def __init__(self, source: Postgres, ours: Ours, target: Server, folder: Path, *, against_debezium: bool) -> None:
        self._source, self._ours, self._target, self._folder = source, ours, target, folder
        self._peers = (DEBEZIUM,) if against_debezium else ()
        self._made = 0

    def _pipeline(self, kind: str, tables: str, **more: str) -> Pipeline:
        self._made += 1
        name = f"sinks_{self._made}"
        sink = {"type": kind}
        if kind == "sql":
            sink |= {"url": self._target.database(name)}
        elif kind in FOLDERS:
            sink |= {"path": str(self._folder / name / "lake")}
        return Pipeline(self._source, self._folder, name, tables, sink, **more)

    def _once(self, pipeline: Pipeline, kind: str) -> Ran:
        rest()
        return pipeline.once(target=self._target.pid if kind == "sql" else None)

    # -- dump ------------------------------------------------------------------------------------------------

    def dumps(self, rows: int, rounds: int) -> Measured:
        sides = {name: Side() for name in (*KINDS, SUBSCRIPTION, PG_DUMP, *self._peers, STREAM)}

        def command(kind: str) -> Callable[[], None]:
            def dump() -> None:
                few, all_rows = self._pipeline(kind, "public.few"), self._pipeline(kind, "public.big")
                try:
                    start, ran = self._once(few, kind), self._once(all_rows, kind)
                finally:
                    few.forget()
                    all_rows.forget()
                sides[kind].add(net_rate(rows, ran.seconds, start.seconds), ran.cpu, rows, start.seconds)

            return dump

        def subscription() -> None:
            rest()
            seconds, cpu = copied(self._source, self._target, "big", self._source.columns, rows)
            sides[SUBSCRIPTION].add(rows / seconds, cpu, rows)

        def pg_dump() -> None:
            rest()
            seconds, cpu = dumped(self._source, self._target, "big", rows)
            sides[PG_DUMP].add(rows / seconds, cpu, rows)

        def stream() -> None:
            rest()
            with self._ours.stream(table="public.big") as plain:
                drain = plain.drain()
            sides[STREAM].add(drain.rate, drain.cpu, rows)

        def debezium() -> None:
            rest()
            some = max(1, int(rows * DEBEZIUM_SHARE))
            rate, cpu = debezium_jdbc.copied(self._source, self._target, "big", some)
            sides[DEBEZIUM].add(rate, cpu, some)

        peers = [debezium] if self._peers else []
        for number in range(rounds):
            for side in rotated([*map(command, KINDS), subscription, pg_dump, *peers, stream], number):
                side()
                self._target.settle()
        return _compared("dump", "rows/s", sides, "the subscription's copy", 0.5)

    # -- catch-up --------------------------------------------------------------------------------------------

    def catchup(self, changes: int, rounds: int) -> Measured:
        sides = {name: Side() for name in (*KINDS, SUBSCRIPTION, *self._peers, STREAM)}
        pipelines = {kind: self._pipeline(kind, "public.wide", of_source='dump = "never"') for kind in KINDS}
        subscription = Subscription(self._source, self._target, "bench_apply", ["wide"], self._source.columns)
        try:
            subscription.start(copies=True)
            with self._ours.stream(table="public.wide", dump="never") as plain:
                plain.drain()
                for kind, pipeline in pipelines.items():
                    self._once(pipeline, kind)
                for number in range(rounds):
                    starts = {kind: self._once(pipeline, kind).seconds for kind, pipeline in pipelines.items()}
                    subscription.pause()
                    with self._source.readers():
                        stretch = self._source.write_stretch(changes)
                        steps = [
                            *(self._caught_up(kind, pipelines[kind], stretch, starts[kind], sides) for kind in KINDS),
                            self._applied(subscription, stretch, sides),
                            *([self._by_debezium(stretch, sides)] if self._peers else []),
                            self._streamed(plain, stretch, sides),
                        ]
                        for step in rotated(steps, number):
                            step()
                            self._target.settle()
        finally:
            subscription.drop()
            for pipeline in pipelines.values():
                pipeline.forget()
        found = _compared("catch-up", "changes/s", sides, "the subscription's apply", 0.7)
        nothing = [
            Figure("sinks, nothing to do", f"dblog run --once into {k}", tuple(sides[k].starts), "s") for k in KINDS
        ]
        return joined([found, (nothing, [])])

    def _caught_up(
        self, kind: str, pipeline: Pipeline, stretch: Stretch, start: float, sides: Mapping[str, Side]
    ) -> Callable[[], None]:
        def deliver() -> None:
            ran = self._once(pipeline, kind)
            sides[kind].add(net_rate(stretch.changes, ran.seconds, start), ran.cpu, stretch.changes, start)

        return deliver

    def _applied(self, subscription: Subscription, stretch: Stretch, sides: Mapping[str, Side]) -> Callable[[], None]:
        def apply() -> None:
            rest()
            seconds, cpu = subscription.measured(stretch.upto)
            sides[SUBSCRIPTION].add(stretch.changes / seconds, cpu, stretch.changes)

        return apply

    def _by_debezium(self, stretch: Stretch, sides: Mapping[str, Side]) -> Callable[[], None]:
        def follow() -> None:
            rest()
            rate, cpu, changes = debezium_jdbc.followed(self._source, self._target, stretch, DEBEZIUM_SHARE)
            sides[DEBEZIUM].add(rate, cpu, changes)

        return follow

    def _streamed(self, plain: Stream, stretch: Stretch, sides: Mapping[str, Side]) -> Callable[[], None]:
        def drain() -> None:
            self._ours.warm()
            rest()
            drained = plain.drain()
            sides[STREAM].add(drained.rate, drained.cpu, stretch.changes)

        return drain

    # -- dumps while people write ----------------------------------------------------------------------------

    def while_written(self, rows: int) -> Measured:
        """The first dump into `sql` with default settings, by a command that keeps running."""
        self._source.fill("big", rows)
        rates: dict[int, float] = {}
        figures: list[Figure] = []
        for changed in CHANGED:
            rest()
            pipeline = self._pipeline("sql", "public.big")
            with changing(self._source, "big", rows, changed) as written, pipeline.running() as command:
                begin = command.until_started()
                before = written()
                end = command.until_dumped()
                count = written() - before
            pipeline.forget()
            rates[changed] = rows / (end - begin)
            what = f"{changed:,} rows changed per second" if changed else "nobody writes"
            note = f"{count / (end - begin):,.0f} rows/s were changed" if changed else f"{rows:,} rows"
            figures.append(Figure("sinks, first dump into sql", what, (rates[changed],), "rows/s", note))
        targets = [
            Target(f"first dump into sql while {changed:,} rows/s change, against nobody", rates[changed] / rates[0],
                   " x", 0.7, aim=0.9)
            for changed in CHANGED if changed
        ]  # fmt: skip
        return figures, targets


@contextmanager
def changing(source: Postgres, table: str, rows: int, per_second: int) -> Iterator[Callable[[], int]]:
    """Somebody changes rows all over a table, in five transactions per second. Yields how many were changed so far."""
    stop, changed = threading.Event(), 0
    every = max(CHANGE_SECONDS, 1 / per_second) if per_second else 0.0

    def write() -> None:
        nonlocal changed
        chosen = random.Random(7)
        connection = source.connect()
        due = time.monotonic()
        with connection.cursor() as cursor:
            while not stop.wait(max(0.0, due - time.monotonic())):
                keys = [chosen.randint(1, rows) for _ in range(round(per_second * every))]
                cursor.execute(f"update {table} set n = n + 1 where id = any(%s)", (keys,))
                changed += cursor.rowcount
                due += every
        connection.close()

    thread = threading.Thread(target=write, daemon=True)
    if per_second:
        thread.start()
    try:
        yield lambda: changed
    finally:
        stop.set()
        if per_second:
            thread.join()


def _compared(part: str, unit: str, sides: Mapping[str, Side], peer: str, least: float) -> Measured:
    figures = {
        name: side.figure(part, f"dblog run into {name}" if name in KINDS else name, unit)
        for name, side in sides.items()
    }
    targets = [
        ratio(f"{part} into sql, against {peer}", figures["sql"], figures[SUBSCRIPTION], least, aim=1.0),
        ratio(f"{part} into parquet, against readStream into noop", figures["parquet"], figures[STREAM], 0.6, aim=0.8),
    ]
    for kind in (kind for kind in KINDS if kind not in ("sql", "parquet")):
        targets.append(ratio(f"{part} into {kind}, against readStream into noop", figures[kind], figures[STREAM], None))
    return list(figures.values()), targets
