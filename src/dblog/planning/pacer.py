"""The pace of a stream's dumps: how large the next round may be, and whether one may open at all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dblog.capture.capture import Capture
from dblog.capture.effects import REAL, Effects
from dblog.core.dump import Staged
from dblog.core.offset import Chunk, Offset
from dblog.core.pace import CHUNK_SECONDS, Budget, Pace, Ran
from dblog.core.schema import TableName
from dblog.core.throttle import Governor, Load, Throttle
from dblog.errors import SourceError
from dblog.sources.base import Source

QUIET_AFTER_SECONDS = 5.0
"""The log is quiet after this time without changes of followed tables, in seconds."""

MEASURE_AGAIN_SECONDS = 30.0
"""How often a dump leaves out a round to measure how long a batch takes without one, in seconds."""
MEASURE_PLANS = 4
"""How many plans without a round such a measurement may take. If no changes arrive, there is no batch to measure."""

LIGHT_ROWS = 10_000
"""A batch with at most this many changes takes about as long as one with a single change."""

FIRST_ROW_SECONDS = 50e-6
"""How long a row of an unknown table may take, in seconds: the first chunk of a dump has so few rows that it stays
within the time of a round."""
MOST_FIRST_ROWS = 50_000
"""Rows of the first chunk of a dump, at most."""


class Pacer:
    """Decides the pace from the throttle, the times of selects and batches, and the load of log and source."""

    def __init__(
        self,
        source: Source,
        parallelism: int,
        chunk_rows: int | None,
        max_delay: float | None = None,
        effects: Effects = REAL,
    ) -> None:
        self._source = source
        self._effects = effects
        self._parallelism = parallelism
        self._chunk_rows = chunk_rows
        self._max_delay = max_delay
        self._governor = Governor()
        self._budget = Budget()
        self._row_seconds: dict[TableName, float] = {}
        self._probed: tuple[str | None, Load] = (None, Load())
        self._busy_until = 0.0
        self._measure_at, self._measuring = 0.0, 0
        """When to measure a batch without a round again, and how many plans that has taken."""
        self._asked = 0.0
        self._since: float | None = None
        """When the batch that runs was planned; None if none runs."""
        self._ran = Ran(0.0)
        """The facts that are known about this batch."""
        self._full, self._rows = False, 0
        """Whether the dumps had more to read than the last round has; and the rows of the last round."""
        self._selects, self._select_seconds, self._last_select = 0, 0.0, 0.0
        self.throttle = Throttle()
        self.watches = False
        """Whether a dump has rows to read."""

    def pace(self) -> Pace:
        """The size of the next round: what the log's delay allows, within the throttle."""
        throttle = self.throttle
        self._budget.max_delay = throttle.max_delay_seconds or self._max_delay
        limit, seconds = self._budget.limit(quiet=self._quiet()), self._budget.seconds(quiet=self._quiet())
        limited = _limited(throttle)
        select_seconds = throttle.select_seconds or _divided(limit / 8 if limited else seconds)
        first = max(Pace.first, min(int(limit / FIRST_ROW_SECONDS), MOST_FIRST_ROWS))
        chunks, round_rows = throttle.chunks or self._parallelism, self._budget.rows(first * self._parallelism)
        pace = Pace(
            chunks=chunks,
            budget=0.0 if limited else seconds * self._parallelism,
            rows=throttle.chunk_rows or self._chunk_rows,
            seconds=min(select_seconds, throttle.max_select_seconds or select_seconds),
            most=min(Pace.most, round_rows // self._parallelism),
            first=first,
            round_rows=round_rows,
            row_seconds=self._row_seconds,
        )
        if throttle.rows_per_second is not None:  # at least one round per second, for a steady rate
            pace = replace(pace, most=max(1, int(throttle.rows_per_second / chunks)))
        return pace

    def measures(self) -> bool:
        """Whether no round may open now, so that the next batch shows how long a batch takes without one. The time of a
        round follows it, unless the user or the trigger says how long changes may wait. Called once per plan."""
        now = self._effects.monotonic()
        if self._quiet() or self._budget.max_delay is not None or _limited(self.throttle) or now < self._measure_at:
            self._measuring = 0
            return False
        self._measuring += 1
        if self._measuring > MEASURE_PLANS:
            self._measuring, self._measure_at = 0, now + MEASURE_AGAIN_SECONDS
        return self._measuring > 0

    def _quiet(self) -> bool:
        return self._effects.monotonic() >= self._busy_until

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

    # -- what happens ----------------------------------------------------------------------------------------

    def asked(self) -> None:
        """Note that a batch is planned now. So the one before has run."""
        self._asked = self._effects.monotonic()
        if self._since is not None:
            self._ran = replace(self._ran, interval=self._asked - self._since)

    def read(self, round_: Sequence[tuple[Chunk, Staged]]) -> None:
        """Note the times and rows of the round that was selected while the last batch ran; none if it had no round."""
        chunks = [staged for _, staged in round_]
        if chunks:
            self._selects += len(chunks)
            self._select_seconds += sum(c.seconds for c in chunks)
            self._last_select = max(c.seconds for c in chunks)
            self._governor.read(
                self.throttle, self._effects.monotonic(), sum(c.rows for c in chunks), self._last_select
            )
        seconds = sum(c.seconds + Pace.SELECT_SECONDS for c in chunks)
        self._ran = replace(self._ran, selected=seconds / self._parallelism)
        self._rows = sum(c.rows for c in chunks)
        if self._since is not None:
            self._budget.ran(self._ran)
            if not chunks and self._ran.emitted == 0.0:
                self._measure_at = self._effects.monotonic() + MEASURE_AGAIN_SECONDS
        self._measure(round_)

    def _measure(self, round_: Sequence[tuple[Chunk, Staged]]) -> None:
        """Note how long the rows of each table take. A select with a condition has read more rows than it returned."""
        seconds: dict[TableName, float] = {}
        rows: Counter[TableName] = Counter()
        for chunk, staged in round_:
            if chunk.extent.where is None and not chunk.extent.keys and staged.rows:
                seconds[chunk.table] = seconds.get(chunk.table, 0.0) + staged.seconds
                rows[chunk.table] += staged.rows
        self._row_seconds |= {table: seconds[table] / rows[table] for table in rows}

    def planned(self, start: Offset, end: Offset, changes: int) -> None:
        """Note that a batch is planned, with so many changes of the log. If it is empty, no batch runs."""
        now = self._effects.monotonic()
        if end.read:
            self._governor.opened(now)
        # without a round, planning waits for changes: that is no part of the batch
        window = bool(start.read or end.read)
        self._since = None if end == start else self._asked if window else now
        self._ran = Ran(
            0.0,
            emitted=self._ran.selected if end.emit else 0.0,
            rows=self._rows if end.emit else 0,
            full=self._full,
            quiet=self._quiet(),
            light=changes <= LIGHT_ROWS,
        )
        self._full = bool(end.dumps)
        dumped = {c.table for c in end.dumps}
        self._row_seconds = {table: seconds for table, seconds in self._row_seconds.items() if table in dumped}

    def status(self) -> dict[str, Any]:
        return {
            "selects": self._selects,
            "select_seconds": self._select_seconds,
            "last_select_seconds": self._last_select if self._selects else None,
        }


def _divided(seconds: float) -> float:
    """The time of each select, if a task has as many of them as needed to fill the time of a round."""
    return seconds / math.ceil(seconds / CHUNK_SECONDS)


def _limited(throttle: Throttle) -> bool:
    """Whether the user has set how much a round reads."""
    given = (throttle.chunks, throttle.rows_per_second, throttle.select_seconds, throttle.max_select_seconds)
    return throttle.delay_seconds > 0 or any(value is not None for value in given)
