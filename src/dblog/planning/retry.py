"""Try again what is worth trying again: Spark does not retry what its driver calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dblog.capture.effects import REAL, Effects
from dblog.errors import ConnectionLost, TableLocked

_T = TypeVar("_T")


def retrying(call: Callable[[], _T], patience: float, effects: Effects = REAL) -> _T:
    """Return the call's result. A lost connection or a locked table is tried again for `patience` seconds."""
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
