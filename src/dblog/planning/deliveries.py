"""Counts what a stream has delivered, per dump and in this life, and emits the events about it.

A batch is delivered between two calls: `planned`, when its end is known, and `delivered`, when Spark asks for the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dblog.capture.effects import REAL, Effects
from dblog.capture.segments import Segment
from dblog.capture.spool import Spool
from dblog.core.event import RAW
from dblog.core.offset import Offset, Tally
from dblog.core.schema import TableName
from dblog.planning.settings import Counts
from dblog.planning.state_sync import StateSync

log = logging.getLogger(__name__)

STORE_SECONDS = 5.0
"""How long planning waits for the state store when the dump of a table has ended, in seconds."""


class Deliveries:
    """Counts what batches deliver. `tell` is called with each event."""

    def __init__(
        self, spool: Spool, sync: StateSync | None, tell: Callable[..., None], effects: Effects = REAL
    ) -> None:
        self._spool = spool
        self._effects = effects
        self._sync = sync
        self._tell = tell
        self._last: Offset | None = None
        self.tally: tuple[Tally, ...] = ()
        """What the running dumps have delivered, up to the last committed batch."""
        self.counts = Counts()
        self._reported: dict[TableName, set[str]] = {}
        """Columns whose raw values were reported in this life."""
        self._planned: tuple[Offset, float] | None = None
        """The end of the batch that is being delivered, and when it was planned."""
        self._lost: str | None = None
        """The last commits that were delivered and lost, in this life, in words."""
        self._batches, self._batch_seconds, self._last_batch_seconds = 0, 0.0, 0.0

    def status(self) -> dict[str, Any]:
        """How long batches take, and the end of the batch that is being delivered."""
        planned = self._planned
        return {
            "planned": None if planned is None else planned[0].position,
            "batches": self._batches,
            "batch_seconds": round(self._batch_seconds, 4),
            "last_batch_seconds": round(self._last_batch_seconds, 4),
            **({} if self._lost is None else {"lost_commits": self._lost}),
        }

    def delivered(self, offset: Offset) -> None:
        """Count the batch that ends here: Spark has committed it."""
        if offset == self._last:
            return
        self._last = offset
        self._took_time(offset)
        counts = {(t.dump, t.table): (t.emitted, t.dropped) for t in offset.tally}
        for chunk in offset.emit:
            noted = self._spool.noted(chunk.id)
            if noted is None:
                continue
            rows, dropped = noted["rows"], noted["dropped"]
            for dump in chunk.dumps:
                before = counts.get((dump, chunk.table), (0, 0))
                counts[dump, chunk.table] = before[0] + rows, before[1] + dropped
            self.counts.dumped += rows
            self.counts.dropped += dropped
            facts = {"chunk": chunk.id, "dump": chunk.dump, "table": str(chunk.table)}
            for example in noted.get("examples", ()):
                self._tell("row_dropped", **facts, **example)
            self._tell("chunk_emitted", **facts, rows=rows, dropped=dropped)
            self._count_raw(chunk.table, noted.get("raw", {}))
        self._tell("offset_committed", position=offset.position, events=self.counts.events)
        self.tally = tuple(Tally(*whose, *count) for whose, count in counts.items())
        if self._sync is not None:
            self._sync.delivered(offset, self.tally)

    def _took_time(self, offset: Offset) -> None:
        if self._planned is not None and self._planned[0] == offset:
            self._last_batch_seconds = self._effects.monotonic() - self._planned[1]
            self._batches += 1
            self._batch_seconds += self._last_batch_seconds
        self._planned = None

    def planned(self, start: Offset, end: Offset, segments: Sequence[Segment]) -> None:
        """Count the batch between two offsets, which is planned with the log of these segments."""
        assert start.position is not None
        assert end.position is not None
        if self._sync is not None and len(end.tally) < len(self.tally):
            # the dump of a table has ended: only the committed batch has its final counts
            self._sync.exchange(STORE_SECONDS)
        self.counts.windows += bool(end.emit)
        events = sum(s.upto(end.position)[0] - s.upto(start.position)[0] for s in segments)
        self.counts.events += events
        self._planned = end, self._effects.monotonic()
        self._tell("batch_planned", position=end.position, events=events, chunks=len(end.emit))
        for lost in (s.lost for s in segments if s.lost is not None and start.position <= s.start):
            tables = {str(table): rows for table, rows in lost.tables.items()}
            self._lost = f"commits from {lost.after} to {lost.upto}, from {lost.servers}: {lost.described}"
            self._tell("commits_lost", after=lost.after, upto=lost.upto, servers=lost.servers, tables=tables)
        for file in (f for segment in segments for f in segment.files):
            if file.raw and start.position <= file.last < end.position:  # the batch that has its last change counts it
                self._count_raw(file.table, dict(file.raw))

    def _count_raw(self, table: TableName, raw: Mapping[str, int]) -> None:
        """Count raw values, by column, and report each column once."""
        self.counts.raw += sum(raw.values())
        for column in raw.keys() - self._reported.get(table, set()):
            self._reported.setdefault(table, set()).add(column)
            log.warning(
                "table %s: column %r has values that its type cannot hold; they are null, and their texts are in %s",
                table,
                column,
                RAW,
            )
            self._tell("raw_value", table=str(table), column=column, rows=raw[column])
