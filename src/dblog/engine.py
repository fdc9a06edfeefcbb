"""The engine: what the driver does between batches. The imperative shell around `core.window`.

A batch is a function of its two offsets and of files. So after a crash, in a new process, `batch` may be called
first, with offsets of an earlier life, and the engine starts wherever they say.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from dblog.capture import Capture, Segment
from dblog.core.dump import Pace, Staged
from dblog.core.offset import Chunk, Key, Offset
from dblog.core.schema import TableName
from dblog.core.window import Mark, plan
from dblog.errors import ConnectionLost, TableLocked
from dblog.sources.base import Source
from dblog.spool import LogFile, Spool
from dblog.tasks import Emit, Log, Select, Window, stage

_T = TypeVar("_T")

POLL_SECONDS = 0.5
"""How long planning waits for something to happen before it says that nothing did."""

FAR_BEHIND_BYTES = 64 << 20
"""With more log than this still to read, a dump waits: the log goes first, in batches of bounded size."""

LOCKED_SECONDS = 5.0
"""How long no round is tried after a table was found locked."""

BUSY_SECONDS, QUIET_SECONDS = 0.015, 0.75
"""How long a chunk's select should take while the log has changes to deliver, and while it has none."""

QUIET_AFTER_SECONDS = 5.0
"""The log is quiet when it has had nothing of ours for this long."""


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


@dataclass(frozen=True)
class Limit:
    """How much log one batch may hold; a window is never cut."""

    rows: int | None = None
    nbytes: int | None = None


@dataclass
class Counts:
    """What the stream has done in this life, for progress reports."""

    windows: int = 0
    dumped: int = 0
    dropped: int = 0
    events: int = 0

    def to_json(self) -> dict[str, int]:
        return dict(vars(self))


class Engine:
    """Plans batches and keeps the log flowing onto the spool. Belongs to the driver's source process."""

    def __init__(
        self,
        source: Source,
        spool: Spool,
        settings: Settings,
        check: Callable[[Collection[str]], None] = lambda versions: None,
        version: str | None = None,
    ) -> None:
        """`check` raises when the stream cannot deliver rows of these schema versions; with `version`, the rows of a
        dump must be of that one, because a column they lack would be lost for good."""
        self._source = source
        self._spool = spool
        self._settings = settings
        self._check = check
        self._version = version
        self._capture: Capture | None = None
        self._tables: tuple[TableName, ...] = ()
        self._moved = self._looked = time.monotonic()
        self._locked_until = 0.0
        self._busy_until = 0.0
        self._target: int | None = None
        self._emitted: tuple[Chunk, ...] = ()
        self.counts = Counts()

    # -- what Spark asks -------------------------------------------------------------------------------------

    def next(self, start: Offset, limit: Limit) -> Offset:
        """The offset that ends the next batch; `start` itself when there is nothing to do."""
        if start.position is None:
            return self._first()
        capture = self._started(start.position, keep=(start,))
        self._look_after(start)
        end = start
        while end == start and not self._drained(start):
            end = self._plan(start, capture, limit)
            if self._target is None:
                break
        if end != start:
            self._moved = time.monotonic()
        return end

    def batch(self, start: Offset, end: Offset) -> list[Log | Emit | Select]:
        """The work between two offsets."""
        work: list[Log | Emit | Select] = []
        if start.position is not None and end.position is not None and start != end:
            capture = self._started(start.position, keep=(start, end))
            capture.wait_position(end.position)
            segments = capture.between(start.position, end.position)
            window = Window(start.position, end.position, tuple(s.files for s in segments if s.files))
            self._check({f.version for f in window.files})
            # a chunk that was lost after it was pinned yields nothing now; `plan` sees that and reads it again
            staged = self._staged(end.emit)
            present = tuple(c for c in end.emit if c.id in staged and staged[c.id].stamp == c.stamp)
            if window.segments:
                work.append(Log(window, present))
            work += [Emit(window, c) for c in present]
        work += [Select(c) for c in end.read]
        return work

    def commit(self, end: Offset) -> None:
        """Spark has committed the batch that ends here: nothing of it is needed again."""
        if end.position is not None and self._capture is not None:
            self._capture.release(end.position)
        self._spool.remove_chunks({c.id for c in end.emit})

    def drain(self) -> None:
        """From now on: stop when the log as of this moment is delivered and no dump is running."""
        self._target = self._retrying(self._source.latest)

    def report(self) -> dict[str, int]:
        """Where the log ends, as far as it is captured, and what was done."""
        captured = {} if self._capture is None else {"captured": self._capture.position}
        return {**captured, **self.counts.to_json()}

    def stop(self) -> None:
        if self._capture is not None:
            self._capture.stop()

    # -- starting --------------------------------------------------------------------------------------------

    def _first(self) -> Offset:
        self._retrying(lambda: self._source.prepare(followed=None))
        origin = self._retrying(self._source.origin)
        tables = () if self._settings.dump else tuple(self._retrying(self._source.tables))
        return Offset(origin.position, suspects=origin.suspects, tables=tables)

    def _started(self, position: int, keep: Sequence[Offset]) -> Capture:
        if self._capture is None:
            self._retrying(lambda: self._source.prepare(followed=keep[0].tables))
            self._tables = tuple(self._retrying(self._source.tables))
            self._spool.sweep({c.id for offset in keep for c in (*offset.emit, *offset.read)})
            self._capture = Capture(
                self._source,
                self._spool,
                position,
                before=self._settings.before,
                read_ahead=self._settings.read_ahead,
                patience=self._settings.patience,
            )
        return self._capture

    # -- planning --------------------------------------------------------------------------------------------

    def _plan(self, start: Offset, capture: Capture, limit: Limit) -> Offset:
        if self._opens_window(start, capture):
            return self._retrying(lambda: self._end_window(start, capture))
        return self._retrying(lambda: self._end_anywhere(start, capture, limit))

    def _look_after(self, start: Offset) -> None:
        """Now and then, see that the tables are still published: what is not is missing from the log in silence."""
        if time.monotonic() - self._looked > self._settings.heartbeat:
            self._retrying(lambda: self._source.check_followed(start.tables))
            self._looked = time.monotonic()

    def _dumping(self, start: Offset) -> bool:
        return start.dumping or (self._settings.dump and not set(self._tables) <= set(start.tables))

    def _drained(self, start: Offset) -> bool:
        """Whether the stream has delivered all it was asked to and may stop by itself."""
        return self._target is not None and (start.position or 0) >= self._target and not self._dumping(start)

    def _opens_window(self, start: Offset, capture: Capture) -> bool:
        """Whether the next batch ends at a watermark: to end the running round, or to open one that may run."""
        if start.read:
            return True
        if not self._dumping(start):
            return False
        if time.monotonic() < self._locked_until or (start.suspects and self._invisible(start.suspects)):
            return False
        return self._retrying(self._source.latest) - capture.position < FAR_BEHIND_BYTES

    def _end_window(self, start: Offset, capture: Capture) -> Offset:
        """End the batch at a watermark.

        1. Stage what no task has staged (a limit, a lost executor): the select is still in its window. Then note what
           is there: a file that a late task brings after the watermark must not count.
        2. Write the watermark: the window of the running round ends here.
        3. Wait until it comes back through the log.
        4. Look which transactions a select might miss, then plan; the round that is opened starts after this look.
        """
        assert start.position is not None
        # 1.
        for chunk in start.read:
            with contextlib.suppress(TableLocked):  # then the chunk is not there, and is read again later
                self._check({stage(self._source, self._spool, chunk).version})
        staged = self._staged((*start.emit, *start.read))
        # 2.
        token = uuid.uuid4().hex
        bound = self._source.write_watermark(token)
        # 3.
        position = capture.wait_token(token, bound)
        # 4.
        segments = capture.between(start.position, position)
        files = [f for s in segments for f in s.files]
        self._check({f.version for f in files})
        suspects = self._suspects(start, segments)
        mark = Mark(position, token, suspects, _holes(segments))
        staged = _same_schema(start, staged, files)
        wanted = self._tables if self._settings.dump else ()
        pace = self._pace(files)
        try:
            end = plan(start, mark, staged=staged, wanted=wanted, pace=pace, boundaries=self._source)
        except TableLocked:  # no boundaries now: no round now
            self._locked_until = time.monotonic() + LOCKED_SECONDS
            pace = replace(pace, chunks=0)
            end = plan(start, mark, staged=staged, wanted=wanted, pace=pace, boundaries=self._source)
        self._count(start, end, segments)
        return end

    def _end_anywhere(self, start: Offset, capture: Capture, limit: Limit) -> Offset:
        """End the batch at some commit: as much log as there is and the limit allows."""
        assert start.position is not None
        if capture.wait_rows(start.position, POLL_SECONDS, eager=self._target is not None):
            position = _reach(capture.between(start.position, capture.position), start.position, limit)
        elif self._overdue(start.position, capture.position):
            # nothing of ours, but the log moves on: acknowledge that, and keep Spark's workers warm
            position = capture.position
        else:
            return start
        segments = capture.between(start.position, position)
        files = [f for s in segments for f in s.files]
        self._check({f.version for f in files})
        mark = Mark(position, None, self._suspects(start, segments), _holes(segments))
        pace = self._pace(files)
        end = plan(start, mark, staged=self._staged(start.emit), wanted=(), pace=pace, boundaries=self._source)
        if not self._settings.dump:
            end = replace(end, tables=tuple(dict.fromkeys((*start.tables, *self._tables))))
        self._count(start, end, segments)
        return end

    def _overdue(self, start: int, captured: int) -> bool:
        """Whether to end a batch although the log has nothing of ours: every now and then, or to reach the target."""
        arrives = self._target is not None and start < self._target <= captured
        return arrives or time.monotonic() - self._moved > self._settings.heartbeat

    def _suspects(self, start: Offset, segments: Sequence[Segment]) -> tuple[int, ...]:
        shown = np.concatenate([np.array(start.suspects, np.int64), *(s.commits.xids for s in segments)])
        return self._source.invisible(shown) if len(shown) else ()

    def _invisible(self, suspects: Sequence[int]) -> tuple[int, ...]:
        return self._retrying(lambda: self._source.invisible(np.array(suspects, np.int64)))

    def _staged(self, chunks: Iterable[Chunk]) -> Mapping[str, Staged]:
        """What the spool holds for the chunks, of the schema that the stream has."""
        found = {c.id: self._spool.staged(c.id) for c in chunks}
        return {
            chunk_id: staged
            for chunk_id, staged in found.items()
            if staged is not None and self._version in (None, staged.version)
        }

    def _pace(self, files: Sequence[LogFile]) -> Pace:
        """Short rounds while the log has something to deliver, long ones while it has not."""
        now = time.monotonic()
        if files:
            self._busy_until = now + QUIET_AFTER_SECONDS
        seconds = BUSY_SECONDS if now < self._busy_until else QUIET_SECONDS
        return Pace(self._settings.parallelism, self._settings.chunk_rows, seconds)

    def _count(self, start: Offset, end: Offset, segments: Sequence[Segment]) -> None:
        assert start.position is not None
        assert end.position is not None
        for chunk in self._emitted:
            noted = self._spool.noted(chunk.id)
            if noted is not None:
                self.counts.dumped += noted["rows"]
                self.counts.dropped += noted["dropped"]
        self._emitted = end.emit
        self.counts.windows += bool(end.emit)
        self.counts.events += sum(s.upto(end.position)[0] - s.upto(start.position)[0] for s in segments)

    def _retrying(self, call: Callable[[], _T]) -> _T:
        """The call's result; a lost connection is tried again for a while, because Spark itself would not."""
        deadline = time.monotonic() + self._settings.patience
        delay = 0.1
        while True:
            try:
                return call()
            except (ConnectionLost, TableLocked):
                if time.monotonic() + delay > deadline:
                    raise
            time.sleep(delay)
            delay = min(delay * 2, 10.0)


def _same_schema(start: Offset, staged: Mapping[str, Staged], log: Sequence[LogFile]) -> Mapping[str, Staged]:
    """The staged chunks without those that were read under another schema than the log of their window shows: they
    are read again, under the new one."""
    versions = defaultdict(set)
    for file in log:
        versions[file.table].add(file.version)
    other = {c.id for c in start.read if c.id in staged and not versions[c.table] <= {staged[c.id].version}}
    return {chunk_id: found for chunk_id, found in staged.items() if chunk_id not in other}


def _holes(segments: Sequence[Segment]) -> Mapping[TableName, Sequence[Key] | None]:
    holes: dict[TableName, list[Key] | None] = {}
    for segment in segments:
        for table, keys in segment.holes.items():
            known = holes.setdefault(table, [])
            holes[table] = None if known is None or keys is None else [*known, *keys]
    return holes


def _reach(segments: Sequence[Segment], start: int, limit: Limit) -> int:
    """The last commit up to which the log after `start` fits the limit; the first one if none does."""
    rows, nbytes = limit.rows or math.inf, limit.nbytes or math.inf
    reached = start
    for segment in segments:
        reached = max(reached, segment.cut(start, rows, nbytes))
        if reached < segment.end:
            break
        rows_before, bytes_before = segment.upto(start)
        rows -= segment.upto(reached)[0] - rows_before
        nbytes -= segment.upto(reached)[1] - bytes_before
    return reached if reached > start else segments[0].first(start)
