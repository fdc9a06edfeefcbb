"""Which failures of a stream's query may pass, and how often the query is started again."""

from __future__ import annotations

import time
from collections.abc import Callable

from py4j.protocol import Py4JNetworkError

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
"""The restarts of the last ten minutes count."""
FIRST_DELAY, LAST_DELAY = 1.0, 60.0
"""Seconds before the first restart of a stretch, doubled each time, and the longest wait."""

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
"""Errors that a restart does not cure: somebody must change the source, the sink or the file."""


def may_pass(error: Exception, *, once: bool) -> bool:
    """Whether a restart may help. What is not known to need a person may pass: Spark has too many ways to fail.

    A retryable error has been tried again for the whole of its patience: a pipeline that is to go on for ever begins
    anew, one that runs once ends. Without Spark's JVM nothing can be started any more.
    """
    if isinstance(error, Py4JNetworkError):
        return False
    if getattr(error, "retryable", False):
        return not once
    return not isinstance(error, NEEDS_A_PERSON)


class Restarts:
    """How often a query may still be started again: `most` times in `WINDOW_SECONDS`, or in all if it runs once."""

    def __init__(self, most: int, *, once: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._once = once
        self._clock = clock
        self._at: list[float] = []

    def next(self) -> float | None:
        """Seconds to wait before the restart that is due now; None when there were too many."""
        now = self._clock()
        self._at = [at for at in self._at if self._once or now - at < WINDOW_SECONDS]
        if len(self._at) >= self.most:
            return None
        self._at.append(now)
        return float(min(FIRST_DELAY * 2 ** (len(self._at) - 1), LAST_DELAY))

    @property
    def used(self) -> int:
        return len(self._at)
