"""After which failures a stream's query is started again, and how often."""

from __future__ import annotations

import time
from collections.abc import Callable

from dblog.errors import (
    ConfigError,
    DecodeError,
    LeaseLost,
    PositionLost,
    PreconditionFailed,
    SchemaChanged,
    SinkError,
    TableUnreadable,
    WatermarkError,
)

WINDOW_SECONDS = 600.0
"""The time, in seconds, in which restarts are counted."""
FIRST_DELAY, LAST_DELAY = 1.0, 60.0
"""The delay before the first restart, doubled for each further one, and the longest one, in seconds."""

NEEDS_A_PERSON = (
    ConfigError,
    PreconditionFailed,
    PositionLost,
    DecodeError,
    SchemaChanged,
    TableUnreadable,
    WatermarkError,
    SinkError,
    LeaseLost,
)
"""Errors for which a restart does not help: a person must change the source, the sink or the file, or another instance
is the leader."""


def may_pass(error: Exception, *, once: bool) -> bool:
    """Whether a restart may help. It may for every error that is not in `NEEDS_A_PERSON`: Spark has many ways to fail.

    A retryable error was already retried for `patienceSeconds` before it gets here. With `once` it ends the stream;
    otherwise the stream is restarted.
    """
    if getattr(error, "retryable", False):
        return not once
    return not isinstance(error, NEEDS_A_PERSON)


class Restarts:
    """Counts restarts: at most `most` within `WINDOW_SECONDS` or, with `once`, in all."""

    def __init__(self, most: int, *, once: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._once = once
        self._clock = clock
        self._at: list[float] = []

    def next(self) -> float | None:
        """Seconds to wait before the next restart; None if there were too many restarts."""
        now = self._clock()
        self._at = [at for at in self._at if self._once or now - at < WINDOW_SECONDS]
        if len(self._at) >= self.most:
            return None
        self._at.append(now)
        return float(min(FIRST_DELAY * 2 ** (len(self._at) - 1), LAST_DELAY))

    @property
    def used(self) -> int:
        return len(self._at)
