"""`dblog demo`: dump three changing tables into files or a lake, follow their changes, check that no row is lost or
stale."""

from __future__ import annotations

import math
import os
import signal
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from dblog.demo.board import Board, Watch
from dblog.demo.database import DATABASES, Database
from dblog.demo.outputs import Examined, output_of
from dblog.demo.shop import SHOPPERS, Shop, ShopTable, Stock
from dblog.demo.streams import DemoProgress, DemoStream, LogEnd
from dblog.errors import ConfigError, DBLogError
from dblog.spark.java import check_java
from dblog.spark.local import local_spark, quiet

LAKE_PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}
"""The Python package that writes a lake; the extra that brings it has the name of the sink."""
LOOK_SECONDS = 0.25
PATIENCE_SECONDS = 120.0
"""How long the streams may make no progress before the demo gives up, in seconds."""
AFTER_STOCK = 0.25
"""How long the shop stays open after the stocktaking at least, as a part of the seconds that it is open."""


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
    sink: str = "parquet"
    """`parquet`, or a lake: `delta` or `iceberg`."""
    serve: Callable[[str], AbstractContextManager[str]] | None = None
    """Serves the page over the state store at a location, and gives its address. The shop then stays open until
    Ctrl-C."""


def run(demo: Demo, console: Console) -> Verdict:
    """Run the demo and compare the result with the source. Removes all its files, also after an error."""
    check_java()
    database = _database(demo)
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


def _database(demo: Demo) -> Database:
    """The database of the demo. Raises ConfigError if it is not installed; the hint then has the packages of the sink
    too, if they are missing."""
    try:
        return DATABASES[demo.source]()
    except ConfigError as error:
        package = LAKE_PACKAGES.get(demo.sink)
        if package is None or find_spec(package) is not None or error.hint is None:
            raise
        both = f"pip install 'dblog[demo,{demo.sink}]'"
        hint = both if "dblog[demo]" in error.hint else f"{error.hint}; and pip install 'dblog[{demo.sink}]'"
        raise ConfigError(f"{error.message}, and the sink {demo.sink!r} needs {package}", hint=hint) from None


def _run(demo: Demo, board: Board, database: Database, work: Path, stack: ExitStack) -> Verdict:
    result = work / "result" if demo.keep is None else demo.keep.absolute()
    output = output_of(demo.sink, database, work, result)
    output.check()
    board.say(f"DBLog demo: a busy {database.family}, dumped and followed by Spark into {output.shown}", "bold")
    with board.step(f"starting {database.family} and Spark") as step:
        spark, shop = _start(demo, database, work, stack)
        filled = f"{database.family} {database.version} with {demo.rows} rows in 3 tables"
        step.text = f"{filled}, and Spark {spark.version}"
    end = LogEnd(database)
    shop.open()
    stack.callback(shop.close)
    board.say(f"   {SHOPPERS} shoppers change the tables, and {output.follows}")

    def start(table: ShopTable) -> DemoStream:
        stream = output.start(spark, table)
        stack.callback(stream.stop)
        return stream

    seconds, stop = demo.seconds, threading.Event()
    if demo.serve is not None:
        address = stack.enter_context(demo.serve(str(work / "state.db")))
        board.say(f"   look at it: {address} (Ctrl-C closes the shop)", "bold")
        seconds = math.inf
        stack.enter_context(_closed_by_interrupt(stop))
        _open_browser(address)
    watched = output.watched(shop)
    with board.watch(watched) as watch:
        delivery = _Delivery(shop, end, watch, stop)
        starts = [partial(start, table) for table in watched]
        delivered = delivery.wait(starts, seconds, take_stock=output.has_versions)
    with board.step("comparing the result with the source") as step:
        found = output.examine(spark, shop, delivered, delivery.stock)
        step.text = found.told
    if demo.keep is not None:
        for line in output.kept():
            board.say(f"   {line}")
    elif output.has_versions:
        board.say("   the lake is removed; --keep DIR keeps it, and shows how to query it")
    if demo.serve is None:
        board.say("   to see it at work in a browser: dblog demo --ui")
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

    def __init__(self, shop: Shop, end: LogEnd, watch: Watch, stop: threading.Event) -> None:
        """`stop` closes the shop before its time."""
        self._shop = shop
        self._stop = stop
        self._streams: list[DemoStream] = []
        self._end = end
        self._watch = watch
        self._progress: dict[str, DemoProgress] = {}
        self.stock: Stock | None = None

    def wait(
        self, starts: Sequence[Callable[[], DemoStream]], seconds: float, *, take_stock: bool
    ) -> Mapping[str, DemoProgress]:
        """Start the streams, keep the shop open for `seconds`, close it, and wait until all is delivered. Returns the
        progress. With `take_stock`, the shop is also closed for a moment in between, as soon as all is dumped."""
        for start in starts:
            # one after the other: Spark gives each stream only seconds to start its processes
            self._streams.append(start())
            self._until(lambda: len(self._progress) == len(self._streams), lambda: "the streams are starting")
        closing = time.monotonic() + seconds
        if take_stock:
            self._until(self._dumped, lambda: "the shop is open, and the dump goes on")
            self.stock = self._take_stock()
            closing = max(closing, time.monotonic() + seconds * AFTER_STOCK)
        self._until(lambda: time.monotonic() >= closing or self._stop.is_set(), lambda: _open_for(closing))
        self._close("closed")
        self._watch.show(
            "closed; every change is delivered", self._progress, dict.fromkeys(self._progress, 0.0), last=True
        )
        return self._progress

    def _close(self, why: str) -> None:
        """Close the shop, and wait until all is delivered."""
        self._shop.close()
        self._shop.raise_failure()
        self._until(self._dumped, lambda: f"{why}; the dumps go on")
        last = self._shop.last_change()
        self._until(
            lambda: all(p.position > last for p in self._progress.values()),
            lambda: f"{why}; the last changes are on their way",
        )

    def _take_stock(self) -> Stock:
        complete = max(progress.position for progress in self._progress.values())
        self._close("closed for the stocktaking")
        rows = {table.name: self._shop.rows(table) for table in self._shop.tables}
        position = min(progress.position for progress in self._progress.values())
        self._shop.open()
        return Stock(complete, position, rows)

    def _dumped(self) -> bool:
        return not any(progress.dumping for progress in self._progress.values())

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


def _open_for(closing: float) -> str:
    if math.isinf(closing):
        return "the shop is open; Ctrl-C closes it"
    return f"the shop is open for {max(0, closing - time.monotonic()):.0f} s more"


@dataclass(frozen=True)
class Verdict:
    """The result of the comparison with the source."""

    rows: int
    events: int
    dropped: int
    differences: int
    versions: int | None = None
    """How many earlier versions were compared with the source; None for files, which have none."""

    @property
    def converged(self) -> bool:
        return not self.differences


def _verdict(board: Board, found: Examined, dropped: int) -> Verdict:
    if found.differences:
        board.differences(found.differences)
    verdict = Verdict(found.rows, found.events, dropped, len(found.differences), found.versions)
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


@contextmanager
def _closed_by_interrupt(stop: threading.Event) -> Iterator[None]:
    """Let the first Ctrl-C set `stop`; a second one ends the demo."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def close(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, close)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _open_browser(address: str) -> None:
    """Open the page if there is a desktop: elsewhere Python might start a browser of the terminal."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin":
        webbrowser.open(address)


def _ignore_interrupts() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
