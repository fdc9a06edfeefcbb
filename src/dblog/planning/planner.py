"""Planning: where the next batch ends, and which chunks are read. It does the I/O around `core.window.plan`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dblog.capture.capture import Capture
from dblog.capture.effects import REAL, Effects
from dblog.capture.segments import Limit, Segment, joined_holes, reach, same_schema
from dblog.capture.spool import LogFile, Spool, schema_to_text
from dblog.core.cascades import child_of
from dblog.core.dump import INITIAL, Orders, Staged
from dblog.core.offset import Chunk, Offset
from dblog.core.window import Mark, plan
from dblog.errors import KeyChanged, TableLocked
from dblog.planning.batch_times import POLL_SECONDS, BatchTimes
from dblog.planning.cascades import Cascades
from dblog.planning.deliveries import Deliveries
from dblog.planning.following import Change, Following
from dblog.planning.orders import Requests
from dblog.planning.pacer import Pacer
from dblog.planning.planned_window import PlannedWindow
from dblog.planning.retry import retrying
from dblog.planning.set_aside import TablesAside
from dblog.planning.settings import StreamSettings
from dblog.planning.state_sync import StateSync
from dblog.planning.tables import FollowedTables
from dblog.sources.base import Source
from dblog.work.tasks import stage

_T = TypeVar("_T")

FAR_BEHIND_BYTES = 64 << 20
"""Bytes of unread log above which dumps wait. The log is delivered first, in batches of bounded size."""

SHOWN_CHUNKS = 40
"""How many chunks of a round its event names at most."""

LOCKED_SECONDS = 5.0
"""How long no round is tried after a table was found locked, in seconds."""


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
        self._times = BatchTimes(settings.batch_seconds, effects)
        self._locked_until = 0.0
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
        self._aside = TablesAside(
            source, spool, self._following, enabled=settings.set_aside, tell=self._tell, effects=effects
        )
        self.deliveries = Deliveries(spool, sync, self._tell, effects)

    # -- status ------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The status of planning, for users."""
        counts = self.deliveries.counts
        return {
            "tables": self.tables.status(),
            **self._following.status(),
            **self._aside.status(),
            "events": counts.events,
            "rows": counts.dumped,
            "dropped": counts.dropped,
            "raw_values": counts.raw,
            "windows": counts.windows,
            **self.deliveries.status(),
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
        self._aside.begin(start)
        again = self._requests.retried(start)
        self._retrying(lambda: self._following.look(start, capture, again))
        self._aside.check(start)
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
        self._aside.were_unread(planned.unread)
        self._spool.remove_chunks(planned.elsewhere)
        if planned.end.read:
            shown = [[c.id, c.dump, str(c.table)] for c in planned.end.read[:SHOWN_CHUNKS]]
            self._tell("round_opened", chunks=len(planned.end.read), selects=shown)
        self.deliveries.planned(start, planned.end, planned.segments)
        self._aside.planned(planned.end)
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
        token, log = self._effects.token(), capture.log
        if self._source.writes:
            bound = self._source.write_watermark(token)
            self._tell("watermark_written", token=token)
            position = capture.wait_token(token, bound, log)
        else:
            position = capture.wait_position(self._source.high_watermark(), log)
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
        happened = self._cascades(start, position, capture)
        change = happened.change(self._following.at(start, position))
        mark = happened.mark(self._mark(start, position, token, capture, segments, change))
        staged = happened.clear(start, same_schema(start, staged, files))
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
            happened.start(start),
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
        failures = self._aside.read_failures(start, end, staged)
        new = {**(failures.aside or {}), **self._aside.at(start, position)}
        end = self._aside.applied(start, self._changed(failures.end, change), new, pace)
        return PlannedWindow(end, segments, failures.unread, elsewhere)

    def _cascades(self, start: Offset, position: int, capture: Capture) -> Cascades:
        segments = capture.between(start.position or 0, position, None)
        aside = {*start.aside, *self._aside.at(start, position)}
        return Cascades.of(segments, self._spool, start, position, self._following.followed(start), aside)

    def _end_anywhere(
        self, start: Offset, capture: Capture, orders: Orders, limit: Limit, target: int | None
    ) -> Offset:
        """End the batch at a commit: the last one within the captured log and the limit."""
        assert start.position is not None
        news = orders.new or any(c.failed or set(c.dumps) & orders.cancelled for c in start.dumps)
        news = news or (target is not None and self._lost(start)) or self._aside.due(start, capture.position)
        if not news and target is None and self._times.early():
            return start
        if capture.wait_rows(start.position, 0.0 if news else POLL_SECONDS, eager=target is not None):
            capture.wait_more(start.position)
            captured = capture.position
            segments = capture.between(start.position, captured, self._following.followed(start))
            position = reach(segments, start.position, limit)
            self._times.planned(full=position < captured)
        elif news or self._overdue(start.position, capture.position, target):
            # no changes of followed tables, but the log grows: acknowledge it, and keep Spark's workers running
            position = capture.position
        else:
            self._aside.check(start)  # what was captured meanwhile may have only a table that cannot be decoded
            return start
        segments = capture.between(start.position, position, self._following.followed(start))
        files = self._looked_at(segments)
        happened = self._cascades(start, position, capture)
        change = happened.change(self._following.at(start, position))
        mark = happened.mark(self._mark(start, position, None, capture, segments, change))
        if files:
            self._pacer.log_had_changes()
        later, pace = replace(orders, wanted=()), self._pacer.pace()
        end = plan(
            happened.start(start),
            mark,
            staged=self.staged(start.emit),
            orders=later,
            pace=pace,
            boundaries=self._source,
            tally=self.deliveries.tally,
        )
        if not self._settings.dump:
            end = replace(end, tables=tuple(dict.fromkeys((*start.tables, *self.tables.followed()))))
        end = self._aside.applied(start, self._changed(end, change), self._aside.at(start, position), pace)
        self.deliveries.planned(start, end, segments)
        self._aside.planned(end)
        return end

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
        files = [f for s in segments for f in s.files if child_of(f.table) is None]
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
        # transactions of an earlier server are visible on this one, or do not exist there
        same = [s for s in segments if self._source.comparable(s.coordinate, coordinate)]
        earlier = start.suspects if self._source.comparable(start.coordinate, coordinate) else ()
        commits = [s.commits.between(start.position, position) for s in same]
        shown = np.concatenate([np.array(earlier, np.int64), *(c.xids for c in commits)])
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
            if found.failed is None:
                self._aside.was_read(chunk.table)
            facts = {"chunk": chunk.id, "dump": chunk.dump, "table": str(chunk.table)}
            self._tell("chunk_selected", **facts, rows=found.rows, seconds=round(found.seconds, 6))
        self._pacer.read([(c, staged[c.id]) for c in chunks])

    def _tell(self, kind: str, **facts: Any) -> None:
        if self._sync is not None:
            self._sync.tell(kind, **facts)

    def _retrying(self, call: Callable[[], _T]) -> _T:
        return retrying(call, self._settings.patience, self._effects)
