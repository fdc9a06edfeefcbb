"""`dblog demo`: dump three changing tables into Parquet, follow their changes, check that no row is lost or stale."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from dblog.demo.board import Board, Watch
from dblog.demo.database import DATABASES, Database
from dblog.demo.shop import SHOPPERS, Shop, ShopTable
from dblog.demo.streams import DemoProgress, DemoStream, LogEnd
from dblog.demo.verify import Findings, examine
from dblog.errors import ConfigError, DBLogError
from dblog.spark.java import check_java
from dblog.spark.local import local_spark, quiet

LOOK_SECONDS = 0.25
PATIENCE_SECONDS = 120.0
"""How long the streams may make no progress before the demo gives up, in seconds."""


@dataclass(frozen=True)
class Demo:
    """The options of the demo."""

    source: str = "postgres"
    """One of DATABASES."""
    seconds: float = 12.0
    """How long the shoppers continue after every stream has started, in seconds."""
    rows: int = 60_000
    keep: Path | None = None
    """The folder of the result; None removes the result."""
    verbose: bool = False


def run(demo: Demo, console: Console) -> Verdict:
    """Run the demo and compare the result with the source. Removes all its files, also after an error."""
    check_java()
    database = DATABASES[demo.source]()
    _check_keep(demo.keep)
    with ExitStack() as stack:
        stack.enter_context(_ended_by_signals())
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dblog-demo-", ignore_cleanup_errors=True)))
        stack.enter_context(nullcontext() if demo.verbose else quiet(work / "stderr"))
        stack.callback(database.server.stop)
        try:
            return _run(demo, Board(console), database, work, stack)
        finally:
            _ignore_interrupts()  # the clean-up takes a moment and must be complete


def _run(demo: Demo, board: Board, database: Database, work: Path, stack: ExitStack) -> Verdict:
    result = work / "result" if demo.keep is None else demo.keep.absolute()
    board.say(f"DBLog demo: a busy {database.family}, dumped and followed by Spark into Parquet", "bold")
    with board.step(f"starting {database.family} and Spark") as step:
        spark, shop = _start(demo, database, work, stack)
        filled = f"{database.family} {database.version} with {demo.rows} rows in 3 tables"
        step.text = f"{filled}, and Spark {spark.version}"
    end = LogEnd(database)
    shop.open()
    stack.callback(shop.close)
    board.say(f"   {SHOPPERS} shoppers change the tables, and one stream per table dumps and follows them")

    def start(table: ShopTable) -> DemoStream:
        stream = DemoStream(spark, database.url, table, work, result)
        stack.callback(stream.stop)
        return stream

    with board.watch(shop.tables) as watch:
        delivered = _Delivery(shop, end, watch).wait(start, demo.seconds)
    with board.step("comparing the result with the source") as step:
        found = [examine(spark, table, shop.rows(table), result / table.name) for table in shop.tables]
        seen = sum(f.dumped + f.events for f in found)
        step.text = f"compared with the source; order of {seen} delivered rows checked"
    if demo.keep is not None:
        board.say(f"   the result is kept in {str(result)!r}: one folder of Parquet files per table")
    return _verdict(board, found, sum(p.dropped for p in delivered.values()))


def _start(demo: Demo, database: Database, work: Path, stack: ExitStack) -> tuple[SparkSession, Shop]:
    """Start the database and Spark at the same time."""

    def build() -> Shop:
        database.start()
        shop = Shop(database, demo.rows)
        shop.build()
        return shop

    with ThreadPoolExecutor(1) as other:
        building = other.submit(build)
        spark = stack.enter_context(local_spark(work))
        return spark, building.result()


class _Delivery:
    """Watches the streams until they have delivered everything."""

    def __init__(self, shop: Shop, end: LogEnd, watch: Watch) -> None:
        self._shop = shop
        self._streams: list[DemoStream] = []
        self._end = end
        self._watch = watch
        self._progress: dict[str, DemoProgress] = {}

    def wait(self, start: Callable[[ShopTable], DemoStream], seconds: float) -> Mapping[str, DemoProgress]:
        """Start the streams, keep the shop open for `seconds`, close it, and wait until all is delivered. Returns the
        progress."""
        for table in self._shop.tables:
            # one after the other: Spark gives each stream only seconds to start its processes
            self._streams.append(start(table))
            self._until(lambda: len(self._progress) == len(self._streams), lambda: "the streams are starting")
        closing = time.monotonic() + seconds
        self._until(
            lambda: time.monotonic() >= closing,
            lambda: f"the shop is open for {max(0, closing - time.monotonic()):.0f} s more",
        )
        self._shop.close()
        self._shop.raise_failure()
        self._until(lambda: not any(p.dumping for p in self._progress.values()), lambda: "closed; the dumps go on")
        last = self._shop.last_change()
        self._until(
            lambda: all(p.position > last for p in self._progress.values()),
            lambda: "closed; the last changes are on their way",
        )
        self._watch.show(
            "closed; every change is delivered", self._progress, dict.fromkeys(self._progress, 0.0), last=True
        )
        return self._progress

    def _until(self, reached: Callable[[], bool], state: Callable[[], str]) -> None:
        moved = time.monotonic()
        while True:
            before = dict(self._progress)
            self._end.look()
            for stream in self._streams:
                progress = stream.progress()
                if progress is not None:
                    self._progress[stream.table.name] = progress
            self._shop.raise_failure()
            if reached():
                return
            lags = {name: self._end.lag(progress.position) for name, progress in self._progress.items()}
            self._watch.show(state(), self._progress, lags)
            if self._progress != before:
                moved = time.monotonic()
            elif time.monotonic() - moved > PATIENCE_SECONDS:
                raise DBLogError(
                    f"the streams have made no progress for {PATIENCE_SECONDS:.0f} s ({state()})",
                    hint="dblog demo --verbose shows Spark's own output",
                )
            time.sleep(LOOK_SECONDS)


@dataclass(frozen=True)
class Verdict:
    """The result of the comparison with the source."""

    rows: int
    events: int
    dropped: int
    differences: int

    @property
    def converged(self) -> bool:
        return not self.differences


def _verdict(board: Board, found: Sequence[Findings], dropped: int) -> Verdict:
    differences = [difference for each in found for difference in each.differences]
    if differences:
        board.differences(differences)
    verdict = Verdict(sum(f.rows for f in found), sum(f.events for f in found), dropped, len(differences))
    word, style = ("converged", "bold green") if verdict.converged else ("diverged", "bold red")
    numbers = f"{verdict.rows} rows, {verdict.events} log events, {dropped} rows dropped as stale"
    board.say(f"{word}: {numbers}, {verdict.differences} differences", style)
    return verdict


def _check_keep(folder: Path | None) -> None:
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{str(folder)!r} is not an empty folder", hint="name a new folder for --keep")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn a termination signal into an exception, so that the demo cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_interrupts() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
