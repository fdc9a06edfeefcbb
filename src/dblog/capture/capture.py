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

from dblog.capture.effects import REAL, Effects
from dblog.capture.segments import OpenSegment, Segment, followed_part
from dblog.capture.spool import LogWriter, Spool
from dblog.core.offset import Followed
from dblog.core.schema import TableName, TableSchema
from dblog.errors import ConnectionLost, DBLogError, SourceError, WatermarkError
from dblog.sources.base import Commits, LogStream, Source

log = logging.getLogger(__name__)

SEGMENT_SECONDS = 0.02
UNWANTED_SECONDS = 0.25
GATHER_SECONDS = 0.05
RUSH_BYTES = 256 << 10
ACKNOWLEDGE_SECONDS = 0.25
MOST_TOKENS = 1000
LAG_SECONDS = 2.0
"""How long it is believed that the log is late."""
LATE_SECONDS = 2.0
LATE_ROWS = 400_000
LATE_WAIT = 0.5
"""A stream that is so late may wait so long for so many rows in one batch."""


class Capture:
    """Follows a source's log from a position on, once it is started. An error ends it; every waiting call then raises
    that error."""

    def __init__(
        self,
        source: Source,
        spool: Spool,
        position: int,
        place: str | None,
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
        self._position = position
        self._place = place
        self._opened = False
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
        """The log has shown that a table got another definition. Cleared by whoever has looked at the tables."""
        self._open = self._new_segment(position, place)
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
        """How far the log is captured: the position and its place."""
        with self._changed:
            return self._position, self._place

    @property
    def lag(self) -> float:
        """How long after its commit the last transaction was captured, if the two clocks agree; zero when none was
        captured for a while."""
        lag, at = self._lag
        return lag if self._effects.monotonic() - at < LAG_SECONDS else 0.0

    def waiting_since(self, position: int) -> float | None:
        """About when the oldest change after the position was committed; None when there is none."""
        with self._changed:
            return next((s.committed_at for s in self._segments if s.end > position and s.files), None)

    def between(self, start: int, end: int, followed: Mapping[TableName, Followed] | None) -> list[Segment]:
        """The segments that hold the log of the followed tables in `(start, end]`; the outer ones may reach beyond."""
        with self._changed:
            found = [s for s in self._segments if s.end > start and s.start < end]
        return [followed_part(s, followed, self._spool.relabelled) for s in found]

    def wait_rows(self, beyond: int, timeout: float, *, eager: bool = False) -> bool:
        """Wait until a row after the position, which is where the next batch starts, is captured; whether there is
        one."""
        self._delivered = beyond
        with self._attention() if eager else contextlib.nullcontext():
            return self._wait(lambda: any(s.end > beyond and s.files for s in self._segments), timeout)

    def wait_more(self, beyond: int) -> None:
        """While the stream is late and much is coming, wait a little for more rows after the position: a batch costs
        Spark much the same whatever its size."""
        if self.lag > LATE_SECONDS:
            self._wait(lambda: not self._rush or self._ahead(beyond, LATE_ROWS), LATE_WAIT)

    def _ahead(self, beyond: int, rows: int) -> bool:
        """Whether this many rows after the position, or as much as may be, are captured."""
        captured = sum(f.rows for s in self._segments if s.end > beyond for f in s.files)
        return captured >= rows or self._full()

    def wait_open(self) -> None:
        """Wait until the log has been opened: from then on it is known how the server's positions are counted."""
        while not self._wait(lambda: self._opened, 1.0):
            self._check_silence("the log could not be opened")

    def place(self, position: int) -> str | None:
        """The place of a position up to which the log is captured and not yet released."""
        with self._changed:
            segment = next((s for s in self._segments if s.end >= position), None)
            if segment is None:
                return self._place
        return self._after(segment, position)

    def _after(self, segment: Segment, position: int) -> str | None:
        return self._source.place(segment.place, segment.commits.between(segment.start, position), position)

    def wait_position(self, position: int) -> int:
        """Wait until the log is captured up to the position; how far it is. Raises SourceError when the source falls
        silent."""
        with self._attention():
            while not self._wait(lambda: self._position >= position, 1.0):
                self._check_silence(f"the log did not reach position {position}")
            return self.position

    def wait_token(self, token: str, bound: int) -> int:
        """Wait for a watermark to come back; the position it came at. Raises WatermarkError when the log passes
        `bound`, a position after its commit, without it."""
        with self._attention():
            while not self._wait(lambda: token in self._tokens or self._position >= bound, 1.0):
                self._check_silence("a watermark did not come back through the log")
            with self._changed:
                if token in self._tokens:
                    return self._tokens.pop(token)
        raise WatermarkError(
            "a watermark was written but the log passed it without showing it",
            hint="the watermark table is missing from the publication, or a row filter hides it: "
            "run the preflight, or ALTER PUBLICATION ... ADD TABLE dblog.watermark",
        )

    def release(self, position: int) -> None:
        """Spark has committed everything up to the position: forget it here, and let the database forget it."""
        with self._changed:
            gone = [s for s in self._segments if s.end <= position]
            self._segments = [s for s in self._segments if s.end > position]
            self._acknowledged = max(self._acknowledged, position)
            self._changed.notify_all()
        self._spool.remove(f.path for s in gone for f in s.files)

    def reconnect(self, reason: str) -> None:
        """Leave the server and come back: it seems to shut down, and would wait for us."""
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

    def _check_silence(self, what: str) -> None:
        silent = self._effects.monotonic() - self._heard
        if silent > self._patience:
            raise SourceError(f"{what}: the source has sent nothing for {silent:.0f} s")

    @contextlib.contextmanager
    def _attention(self) -> Iterator[None]:
        """While somebody waits for the log to get somewhere, back-pressure is off and silence is broken."""
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
        """Read until the connection breaks. A transaction that had arrived in part is read again from its start."""
        stream = self._open_log()
        try:
            while not self._stopped.is_set():
                self._turn(stream)
        finally:
            self._open.abort()
            stream.close()

    def _open_log(self) -> LogStream:
        """Open the log where it is captured up to."""
        stream = self._source.stream(self._position, self._place)
        with self._changed:
            self._opened = True
            self._changed.notify_all()
        # `_place` stays that of `_position`, which another server may have counted
        self._open = self._new_segment(self._position, stream.place)
        self._heard = self._effects.monotonic()
        self._acknowledged_at = 0.0
        self._leave = None
        return stream

    def _turn(self, stream: LogStream) -> None:
        """Acknowledge what Spark has committed, if it is time, and read on, if that is allowed."""
        if self._leave is not None:
            raise ConnectionLost(f"the server ends sessions: {self._leave}")
        if self._effects.monotonic() - self._acknowledged_at > ACKNOWLEDGE_SECONDS:
            stream.acknowledge(self._acknowledged)
            self._acknowledged_at = self._effects.monotonic()
        if self._full():
            self._stopped.wait(0.05)
        else:
            self._step(stream)

    def _step(self, stream: LogStream) -> None:
        """Read what there is. A segment is published at once when somebody waits and nothing more is coming, else
        when it has some size or age: few large files are better than many small ones. While nobody waits and little
        comes, it is let come together for a while: decoding costs much the same for one transaction as for fifty."""
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
            place = self._source.place(self._open.place, Commits(), stream.idle_position)
            with self._changed:
                self._position, self._place = stream.idle_position, place
                self._open = self._new_segment(self._position, self._place)
                self._changed.notify_all()

    def _full(self) -> bool:
        """Whether to stop reading: far enough ahead, at a commit, and nobody waits for what comes next. Not without
        rows for the next batch: Spark commits a batch, so that its log is removed, only when the next is planned."""
        with self._changed:
            ahead = sum(s.nbytes for s in self._segments)
            enough = ahead > self._read_ahead and any(s.end > self._delivered and s.files for s in self._segments)
        return enough and not self._awaited and not self._open.dirty

    def _publish(self, token: str | None) -> None:
        """End the open segment at its last commit, unless a transaction is still arriving."""
        if self._open.end is None:
            return
        segment = self._open.close()
        place = self._source.place(segment.place, segment.commits, segment.end)
        self._lag = max(0.0, self._effects.wall() - segment.committed_at), self._effects.monotonic()
        with self._changed:
            if segment.files or len(segment.commits):
                self._segments.append(segment)
            self._position, self._place = segment.end, place
            if token is not None:
                self._tokens[token] = segment.end
                while len(self._tokens) > MOST_TOKENS:  # those of other pipelines are never asked for
                    self._tokens.pop(next(iter(self._tokens)))
            self._changed.notify_all()
        self._open = self._new_segment(segment.end, place)

    def _new_segment(self, start: int, place: str | None) -> OpenSegment:
        return OpenSegment(self._new_file, start, place, self._effects)

    def _new_file(self, schema: TableSchema) -> LogWriter:
        self._files += 1
        return self._spool.log_writer(f"{self._life}-{self._files}", schema, before=self._before)
