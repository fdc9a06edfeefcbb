"""`dblog run FILE`: a pipeline with all its sinks, from the start to a clean end."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from dblog.cli.program import INTERRUPTED, exit_code, print_line, private_files
from dblog.cli.serve import api, token_of
from dblog.cli.signals import Stop, stopping
from dblog.cli.spark import own_console, spark_session
from dblog.cli.words import count, place
from dblog.demo.spark import check_java, quiet
from dblog.errors import ConfigError, DBLogError, SinkUnreachable
from dblog.pipelines.config import read_config
from dblog.pipelines.running import (
    DRAIN_SECONDS,
    Reached,
    Stream,
    check_routes,
    spark_settings,
    streams_of,
)

LOOK_SECONDS = 0.5
SAY_SECONDS = 10.0
"""How often the progress is told where it cannot be shown in place."""
END_SECONDS = 10.0
"""So long a stream may take to end when its query has."""


def run_file(
    path: Path,
    store: str | None,
    http: str | None,
    token_env: str | None,
    *,
    once: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run the pipeline until it is told to stop, or has nothing left to do."""
    config = read_config(path)
    config = replace(config, state=config.state or store, http=http or config.http)
    if as_json and any(sink.kind == "stdout" for sink in config.sinks):
        raise ConfigError("--json and a sink of the type stdout would mix on standard output", hint="leave out one")
    token = config.token if token_env is None else token_of(token_env)
    place = None if config.state == "off" else config.state
    served = api(config.http, place, token) if config.http is not None else nullcontext()
    with ExitStack() as stack:
        stack.enter_context(private_files(config.private))
        console = own_console(stack)
        streams = streams_of(config, lambda sink, text: console.print(f"{sink}: {text}", soft_wrap=True))
        settings = spark_settings(streams)
        check_java()
        teller = _Teller(streams, console, as_json=as_json)
        _get_ready(streams, config.throttle, console)
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dblog-run-", ignore_cleanup_errors=True)))
        if not verbose:
            stack.enter_context(quiet(work / "stderr"))
        stop = stack.enter_context(stopping())
        if address := stack.enter_context(served):
            console.print(f"serving {address}")
        if any(s.error is None for s in streams):
            spark = stack.enter_context(spark_session(work, verbose=verbose, settings=settings))
            stop.listen()
            for stream in streams:
                if stream.error is None:
                    stream.start(spark, once=once)
        try:
            _follow(streams, stop, teller)
        finally:
            _end(streams, stop, console)
        teller.look()
        teller.end()
    if stop.number == signal.SIGINT:
        raise typer.Exit(INTERRUPTED)
    if failed := [s.error for s in streams if s.error is not None]:
        raise typer.Exit(exit_code(failed[0]))


def _get_ready(streams: Sequence[Stream], throttle: Any, console: Console) -> None:
    """What can be found out, and done, before Spark takes its time to start."""
    try:
        check_routes(streams)
    except DBLogError as error:
        if not error.retryable:
            raise
        console.print(f"the source is away: {error.message}", soft_wrap=True)
    for stream in streams:
        wrong = stream.check()
        if isinstance(wrong, ConfigError):
            raise ConfigError(f"sink {stream.sink_name}: {wrong.message}", hint=wrong.hint)
        if isinstance(wrong, SinkUnreachable):  # it may come back
            console.print(f"{stream.sink_name}: the sink is away: {wrong.message}", soft_wrap=True)
        else:
            stream.error = wrong
        stream.set_throttle(throttle)


def _follow(streams: Sequence[Stream], stop: Stop, teller: _Teller) -> None:
    """Tell the progress until all streams have ended, or are to."""
    with teller.line():
        while stop.number is None and not all(s.ended for s in streams):
            stop.wait(LOOK_SECONDS)
            teller.look()


def _end(streams: Sequence[Stream], stop: Stop, console: Console) -> None:
    if stop.number is not None and not all(s.ended for s in streams):
        console.print(
            f"stopping when the batches are written, in {DRAIN_SECONDS:.0f} s at most; Ctrl-C ends it at once"
        )
    deadline = time.monotonic() + DRAIN_SECONDS
    for stream in streams:
        stream.take_no_more()
    for stream in streams:
        stream.stop(deadline)
    for stream in streams:
        stream.join(END_SECONDS)


class _Teller:
    """Tells how far the streams are, and of each that fails why."""

    def __init__(self, streams: Sequence[Stream], console: Console, *, as_json: bool) -> None:
        self._streams = streams
        self._console = console
        self._as_json = as_json
        self._in_place = console.is_terminal and not as_json
        self._status: Any = None
        self._reached: dict[str, Reached] = {}
        self._failed: set[str] = set()
        self._said = time.monotonic()

    def line(self) -> Any:
        """While this lasts, the progress is shown in place, where there is a terminal."""
        self._status = self._console.status("starting") if self._in_place else None
        return self._status or nullcontext()

    def look(self) -> None:
        for stream in self._streams:
            for reached in stream.reached():
                self._take(stream, reached)
            if stream.ended and stream.error is not None and stream.sink_name not in self._failed:
                self._failed.add(stream.sink_name)
                self._tell_failure(stream.sink_name, stream.error)
        if self._as_json:
            return
        if self._status is not None:
            self._status.update("; ".join(self._text(s) for s in self._streams))
        elif time.monotonic() - self._said > SAY_SECONDS:
            self._said = time.monotonic()
            for stream in self._streams:
                if not stream.ended:
                    self._console.print(self._text(stream), soft_wrap=True)

    def end(self) -> None:
        if not self._as_json:
            for stream in self._streams:
                ended = "ended" if stream.error is None else "failed"
                self._console.print(f"{self._text(stream)}; {ended}", soft_wrap=True)

    def _take(self, stream: Stream, now: Reached) -> None:
        last = self._reached.get(stream.sink_name)
        if last is not None and now.batch <= last.batch:
            return
        if now.position is None and last is not None:
            now = replace(now, position=last.position)
        self._reached[stream.sink_name] = now
        if self._as_json:
            told = {"batch": now.batch, "at": now.at, "seconds": now.seconds, "position": now.position}
            print_line({"sink": stream.sink_name, **told, "changes": now.changes, "rows": now.rows})

    def _tell_failure(self, sink: str, error: DBLogError) -> None:
        if self._as_json:
            print_line({"sink": sink, "error": error.message, "hint": error.hint})
        self._console.print(Text.assemble(("error: ", "bold red"), f"{sink}: {error.message}"), soft_wrap=True)
        if error.hint:
            self._console.print(Text.assemble(("hint: ", "bold"), error.hint), soft_wrap=True)

    def _text(self, stream: Stream) -> str:
        reached = self._reached.get(stream.sink_name)
        if reached is None:
            return f"{stream.sink_name}: nothing delivered yet"
        had = f"{count(reached.changes)} changes and {count(reached.rows)} rows of dumps"
        return f"{stream.sink_name}: batch {count(reached.batch)}, {had}, the log up to {place(reached.position)}"
