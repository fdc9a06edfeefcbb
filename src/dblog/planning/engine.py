"""The engine: what the driver does between batches, when Spark calls it.

A batch depends only on its two offsets and on files. After a crash, in a new process, Spark may call `batch` first,
with offsets of an earlier life. The engine then starts at these offsets.

A repeated batch must be the same as before, because sinks may have written it, and they identify it by its positions.
So before an offset is returned, the spool stores which files the batch consists of (`Spool.keep_batch`), and a later
life delivers these files. If they are lost, the log is read again; on another server, exactly the transactions of the
batch are read (`dblog.capture.repeat`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from dblog.capture.capture import Capture
from dblog.capture.chunk_removal import ChunkRemoval, chunks_of
from dblog.capture.effects import REAL, Effects
from dblog.capture.repeat import read_again
from dblog.capture.segments import Limit
from dblog.capture.spool import LogFile, Segments, Spool, schema_from_text
from dblog.core.event import EMPTIED_SEQ, truncation
from dblog.core.offset import Offset
from dblog.core.schema import TableName
from dblog.errors import ConnectionLost, SourceError, SpoolError
from dblog.planning.planner import Planner
from dblog.planning.retry import retrying
from dblog.planning.settings import StreamSettings
from dblog.planning.state_sync import StateSync
from dblog.sources.base import Source, Wait
from dblog.state.store import Store
from dblog.work.handover import NO_ROWS, write_ranges
from dblog.work.tasks import Emit, Log, Select, Window

_T = TypeVar("_T")

REST_SECONDS = 5.0
"""How long a stream with `batch_seconds` looks for work before it answers that there is none, in seconds, at most."""

SPOOL_SECONDS = 5.0
"""How often the spool's size is measured, in seconds."""


class Engine:
    """Plans batches, and captures the log onto the spool. It runs in the source's process on the driver."""

    def __init__(
        self,
        source: Source,
        spool: Spool,
        settings: StreamSettings,
        check: Callable[[Collection[str]], None] = lambda versions: None,
        version: str | None = None,
        *,
        pipeline: str = "",
        open_store: Callable[[], Store] | None = None,
        effects: Effects = REAL,
        make_capture: Callable[..., Capture] = Capture,
        make_sync: Callable[..., StateSync] = StateSync,
    ) -> None:
        """`check` raises if the stream cannot deliver rows of these schema versions. With `version`, the rows of a dump
        must have this schema version, because a column that they lack would be lost for ever. Without a store the
        stream takes no requests. With the last three arguments a test controls time and threads."""
        self._source = source
        self._spool = spool
        self._settings = settings
        self._check = check
        self._effects = effects
        self._make_capture = make_capture
        self._capture: Capture | None = None
        self._target: int | None = None
        self._draining = False
        self._stopped = threading.Event()
        self._held_up: str | None = None
        self._started_at = effects.wall()
        self._spool_bytes, self._measured = 0, 0.0
        self._health: Mapping[str, Any] | None = None
        """The database's last answer about how it keeps the log; None if it did not answer."""
        self._position = 0
        self._repeated: tuple[Offset, Segments] | None = None
        """The end of a batch that an earlier life has planned, until the batch is committed."""
        self._made: dict[int, list[str]] = {}
        """Files that were created for a batch, by the end of the batch. They are removed when it is committed."""
        self.sync = (
            None
            if open_store is None
            else make_sync(open_store, pipeline, self.status, self.tend, patience=settings.patience)
        )
        self._removal = ChunkRemoval(spool, effects)
        self._planner = Planner(source, spool, settings, check, version, self.sync, effects)
        if self.sync is not None:
            self.sync.start()

    # -- called by Spark -------------------------------------------------------------------------------------

    def next(self, start: Offset, limit: Limit) -> Offset:
        """The offset that ends the next batch; `start` itself if there is nothing to do."""
        if start.position is None:
            return self._first()
        capture = self._started(start)
        if self._draining and self._target is None:
            self._target = self._retrying(self._source.latest)
        self._position = start.position
        self._planner.deliveries.delivered(start)
        # each answer costs Spark 20 ms of processor time, so a stream that need not answer at once answers seldom
        until = self._effects.monotonic() + min(self._settings.batch_seconds, REST_SECONDS)
        while True:
            end = self._planner.plan(start, capture, limit, self._target)
            if end is None:
                return start
            if end != start:
                self._spool.keep_batch(self._name(start, end), _log_files(capture, start, end))
                self._removal.planned(start, end)
                return end
            if self._target is None and self._effects.monotonic() >= until:
                return start

    def batch(self, start: Offset, end: Offset) -> list[Log | Emit | Select]:
        """The work between two offsets."""
        self._removal.planned(start, end)
        work: list[Log | Emit | Select] = []
        if start.position is not None and end.position is not None and start != end:
            ends = tuple((t, found.position) for t, found in end.aside.items() if t not in start.aside)
            window = Window(start.position, end.position, self._segments(start, end), ends)
            if end.emptied:
                window = replace(window, segments=(*window.segments, self._emptied(end, end.position)))
            self._check({f.version for f in window.files})
            # a chunk that was lost after it was pinned has no rows now; `plan` finds that and reads it again
            staged = self._planner.staged(end.emit)
            present = tuple(c for c in end.emit if c.id in staged and staged[c.id].stamp == c.stamp)
            if window.segments:
                work.append(Log(window, present))
            work += [Emit(window, c) for c in present]
        work += [Select(c) for c in end.read]
        return work

    def hand_over(self, start: Offset, end: Offset) -> str | None:
        """Write the work between two offsets to the spool as a range. Returns its name; None if there is no work."""
        work = self.batch(start, end)
        if not work or end.position is None:
            return None
        (name,), path = write_ranges(self._spool, [(NO_ROWS, [tuple(work)])])
        self._made.setdefault(end.position, []).append(path)
        return name

    def commit(self, end: Offset) -> None:
        """Note that Spark has committed the batch that ends here, and remove its files."""
        if end.position is not None and self._capture is not None:
            self._capture.release(end.position)
            self._spool.remove(self._made.pop(end.position, ()))
        if self._repeated is not None and self._repeated[0] == end:
            self._spool.remove(f.path for segment in self._repeated[1] for f in segment)
            self._repeated = None
        self._removal.committed(end)

    def drain(self) -> None:
        """Stop when the log is delivered up to its end at the next batch, and no dump runs."""
        self._draining = True

    def report(self) -> dict[str, int]:
        """The position up to which the log is captured, and the counts of this life."""
        captured = {} if self._capture is None else {"captured": self._capture.position}
        return {**captured, **self._planner.deliveries.counts.to_json()}

    def stop(self, error: BaseException | None = None) -> None:
        self._stopped.set()
        if self._capture is not None:
            self._capture.stop()
        if self.sync is not None:
            self.sync.close(error)

    # -- called by the state sync ----------------------------------------------------------------------------

    def tend(self) -> None:
        """Do the regular work of a running stream that does not depend on planning. Called by the state sync's thread.

        1. Query how the database keeps the log. If the server ends our session, close the log's connection too: a
           server that shuts down ends this session first, and then waits until the log's connection is closed.
        2. Measure the spool.
        3. Run the user's probe, if a dump waits for its answer.
        """
        # 1.
        capture = self._capture
        if capture is not None:
            self._health = None
            try:
                self._health = self._source.health()
            except ConnectionLost as error:
                capture.reconnect(f"the server ends sessions: {error.message}")
            except SourceError:
                pass  # planning will raise the error
        # 2.
        if self._effects.monotonic() - self._measured > SPOOL_SECONDS:
            with contextlib.suppress(SpoolError, OSError):
                self._spool_bytes, self._measured = self._spool.size(), self._effects.monotonic()
        # 3.
        self._planner.probe()

    def status(self) -> Mapping[str, Any]:
        """The status of the stream. It only reads what is known: it queries neither the source nor the spool."""
        status: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            **self._source.identity(),
            **self._planner.status(),
            "spool_bytes": self._spool_bytes,
        }
        if self._held_up is not None:
            status["waiting"] = self._held_up
        capture, position = self._capture, self._position
        if capture is not None:
            for table, counted in capture.operations().items():
                if table in status["tables"]:
                    status["tables"][table]["operations"] = counted
            since = capture.waiting_since(position)
            status |= {
                "position": position,
                "captured": capture.position,
                "lag_seconds": 0.0 if since is None else max(0.0, self._effects.wall() - since),
                "capture_lag_seconds": capture.lag,
            }
            if self._health is not None:
                health = dict(self._health)
                latest = health.pop("latest")
                status |= {"latest": latest, "lag_bytes": max(0, latest - position), "slot_health": health}
        return status

    # -- starting --------------------------------------------------------------------------------------------

    def _first(self) -> Offset:
        self._prepare()
        origin = self._retrying(self._source.origin)
        names = tuple(self._retrying(self._source.tables))
        admission = self._retrying(lambda: self._source.admit(names))
        suspects = tuple(sorted({*origin.suspects, *admission.running}))
        tables = () if self._settings.dump else tuple(admission.tables)
        return Offset(
            origin.position, suspects=suspects, tables=tables, coordinate=origin.coordinate, followed=admission.tables
        )

    def _emptied(self, end: Offset, position: int) -> tuple[LogFile, ...]:
        """For each table that the batch empties at its end: a log file with a truncate."""
        assert end.position is not None
        files = []
        for number, schema in enumerate(map(schema_from_text, end.emptied.values())):
            writer = self._spool.log_writer(
                f"{self._effects.token()[:8]}-{number}", schema, before=self._settings.before
            )
            writer.append(truncation(schema.arrow, position - 1, EMPTIED_SEQ, None, None, before=self._settings.before))
            files.append(writer.close())
        self._made.setdefault(end.position, []).extend(f.path for f in files)
        return tuple(files)

    def _hold_up(self, what: str | None) -> None:
        self._held_up = what

    def _started(self, at: Offset) -> Capture:
        """The capture. In a new life it starts at an offset whose batch is committed."""
        if self._capture is None:
            self._prepare(at)
            self._spool.sweep(chunks_of(at))
            self._follow(at)
        assert self._capture is not None
        return self._capture

    def _segments(self, start: Offset, end: Offset) -> Segments:
        """The log files of a planned batch."""
        if self._capture is None:
            self._repeat(start, end)
        if self._repeated is not None and self._repeated[0] == end:
            return self._repeated[1]
        assert self._capture is not None
        assert end.position is not None
        self._capture.wait_position(end.position)
        return _log_files(self._capture, start, end)

    def _repeat(self, start: Offset, end: Offset) -> None:
        """Begin a life with a batch that an earlier life has planned.

        1. If its files are on the spool, they are the batch. Capture starts after it.
        2. If they are lost and the log is another server's, the batch's transactions are read from there. The spool
           stores their files, so that the next life finds the same ones. Capture starts after the batch.
        3. Otherwise capture starts at the start of the batch.
        """
        self._prepare(start, end)
        name = self._name(start, end)
        # 1.
        files = self._spool.kept_batch(name)
        self._spool.sweep(chunks_of(start) | chunks_of(end), files or ())
        # 2.
        if files is None:
            before = self._settings.before
            files = self._retrying(lambda: read_again(self._source, self._spool, start, end, before=before))
            if files is not None:
                self._spool.keep_batch(name, files)
        self._repeated = None if files is None else (end, files)
        self._follow(start if files is None else end)

    def _name(self, start: Offset, end: Offset) -> str:
        """A name that identifies the batch. The same batch of a stream with other options has another name."""
        said = [start.to_json(), end.to_json(), self._source.decoding, self._settings.before]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def _prepare(self, *offsets: Offset) -> None:
        """Check the source, and decode the log for the tables that are followed at these offsets, the earliest first. A
        new stream has no offsets. A table that cannot be followed any more is checked by the first survey, if it can be
        set aside. A table that was set aside and joins at the last offset is decoded from there on."""
        wait = Wait(self._settings.patience, self._hold_up, self._stopped)
        known = {t: f for offset in reversed(offsets) for t, f in (offset.followed or {}).items()}
        followed, aside = None, set[TableName]()
        if offsets:
            aside = set(offsets[-1].aside)
            followed = {*offsets[0].tables, *known} - aside
            if self._settings.set_aside:
                aside |= self._retrying(lambda: self._source.unfit(followed)).keys()
                followed -= aside
        self._retrying(lambda: self._source.prepare(followed=followed, aside=aside, wait=wait))
        if known:
            self._retrying(lambda: self._source.follow(known))
        if anew := {t: f for t, f in known.items() if t in offsets[0].aside}:
            self._retrying(lambda: self._source.follow(anew, since=offsets[-1].position))

    def _follow(self, at: Offset) -> None:
        assert at.position is not None
        self._capture = self._make_capture(
            self._source,
            self._spool,
            at.position,
            at.coordinate,
            before=self._settings.before,
            read_ahead=self._settings.read_ahead,
            patience=self._settings.patience,
            effects=self._effects,
        )
        self._capture.start()
        self._capture.wait_open()

    def _retrying(self, call: Callable[[], _T]) -> _T:
        return retrying(call, self._settings.patience, self._effects)


def _log_files(capture: Capture, start: Offset, end: Offset) -> Segments:
    """The captured log files between two offsets."""
    assert start.position is not None
    assert end.position is not None
    segments = capture.between(start.position, end.position, start.followed)
    return tuple(s.files for s in segments if s.files)
