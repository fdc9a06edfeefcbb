"""Capture, without a server: it leaves one that ends sessions, comes back, and says so."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from dblog.capture.capture import Capture
from dblog.capture.spool import Spool


class Silent:
    """A source whose log has nothing, and a stream of it."""

    coordinate, passing, idle_position, heard = None, False, 0, 0.0

    def __init__(self) -> None:
        self.opened = threading.Semaphore(0)
        self.reading = threading.Event()

    def stream(self, position: int, coordinate: str | None) -> Silent:
        self.opened.release()
        return self

    def read(self, timeout: float, *, eager: bool = False) -> list[Any]:
        self.reading.set()
        return []

    def redefined(self) -> bool:
        return False

    def comparable(self, coordinate: str | None, other: str | None) -> bool:
        return True

    def acknowledge(self, position: int) -> None: ...

    def close(self) -> None: ...


def test_a_reconnection_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = Silent()
    capture = Capture(source, Spool(str(tmp_path)), 42, None, before=False, read_ahead=1)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "dblog.capture"):
        capture.start()
        assert source.opened.acquire(timeout=10)
        assert source.reading.wait(10)
        capture.reconnect("the server ends sessions: the server shuts down")
        assert source.opened.acquire(timeout=10)
        capture.stop()
    (record,) = caplog.records
    assert record.getMessage() == (
        "the log is read again from position 42 on: the server ends sessions: the server shuts down"
    )
