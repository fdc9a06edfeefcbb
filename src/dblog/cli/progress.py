"""The progress of `dblog run` on standard error: a line when the state changes, a summary every few minutes, and on a
terminal one line that is updated in place. With --json, each batch is a JSON line on standard output."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from dblog.cli.log import SUMMARY_SECONDS, ConsoleLog
from dblog.cli.number_format import count, duration
from dblog.cli.program import print_line
from dblog.pipelines.reached import Reached
from dblog.pipelines.running import Stream
from dblog.sources.family import shown_position
from dblog.state.pipeline import RUNNING


@dataclass
class Told:
    """What was logged about a stream so far."""

    reached: Reached | None = None
    dumping: bool = False
    behind: bool = True
    failed: bool = False


class ProgressLog:
    """Logs the progress of streams. `update` is cheap while they are idle."""

    def __init__(self, streams: Sequence[Stream], log: ConsoleLog, *, as_json: bool) -> None:
        self._streams = streams
        self._log = log
        self._as_json = as_json
        self._told = {s.sink_name: Told() for s in streams}
        self._summed = time.monotonic()

    def line(self) -> AbstractContextManager[Any]:
        """Show the progress in one line below the log while the body runs, if there is a terminal."""
        return self._log.line()

    def update(self) -> None:
        """Log what has changed since the last call."""
        for stream in self._streams:
            told = self._told[stream.sink_name]
            if stream.report.now.state != RUNNING:
                told.behind = True
            for reached in stream.reached():
                self._log_batch(stream, told, reached)
            if stream.ended and stream.error is not None and not told.failed:
                told.failed = True
                self._log_failure(stream)
        if self._log.in_place:
            self._log.show("; ".join(self._text(s) for s in self._streams))
        elif time.monotonic() - self._summed > SUMMARY_SECONDS:
            self._summed = time.monotonic()
            for stream in self._streams:
                if not stream.ended:
                    self._log.info(self._text(stream))

    def end(self) -> None:
        """Log a summary of each stream."""
        for stream in self._streams:
            ended = "ended" if stream.error is None else "failed"
            self._log.info(f"{self._text(stream)}; {ended}")

    def _log_batch(self, stream: Stream, told: Told, now: Reached) -> None:
        sink, last = stream.sink_name, told.reached
        if now.position is None and last is not None:
            now = replace(now, position=last.position)
        told.reached = now
        if self._as_json:
            batch = {"batch": now.batch, "at": now.at, "seconds": now.seconds, "position": now.position}
            print_line({"sink": sink, **batch, "changes": now.changes, "rows": now.rows})
        joined = [t for t in now.tables if last is not None and last.tables and t not in last.tables]
        if joined:
            self._log.info(f"{sink}: new tables: {', '.join(joined)}")
        if now.dumping and now.tables and not told.dumping:
            told.dumping = True
            self._log.info(f"{sink}: a dump has begun")
        if not now.dumping and (told.dumping or now.rows > (last.rows if last is not None else 0)):
            told.dumping = False
            self._log.info(f"{sink}: all dumps have ended, {count(now.rows)} rows of dumps so far")
        if told.behind and now.caught_up:
            told.behind = False
            self._log.info(f"{sink}: caught up with the log at {shown_position(stream.read.address, now.position)}")

    def _log_failure(self, stream: Stream) -> None:
        assert stream.error is not None
        if self._as_json:
            print_line({"sink": stream.sink_name, "error": stream.error.message, "hint": stream.error.hint})
        self._log.error(f"{stream.sink_name}: {stream.error.message}", stream.error.hint)

    def _text(self, stream: Stream) -> str:
        reached, doing = self._told[stream.sink_name].reached, stream.report.now
        if reached is None:
            text = f"{stream.sink_name}: nothing delivered yet"
        else:
            position = shown_position(stream.read.address, reached.position)
            had = f"{count(reached.changes)} changes and {count(reached.rows)} rows of dumps"
            text = f"{stream.sink_name}: batch {count(reached.batch)}, {had}, the log up to {position}"
        if doing.state == RUNNING or doing.since is None:
            return text
        return f"{text}; {doing.state} for {duration(time.time() - doing.since)}: {doing.reason}"
