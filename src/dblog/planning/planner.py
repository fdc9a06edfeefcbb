"""Planning: where the next batch ends, and which chunks are read. It does the I/O around `core.window.plan`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dblog.capture.capture import Capture
from dblog.capture.effects import REAL, Effects
from dblog.capture.segments import Limit, Segment, joined_holes, reach, same_schema
from dblog.capture.spool import LogFile, Spool, schema_to_text
from dblog.core.dump import INITIAL, OWN, Orders, Staged, begun_again
from dblog.core.offset import Chunk, Offset
from dblog.core.schema import TableName
from dblog.core.window import Mark, plan
from dblog.errors import KeyChanged, PreconditionFailed, TableLocked
from dblog.planning.deliveries import Deliveries
from dblog.planning.following import Change, Following
from dblog.planning.orders import Requests
from dblog.planning.pacer import Pacer
from dblog.planning.retry import retrying
from dblog.planning.settings import StreamSettings
from dblog.planning.state_sync import StateSync
from dblog.planning.tables import FollowedTables
from dblog.sources.base import Source
from dblog.work.tasks import stage

_T = TypeVar("_T")

POLL_SECONDS = 0.5
"""How long planning waits for changes before it returns that there are none, in seconds."""

FAR_BEHIND_BYTES = 64 << 20
"""Bytes of unread log above which dumps wait. The log is delivered first, in batches of bounded size."""

LOCKED_SECONDS = 5.0
"""How long no round is tried after a table was found locked, in seconds."""


@dataclass(frozen=True)
class PlannedWindow:
    """A batch that ends at a watermark, and the facts to record when it is final."""

    end: Offset
    segments: Sequence[Segment]
    unread: frozenset[TableName]
    """Existing tables whose rows could not be read for an initial or repair dump."""
    elsewhere: frozenset[str]
    """Chunks that were read on another server than the log."""


class Planner:
    """Plans one batch after the other."""

    def __init__(
        self,
        source: Source,
        spool: Spool,
        settings: StreamSettings,
        check: Callable[[Collection[str]], None],
        version: str | None,
        sync: StateSync | None,
        effects: Effects = REAL,
    ) -> None:
        self._source = source
        self._spool = spool
        self._settings = settings
        self._check = check
        self._version = version
        self._sync = sync
        self._effects = effects
        self.tables = FollowedTables(source, sync, self._retrying)
        self._pacer = Pacer(source, settings.parallelism, settings.chunk_rows, settings.max_delay, effects)
        self._waits: str | None = None
        self._measures = False
        """Whether the next batch opens no round, to measure how long it takes."""
        self._moved = self._effects.monotonic()
        self._locked_until = 0.0
        self._unread: set[TableName] = set()
        """Existing tables whose rows could not be read for an initial or repair dump."""
        self._following = Following(
            source,
            renamed=settings.follow_renamed,
            new=settings.follow_new,
            seconds=settings.heartbeat,
            tell=self._tell,
            knows=self.tables.known,
            effects=effects,
        )
        self._requests = Requests(
            source, sync, self.tables, self._following, self._pacer, self._retrying, dump=settings.dump
        )
        self.deliveries = Deliveries(spool, sync, self._tell)

    # -- status ------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The status of planning, for users."""
        counts = self.deliveries.counts
        return {
            "tables": self.tables.status(),
            **self._following.status(),
            "events": counts.events,
            "rows": counts.dumped,
            "dropped": counts.dropped,
            "windows": counts.windows,
            "waiting": self._waits,
            **self._pacer.status(),
        }

    def probe(self) -> None:
        """Run the user's probe, if a dump waits for its answer."""
        self._pacer.probe()

    # -- planning --------------------------------------------------------------------------------------------

    def plan(self, start: Offset, capture: Capture, limit: Limit, target: int | None) -> Offset | None:
        """The offset that ends the batch after `start`. `start` itself if there is nothing to do. None if the log up to
        `target` is delivered and no dump runs."""
        self._pacer.asked()
        self._retrying(lambda: self._following.look(start, capture))
        self.tables.learn(self._following.followed(start), self._following.looks)
        orders = self._requests.orders(start)
        arrived = target is not None and (start.position or 0) >= target and not start.read
        busy = self._active(start, orders) or self._waits_for_names(start, orders) or self._following.pending(start)
        busy = busy or (arrived and self._lost(start))
        if arrived and (self._pacer.throttle.paused or not busy):
            return None
        events = self.deliveries.counts.events
        self._measures = target is None and self._pacer.measures()
        if self._opens_window(start, capture, orders):
            end = self._end_window(start, capture, orders)
        else:
            self._pacer.read(())
            end = self._retrying(lambda: self._end_anywhere(start, capture, orders, limit, target))
        if end != start:
            self._moved = self._effects.monotonic()
        self._pacer.planned(start, end, self.deliveries.counts.events - events)
        return end

    def _active(self, start: Offset, orders: Orders) -> bool:
        """Whether a dump has rows to read now."""
        idle = orders.cancelled | orders.held
        cursors = [c for c in (*start.dumps, *orders.new) if not orders.waits(c)]
        reads = any(not set(c.dumps) <= idle and c.failed is None for c in cursors)
        return reads or (INITIAL not in orders.held and not set(orders.wanted) <= set(start.tables))

    def _lost(self, start: Offset) -> bool:
        """Whether a chunk was lost that the batch up to `start` should have delivered. It must be read again."""
        staged = self.staged(start.emit)
        return any(c.id not in staged or staged[c.id].stamp != c.stamp for c in start.emit)

    def _waits_for_names(self, start: Offset, orders: Orders) -> bool:
        """Whether a table that must be dumped is away."""
        return any(orders.waits(c) and not set(c.dumps) <= orders.held for c in start.dumps)

    def _opens_window(self, start: Offset, capture: Capture, orders: Orders) -> bool:
        """Whether the next batch ends at a watermark: to end the running round, or to open one that may run."""
        active = self._pacer.watches = self._active(start, orders)
        self._waits = self._obstacle(start, capture) if active else None
        # the watermark gives a position at which the followed tables can change
        joins = self._retrying(lambda: self._following.due(start, capture.position))
        return bool(start.read) or joins or (active and self._waits is None and not self._measures)

    def _obstacle(self, start: Offset, capture: Capture) -> str | None:
        """Why no round may open now; None if one may."""
        if self._effects.monotonic() < self._locked_until:
            return "a table is locked"
        suspects = np.array(start.suspects, np.int64)
        if len(suspects) and self._retrying(lambda: self._source.invisible(suspects, start.coordinate)):
            return "a commit is not visible yet"
        if (throttled := self._pacer.waits(capture)) is not None:
            return throttled
        behind = self._retrying(self._source.latest) - capture.position
        return f"the log is {behind >> 20} MiB behind" if behind >= FAR_BEHIND_BYTES else None

    def _end_window(self, start: Offset, capture: Capture, orders: Orders) -> Offset:
        """End the batch at a watermark.

        1. Stage the chunks that no task has staged (a limit, a lost executor): the window is still open. Then list the
           staged files: a file that a late task writes after the watermark must not count.
        2. Charge the selects to the throttle, and emit their events.
        3. Write the watermark: the window of the running round ends here. If nothing may be written, query a position
           that is not before anything that a select has seen. Wait until the log has reached it.
        4. Find the transactions that a select might miss, then plan. Selects of the new round start after this.
        5. Charge what was planned, and emit its events.

        After a lost connection, 1 is repeated, or 3 and 4 with a new watermark. 2 and 5 are done only once.
        """
        # 1.
        staged = self._retrying(lambda: self._stage(start))
        # 2.
        self._was_read([c for c in start.read if c.id in staged], staged)
        # 3. and 4.
        planned = self._retrying(lambda: self._plan_window(start, capture, orders, staged))
        # 5.
        self._unread |= planned.unread
        self._spool.remove_chunks(planned.elsewhere)
        if planned.end.read:
            self._tell("round_opened", chunks=len(planned.end.read))
        self.deliveries.planned(start, planned.end, planned.segments)
        return planned.end

    def _stage(self, start: Offset) -> Mapping[str, Staged]:
        """Select the chunks of the round that are not staged. Returns all staged chunks."""
        for chunk in start.read:
            with contextlib.suppress(TableLocked, KeyChanged):  # then the chunk is not staged, and is read later
                found = stage(self._source, self._spool, chunk)
                if found.failed is None:
                    self._check({found.version})
        return self.staged((*start.emit, *start.read))

    def _watermark(self, capture: Capture) -> tuple[str, int]:
        """Write a watermark and wait until the log shows it. Returns its token and its position."""
        token = self._effects.token()
        if self._source.writes:
            bound = self._source.write_watermark(token)
            self._tell("watermark_written", token=token)
            position = capture.wait_token(token, bound)
        else:
            position = capture.wait_position(self._source.high_watermark())
        self._tell("watermark_seen", token=token, position=position)
        return token, position

    def _plan_window(
        self, start: Offset, capture: Capture, orders: Orders, staged: Mapping[str, Staged]
    ) -> PlannedWindow:
        """Write a watermark and plan the batch that ends there. It can be called again: the caller does what must be
        done only once."""
        assert start.position is not None
        token, position = self._watermark(capture)
        segments = capture.between(start.position, position, self._following.followed(start))
        files = self._looked_at(segments)
        change = self._following.at(start, position)
        mark = self._mark(start, position, token, capture, segments, change)
        staged = same_schema(start, staged, files)
        elsewhere: frozenset[str] = frozenset()
        if not self._source.comparable(start.coordinate, mark.coordinate):
            # the chunks may have rows that exist only on the earlier server: read them again
            elsewhere = frozenset(c.id for c in start.read)
            staged = {chunk_id: found for chunk_id, found in staged.items() if chunk_id not in elsewhere}
        if files:
            self._pacer.log_had_changes()
        pace = self._pacer.pace()
        if self._measures or (start.read and (self._waits or self._pacer.waits(capture))):
            pace = replace(pace, chunks=0, budget=0.0)
        ending = partial(
            plan,
            start,
            mark,
            staged=staged,
            orders=orders,
            boundaries=self._source,
            tally=self.deliveries.tally,
        )
        try:
            end = ending(pace=pace)
        except TableLocked:  # the boundaries of chunks cannot be read, so no round opens now
            self._locked_until = self._effects.monotonic() + LOCKED_SECONDS
            end = ending(pace=replace(pace, chunks=0, budget=0.0))
        end, unread = self._begun_again(start, end)
        return PlannedWindow(self._changed(end, change), segments, unread, elsewhere)

    def _end_anywhere(
        self, start: Offset, capture: Capture, orders: Orders, limit: Limit, target: int | None
    ) -> Offset:
        """End the batch at a commit: the last one within the captured log and the limit."""
        assert start.position is not None
        news = orders.new or any(c.failed or set(c.dumps) & orders.cancelled for c in start.dumps)
        news = news or (target is not None and self._lost(start))
        if capture.wait_rows(start.position, 0.0 if news else POLL_SECONDS, eager=target is not None):
            capture.wait_more(start.position)
            segments = capture.between(start.position, capture.position, self._following.followed(start))
            position = reach(segments, start.position, limit)
        elif news or self._overdue(start.position, capture.position, target):
            # no changes of followed tables, but the log grows: acknowledge it, and keep Spark's workers running
            position = capture.position
        else:
            return start
        segments = capture.between(start.position, position, self._following.followed(start))
        files = self._looked_at(segments)
        change = self._following.at(start, position)
        mark = self._mark(start, position, None, capture, segments, change)
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
            tally=self.deliveries.tally,
        )
        if not self._settings.dump:
            end = replace(end, tables=tuple(dict.fromkeys((*start.tables, *self.tables.followed()))))
        end = self._changed(end, change)
        self.deliveries.planned(start, end, segments)
        return end

    def _begun_again(self, start: Offset, end: Offset) -> tuple[Offset, frozenset[TableName]]:
        """The offset, in which the stream's own dumps start again if they failed because their table was away. And the
        existing tables whose dump failed: a table that fails twice stops the stream. A dropped table needs no dump."""
        failed = {c.table: c.failed for c in end.dumps if c.failed is not None and c.dump in OWN}
        if not failed:
            return end, frozenset()
        there = self._source.describe(failed)
        for table in there:
            if table in self._unread:
                # somebody may fix the cause: then the table must be read again
                self._spool.remove_chunks({c.id for c in start.read if c.table == table})
                raise PreconditionFailed(
                    f"table {table} cannot be dumped: {failed[table]}",
                    hint="fix the cause, or leave the table out: without its full state the stream would be incomplete",
                )
        if len(there) < len(failed):
            self._following.look_for_names(start)
        return replace(end, dumps=begun_again(end.dumps, there.keys() | self._following.away)), frozenset(there)

    def _changed(self, end: Offset, change: Change) -> Offset:
        """The offset, with the tables that are followed after it and those that its batch empties."""
        schemas = {t: self.tables.known(t) for t in change.emptied}
        if change.replaced:
            schemas |= self._source.describe(change.replaced)
        emptied = {t: schema_to_text(schema) for t, schema in schemas.items() if schema is not None}
        if change.forgotten:
            end = replace(end, tables=tuple(t for t in end.tables if t not in change.forgotten))
        return replace(end, followed=change.followed, emptied=emptied)

    def _overdue(self, start: int, captured: int, target: int | None) -> bool:
        """Whether to end a batch without changes of followed tables: at intervals, or to reach the target."""
        arrives = target is not None and start < target <= captured
        return arrives or self._effects.monotonic() - self._moved > self._settings.heartbeat

    def _looked_at(self, segments: Sequence[Segment]) -> list[LogFile]:
        """The files of the segments. Raises if the stream cannot deliver one of their schemas; records new schemas."""
        files = [f for s in segments for f in s.files]
        self._check({f.version for f in files})
        self.tables.saw(files, self._spool)
        return files

    def _mark(
        self,
        start: Offset,
        position: int,
        token: str | None,
        capture: Capture,
        segments: Sequence[Segment],
        change: Change,
    ) -> Mark:
        """The facts about a position that ends a batch. The transactions that a select might miss are read first, after
        the log up to the position was captured."""
        assert start.position is not None
        coordinate = capture.coordinate(position)
        commits = [s.commits.between(start.position, position) for s in segments]
        shown = np.concatenate([np.array(start.suspects, np.int64), *(c.xids for c in commits)])
        suspects = self._source.invisible(shown, coordinate) if len(shown) else ()
        holes = {**joined_holes(segments), **dict.fromkeys(change.replaced)}
        return Mark(position, token, suspects, holes, coordinate)

    def staged(self, chunks: Iterable[Chunk]) -> Mapping[str, Staged]:
        """The staged files of the chunks, if they have a schema that the stream can deliver."""
        found = {c.id: self._spool.staged(c.id) for c in chunks}
        return {
            chunk_id: staged
            for chunk_id, staged in found.items()
            if staged is not None and (staged.failed is not None or self._version in (None, staged.version))
        }

    def _was_read(self, chunks: Sequence[Chunk], staged: Mapping[str, Staged]) -> None:
        for chunk in chunks:
            found = staged[chunk.id]
            self._unread -= {chunk.table} if found.failed is None else set()
            facts = {"chunk": chunk.id, "dump": chunk.dump, "table": str(chunk.table)}
            self._tell("chunk_selected", **facts, rows=found.rows, seconds=round(found.seconds, 6))
        self._pacer.read([(c, staged[c.id]) for c in chunks])

    def _tell(self, kind: str, **facts: Any) -> None:
        if self._sync is not None:
            self._sync.tell(kind, **facts)

    def _retrying(self, call: Callable[[], _T]) -> _T:
        return retrying(call, self._settings.patience, self._effects)
