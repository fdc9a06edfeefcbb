"""The pace of a stream's dumps: how large the next round may be, and whether one may open at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dblog.capture.capture import Capture
from dblog.capture.effects import REAL, Effects
from dblog.core.dump import Pace, Staged
from dblog.core.throttle import Governor, Load, Throttle
from dblog.errors import SourceError
from dblog.sources.base import Source

BUSY_SECONDS, QUIET_SECONDS = 0.015, 0.75
"""How long a chunk's select should take while the log has changes to deliver, and while it has none, in seconds."""

BUSY_TABLES, QUIET_TABLES = 2, 8
"""How many small tables count as one chunk of a round, while the log has changes to deliver and while it has none."""

QUIET_AFTER_SECONDS = 5.0
"""The log is quiet after this time without changes of followed tables, in seconds."""


class Pacer:
    """Decides the pace from the throttle, the times of selects, and the load of log and source."""

    def __init__(self, source: Source, chunks: int, chunk_rows: int | None, effects: Effects = REAL) -> None:
        self._source = source
        self._effects = effects
        self._chunks = chunks
        self._chunk_rows = chunk_rows
        self._governor = Governor()
        self._probed: tuple[str | None, Load] = (None, Load())
        self._busy_until = 0.0
        self._selects, self._select_seconds, self._last_select = 0, 0.0, 0.0
        self.throttle = Throttle()
        self.watches = False
        """Whether a dump has rows to read."""

    def pace(self) -> Pace:
        """The size of the next round: short while the log has changes to deliver, else long; within the throttle."""
        throttle = self.throttle
        busy = self._effects.monotonic() < self._busy_until
        seconds = throttle.select_seconds or (BUSY_SECONDS if busy else QUIET_SECONDS)
        pace = Pace(
            chunks=throttle.chunks or self._chunks,
            rows=throttle.chunk_rows or self._chunk_rows,
            seconds=min(seconds, throttle.max_select_seconds or seconds),
            small_tables=1 if _limited(throttle) else BUSY_TABLES if busy else QUIET_TABLES,
        )
        if throttle.rows_per_second is not None:  # at least one round per second, for a steady rate
            pace = replace(pace, most=max(1, int(throttle.rows_per_second / pace.chunks)))
        return pace

    def waits(self, capture: Capture) -> str | None:
        """Why no round may open now; None if one may."""
        asked, load = self._probed
        if asked != self.throttle.probe:
            load = Load(trouble="it has not answered yet")
        return self._governor.waits(self.throttle, self._effects.monotonic(), replace(load, lag_seconds=capture.lag))

    def probe(self) -> None:
        """Run the user's probe, if a dump would run now."""
        query = self.throttle.probe
        if query is None or not self.watches:
            self._probed = (None, Load())
            return
        try:
            load = Load(probe=self._source.probe(query))
        except SourceError as error:
            load = Load(trouble=error.message)
        self._probed = (query, load)

    def log_had_changes(self) -> None:
        self._busy_until = self._effects.monotonic() + QUIET_AFTER_SECONDS

    def opened(self) -> None:
        """Note that a round opens."""
        self._governor.opened(self._effects.monotonic())

    def read(self, chunks: Sequence[Staged]) -> None:
        """Note the times and rows of a round: they decide when the next one may open."""
        if chunks:
            self._selects += len(chunks)
            self._select_seconds += sum(c.seconds for c in chunks)
            self._last_select = max(c.seconds for c in chunks)
            self._governor.read(
                self.throttle, self._effects.monotonic(), sum(c.rows for c in chunks), self._last_select
            )

    def status(self) -> dict[str, Any]:
        return {
            "selects": self._selects,
            "select_seconds": self._select_seconds,
            "last_select_seconds": self._last_select if self._selects else None,
        }


def _limited(throttle: Throttle) -> bool:
    """Whether the user has set how much a round reads."""
    given = (throttle.chunks, throttle.rows_per_second, throttle.select_seconds, throttle.max_select_seconds)
    return throttle.delay_seconds > 0 or any(value is not None for value in given)
