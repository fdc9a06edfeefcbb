"""Planning: where the next batch ends, and which chunks are read. The imperative shell around `core.window.plan`."""

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
"""How long planning waits for something to happen before it says that nothing did."""

FAR_BEHIND_BYTES = 64 << 20
"""With more log than this still to read, a dump waits: the log goes first, in batches of bounded size."""

LOCKED_SECONDS = 5.0
"""How long no round is tried after a table was found locked."""


@dataclass(frozen=True)
class PlannedWindow:
    """A batch that ends at a watermark, and what must be noted once it is decided."""

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
        self._pacer = Pacer(source, settings.parallelism, settings.chunk_rows, effects)
        self._waits: str | None = None
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

    # -- what people see ---------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What people see of the planning."""
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
        """Ask the user's probe, if a dump waits for its answer."""
        self._pacer.probe()

    # -- planning --------------------------------------------------------------------------------------------

    def plan(self, start: Offset, capture: Capture, limit: Limit, target: int | None) -> Offset | None:
        """Where the batch after `start` ends; `start` itself when there is nothing to do; None when the log up to
        `target` is delivered and no dump runs."""
        self._retrying(lambda: self._following.look(start, capture))
        self.tables.learn(self._following.followed(start), self._following.looks)
        orders = self._requests.orders(start)
        arrived = target is not None and (start.position or 0) >= target and not start.read
        busy = self._active(start, orders) or self._waits_for_names(start, orders) or self._following.pending(start)
        busy = busy or (arrived and self._lost(start))
        if arrived and (self._pacer.throttle.paused or not busy):
            return None
        if self._opens_window(start, capture, orders):
            end = self._end_window(start, capture, orders)
        else:
            end = self._retrying(lambda: self._end_anywhere(start, capture, orders, limit, target))
        if end != start:
            self._moved = self._effects.monotonic()
        return end

    def _active(self, start: Offset, orders: Orders) -> bool:
        """Whether a dump has anything to read now."""
        idle = orders.cancelled | orders.held
        cursors = [c for c in (*start.dumps, *orders.new) if not orders.waits(c)]
        reads = any(not set(c.dumps) <= idle and c.failed is None for c in cursors)
        return reads or (INITIAL not in orders.held and not set(orders.wanted) <= set(start.tables))

    def _lost(self, start: Offset) -> bool:
        """Whether a chunk is gone that the batch up to `start` should have delivered: then it must be read again."""
        staged = self.staged(start.emit)
        return any(c.id not in staged or staged[c.id].stamp != c.stamp for c in start.emit)

    def _waits_for_names(self, start: Offset, orders: Orders) -> bool:
        """Whether a table must be dumped that is away from its name."""
        return any(orders.waits(c) and not set(c.dumps) <= orders.held for c in start.dumps)

    def _opens_window(self, start: Offset, capture: Capture, orders: Orders) -> bool:
        """Whether the next batch ends at a watermark: to end the running round, or to open one that may run."""
        active = self._pacer.watches = self._active(start, orders)
        self._waits = self._obstacle(start, capture) if active else None
        # the watermark gives the log an end to change it at
        joins = self._retrying(lambda: self._following.due(start, capture.position))
        return bool(start.read) or joins or (active and self._waits is None)

    def _obstacle(self, start: Offset, capture: Capture) -> str | None:
        """Why no round may open now."""
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

        1. Stage what no task has staged (a limit, a lost executor): the select is still in its window. Then note what
           is there: a file that a late task brings after the watermark must not count.
        2. Charge the selects to the throttle and tell of them.
        3. Write the watermark: the window of the running round ends here. Or, where nothing may be written, ask for a
           position that no select has seen beyond. Wait until the log has got there.
        4. Look which transactions a select might miss, then plan; the round that is opened starts after this look.
        5. Charge and tell what was planned.

        When a connection is lost, 1 is done again, or 3 and 4 with a new watermark; 2 and 5 are done once.
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
            self._pacer.opened()
            self._tell("round_opened", chunks=len(planned.end.read))
        self.deliveries.planned(start, planned.end, planned.segments)
        return planned.end

    def _stage(self, start: Offset) -> Mapping[str, Staged]:
        """Select the chunks of the round that are not staged; what is staged now."""
        for chunk in start.read:
            with contextlib.suppress(TableLocked, KeyChanged):  # then the chunk is not there, and is read again later
                found = stage(self._source, self._spool, chunk)
                if found.failed is None:
                    self._check({found.version})
        return self.staged((*start.emit, *start.read))

    def _watermark(self, capture: Capture) -> tuple[str, int]:
        """Write a watermark and wait for it: its token and where the log has it."""
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
        """Write a watermark and plan the batch that ends there. A second call does no harm: what must be done once is
        left to the caller."""
        assert start.position is not None
        token, position = self._watermark(capture)
        segments = capture.between(start.position, position, self._following.followed(start))
        files = self._looked_at(segments)
        change = self._following.at(start, position)
        mark = self._mark(start, position, token, capture, segments, change)
        staged = same_schema(start, staged, files)
        elsewhere: frozenset[str] = frozenset()
        if not self._source.comparable(start.coordinate, mark.coordinate):
            # chunks may show what was committed on another server and is on no other: they are read again
            elsewhere = frozenset(c.id for c in start.read)
            staged = {chunk_id: found for chunk_id, found in staged.items() if chunk_id not in elsewhere}
        if files:
            self._pacer.log_had_changes()
        pace = self._pacer.pace()
        if start.read and self._pacer.waits(capture) is not None:
            pace = replace(pace, chunks=0)
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
        except TableLocked:  # no boundaries now: no round now
            self._locked_until = self._effects.monotonic() + LOCKED_SECONDS
            end = ending(pace=replace(pace, chunks=0))
        end, unread = self._begun_again(start, end)
        return PlannedWindow(self._changed(end, change), segments, unread, elsewhere)

    def _end_anywhere(
        self, start: Offset, capture: Capture, orders: Orders, limit: Limit, target: int | None
    ) -> Offset:
        """End the batch at some commit: as much log as there is and the limit allows."""
        assert start.position is not None
        news = orders.new or any(c.failed or set(c.dumps) & orders.cancelled for c in start.dumps)
        news = news or (target is not None and self._lost(start))
        if capture.wait_rows(start.position, 0.0 if news else POLL_SECONDS, eager=target is not None):
            capture.wait_more(start.position)
            segments = capture.between(start.position, capture.position, self._following.followed(start))
            position = reach(segments, start.position, limit)
        elif news or self._overdue(start.position, capture.position, target):
            # nothing of ours, but the log moves on: acknowledge that, and keep Spark's workers warm
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
        """The offset, with the stream's own dumps begun anew that failed because their table was away from its name.
        And the tables that are there and have failed: one that fails twice stops the stream. One that is gone needs no
        dump."""
        failed = {c.table: c.failed for c in end.dumps if c.failed is not None and c.dump in OWN}
        if not failed:
            return end, frozenset()
        there = self._source.describe(failed)
        for table in there:
            if table in self._unread:
                # what is said may be repaired: then it must be read again
                self._spool.remove_chunks({c.id for c in start.read if c.table == table})
                raise PreconditionFailed(
                    f"table {table} cannot be dumped: {failed[table]}",
                    hint="a stream without the table's full state would be wrong: repair what is said, or leave it out",
                )
        if len(there) < len(failed):
            self._following.look_for_names(start)
        return replace(end, dumps=begun_again(end.dumps, there.keys() | self._following.away)), frozenset(there)

    def _changed(self, end: Offset, change: Change) -> Offset:
        """The offset, with what is followed after it and what its batch empties."""
        schemas = {t: self.tables.known(t) for t in change.emptied}
        if change.replaced:
            schemas |= self._source.describe(change.replaced)
        emptied = {t: schema_to_text(schema) for t, schema in schemas.items() if schema is not None}
        tables = tuple(t for t in end.tables if t not in change.forgotten)
        return replace(end, followed=change.followed, emptied=emptied, tables=tables)

    def _overdue(self, start: int, captured: int, target: int | None) -> bool:
        """Whether to end a batch although the log has nothing of ours: every now and then, or to reach the target."""
        arrives = target is not None and start < target <= captured
        return arrives or self._effects.monotonic() - self._moved > self._settings.heartbeat

    def _looked_at(self, segments: Sequence[Segment]) -> list[LogFile]:
        """The files of the segments, whose schemas the stream can deliver and people know."""
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
        """What there is to say of a position that ends a batch. First what a select might miss: not before the log up
        to there has been seen."""
        assert start.position is not None
        coordinate = capture.coordinate(position)
        commits = [s.commits.between(start.position, position) for s in segments]
        shown = np.concatenate([np.array(start.suspects, np.int64), *(c.xids for c in commits)])
        suspects = self._source.invisible(shown, coordinate) if len(shown) else ()
        holes = {**joined_holes(segments), **dict.fromkeys(change.replaced)}
        return Mark(position, token, suspects, holes, coordinate)

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
            self._unread -= {chunk.table} if found.failed is None else set()
            facts = {"chunk": chunk.id, "dump": chunk.dump, "table": str(chunk.table)}
            self._tell("chunk_selected", **facts, rows=found.rows, seconds=round(found.seconds, 6))
        self._pacer.read([staged[c.id] for c in chunks])

    def _tell(self, kind: str, **facts: Any) -> None:
        if self._sync is not None:
            self._sync.tell(kind, **facts)

    def _retrying(self, call: Callable[[], _T]) -> _T:
        return retrying(call, self._settings.patience, self._effects)
