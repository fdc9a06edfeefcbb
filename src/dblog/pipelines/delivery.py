"""Passes the batches of a stream to its sink.

While the sink writes a batch, another thread selects the chunks of the next window. Neither waits for the other. The
stream plans its next batch when both are done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from dblog.capture.spool import Spool
from dblog.errors import SinkUnreachable, TargetRefused
from dblog.pipelines.cascades import cascades_of, check_event_routes, unchanged_tables
from dblog.pipelines.quarantine import Quarantine
from dblog.pipelines.refusals import Refusals
from dblog.sinks.base import DELIVERED, Batch, Sink, TableBatch
from dblog.sinks.route import Route
from dblog.sinks.routed import routed
from dblog.spark.failure import plain
from dblog.spark.options import read_options
from dblog.spark.ranges import TableRange, ranges_of, work_of
from dblog.spark.selects import run_selects
from dblog.work.handover import RangeFiles
from dblog.work.lanes import Work
from dblog.work.schemas import Schemas
from dblog.work.tasks import Emit, Log

FIRST_DELAY, LAST_DELAY = 0.5, 30.0
"""The delay before the first retry of a sink that cannot be reached, doubled each time, and the longest one, in
seconds."""
REMEMBERED = 1000
"""For how many batches `Delivery.rows` is kept. Spark keeps progress reports for fewer batches."""


class Delivery:
    """Passes the batches of one stream to one sink. It is the function for Spark's `foreachBatch`."""

    def __init__(
        self,
        spark: SparkSession,
        sink: Sink,
        options: Mapping[str, str],
        routes: Sequence[Route] = (),
        away: Callable[[str], None] = lambda reason: None,
        quarantine: Quarantine | None = None,
        refusals: Refusals | None = None,
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:
        """`away` is called each time the sink cannot be reached. `quarantine` keeps raw values. `refusals` takes the
        tables that the target refuses; without it such an error is raised. `check_lease` raises LeaseLost if this
        instance is not the leader any more."""
        read = read_options(options)
        self._spark = spark
        self._sink = sink
        self._options = dict(options)
        self._routes = routes
        self._away = away
        self._quarantine = quarantine
        self._refusals = refusals
        self._check_lease = check_lease
        self._spool = read.open_spool()
        self._before = read.settings.before
        self._tasks = read.settings.parallelism
        self._events = sink.cascades == DELIVERED and options.get("cascades") == "follow"
        """Whether cascade events are rows."""
        self._schemas = Schemas()
        self._stopped = threading.Event()
        self.rows: dict[int, int] = {}
        """By the number of a batch: how many rows of dumps the sink has received, this batch included."""
        self._given = 0
        self.begun = False
        """Whether the sink has received anything."""

    def __call__(self, frame: DataFrame, number: int) -> None:
        # The offset of this batch is in the checkpoint. So whatever a leader writes to the sink after this check, even
        # if it was stopped here for hours, belongs to a batch that the next leader finds in the checkpoint.
        self._check_lease()
        work = work_of(frame, self._spool)
        with RangeFiles(self._spool) as files, self._selects(work):
            batch = self._batch(number, files, work)
            if self._refusals is not None:
                batch = self._refusals.begin(batch)
            if batch.tables:
                begins = min((w.window.start for w in work if isinstance(w, (Log, Emit))), default=0)
                batch = self._write(batch, begins)
            noted = [(w.chunk.table, self._spool.noted(w.chunk.id) or {}) for w in work if isinstance(w, Emit)]
            raw = {f.table for w in work if isinstance(w, Log) for f in w.window.files if f.raw}
            raw |= {table for table, note in noted if note.get("raw")}
            if raw and self._quarantine is not None:
                self._quarantine.keep(batch, raw)
        self._given += sum(note.get("rows", 0) for _, note in noted)
        self.rows[number] = self._given
        self.rows.pop(number - REMEMBERED, None)

    def stop(self) -> None:
        """Stop waiting for a sink that cannot be reached."""
        self._stopped.set()

    def _selects(self, work: Sequence[Work]) -> _Beside:
        return _Beside(lambda: run_selects(self._spark, self._spool, self._options, work, tasks=self._tasks))

    def _batch(self, number: int, files: RangeFiles, work: Sequence[Work]) -> Batch:
        ranges = ranges_of(
            self._spark,
            files,
            work,
            before=self._before,
            tasks=self._tasks,
            schemas=self._schemas,
            cascades=self._events,
        )
        return batch_of(number, ranges, work, self._spool, self._routes, before=self._before)

    def _write(self, batch: Batch, begins: int) -> Batch:
        """Write the batch, which begins at a position. Returns what was written: without tables that were refused."""
        self.begun = True
        delay = FIRST_DELAY
        while batch.tables:
            self._check_lease()
            try:
                self._sink.write(batch)
                break
            except Exception as error:
                away = plain(error)  # an error of a task comes inside one of Spark's
                if isinstance(away, TargetRefused) and self._refusals is not None:
                    rest = self._refusals.keep(batch, begins, away)
                    if rest is not None:
                        batch = rest
                        continue
                if not isinstance(away, SinkUnreachable):
                    raise
                self._away(away.message)
                if self._stopped.wait(delay):
                    raise
                delay = min(2 * delay, LAST_DELAY)
        return batch


def batch_of(
    number: int,
    ranges: Sequence[TableRange],
    work: Sequence[Work],
    spool: Spool,
    routes: Sequence[Route] = (),
    *,
    before: bool,
) -> Batch:
    """The batch that a sink gets, after its routes."""
    position = max((w.window.end for w in work if isinstance(w, (Log, Emit))), default=0)
    check_event_routes(ranges, routes)
    tables = [_table(r) for r in ranges if not r.schema.cascade]
    cascades = cascades_of(ranges, routes)
    tables += unchanged_tables(spool, cascades, {t.source for t in tables}, before=before)
    return Batch(number, position, tuple(routed(t, routes) for t in tables), cascades)


def _table(found: TableRange) -> TableBatch:
    return TableBatch(
        found.schema.table,
        found.schema,
        found.changes,
        found.rows,
        found.truncated,
        found.incomplete,
        found.arrow,
        found.cascades,
    )


class _Beside:
    """Runs `call` in a thread while the block runs. An error of `call` is raised at the end of the block."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._error: BaseException | None = None

        def run() -> None:
            try:
                call()
            except BaseException as error:
                self._error = error

        self._thread = InheritableThread(target=run, name="dblog-selects", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error
