"""`dblog run`: a pipeline without a line of code."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dblog.cli.log import SUMMARY_SECONDS, Log
from dblog.cli.number_format import count
from dblog.cli.program import (
    INTERRUPTED,
    PIPELINE,
    AsJson,
    StatePlace,
    UrlOrFile,
    app,
    examples,
    only_with_file,
    print_line,
    private_files,
)
from dblog.cli.serve import Http, TokenVariable, api, token_of
from dblog.cli.settings import pairs
from dblog.cli.signals import Stop, stopping
from dblog.cli.spark import own_console, spark_session
from dblog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS = 0.5
IDLE_SECONDS = 5.0
"""How often Spark is asked for the progress: while batches come, and when none has come for a while."""


class Sink(StrEnum):
    """Where the rows go."""

    json = "json"
    parquet = "parquet"
    console = "console"
    noop = "noop"


@app.command(
    epilog=examples(
        "dblog run shop.toml",
        "dblog run shop.toml --once",
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog run --table public.orders --into /lake/orders",
        "dblog run --tables 'public.*' --into /lake/shop --format json --once",
        "dblog run --tables 'public.*' --into /lake/shop --every 10 --http 127.0.0.1:8080",
        "dblog run --table public.orders --format noop --checkpoint /tmp/orders --option chunkRows=5000",
    ),
    rich_help_panel=PIPELINE,
)
def run(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A pipeline's file, in which all of it is written.", show_default=False),
    ] = None,
    url: UrlOrFile = None,
    tables: Annotated[
        str | None, typer.Option(metavar="PATTERNS", help="Follow many tables, like 'public.*': JSON envelopes.")
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="Follow one table: its own columns.")] = None,
    into: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder for the rows.")] = None,
    sink: Annotated[Sink, typer.Option("--format", help="What is written.")] = Sink.parquet,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The query's checkpoint; without it, _checkpoint in --into."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Take what there is, and end.")] = False,
    every: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="One batch in so many seconds, not one after another."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the Spark source. Repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option("--pipeline", metavar="NAME", help="What to call this pipeline.")] = None,
    store: StatePlace = None,
    http: Http = None,
    token_env: TokenVariable = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Let Spark speak, on standard error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline's FILE; or without one, follow tables into files.

    Ctrl-C or a termination stops it cleanly, a second Ctrl-C at once; started again it goes on where it stopped.
    Needs Java 17 or newer. The progress is told on standard error, with --json as JSON lines on standard output.
    """
    from dblog.spark.java import check_java
    from dblog.spark.local import quiet

    if file is not None:
        from dblog.cli.pipeline import run_file

        only_with_file(context, {"once", "store", "http", "token_env", "verbose", "as_json"})
        run_file(file, store, http, token_env, once=once, verbose=verbose, as_json=as_json)
        return
    if url is None:
        raise ConfigError("there is neither a file nor --url", hint="dblog run shop.toml; dblog init writes one")
    if once and every is not None:
        raise ConfigError("--once and --every exclude each other", hint="leave out one")
    if as_json and sink is Sink.console:
        raise ConfigError("--json and --format console would mix on standard output", hint="leave out one")
    given = {"url": url, "table": table, "tables": tables, "state": store, "pipeline": name}
    options = _options({**given, **pairs(option or (), "an option")})
    target, marks = _places(sink, into, checkpoint)
    served = api(http, store, token_of(token_env)) if http is not None else nullcontext()
    check_java()
    with ExitStack() as stack:
        stack.enter_context(private_files())
        # Spark's own lines, which --verbose lets through, would break a line in place
        log = Log(own_console(stack), live=not as_json and not verbose)
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dblog-run-", ignore_cleanup_errors=True)))
        if not verbose:
            stack.enter_context(quiet(work / "stderr"))
        stop = stack.enter_context(stopping())
        if address := stack.enter_context(served):
            log.info(f"serving {address}")
        spark = stack.enter_context(spark_session(work, verbose=verbose))
        stop.listen()
        rows = _load(spark, options)
        query = _start(rows, sink, target, marks, once, every)
        stack.callback(_say_stopped, options)
        stack.callback(_stop, query)
        _follow(query, options["url"], stop, log, once=once, as_json=as_json)
    if stop.number == signal.SIGINT:
        raise typer.Exit(INTERRUPTED)


def _say_stopped(options: Mapping[str, str]) -> None:
    from dblog.spark.options import read_options
    from dblog.state import open_store
    from dblog.state.pipeline import Pipeline

    read = read_options(options)
    if read.state != "off":
        with closing(open_store(read.state)) as store:
            Pipeline(store, read.pipeline).stopped()


# -- what was asked for --------------------------------------------------------------------------------------------


def _options(given: Mapping[str, str | None]) -> dict[str, str]:
    """The options of the source, checked before Spark takes its time to start."""
    from dblog.spark.options import read_options

    options = {name: value for name, value in given.items() if value is not None}
    read_options(options)
    return options


def _places(sink: Sink, into: Path | None, checkpoint: Path | None) -> tuple[str | None, str]:
    """The folder of the rows, and that of the checkpoint."""
    files = sink in (Sink.json, Sink.parquet)
    if files != (into is not None):
        need = "needs --into" if files else "has no use for --into"
        raise ConfigError(
            f"--format {sink} {need}", hint=f"dblog run --format {'parquet --into DIR' if files else sink}"
        )
    if checkpoint is None and into is None:
        raise ConfigError(f"--format {sink} needs --checkpoint", hint="the checkpoint is what a stream goes on from")
    marks = checkpoint if checkpoint is not None else Path(into or "") / "_checkpoint"
    return (None if into is None else str(into.absolute())), str(marks.absolute())


# -- the query -----------------------------------------------------------------------------------------------------


def _load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    from pyspark.errors import PySparkException

    from dblog.spark.failure import cause

    try:
        return spark.readStream.format("dblog").options(**options).load()
    except PySparkException as error:
        raise cause(str(error)) from None


def _start(
    rows: DataFrame, sink: Sink, target: str | None, checkpoint: str, once: bool, every: float | None
) -> StreamingQuery:
    from pyspark.errors import PySparkException

    from dblog.spark.failure import cause

    writer = rows.writeStream.format(sink.value).option("checkpointLocation", checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    elif every is not None:
        writer = writer.trigger(processingTime=f"{round(every * 1000)} milliseconds")
    try:
        return writer.start(target)
    except PySparkException as error:
        raise cause(str(error)) from None


def _stop(query: StreamingQuery) -> None:
    if query.isActive:
        query.stop()


def _follow(query: StreamingQuery, url: str, stop: Stop, log: Log, *, once: bool, as_json: bool) -> None:
    """Tell the progress until the query ends, or is to. Raises what made it fail."""
    from dblog.spark.failure import cause

    told = _Progress(log, url, as_json)
    wait = LOOK_SECONDS
    with log.line():
        while stop.number is None and query.isActive:
            stop.wait(wait)
            wait = LOOK_SECONDS if told.look(query) or once else min(2 * wait, IDLE_SECONDS)
        if query.isActive:
            log.info("stopping; Ctrl-C ends it at once")
            query.stop()
    failure = query.exception()
    if failure is not None:
        raise cause(str(failure)) from None
    told.look(query)
    told.end()


class _Progress:
    """Tells what the query has done so far."""

    def __init__(self, log: Log, url: str, as_json: bool) -> None:
        self._log = log
        self._url = url
        self._as_json = as_json
        self._batch = -1
        self._rows = 0
        self._position: int | None = None
        self._asked = ""
        self._said = time.monotonic()

    def look(self, query: StreamingQuery) -> bool:
        """Tell of the batches that are new; whether there are any."""
        from dblog.spark.progress import batches

        last = query.lastProgress
        if last is None or last["timestamp"] == self._asked:
            return False
        self._asked = last["timestamp"]
        new = batches(query, self._batch)
        for progress in new:
            self._batch = progress["batchId"]
            self._rows += progress["numInputRows"]
            self._position = _position(progress) or self._position
            if self._as_json:
                print_line(_document(progress))
        if self._batch < 0:
            return False
        if self._log.in_place:
            self._log.show(self._text())
        elif not self._as_json and time.monotonic() - self._said > SUMMARY_SECONDS:
            self._log.info(self._text())
            self._said = time.monotonic()
        return bool(new)

    def end(self) -> None:
        if not self._as_json:
            self._log.info(f"ended: {self._text() if self._batch >= 0 else 'there was nothing to do'}")

    def _text(self) -> str:
        from dblog.sources.family import shown_position

        reached = shown_position(self._url, self._position)
        return f"batch {count(self._batch)}, {count(self._rows)} rows, the log up to {reached}"


def _document(progress: Any) -> dict[str, Any]:
    return {
        "batch": progress["batchId"],
        "at": progress["timestamp"],
        "rows": progress["numInputRows"],
        "seconds": progress["batchDuration"] / 1000,
        "position": _position(progress),
    }


def _position(progress: Any) -> int | None:
    from dblog.spark.progress import offset

    return offset(progress, "endOffset").get("pos")
