"""Retries of calls to the source. Spark does not retry calls that fail on the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dblog.capture.effects import REAL, Effects
from dblog.errors import ConnectionLost, TableLocked

_T = TypeVar("_T")


def retrying(call: Callable[[], _T], patience: float, effects: Effects = REAL) -> _T:
    """Return the call's result. After a lost connection or a locked table, try again for `patience` seconds."""
    deadline = effects.monotonic() + patience
    delay = 0.1
    while True:
        try:
            return call()
        except (ConnectionLost, TableLocked):
            if effects.monotonic() + delay > deadline:
                raise
        effects.sleep(delay)
        delay = min(delay * 2, 10.0)
