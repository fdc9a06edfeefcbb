"""The clock, the sleep and the random names that capture and planning use.

They are arguments, so that a test can run the shipped code in a world whose time it makes itself (`tests/sim`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass


def _token() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True)
class Effects:
    """What the code takes from the machine it runs on. The defaults are the real ones."""

    monotonic: Callable[[], float] = time.monotonic
    """Seconds on a clock that never goes back."""
    wall: Callable[[], float] = time.time
    """Seconds since 1970."""
    sleep: Callable[[float], None] = time.sleep
    token: Callable[[], str] = _token
    """A new unique text of 32 hexadecimal digits."""


REAL = Effects()
