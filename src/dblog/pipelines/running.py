"""The streams of a running pipeline: one for each sink, each with its own slot, checkpoint, spool and dumps.

A stream that fails has no effect on the others. If a sink cannot be reached, only its own stream waits. A query that
fails is restarted from the same checkpoint if that may help (`restart`): the interrupted batch is delivered again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dblog.core.hints import as_flags, in_file
from dblog.core.offset import Offset
from dblog.errors import ConfigError, DBLogError, NotFound, SinkError, SinkUnreachable
from dblog.ha.term import Term
from dblog.pipelines.config import Config, SinkConfig
from dblog.pipelines.delivery import FIRST_DELAY, LAST_DELAY, Delivery
from dblog.pipelines.old_reader import end_reader
from dblog.pipelines.quarantine import Quarantine
from dblog.pipelines.reached import Reached, reached_by
from dblog.pipelines.refusals import refusals_of
from dblog.pipelines.report import Report, facts_of
from dblog.pipelines.restart import Restarts, may_pass
from dblog.pipelines.secrets import hiding
from dblog.pipelines.stream_folder import StreamFolder
from dblog.pipelines.stream_options import stream_name, stream_options
from dblog.sinks.base import Sink, SinkContext
from dblog.sinks.route import Route
from dblog.spark.failure import plain
from dblog.spark.options import Options, read_options
from dblog.spark.progress import batches
from dblog.spark.session import JVM_GONE, jvm_ended
from dblog.state import open_store
from dblog.state.pipeline import RESTARTING, WAITING, Pipeline

DRAIN_SECONDS = 30.0
"""How long the current batch may still take when the pipeline is stopped, in seconds."""
LOOK_SECONDS = 0.05
SETTLE_SECONDS = 5.0
"""How long the start of the next stream waits until this one's source answers, in seconds."""
SETTLE_LOOK_SECONDS = 1
"""How often a started query is checked for an answer of its source, in seconds."""
_STARTING = threading.Lock()
"""Held while a stream starts, so that they start one after the other. Spark gives a Python process ten seconds to
start; many at the same time take longer."""

Told = Callable[[str, str], None]
"""Takes the name of a sink and a message about its stream."""


class Stream:
    """The stream of one sink."""

    def __init__(self, config: Config, sink: SinkConfig, told: Told, warned: Told, term: Term | None = None) -> None:
        """`term` is the term of the leader, for a pipeline with standbys."""
        self.sink_name = sink.name
        self.folder = StreamFolder(config.folder, sink.name, config.objects)
        self.name = stream_name(config, sink, self.folder)
        self.routes: Sequence[Route] = sink.routes
        self._term = term
        context = SinkContext(self.name, config.base, config.objects, None if term is None else term.epoch)
        self._make_sink: Callable[[], Sink] = lambda: sink.maker(sink.settings, context)
        self.sink = self._make_sink()
        self.options = stream_options(config, sink, self.folder, context, self.sink, term=term)
        self.read: Options = read_options(self.options)
        self.resumes: Offset | None = self.folder.resume_offset()
        """The offset from which the stream continues; None for a new stream."""
        self.error: DBLogError | None = None
        self._hidden = hiding(config.secrets)
        self._told, self._warned = told, warned
        self._restarts = config.restarts
        self._own_slot = config.slot is None
        self.report = Report(self.read.state, self.name, config.unready_after, self._warn, term)
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._taking = False
        self._taken = self._seen = -1
        self._before = (0, 0)
        """Changes and rows that earlier queries of the stream have delivered."""
        self._last: Reached | None = None
        self._new: list[Reached] = []
        self._failure: Exception | None = None
        self._delivery: Delivery | None = None
        self._begun = False
        """Whether the sink has received anything, from this query or an earlier one."""
        self._query: StreamingQuery | None = None
        self._thread: threading.Thread | None = None
        self._over = False

    # -- before the start ------------------------------------------------------------------------------------

    def check(self) -> DBLogError | None:
        """The error of the sink's own check; None if there is none."""
        try:
            self.sink.check()
            return None
        except DBLogError as error:
            return self._said(error)

    def facts(self) -> dict[str, str]:
        """What the sink says about itself, without secrets."""
        return facts_of(self.sink, self._hidden)

    def set_throttle(self, throttle: Mapping[str, Any]) -> None:
        if throttle and self.read.state != "off":
            with closing(open_store(self.read.state)) as store:
                pipeline = Pipeline(store, self.name)
                pipeline.open()
                pipeline.change(throttle)

    # -- running ---------------------------------------------------------------------------------------------------

    def start(self, spark: SparkSession, *, once: bool, ended: Callable[[], None] = lambda: None) -> None:
        """Start the stream's thread, which calls `ended` when the stream has ended."""
        self.folder.make(self.name)

        def run() -> None:
            self._run(spark, once)
            self._over = True
            ended()

        self._thread = InheritableThread(target=run, name=f"dblog-stream-{self.sink_name}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return self._over or self._thread is None or not self._thread.is_alive()

    def reached(self) -> list[Reached]:
        """The batches delivered since the last call, the newest last. Queries Spark only if there are new ones."""
        with suppress(*JVM_GONE):  # without Spark's JVM the stream ends, and reports that itself
            self._collect()
        with self._changed:
            new, self._new = self._new, []
        return new

    def _collect(self) -> None:
        query, delivery = self._query, self._delivery
        if query is None or delivery is None or self._taken <= self._seen:
            return
        found = batches(query, self._seen)
        with self._changed:
            for progress in (p for p in found if p["batchId"] > self._seen):
                self._seen = progress["batchId"]
                self._last = reached_by(progress, delivery.rows.get(self._seen, 0), self._before)
                self._new.append(self._last)

    def take_no_more(self) -> None:
        """Refuse all batches after the current one, and stop waiting for a sink that cannot be reached."""
        self._stopping.set()
        if self._delivery is not None:
            self._delivery.stop()

    def stop(self, deadline: float) -> None:
        """End the query when the current batch is written and committed, or at the deadline."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taking, max(0.0, deadline - time.monotonic()))
        query = self._query
        if query is None:
            return
        with suppress(*JVM_GONE):
            while query.isActive and not self._committed(query) and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
            if query.isActive:
                query.stop()

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _committed(self, query: StreamingQuery) -> bool:
        """Whether Spark has committed the last batch: it reports the progress of a batch after the commit."""
        return self._taken < 0 or bool(batches(query, self._taken - 1))

    def _run(self, spark: SparkSession, once: bool) -> None:
        """Run one query after the other, until one ends without an error or with an error that needs a person."""
        self.report.start()
        restarts = Restarts(self._restarts, once=once)
        try:
            # the jobs of several streams take turns, so that a slow one does not delay the others
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
            self.report.spark_at(spark.sparkContext.uiWebUrl)
            if self._term is not None and not self._take_over(self._term):
                return
            while (error := self._failed(spark, once)) is not None and not self._stopping.is_set():
                if isinstance(error, JVM_GONE) and jvm_ended(spark):
                    self.error = DBLogError("Spark's JVM has ended", hint="dblog run --verbose shows what it says")
                    break
                said = self._said(error)
                delay = restarts.next() if may_pass(error, once=once) else None
                if delay is None:
                    self.error = said
                    break
                self.report.restarting(said.message)
                self._warn(
                    f"the stream failed, restart {restarts.used} of {restarts.most} in {delay:.0f} s: {said.message}"
                )
                self._stopping.wait(delay)
                self.sink = self._make_sink()
        except Exception as error:
            self.error = self._said(error)
        finally:
            if self._term is not None and not self._term.held:
                self.report.leave()
            else:
                if self.error is not None and self.resumes is None and not self._begun:
                    self._leave_nothing()
                self.report.end(None if self.error is None else str(self.error))

    def _take_over(self, term: Term) -> bool:
        """Take the stream over from an earlier leader. Returns False if the pipeline is stopped first.

        1. The sink refuses the earlier leader from now on. So each batch that it has got is in the checkpoint.
        2. Copy the newest entries of the earlier leader's checkpoint to one of this leader's own.
        3. End the session that reads the log for the earlier leader, if the server still has it.
        """
        if not self._reach_sink(self.sink.fence):  # 1.
            return False
        self.folder.take_over(term.epoch)  # 2.
        self.resumes = self.folder.resume_offset()
        if end_reader(self.read):  # 3.
            self._tell("ended the replication session of the leader before")
        term.check()
        return True

    def _failed(self, spark: SparkSession, once: bool) -> Exception | None:
        """Run a query until it ends. Returns the error that made it fail, or None."""
        self._failure = None
        try:
            self._deliver(spark, once)
            failure = None
        except Exception as error:
            failure = self._failure or plain(error)
        with suppress(*JVM_GONE):
            self._collect()
        try:
            self.sink.close()
        except Exception as error:
            if self._stopping.is_set():
                self.error = self._said(error)
            failure = failure or error
        return failure

    def _deliver(self, spark: SparkSession, once: bool) -> None:
        self._taken = -1
        if self._last is not None:
            self._before = self._last.changes, self._last.rows
        if not self._reach_sink(lambda: self.sink.open(spark)):
            return
        self.report.sink_says(self.facts())
        kept = Quarantine(self.folder), refusals_of(self.folder, self.read, self._hidden)
        check = (lambda: None) if self._term is None else self._term.check
        self._delivery = Delivery(spark, self.sink, self.options, self.routes, self._sink_away, *kept, check)
        with _STARTING:
            query = self._query = self._started(spark, once)
            self._settle(query)
        if self._stopping.is_set():
            query.stop()
        while not self._works(query) and not query.awaitTermination(SETTLE_LOOK_SECONDS):
            pass
        if not self.report.restarts:
            self._tell("started")
        while self.report.now.state == RESTARTING and not self._idles(query):
            if query.awaitTermination(SETTLE_LOOK_SECONDS):
                return
        if self.report.now.state == RESTARTING:
            self._say_running()
        if once:
            query.processAllAvailable()
            query.stop()
        query.awaitTermination()

    def _reach_sink(self, call: Callable[[], None]) -> bool:
        """Call the sink; repeat it until the sink can be reached. Returns False if the pipeline is stopped first."""
        delay = FIRST_DELAY
        while not self._stopping.is_set():
            try:
                call()
                if self.report.now.state == WAITING:
                    self._say_running()
                return True
            except SinkUnreachable as error:
                self._sink_away(error.message)
                self._stopping.wait(delay)
                delay = min(2 * delay, LAST_DELAY)
        return False

    def _started(self, spark: SparkSession, once: bool) -> StreamingQuery:
        options = {**self.options, "drain": "true"} if once else self.options
        rows = spark.readStream.format("dblog").options(**options).load()
        writer = rows.writeStream.foreachBatch(self._take).queryName(self.name)
        writer = writer.option("checkpointLocation", self.folder.checkpoint)
        if not once:
            writer = writer.trigger(processingTime="0 seconds")  # the source waits, but not while a dump runs
        return writer.start()

    def _settle(self, query: StreamingQuery) -> None:
        """Wait up to `SETTLE_SECONDS` for the source's process to answer."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while query.isActive and time.monotonic() < deadline and not self._stopping.is_set():
            if self._works(query):
                return
            time.sleep(LOOK_SECONDS)

    def _works(self, query: StreamingQuery) -> bool:
        """Whether the source's process has answered."""
        return self._idles(query) or query.status["message"].startswith("Processing")

    def _idles(self, query: StreamingQuery) -> bool:
        """Whether the query has delivered everything at least once."""
        return query.lastProgress is not None or query.status["message"].startswith("Waiting")

    def _take(self, frame: DataFrame, number: int) -> None:
        with self._changed:
            if self._stopping.is_set():
                raise SinkError("the pipeline is being stopped")
            self._taking = True
        try:
            assert self._delivery is not None
            try:
                self._delivery(frame, number)
            finally:
                self._begun |= self._delivery.begun
            self._taken = number
            self.report.sink_says(self.facts())
            self._say_running()
        except Exception as error:
            self._failure = plain(error)
            if self._stopping.is_set() and isinstance(self._failure, SinkUnreachable):
                self._tell("the sink still cannot be reached: the batch is delivered when the pipeline runs again")
            raise
        finally:
            with self._changed:
                self._taking = False
                self._changed.notify_all()

    def _leave_nothing(self) -> None:
        """Remove the slot and the checkpoint of a new stream that failed before its sink received anything: without a
        reader the slot would keep log on the server for ever. A later start makes a new stream. A slot that does not
        have the stream's name is kept: it may belong to an earlier run."""
        if not self._own_slot:
            return
        try:
            self.read.source.abandon()
            self.folder.remove_checkpoint()
        except NotFound:
            pass  # the slot was not created yet
        except DBLogError as error:
            self._tell(f"the replication slot {self.read.slot!r} may still be on the server: {error.message}")

    # -- messages ----------------------------------------------------------------------------------------------

    def _sink_away(self, reason: str) -> None:
        hidden = self._hidden(reason)
        if self.report.waiting(hidden):
            self._warn(f"the sink cannot be reached; retrying, later every {LAST_DELAY:.0f} s: {hidden}")

    def _say_running(self) -> None:
        """Report that the stream runs: the sink has written a batch, or a restarted query has nothing to deliver."""
        before = self.report.running()
        if before is not None and before.since is not None:
            what = "the sink is reachable again" if before.state == WAITING else "running again"
            self._tell(f"{what} after {time.time() - before.since:.0f} s")

    def _tell(self, text: str) -> None:
        self._told(self.sink_name, self._hidden(text))

    def _warn(self, text: str) -> None:
        self._warned(self.sink_name, self._hidden(text))

    def _said(self, error: Exception) -> DBLogError:
        """The error for the user: a DBLogError without secrets."""
        error = plain(error)
        if isinstance(error, DBLogError):
            hint = error.hint and (in_file if self._own_slot else as_flags)(error.hint)
            return type(error)(self._hidden(error.message), hint=hint and self._hidden(hint))
        what = self._hidden(f"{type(error).__name__}: {error}")
        return SinkError(f"sink {self.sink_name!r} failed: {what}", hint="dblog run --verbose shows more")


def streams_of(config: Config, told: Told, warned: Told | None = None, term: Term | None = None) -> list[Stream]:
    """The streams of a pipeline, not yet started. `told` gets messages, `warned` warnings. `term` is the term of the
    leader, for a pipeline with standbys. Raises ConfigError."""
    if len(config.sinks) > 1 and any(name.lower() == "serverid" for name in config.source):
        raise ConfigError(
            f"pipeline {config.name!r}: source.options.serverId is set, but each sink needs its own server id",
            hint="leave it out: each sink then gets its own",
        )
    return [Stream(config, sink, told, warned or told, term) for sink in config.sinks]
