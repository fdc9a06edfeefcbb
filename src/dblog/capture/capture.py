"""Capture: the thread that reads the log onto the spool, ahead of Spark by a bounded number of bytes.

The log is cut into segments. A segment ends at a commit and is published whole, so a transaction of any size costs
disk and not memory. The database's log is the durable store: a position is acknowledged only after Spark has
committed the batch that ends there, and a new life reads again from the offset it starts with.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from dblog.capture.effects import REAL, Effects
from dblog.capture.segments import SEGMENT_SECONDS, UNWANTED_SECONDS, OpenSegment, Segment, followed_part, named
from dblog.capture.spool import LogFile, LogWriter, Spool
from dblog.core.offset import Followed
from dblog.core.schema import TableName, TableSchema
from dblog.errors import ConnectionLost, DBLogError, SourceError, WatermarkError
from dblog.sources.base import Commits, LogStream, Source

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.05
"""How long to let log arrive before a read while little comes, in seconds: decoding one transaction costs as much as
decoding fifty."""
RUSH_BYTES = 256 << 10
"""Bytes in one read above which much log is coming: the next read follows at once."""
ACKNOWLEDGE_SECONDS = 0.25
"""How often the database is told how far its log is not needed any more, in seconds."""
MOST_TOKENS = 1000
"""How many watermarks are remembered. Those of other pipelines come through the log too and are never asked for."""
LAG_SECONDS = 2.0
"""How long a measured lag is valid, in seconds. Later it counts as zero: nothing was captured since."""
LATE_SECONDS, LATE_ROWS, LATE_WAIT = 2.0, 400_000, 0.5
"""Lag above which a batch waits for more rows, in seconds; how many rows; and how long at most, in seconds."""


class Capture:
    """Follows a source's log from a position on, once it is started. An error ends it; every waiting call then raises
    that error."""

    def __init__(
        self,
        source: Source,
        spool: Spool,
        position: int,
        coordinate: str | None,
        *,
        before: bool,
        read_ahead: int,
        patience: float = 300.0,
        effects: Effects = REAL,
    ) -> None:
        self._source = source
        self._spool = spool
        self._before = before
        self._read_ahead = read_ahead
        self._patience = patience
        self._effects = effects
        self._life = effects.token()[:8]
        self._changed = threading.Condition()
        self._segments: list[Segment] = []
        self._operations: dict[TableName, np.ndarray] = {}
        self._copies: dict[str, dict[TableName, LogFile]] = {}
        """By the path of a log file: its copies for tables of other names."""
        self._position = position
        self._coordinate = coordinate
        self._opened = False
        self.openings = 0
        """How often the log was opened."""
        self._delivered = position
        """Where the next batch starts."""
        self._acknowledged = 0
        self._acknowledged_at = 0.0
        self._tokens: dict[str, int] = {}
        self._waiting = 0
        self._wanted = threading.Event()
        self._rush = False
        self._awaited = 0
        self._heard = self._effects.monotonic()
        self._lag = (0.0, 0.0)
        self._error: DBLogError | None = None
        self._stopped = threading.Event()
        self._leave: str | None = None
        """Why to leave the server."""
        self.redefined = threading.Event()
        """Set when the log has shown a new definition of a table. The survey of the tables clears it."""
        self._open = self._new_segment(position, coordinate)
        self._files = 0
        self._thread = threading.Thread(target=self._run, name="dblog-capture", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # -- the driver's side -----------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The log is captured up to here."""
        with self._changed:
            return self._position

    @property
    def reached(self) -> tuple[int, str | None]:
        """How far the log is captured: the position and its coordinate."""
        with self._changed:
            return self._position, self._coordinate

    @property
    def lag(self) -> float:
        """Seconds from the commit of the last transaction to its capture, if the two clocks agree. Zero when nothing
        was captured for `LAG_SECONDS`."""
        lag, at = self._lag
        return lag if self._effects.monotonic() - at < LAG_SECONDS else 0.0

    def waiting_since(self, position: int) -> float | None:
        """About when the oldest change after the position was committed, in seconds since 1970; None without a
        change."""
        with self._changed:
            return next((s.committed_at for s in self._segments if s.end > position and s.files), None)

    def between(self, start: int, end: int, followed: Mapping[TableName, Followed] | None) -> list[Segment]:
        """The segments with the log of the followed tables in `(start, end]`; the outer ones may reach beyond."""
        with self._changed:
            found = [s for s in self._segments if s.end > start and s.start < end]
        return [followed_part(s, followed, self._relabelled) for s in found]

    def _relabelled(self, file: LogFile, table: TableName) -> LogFile:
        """The copy of a log file for a table of another name. It is made once: tasks may read it."""
        copies = self._copies.setdefault(file.path, {})
        if table not in copies:
            copies[table] = self._spool.relabelled(file, table)
        return copies[table]

    def wait_rows(self, beyond: int, timeout: float, *, eager: bool = False) -> bool:
        """Wait until a row after the position, where the next batch starts, is captured. Returns whether there is
        one."""
        self._delivered = beyond
        with self._attention() if eager else contextlib.nullcontext():
            return self._wait(lambda: any(s.end > beyond and s.files for s in self._segments), timeout)

    def wait_more(self, beyond: int) -> None:
        """Wait for more rows after the position if the stream is late and much log is coming. A large batch costs Spark
        little more than a small one."""
        if self.lag > LATE_SECONDS:
            self._wait(lambda: not self._rush or self._ahead(beyond, LATE_ROWS), LATE_WAIT)

    def _ahead(self, beyond: int, rows: int) -> bool:
        """Whether this many rows after the position are captured, or the read-ahead limit is reached."""
        captured = sum(f.rows for s in self._segments if s.end > beyond for f in s.files)
        return captured >= rows or self._full()

    def wait_open(self) -> None:
        """Wait until the log is open. Only then the source knows how the server's positions are counted."""
        self._await(lambda: self._opened, "the log could not be opened")

    def coordinate(self, position: int) -> str | None:
        """The coordinate of a captured position that is not released yet."""
        with self._changed:
            segment = next((s for s in self._segments if s.end >= position), None)
            if segment is None:
                return self._coordinate
        return self._after(segment, position)

    def _after(self, segment: Segment, position: int) -> str | None:
        return self._source.coordinate(segment.coordinate, segment.commits.between(segment.start, position), position)

    @property
    def log(self) -> str | None:
        """A coordinate of the log that is being read."""
        return self._open.coordinate

    def wait_position(self, position: int, log: str | None = None) -> int:
        """Wait until the log is captured up to `position`, and return how far it is captured. Raises SourceError when
        the source sends nothing for too long, and ConnectionLost when another log than `log` is read meanwhile."""
        with self._attention():
            self._await(lambda: self._position >= position, f"the log did not reach position {position}", log)
            return self.position

    def wait_token(self, token: str, bound: int, log: str | None = None) -> int:
        """Wait for a watermark to come back through the log, and return its position. Raises ConnectionLost as above,
        and WatermarkError when the log passes `bound`, a position after the watermark's commit, without it."""
        with self._attention():
            missed = "a watermark did not come back through the log"
            self._await(lambda: token in self._tokens or self._position >= bound, missed, log)
            with self._changed:
                if token in self._tokens:
                    return self._tokens.pop(token)
        self._check_log(log)
        raise WatermarkError(
            "a watermark was written, but the log does not show it",
            hint="the watermark table is missing from the publication, or a row filter hides it: "
            "run the preflight, or ALTER PUBLICATION ... ADD TABLE dblog.watermark",
        )

    def release(self, position: int) -> None:
        """Drop the segments up to a position that Spark has committed, and let the database drop its log up to
        there."""
        with self._changed:
            gone = [s for s in self._segments if s.end <= position]
            self._segments = [s for s in self._segments if s.end > position]
            self._acknowledged = max(self._acknowledged, position)
            self._changed.notify_all()
        paths = [f.path for s in gone for f in s.files]
        self._spool.remove(paths)
        self._spool.remove(copy.path for path in paths for copy in self._copies.pop(path, {}).values())

    def reconnect(self, reason: str) -> None:
        """Close the connection and open it again. A server that shuts down waits for its readers to leave, and a source
        decodes a table anew."""
        self._leave = reason

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(2.0)

    def _wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        with self._changed:
            self._waiting += 1
            self._wanted.set()
            try:
                self._changed.wait_for(lambda: ready() or self._error is not None, timeout)
            finally:
                self._waiting -= 1
                self._wanted.clear()
            if self._error is not None:
                raise self._error
            return ready()

    def _check_log(self, log: str | None) -> None:
        """What a caller waits for may never come through the log of another server."""
        if log is not None and not self._source.comparable(log, self.log):
            raise ConnectionLost("the log is read from another server now")

    def _await(self, ready: Callable[[], bool], what: str, log: str | None = None) -> None:
        """Wait without a time limit. Raises SourceError, with `what` failed, if the source is silent for too long."""
        while not self._wait(ready, 1.0):
            self._check_log(log)
            silent = self._effects.monotonic() - self._heard
            if silent > self._patience:
                raise SourceError(f"{what}: the source has sent nothing for {silent:.0f} s")

    @contextlib.contextmanager
    def _attention(self) -> Iterator[None]:
        """While a caller waits for a position of the log: ignore the read-ahead limit, and ping an idle server."""
        self._awaited += 1
        try:
            yield
        finally:
            self._awaited -= 1

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failing_since: float | None = None
        delay = 0.1
        while not self._stopped.is_set():
            heard = self._heard
            try:
                self._follow()
            except ConnectionLost as error:
                if self._heard != heard:
                    failing_since, delay = None, 0.1
                failing_since = failing_since or self._effects.monotonic()
                if self._effects.monotonic() - failing_since > self._patience:
                    self._fail(SourceError(f"gave up after {self._patience:.0f} s: {error.message}", hint=error.hint))
                else:
                    log.warning("the log is read again from position %d on: %s", self._position, error.message)
                self._stopped.wait(delay)
                delay = min(delay * 2, 10.0)
            except DBLogError as error:
                self._fail(error)
            except Exception as error:
                self._fail(DBLogError(f"capture failed: {type(error).__name__}: {error}"))

    def _fail(self, error: DBLogError) -> None:
        with self._changed:
            self._error = error
            self._stopped.set()
            self._changed.notify_all()

    def _follow(self) -> None:
        """Read until the connection breaks. A transaction that arrived only in part is read again."""
        stream = self._open_log()
        try:
            while not self._stopped.is_set():
                self._turn(stream)
        finally:
            self._open.abort()
            stream.close()

    def _open_log(self) -> LogStream:
        """Open the log where it is captured up to."""
        stream = self._source.stream(self._position, self._coordinate)
        with self._changed:
            self._opened = True
            self.openings += 1
            self._changed.notify_all()
        if not self._source.comparable(self._coordinate, stream.coordinate):
            self.redefined.set()  # definitions may differ on another server
        # `_coordinate` stays that of `_position`, which another server may have counted
        self._open = self._new_segment(self._position, stream.coordinate)
        self._heard = self._effects.monotonic()
        self._acknowledged_at = 0.0
        self._leave = None
        return stream

    def _turn(self, stream: LogStream) -> None:
        """Acknowledge what Spark has committed, if it is time, and read on, if that is allowed."""
        if self._leave is not None:
            raise ConnectionLost(self._leave)
        if self._effects.monotonic() - self._acknowledged_at > ACKNOWLEDGE_SECONDS:
            stream.acknowledge(self._acknowledged)
            self._acknowledged_at = self._effects.monotonic()
        if self._full():
            self._stopped.wait(0.05)
        else:
            self._step(stream)

    def _step(self, stream: LogStream) -> None:
        """Read what has arrived, and publish the open segment if it is time.

        A segment is published at once when planning waits and nothing more is coming. Otherwise it is published when it
        has reached some size or age, because few large files are better than many small ones."""
        if not self._rush:
            self._wanted.wait(GATHER_SECONDS)
        waiting = self._waiting > 0
        publishable = self._open.dirty and self._open.end is not None
        patience = 0.1 if not publishable else 0.0 if waiting else 0.005
        runs = stream.read(patience, eager=self._awaited > 0)
        rush = sum(run.nbytes for run in runs) > RUSH_BYTES
        if rush != self._rush:
            with self._changed:
                self._rush = rush
                self._changed.notify_all()
        for run in runs:
            self._open.append(run)
            if not stream.passing and (run.token is not None or self._open.large):
                self._publish(run.token)
        if stream.heard > self._heard:
            self._heard = stream.heard
        if stream.passing:
            return
        if self._open.dirty and (
            self._open.age > (SEGMENT_SECONDS if waiting else UNWANTED_SECONDS) or (waiting and not runs)
        ):
            self._publish(None)
        if stream.redefined():
            self.redefined.set()
        if not self._open.dirty and stream.idle_position > self._position:
            coordinate = self._source.coordinate(self._open.coordinate, Commits(), stream.idle_position)
            with self._changed:
                self._position, self._coordinate = stream.idle_position, coordinate
                self._open = self._new_segment(self._position, self._coordinate)
                self._changed.notify_all()

    def operations(self) -> dict[str, dict[str, int]]:
        """How many changes of each table were captured in this life, by table and operation."""
        with self._changed:
            counts = dict(self._operations)
        return {str(table): named(counted) for table, counted in counts.items()}

    def _full(self) -> bool:
        """Whether to stop reading: the read-ahead limit is reached, no transaction is open, no caller waits, and there
        are rows for the next batch. Spark commits a batch, and its log is removed, only when the next is planned."""
        with self._changed:
            ahead = sum(s.nbytes for s in self._segments)
            enough = ahead > self._read_ahead and any(s.end > self._delivered and s.files for s in self._segments)
        return enough and not self._awaited and not self._open.dirty

    def _publish(self, token: str | None) -> None:
        """Close the open segment at its last commit and make it visible, unless a transaction is still arriving."""
        if self._open.end is None:
            return
        segment = self._open.close()
        coordinate = self._source.coordinate(segment.coordinate, segment.commits, segment.end)
        self._lag = max(0.0, self._effects.wall() - segment.committed_at), self._effects.monotonic()
        with self._changed:
            if segment.files or len(segment.commits):
                self._segments.append(segment)
            for table, counted in self._open.operations.items():
                self._operations[table] = self._operations.get(table, 0) + counted
            self._position, self._coordinate = segment.end, coordinate
            if token is not None:
                self._tokens[token] = segment.end
                while len(self._tokens) > MOST_TOKENS:
                    self._tokens.pop(next(iter(self._tokens)))
            self._changed.notify_all()
        self._open = self._new_segment(segment.end, coordinate)

    def _new_segment(self, start: int, coordinate: str | None) -> OpenSegment:
        return OpenSegment(self._new_file, start, coordinate, self._effects)

    def _new_file(self, schema: TableSchema) -> LogWriter:
        self._files += 1
        return self._spool.log_writer(f"{self._life}-{self._files}", schema, before=self._before)
