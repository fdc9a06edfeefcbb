"""The log of `dblog run` on standard error: lines with time and level. On a terminal there is also one line below them
that is updated in place."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

SUMMARY_SECONDS = 300.0
"""How often a summary is logged, in seconds."""

STYLES = {"INFO": "dim", "WARNING": "yellow", "ERROR": "bold red"}


class ConsoleLog:
    """Logs to a console. `live` shows a line in place, which needs a terminal that no other process writes to."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if live and console.is_terminal else None
        self._shown = ""

    @property
    def in_place(self) -> bool:
        return self._live is not None

    def line(self) -> AbstractContextManager[Any]:
        """Show the line in place below the log while the body runs."""
        return self._live or nullcontext()

    def show(self, text: str) -> None:
        """Change the line in place. It has no spinner: drawing one would cost more than all other output."""
        if self._live is not None and text != self._shown:
            self._shown = text
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def info(self, text: str) -> None:
        self._print("INFO", text)

    def warning(self, text: str) -> None:
        self._print("WARNING", text)

    def error(self, text: str, hint: str | None = None) -> None:
        self._print("ERROR", f"{text}; hint: {hint}" if hint else text)

    def _print(self, level: str, text: str) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._console.print(Text.assemble(f"{now} ", (f"{level:7}", STYLES[level]), f" {text}"), soft_wrap=True)
