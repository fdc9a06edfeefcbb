"""Which failures of a stream's query may pass, and how often the query is started again."""

from __future__ import annotations

import time
from collections.abc import Callable

from dblog.errors import (
    ConfigError,
    DecodeError,
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
"""Seconds before the first restart, doubled for each further one, and the longest wait."""

NEEDS_A_PERSON = (
    ConfigError,
    PreconditionFailed,
    PositionLost,
    DecodeError,
    SchemaChanged,
    TableUnreadable,
    WatermarkError,
    SinkError,
)
"""Errors that a restart does not cure: a person must change the source, the sink or the file."""


def may_pass(error: Exception, *, once: bool) -> bool:
    """Whether a restart may help. An error that is not known to need a person may pass: Spark has many ways to fail.

    A retryable error has been retried for all of `patienceSeconds` before it gets here: with `once` it ends the stream,
    else the stream is restarted.
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
        """Seconds to wait before the next restart; None when there were too many."""
        now = self._clock()
        self._at = [at for at in self._at if self._once or now - at < WINDOW_SECONDS]
        if len(self._at) >= self.most:
            return None
        self._at.append(now)
        return float(min(FIRST_DELAY * 2 ** (len(self._at) - 1), LAST_DELAY))

    @property
    def used(self) -> int:
        return len(self._at)
