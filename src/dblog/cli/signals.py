"""Signals: how Ctrl-C and SIGTERM stop a command."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dblog.cli.program import INTERRUPTED
from dblog.errors import ConfigError


class Stop:
    """The signal that stops the program, if one has come. A second Ctrl-C ends the program at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._wanted = threading.Event()

    def listen(self) -> None:
        """Handle the signals from now on. Call it after Spark's session has started, which installs handlers too."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def wait(self, seconds: float) -> bool:
        """Wait for a signal or a call of `wake`, at most this long. Returns whether a signal has come."""
        self._wanted.wait(seconds)
        if self.number is None:
            self._wanted.clear()
        return self.number is not None

    def wake(self) -> None:
        """End the present wait, or the next one. Called by any thread."""
        self._wanted.set()

    def _hear(self, number: int, _: object) -> None:
        if self.number is not None and number == signal.SIGINT:
            os._exit(INTERRUPTED)
        self.number = self.number or number
        self._wanted.set()


@contextmanager
def stopping() -> Iterator[Stop]:
    """Handle Ctrl-C and SIGTERM while the body runs. Until `Stop.listen` is called, both end it by an exception."""

    def end(number: int, _: object) -> None:
        sys.exit(INTERRUPTED if number == signal.SIGINT else 0)

    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("dblog run needs the main thread", hint="run it as a program")
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield Stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end the body by an exception, so that the body cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
