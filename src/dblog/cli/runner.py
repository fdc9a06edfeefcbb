"""Runs the pipeline of `dblog run`, from the checks before Spark starts to a clean end."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dblog import __version__
from dblog.cli.log import ConsoleLog
from dblog.cli.program import INTERRUPTED, exit_code, private_files
from dblog.cli.progress import ProgressLog
from dblog.cli.serve import api
from dblog.cli.signals import Stop, stopping
from dblog.cli.spark import own_console, spark_session
from dblog.cli.standby import Leading, check_standby, leading
from dblog.errors import ConfigError, DBLogError, SinkUnreachable
from dblog.pipelines.config import Config
from dblog.pipelines.executors import check_executors
from dblog.pipelines.readiness import Findings, StreamFindings, check_streams, check_surroundings
from dblog.pipelines.running import DRAIN_SECONDS, Stream, streams_of
from dblog.pipelines.secrets import hiding
from dblog.pipelines.spark_settings import spark_settings
from dblog.pipelines.warm_up import warm_up
from dblog.sinks.s3a import give_credentials
from dblog.sources.problems import paragraphs
from dblog.spark.local import quiet
from dblog.spark.session import kill_jvm
from dblog.state import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.5
"""How often the progress is updated, in seconds. For an idle stream this does not query Spark."""
END_SECONDS = 10.0
"""How long a stream may take to end after its query has ended, in seconds."""


def run_pipeline(config: Config, *, once: bool, verbose: bool, as_json: bool) -> None:
    """Run the pipeline until a signal stops it, all streams have failed or, with `once`, everything is delivered."""
    if config.standby:
        check_standby(config, once=once)
    if as_json and any(sink.kind == "stdout" for sink in config.sinks):
        raise ConfigError("both --json and a sink would write to standard output", hint="leave out one of the two")
    store = None if config.state == "off" else config.state
    served = api(config.http, store, config.token, config.read_token) if config.http is not None else nullcontext()
    with ExitStack() as stack:
        stack.enter_context(private_files(config.private))
        # With --verbose Spark writes to the terminal too, and would break a line in place.
        log = ConsoleLog(own_console(stack), live=not as_json and not verbose)
        make = partial(
            streams_of,
            config,
            lambda sink, text: log.info(f"{sink}: {text}"),
            lambda sink, text: log.warning(f"{sink}: {text}"),
        )
        streams = make()
        settings = spark_settings(streams, config.spark)
        _check(config, streams, log)
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dblog-run-", ignore_cleanup_errors=True)))
        if not verbose:
            stack.enter_context(quiet(work / "stderr"))
        stop = stack.enter_context(stopping())
        if address := stack.enter_context(served):
            log.info(f"serving {address}")
        leader: Leading | None = None
        if any(s.error is None for s in streams):
            log.info(f"starting {config.name}: {', '.join(s.sink_name for s in streams if s.error is None)}")
            session = spark_session(work, verbose=verbose, short=once, settings=settings, master=config.master)
            spark = stack.enter_context(session)
            give_credentials(spark, config.objects)
            stop.listen()
            starting = [stream for stream in streams if stream.error is None]
            hidden = hiding(config.secrets)
            check_executors(spark, starting, __version__, lambda text: log.warning(hidden(text)), stop.wait)
            if config.standby:
                warm_up(spark, starting, work)
                leader = stack.enter_context(leading(config, work, log))
                streams = _as_leader(leader, streams, make, spark, stop)
            for stream in streams:
                if stream.error is None:
                    stream.start(spark, once=once, ended=stop.wake)
        progress = ProgressLog(streams, log, as_json=as_json)
        try:
            _wait(streams, stop, progress, leader)
        finally:
            _end(streams, stop, log, at_once=leader is not None and leader.lost)
            if leader is not None and not all(s.ended for s in streams):
                kill_jvm(spark)  # before the lease is given back
        if leader is not None:
            leader.check()
        progress.update()
        progress.end()
    if stop.number == signal.SIGINT:
        raise typer.Exit(INTERRUPTED)
    if failed := [s.error for s in streams if s.error is not None]:
        raise typer.Exit(exit_code(failed[0]))


def _check(config: Config, streams: Sequence[Stream], log: ConsoleLog) -> None:
    """Make all checks before Spark starts, because the start takes seconds. A stream that cannot run gets its error; an
    error that concerns all streams is raised. A source or a sink that cannot be reached is not an error: its stream
    waits for it."""
    for error in check_surroundings(config, config.token).values():
        if error is not None:
            raise error
    try:
        found = check_streams(streams)
    except DBLogError as error:
        if not error.retryable:
            raise
        log.warning(f"the source cannot be reached: {error.message}")
        found = {stream.sink_name: StreamFindings(sink=stream.check()) for stream in streams}
    if config.standby:  # the leader may have gone on since the checkpoint was read; the stream checks it when it starts
        found = {name: replace(f, problems=tuple(p for p in f.problems if not p.lost)) for name, f in found.items()}
    for paragraph in paragraphs(p for p in Findings(streams=found).problems if p.left_out):
        tables = paragraph.tables()
        log.warning(f"left out: {paragraph.what}{': ' if tables else ''}{tables}")
    for stream in streams:
        sink = found[stream.sink_name].sink
        if isinstance(sink, ConfigError):
            raise ConfigError(f"sink {stream.sink_name}: {sink.message}", hint=sink.hint)
        if isinstance(sink, SinkUnreachable):
            log.warning(f"{stream.sink_name}: the sink cannot be reached: {sink.message}")
        stream.error = found[stream.sink_name].error()
    if config.state != "off":
        open_store(config.state).close()  # some errors show only when it is opened
    for stream in streams:
        stream.set_throttle(config.throttle)


def _as_leader(
    leader: Leading, checked: Sequence[Stream], make: Callable[..., list[Stream]], spark: SparkSession, stop: Stop
) -> list[Stream]:
    """Wait until this instance is the leader. Returns its streams, made anew because the leader before has gone on with
    them; none if a signal comes first."""
    term = leader.wait(stop)
    if term is None:
        return []
    leader.watch(term, spark, stop)
    streams = make(term=term)
    for stream, before in zip(streams, checked, strict=True):
        stream.error = before.error
    return streams


def _wait(streams: Sequence[Stream], stop: Stop, progress: ProgressLog, leader: Leading | None) -> None:
    """Log the progress until all streams have ended, a signal comes, or the leader's lease is over."""
    with progress.line():
        while stop.number is None and not all(s.ended for s in streams) and not (leader and leader.lost):
            stop.wait(POLL_SECONDS)
            progress.update()


def _end(streams: Sequence[Stream], stop: Stop, log: ConsoleLog, *, at_once: bool) -> None:
    if stop.number is not None and not all(s.ended for s in streams):
        log.info(f"stopping after the current batches, in {DRAIN_SECONDS:.0f} s at most; Ctrl-C stops at once")
    deadline = time.monotonic() + (0.0 if at_once else DRAIN_SECONDS)
    for stream in streams:
        stream.take_no_more()
    for stream in streams:
        stream.stop(deadline)
    for stream in streams:
        stream.join(END_SECONDS)
