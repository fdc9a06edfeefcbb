"""The engine: what the driver does between batches, as Spark asks for it.

A batch is a function of its two offsets and of files. So after a crash, in a new process, `batch` may be called
first, with offsets of an earlier life, and the engine starts wherever they say.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dblog.capture import Capture
from dblog.core.event import EMPTIED_SEQ, truncation
from dblog.core.offset import Offset
from dblog.desk import Desk
from dblog.errors import ConnectionLost, SourceError, SpoolError
from dblog.planner import Planner, Settings
from dblog.retry import retrying
from dblog.segments import Limit
from dblog.sources.base import Source
from dblog.spool import LogFile, Spool, schema_from_text
from dblog.state.store import Store
from dblog.tasks import Emit, Log, Select, Window

_T = TypeVar("_T")

SPOOL_SECONDS = 5.0
"""How often the spool's size is looked at."""


class Engine:
    """Plans batches and keeps the log flowing onto the spool. Belongs to the driver's source process."""

    def __init__(
        self,
        source: Source,
        spool: Spool,
        settings: Settings,
        check: Callable[[Collection[str]], None] = lambda versions: None,
        version: str | None = None,
        *,
        pipeline: str = "",
        open_store: Callable[[], Store] | None = None,
    ) -> None:
        """`check` raises when the stream cannot deliver rows of these schema versions; with `version`, the rows of a
        dump must be of that one, because a column they lack would be lost for good. Without a store the stream takes
        no requests."""
        self._source = source
        self._spool = spool
        self._settings = settings
        self._check = check
        self._capture: Capture | None = None
        self._target: int | None = None
        self._draining = False
        self._started_at = time.time()
        self._spool_bytes, self._measured = 0, 0.0
        self._position = 0
        self._planned: int | None = None
        self._located: dict[int, int] = {}
        self._made: dict[int, list[str]] = {}
        self.desk = (
            Desk(open_store, pipeline, self.status, patience=settings.patience) if open_store is not None else None
        )
        self._planner = Planner(source, spool, settings, check, version, self.desk)
        if self.desk is not None:
            self.desk.start()

    # -- what Spark asks -------------------------------------------------------------------------------------

    def next(self, start: Offset, limit: Limit) -> Offset:
        """The offset that ends the next batch; `start` itself when there is nothing to do."""
        if start.position is None:
            return self._first()
        capture = self._started(start, keep=(start,))
        here = self._here(start)
        if self._draining and self._target is None:
            self._target = self._retrying(self._source.latest)
        self._position = start.position
        self._planner.delivered(here)
        while True:
            end = self._planner.plan(here, capture, limit, self._target)
            if end is None:
                return start
            if end != here:
                self._planned = end.position
                return end
            if self._target is None:
                return start

    def batch(self, start: Offset, end: Offset) -> list[Log | Emit | Select]:
        """The work between two offsets."""
        work: list[Log | Emit | Select] = []
        if start.position is not None and end.position is not None and start != end:
            capture = self._started(start, keep=(start, end))
            if end.position != self._planned:
                self._located[end.position] = capture.locate(end.position, end.place)
            first, last = self._here(start).position, self._here(end).position
            assert first is not None
            assert last is not None
            capture.wait_position(last)
            segments = [s.files for s in capture.between(first, last, start.followed) if s.files]
            if end.emptied:
                segments.append(self._emptied(end, last))
            window = Window(first, last, tuple(segments))
            self._check({f.version for f in window.files})
            # a chunk that was lost after it was pinned yields nothing now; `plan` sees that and reads it again
            staged = self._planner.staged(end.emit)
            present = tuple(c for c in end.emit if c.id in staged and staged[c.id].stamp == c.stamp)
            if window.segments:
                work.append(Log(window, present))
            work += [Emit(window, c) for c in present]
        work += [Select(c) for c in end.read]
        return work

    def commit(self, end: Offset) -> None:
        """Spark has committed the batch that ends here: nothing of it is needed again."""
        if end.position is not None and self._capture is not None:
            self._capture.release(self._located.get(end.position, end.position))
            self._spool.remove(self._made.pop(end.position, ()))
        self._spool.remove_chunks({c.id for c in end.emit})

    def drain(self) -> None:
        """From now on: stop when the log is delivered as of the next batch and no dump is running."""
        self._draining = True

    def report(self) -> dict[str, int]:
        """Where the log ends, as far as it is captured, and what was done."""
        captured = {} if self._capture is None else {"captured": self._capture.position}
        return {**captured, **self._planner.counts.to_json()}

    def stop(self, error: BaseException | None = None) -> None:
        if self._capture is not None:
            self._capture.stop()
        if self.desk is not None:
            self.desk.close(error)

    # -- what people ask -------------------------------------------------------------------------------------

    def status(self) -> Mapping[str, Any]:
        """Everything there is to say of the stream. Called by the desk's thread."""
        status: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            **self._source.identity(),
            **self._planner.status(),
        }
        capture = self._capture
        if capture is not None:
            since = capture.waiting_since(self._position)
            status |= {
                "position": self._position,
                "captured": capture.position,
                "lag_seconds": 0.0 if since is None else max(0.0, time.time() - since),
                "capture_lag_seconds": capture.lag,
            }
            try:
                health = dict(self._source.health())
                latest = health.pop("latest")
                status |= {"latest": latest, "lag_bytes": max(0, latest - self._position), "slot_health": health}
            except ConnectionLost:  # a server that shuts down ends this session first, and the log's last
                capture.reconnect()
            except SourceError:
                pass  # the rest is worth saying; others say what is wrong
        if time.monotonic() - self._measured > SPOOL_SECONDS:
            with contextlib.suppress(SpoolError, OSError):
                self._spool_bytes, self._measured = self._spool.size(), time.monotonic()
        self._planner.probe()
        return {**status, "spool_bytes": self._spool_bytes}

    # -- starting --------------------------------------------------------------------------------------------

    def _first(self) -> Offset:
        self._retrying(lambda: self._source.prepare(followed=None))
        origin = self._retrying(self._source.origin)
        names = tuple(self._retrying(self._source.tables))
        admission = self._retrying(lambda: self._source.admit(names))
        suspects = tuple(sorted({*origin.suspects, *admission.running}))
        tables = () if self._settings.dump else tuple(admission.tables)
        return Offset(origin.position, suspects=suspects, tables=tables, place=origin.place, followed=admission.tables)

    def _emptied(self, end: Offset, position: int) -> tuple[LogFile, ...]:
        """A truncate of each table that the batch ends by emptying, as files of the log."""
        assert end.position is not None
        files = []
        for number, schema in enumerate(map(schema_from_text, end.emptied.values())):
            writer = self._spool.log_writer(f"{uuid.uuid4().hex[:8]}-{number}", schema, before=self._settings.before)
            writer.append(truncation(schema.arrow, position - 1, EMPTIED_SEQ, None, None, before=self._settings.before))
            files.append(writer.close())
        self._made.setdefault(end.position, []).extend(f.path for f in files)
        return tuple(files)

    def _started(self, start: Offset, keep: Sequence[Offset]) -> Capture:
        if self._capture is None:
            assert start.position is not None
            known = {t: f for offset in reversed(keep) for t, f in (offset.followed or {}).items()}
            self._retrying(lambda: self._source.prepare(followed={*keep[0].tables, *known}))
            if known:
                self._retrying(lambda: self._source.follow(known))
            self._spool.sweep({c.id for offset in keep for c in (*offset.emit, *offset.read)})
            self._capture = Capture(
                self._source,
                self._spool,
                start.position,
                start.place,
                before=self._settings.before,
                read_ahead=self._settings.read_ahead,
                patience=self._settings.patience,
            )
            self._capture.wait_open()
        return self._capture

    def _here(self, offset: Offset) -> Offset:
        """The offset with its position as it is in the log that is read now. It differs where a batch that was planned
        on one server is repeated on another."""
        assert offset.position is not None
        return replace(offset, position=self._located.get(offset.position, offset.position))

    def _retrying(self, call: Callable[[], _T]) -> _T:
        return retrying(call, self._settings.patience)
