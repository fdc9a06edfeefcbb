"""When the next batch may be planned, if it has changes of the log and no round of a dump.

The query of a pipeline has no trigger, so that rounds follow one another without a pause. Its other batches are
`batchSeconds` apart. A batch that was full is followed at once by the next.
"""

from __future__ import annotations

from dblog.capture.effects import Effects

POLL_SECONDS = 0.5
"""How long planning waits before it returns that there is nothing to do, in seconds."""


class BatchTimes:
    """The time between the batches of a stream."""

    def __init__(self, seconds: float, effects: Effects) -> None:
        self._seconds, self._effects = seconds, effects
        self._due = 0.0

    def planned(self, *, full: bool) -> None:
        """Note that a batch is planned now. It is full if the limit has left out changes."""
        self._due = 0.0 if full else self._effects.monotonic() + self._seconds

    def early(self) -> bool:
        """Whether it is too early for a batch. Waits for a while first, because Spark asks again at once."""
        left = self._due - self._effects.monotonic()
        if left > 0:
            self._effects.sleep(min(left, POLL_SECONDS))
        return left > POLL_SECONDS
