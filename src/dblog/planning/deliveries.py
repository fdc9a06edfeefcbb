"""Counts what a stream has delivered, per dump and in this life, and emits the events about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dblog.capture.segments import Segment
from dblog.capture.spool import Spool
from dblog.core.offset import Offset, Tally
from dblog.planning.settings import Counts
from dblog.planning.state_sync import StateSync

STORE_SECONDS = 5.0
"""How long planning waits for the state store when the dump of a table has ended, in seconds."""


class Deliveries:
    """Counts what batches deliver. `tell` is called with each event."""

    def __init__(self, spool: Spool, sync: StateSync | None, tell: Callable[..., None]) -> None:
        self._spool = spool
        self._sync = sync
        self._tell = tell
        self._last: Offset | None = None
        self.tally: tuple[Tally, ...] = ()
        """What the running dumps have delivered, up to the last committed batch."""
        self.counts = Counts()

    def delivered(self, offset: Offset) -> None:
        """Count the batch that ends here: Spark has committed it."""
        if offset == self._last:
            return
        self._last = offset
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
        self._tell("offset_committed", position=offset.position, events=self.counts.events)
        self.tally = tuple(Tally(*whose, *count) for whose, count in counts.items())
        if self._sync is not None:
            self._sync.delivered(offset, self.tally)

    def planned(self, start: Offset, end: Offset, segments: Sequence[Segment]) -> None:
        """Count the batch between two offsets, which is planned with the log of these segments."""
        assert start.position is not None
        assert end.position is not None
        if self._sync is not None and len(end.tally) < len(self.tally):
            # the dump of a table has ended: only the committed batch has its final counts
            self._sync.exchange(STORE_SECONDS)
        self.counts.windows += bool(end.emit)
        self.counts.events += sum(s.upto(end.position)[0] - s.upto(start.position)[0] for s in segments)
