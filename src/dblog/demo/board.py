"""The demo's output: steps with their durations, and a live table on a terminal or a regular line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from dblog.demo.shop import ShopTable
from dblog.demo.streams import DemoProgress
from dblog.demo.verify import Difference

LINE_SECONDS = 5.0
"""How often a line shows the progress without a terminal, in seconds."""

STEP_WIDTH = 68
SHOWN_DIFFERENCES = 10


class Board:
    """Writes to a console. Only a terminal gets moving output."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), soft_wrap=True)

    @contextmanager
    def step(self, text: str) -> Iterator[Step]:
        """Show a step that takes a while. At its end, one line with its duration remains."""
        step = Step(text)
        began = time.monotonic()
        if self._console.is_terminal:
            spinner = Spinner("dots", Text(text, "dim"), style="cyan")
            with Live(spinner, console=self._console, transient=True, refresh_per_second=10, redirect_stderr=False):
                yield step
        else:
            yield step
        took = f"{time.monotonic() - began:5.1f} s"
        self._console.print(
            Text.assemble((" ✓ ", "green"), f"{step.text:<{STEP_WIDTH}}", (took, "dim")), soft_wrap=True
        )

    @contextmanager
    def watch(self, tables: Sequence[ShopTable]) -> Iterator[Watch]:
        """Show the progress of several streams."""
        if not self._console.is_terminal:
            yield Watch(self._console, tables, None)
            return
        with Live(console=self._console, auto_refresh=False, redirect_stderr=False) as live:
            yield Watch(self._console, tables, live)

    def differences(self, found: Sequence[Difference]) -> None:
        table = Table(title=f"the first of {len(found)} differences", title_justify="left", box=None, padding=(0, 2))
        for name in ("table", "key", "what"):
            table.add_column(name, style="red" if name == "what" else "", overflow="fold")
        for each in found[:SHOWN_DIFFERENCES]:
            table.add_row(each.table, Text(", ".join(map(str, each.key))), Text(each.what))
        self._console.print(Padding(table, (1, 0, 1, 1)))


class Step:
    """A step. Its text can be changed while it runs."""

    def __init__(self, text: str) -> None:
        self.text = text


class Watch:
    """Shows the present state of the streams at each call."""

    def __init__(self, console: Console, tables: Sequence[ShopTable], live: Live | None) -> None:
        self._console = console
        self._tables = tables
        self._live = live
        self._next_line = time.monotonic()

    def show(
        self, state: str, progress: Mapping[str, DemoProgress], lags: Mapping[str, float], *, last: bool = False
    ) -> None:
        if self._live is not None:
            self._live.update(self._table(state, progress, lags), refresh=True)
        elif last or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            for table in (t for t in self._tables if t.name in progress):
                self._console.print(Text(self._line(table, progress, lags)), soft_wrap=True)

    def _line(self, table: ShopTable, progress: Mapping[str, DemoProgress], lags: Mapping[str, float]) -> str:
        now = progress[table.name]
        return (
            f"   {table.name:<12} {_done(table, now):>4.0%} dumped ({now.dumped} rows, {now.windows} windows, "
            f"{now.dropped} stale rows dropped), {now.events} log events, lag {lags[table.name]:.1f} s"
        )

    def _table(self, state: str, progress: Mapping[str, DemoProgress], lags: Mapping[str, float]) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", caption=state, caption_justify="left")
        table.add_column("table", min_width=11)
        table.add_column("dump", min_width=20)
        for name in ("dumped", "windows", "stale", "log events", "lag"):
            table.add_column(name, justify="right", min_width=5)
        for each in self._tables:
            now, lag = progress.get(each.name), lags.get(each.name, 0.0)
            if now is None:
                table.add_row(each.name, Text("starting", "dim"))
                continue
            done = _done(each, now)
            bar = ProgressBar(total=1, completed=done, width=20, complete_style="cyan", finished_style="green")
            numbers = [f"{n:,}" for n in (now.dumped, now.windows, now.dropped, now.events)]
            table.add_row(each.name, bar, *numbers, Text(f"{lag:.1f} s", "yellow" if lag > 5 else ""))
        return Padding(table, (1, 0, 1, 3))


def _done(table: ShopTable, progress: DemoProgress) -> float:
    """The part of the table that is dumped, from 0 to 1. Rows dropped as stale count; rows deleted meanwhile do not."""
    if not progress.dumping:
        return 1.0
    return min((progress.dumped + progress.dropped) / table.seeded, 0.99)
