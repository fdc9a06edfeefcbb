"""Planning: where the next batch ends, and which chunks are read. The imperative shell around `core.window.plan`."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from dblog.admission import admit
from dblog.capture import Capture
from dblog.core.dump import INITIAL, OWN, Orders, Staged
from dblog.core.offset import Chunk, Cursor, Offset, Taken, Tally
from dblog.core.schema import TableName, TableSchema
from dblog.core.window import Mark, plan
from dblog.desk import Desk, Inbox, described
from dblog.errors import KeyChanged, PreconditionFailed, TableLocked
from dblog.pacer import Pacer
from dblog.retry import retrying
from dblog.segments import Limit, Segment, joined_holes, reach
from dblog.sources.base import Source
from dblog.spool import LogFile, Spool
from dblog.state.pipeline import request_number
from dblog.state.requests import TableProgress
from dblog.tasks import stage

_T = TypeVar("_T")

POLL_SECONDS = 0.5
"""How long planning waits for something to happen before it says that nothing did."""

FAR_BEHIND_BYTES = 64 << 20
"""With more log than this still to read, a dump waits: the log goes first, in batches of bounded size."""

STORE_SECONDS = 5.0
"""How long planning waits for the state store, when a dump of a table is over."""

LOCKED_SECONDS = 5.0
"""How long no round is tried after a table was found locked."""


@dataclass(frozen=True)
class Settings:
    """How a stream runs."""

    dump: bool = True
    """Whether every table is dumped when the stream first meets it."""
    before: bool = False
    chunk_rows: int | None = None
    parallelism: int = 2
    read_ahead: int = 256 << 20
    heartbeat: float = 30.0
    patience: float = 300.0


@dataclass
class Counts:
    """What the stream has done in this life, for progress reports."""

    windows: int = 0
    dumped: int = 0
    dropped: int = 0
    events: int = 0

    def to_json(self) -> dict[str, int]:
        return dict(vars(self))


class Planner:
    """Plans one batch after the other."""

    def __init__(
        self,
        source: Source,
        spool: Spool,
        settings: Settings,
        check: Callable[[Collection[str]], None],
        version: str | None,
        desk: Desk | None,
    ) -> None:
        self._source = source
        self._spool = spool
        self._settings = settings
        self._check = check
        self._version = version
        self._desk = desk
        self._tables: Mapping[TableName, TableSchema] = {}
        self._rows: Mapping[TableName, int | None] = {}
        self._versions: set[str] = set()
        self._pacer = Pacer(source, settings.parallelism, settings.chunk_rows)
        self._waits: str | None = None
        self._moved = self._looked = time.monotonic()
        self._locked_until = 0.0
        self._announced = False
        self._delivered: Offset | None = None
        self._tally: tuple[Tally, ...] = ()
        self.counts = Counts()

    def know(self, tables: Mapping[TableName, TableSchema]) -> None:
        """These are the tables to follow."""
        self._tables = tables
        if self._desk is not None:
            self._versions = {schema.version for schema in tables.values()}
            self._desk.saw({schema.version: schema for schema in tables.values()})
            self._rows = {table: self._retrying(lambda: self._source.estimate(table)) for table in tables}  # noqa: B023

    # -- what has been done ----------------------------------------------------------------------------------

    def delivered(self, offset: Offset) -> None:
        """Spark has committed the batch that ends here."""
        if offset == self._delivered:
            return
        self._delivered = offset
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
        self._tally = tuple(Tally(*whose, *count) for whose, count in counts.items())
        if self._desk is not None:
            self._desk.delivered(offset, self._tally)

    def status(self) -> dict[str, Any]:
        """What people see of the planning."""
        return {
            "tables": {
                str(name): {"version": s.version, "rows": self._rows.get(name), **described(s)}
                for name, s in self._tables.items()
            },
            "events": self.counts.events,
            "rows": self.counts.dumped,
            "dropped": self.counts.dropped,
            "windows": self.counts.windows,
            "waiting": self._waits,
            **self._pacer.status(),
        }

    def probe(self) -> None:
        """Ask the user's probe, if anybody waits for its answer. Called by the desk's thread: it may take a while."""
        self._pacer.probe()

    # -- planning --------------------------------------------------------------------------------------------

    def plan(self, start: Offset, capture: Capture, limit: Limit, target: int | None) -> Offset | None:
        """Where the batch after `start` ends; `start` itself when there is nothing to do; None when the log up to
        `target` is delivered and no dump runs."""
        self._look_after(start)
        orders = self._orders(start)
        arrived = target is not None and (start.position or 0) >= target and not start.read
        if arrived and (self._pacer.throttle.paused or not self._active(start, orders)):
            return None
        if self._opens_window(start, capture, orders):
            end = self._retrying(lambda: self._end_window(start, capture, orders))
        else:
            end = self._retrying(lambda: self._end_anywhere(start, capture, orders, limit, target))
        if end != start:
            self._moved = time.monotonic()
        return end

    def _look_after(self, start: Offset) -> None:
        """Now and then, see that the tables are still published: what is not is missing from the log in silence."""
        if time.monotonic() - self._looked > self._settings.heartbeat:
            self._retrying(lambda: self._source.check_followed(start.tables))
            self._looked = time.monotonic()

    def _orders(self, start: Offset) -> Orders:
        """What people want now; requests that the offset has not taken become cursors."""
        wanted = tuple(self._tables) if self._settings.dump else ()
        if self._desk is None:
            return Orders(wanted)
        inbox = self._desk.inbox()
        self._pacer.throttle = inbox.throttle
        first = [t for t in wanted if t not in start.tables]
        if first and not self._announced:
            self._announced = True
            self._desk.admitted(INITIAL, {str(t): TableProgress(total=self._rows[t]) for t in first})
        return replace(self._admitted(start, inbox), wanted=wanted)

    def _admitted(self, start: Offset, inbox: Inbox) -> Orders:
        assert self._desk is not None
        before = start.taken.number if start.taken is not None and start.taken.store == inbox.store else 0
        new = [d for d in inbox.requests if request_number(d.id) > before and d.id not in inbox.cancelled]
        cursors: list[Cursor] = []
        for dump in new:
            request = dump.request
            parts = self._retrying(lambda: admit(dump.id, request, self._tables, self._source, self._pacer.pace()))  # noqa: B023
            self._desk.admitted(dump.id, {str(p.cursor.table): p.progress for p in parts})
            cursors += [p.cursor for p in parts]
        taken = Taken(inbox.store, max(request_number(d.id) for d in new)) if new else None
        return Orders((), tuple(cursors), taken, inbox.held, inbox.cancelled)

    def _active(self, start: Offset, orders: Orders) -> bool:
        """Whether a dump has anything to read now."""
        idle = orders.cancelled | orders.held
        reads = any(not set(c.dumps) <= idle and c.failed is None for c in (*start.dumps, *orders.new))
        return reads or (INITIAL not in orders.held and not set(orders.wanted) <= set(start.tables))

    def _opens_window(self, start: Offset, capture: Capture, orders: Orders) -> bool:
        """Whether the next batch ends at a watermark: to end the running round, or to open one that may run."""
        active = self._pacer.watches = self._active(start, orders)
        self._waits = self._obstacle(start, capture) if active else None
        return bool(start.read) or (active and self._waits is None)

    def _obstacle(self, start: Offset, capture: Capture) -> str | None:
        """Why no round may open now."""
        if time.monotonic() < self._locked_until:
            return "a table is locked"
        suspects = np.array(start.suspects, np.int64)
        if len(suspects) and self._retrying(lambda: self._source.invisible(suspects, start.place)):
            return "a commit is not visible yet"
        if (throttled := self._pacer.waits(capture)) is not None:
            return throttled
        behind = self._retrying(self._source.latest) - capture.position
        return f"the log is {behind >> 20} MiB behind" if behind >= FAR_BEHIND_BYTES else None

    def _end_window(self, start: Offset, capture: Capture, orders: Orders) -> Offset:
        """End the batch at a watermark.

        1. Stage what no task has staged (a limit, a lost executor): the select is still in its window. Then note what
           is there: a file that a late task brings after the watermark must not count.
        2. Write the watermark: the window of the running round ends here. Or, where nothing may be written, ask for a
           position that no select has seen beyond.
        3. Wait until it comes back through the log, or the log has got there.
        4. Look which transactions a select might miss, then plan; the round that is opened starts after this look.
        """
        assert start.position is not None
        # 1.
        for chunk in start.read:
            with contextlib.suppress(TableLocked, KeyChanged):  # then the chunk is not there, and is read again later
                found = stage(self._source, self._spool, chunk)
                if found.failed is None:
                    self._check({found.version})
        staged = self.staged((*start.emit, *start.read))
        self._was_read([c for c in start.read if c.id in staged], staged)
        # 2. and 3.
        token = uuid.uuid4().hex
        if self._source.writes:
            bound = self._source.write_watermark(token)
            self._tell("watermark_written", token=token)
            position = capture.wait_token(token, bound)
        else:
            position = capture.wait_position(self._source.high_watermark())
        self._tell("watermark_seen", token=token, position=position)
        # 4.
        segments = capture.between(start.position, position)
        files = self._looked_at(segments)
        mark = self._mark(start, position, token, capture)
        staged = _same_schema(start, staged, files)
        if not self._source.comparable(start.place, mark.place):
            # chunks may show what was committed on another server and is on no other: they are read again
            elsewhere = {c.id for c in start.read}
            staged = {chunk_id: found for chunk_id, found in staged.items() if chunk_id not in elsewhere}
            self._spool.remove_chunks(elsewhere)
        if files:
            self._pacer.log_had_changes()
        pace = self._pacer.pace()
        if start.read and self._pacer.waits(capture) is not None:
            pace = replace(pace, chunks=0)
        try:
            end = plan(start, mark, staged=staged, orders=orders, pace=pace, boundaries=self._source, tally=self._tally)
        except TableLocked:  # no boundaries now: no round now
            self._locked_until = time.monotonic() + LOCKED_SECONDS
            pace = replace(pace, chunks=0)
            end = plan(start, mark, staged=staged, orders=orders, pace=pace, boundaries=self._source, tally=self._tally)
        if end.read:
            self._pacer.opened()
            self._tell("round_opened", chunks=len(end.read))
        self._planned(start, end, segments)
        return end

    def _end_anywhere(
        self, start: Offset, capture: Capture, orders: Orders, limit: Limit, target: int | None
    ) -> Offset:
        """End the batch at some commit: as much log as there is and the limit allows."""
        assert start.position is not None
        news = orders.new or any(c.failed or set(c.dumps) & orders.cancelled for c in start.dumps)
        if capture.wait_rows(start.position, 0.0 if news else POLL_SECONDS, eager=target is not None):
            capture.wait_more(start.position)
            position = reach(capture.between(start.position, capture.position), start.position, limit)
        elif news or self._overdue(start.position, capture.position, target):
            # nothing of ours, but the log moves on: acknowledge that, and keep Spark's workers warm
            position = capture.position
        else:
            return start
        segments = capture.between(start.position, position)
        files = self._looked_at(segments)
        mark = self._mark(start, position, None, capture)
        if files:
            self._pacer.log_had_changes()
        later, pace = replace(orders, wanted=()), self._pacer.pace()
        end = plan(
            start,
            mark,
            staged=self.staged(start.emit),
            orders=later,
            pace=pace,
            boundaries=self._source,
            tally=self._tally,
        )
        if not self._settings.dump:
            end = replace(end, tables=tuple(dict.fromkeys((*start.tables, *self._tables))))
        self._planned(start, end, segments)
        return end

    def _overdue(self, start: int, captured: int, target: int | None) -> bool:
        """Whether to end a batch although the log has nothing of ours: every now and then, or to reach the target."""
        arrives = target is not None and start < target <= captured
        return arrives or time.monotonic() - self._moved > self._settings.heartbeat

    def _looked_at(self, segments: Sequence[Segment]) -> list[LogFile]:
        """The files of the segments, whose schemas the stream can deliver and people know."""
        files = [f for s in segments for f in s.files]
        self._check({f.version for f in files})
        if self._desk is not None:
            new = {f.version: f for f in files if f.version not in self._versions}
            self._versions |= new.keys()
            self._desk.saw({version: self._spool.read_log(f.path, ())[0] for version, f in new.items()})
        return files

    def _mark(self, start: Offset, position: int, token: str | None, capture: Capture) -> Mark:
        """What there is to say of a position that ends a batch. First what a select might miss: not before the log up
        to there has been seen."""
        assert start.position is not None
        segments, place = capture.between(start.position, position), capture.place(position)
        commits = [s.commits.between(start.position, position) for s in segments]
        shown = np.concatenate([np.array(start.suspects, np.int64), *(c.xids for c in commits)])
        suspects = self._source.invisible(shown, place) if len(shown) else ()
        return Mark(position, token, suspects, joined_holes(segments), place)

    def staged(self, chunks: Iterable[Chunk]) -> Mapping[str, Staged]:
        """What the spool holds for the chunks, of the schema that the stream has."""
        found = {c.id: self._spool.staged(c.id) for c in chunks}
        return {
            chunk_id: staged
            for chunk_id, staged in found.items()
            if staged is not None and (staged.failed is not None or self._version in (None, staged.version))
        }

    def _was_read(self, chunks: Sequence[Chunk], staged: Mapping[str, Staged]) -> None:
        for chunk in chunks:
            found = staged[chunk.id]
            facts = {"chunk": chunk.id, "dump": chunk.dump, "table": str(chunk.table)}
            self._tell("chunk_selected", **facts, rows=found.rows, seconds=round(found.seconds, 6))
        self._pacer.read([staged[c.id] for c in chunks])

    def _planned(self, start: Offset, end: Offset, segments: Sequence[Segment]) -> None:
        assert start.position is not None
        assert end.position is not None
        if self._desk is not None and len(end.tally) < len(self._tally):
            self._desk.exchange(
                STORE_SECONDS
            )  # a dump of a table is over: what it came to is only in the batch that is done
        self.counts.windows += bool(end.emit)
        self.counts.events += sum(s.upto(end.position)[0] - s.upto(start.position)[0] for s in segments)
        for cursor in end.dumps:
            if cursor.failed is not None and cursor.dump in OWN and cursor.table in self._source.tables():
                raise PreconditionFailed(
                    f"table {cursor.table} cannot be dumped: {cursor.failed}",
                    hint="a stream without the table's full state would be wrong: repair what is said, or leave it out",
                )

    def _tell(self, kind: str, **facts: Any) -> None:
        if self._desk is not None:
            self._desk.tell(kind, **facts)

    def _retrying(self, call: Callable[[], _T]) -> _T:
        return retrying(call, self._settings.patience)


def _same_schema(start: Offset, staged: Mapping[str, Staged], log: Sequence[LogFile]) -> Mapping[str, Staged]:
    """The staged chunks without those that were read under another schema than the log of their window shows: they
    are read again, under the new one. A chunk that failed has no rows, so no schema, and stays failed."""
    versions = defaultdict(set)
    for file in log:
        versions[file.table].add(file.version)
    tables = {c.id: c.table for c in start.read}
    return {
        chunk_id: found
        for chunk_id, found in staged.items()
        if chunk_id not in tables or found.failed is not None or versions[tables[chunk_id]] <= {found.version}
    }
