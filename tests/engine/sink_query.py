"""A query without Spark whose batches a sink writes, as `dblog run` would have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from dblog.capture.spool import Spool
from dblog.pipelines.delivery import batch_of
from dblog.sinks.base import DELIVERED, Batch, Sink, SinkContext
from dblog.sinks.route import Route
from dblog.sinks.sql.sink import SqlSink
from dblog.spark.ranges import ranges_of
from dblog.spark.source import Handover
from dblog.work.handover import RangeFiles, read_range
from dblog.work.lanes import Work
from dblog.work.schemas import Schemas
from dblog.work.tasks import Select, stage
from tests.engine.query import Query
from tests.history import Row


class SinkQuery(Query):
    """A query with a sink. `batches` are those that the sink has written, the last one first."""

    def __init__(self, url: str, spool: str, sink: Sink, routes: tuple[Route, ...] = (), **options: Any) -> None:
        super().__init__(url, spool, deliver="ranges", **options)
        self.sink = sink
        self.routes = routes
        self.batches: list[Batch] = []
        self.between: Callable[[], None] = lambda: None
        """Called before each select, and before the sink writes."""
        self._schemas = Schemas()

    def work_items(self) -> list[Work]:
        """The work of the planned batch."""
        spool, found = Spool(self.given["spool"]), []
        for part in self.reader.partitions(self.committed, self.offsets[self.done]):
            one = read_range(spool, cast(Handover, part).value)
            found += [work for number in range(one.size) for work in one.lane(number)]
        return found

    def finish(self, *, selects: bool = True) -> list[Row]:
        work, spool = self.work_items(), Spool(self.given["spool"])
        for chunk in (w.chunk for w in work if isinstance(w, Select) and selects):
            self.between()
            stage(self.engine._source, spool, chunk)
        self.between()
        with RangeFiles(spool) as files:
            spark = cast(Any, None)  # rows that tasks can read need no DataFrame
            events = self.sink.cascades == DELIVERED
            ranges = ranges_of(spark, files, work, before=False, tasks=2, schemas=self._schemas, cascades=events)
            batch = batch_of(self.done, ranges, work, spool, self.routes, before=False)
            if batch.tables:
                self.sink.write(batch)
                self.batches.insert(0, batch)
        self.done += 1
        return []

    def stop(self) -> None:
        super().stop()
        self.sink.close()


def sql_sink(folder: Path, url: str, **settings: Any) -> SqlSink:
    given = {s.name: s.default for s in SqlSink.settings} | {"url": url, **settings}
    return SqlSink(given, SinkContext("test", folder))
