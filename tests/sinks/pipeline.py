"""A pipeline in the test's own process: a real database, the shared Spark, one sink."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from dblog.core.schema import TableName
from dblog.pipelines.delivery import Delivery
from dblog.pipelines.quarantine import Quarantine
from dblog.pipelines.refusals import Refusals
from dblog.pipelines.stream_folder import StreamFolder
from dblog.sinks.base import Batch, Sink
from dblog.sinks.route import Route
from dblog.spark.options import read_options
from dblog.storage.object_storage import NO_SETTINGS
from tests.families import AnyDatabase
from tests.sinks.target import Key, Row, Target

Written = Callable[[Batch], None]
Around = Callable[[Batch, Written], None]
"""What happens instead of a plain write; the second argument is the write itself."""


class Watched(Sink):
    """A sink that notes what was given to another."""

    def __init__(self, sink: Sink, around: Around | None = None) -> None:
        super().__init__(sink.given, sink.context)
        self.sink = sink
        self.around = around
        self.begun = 0
        self.done = 0
        self.positions: list[int] = []

    @property
    def before(self) -> bool:
        return self.sink.before

    @property
    def years(self) -> str | None:
        return self.sink.years

    @property
    def spark_settings(self) -> Mapping[str, str]:
        return self.sink.spark_settings

    def check(self) -> None:
        self.sink.check()

    def open(self, spark: SparkSession) -> None:
        self.sink.open(spark)

    def write(self, batch: Batch) -> None:
        self.begun += 1
        if self.around is None:
            self.sink.write(batch)
        else:
            self.around(batch, self.sink.write)
        self.positions.append(batch.position)
        self.done += 1

    def close(self) -> None:
        self.sink.close()


def stream_options(database: AnyDatabase, folder: Path, sink: Sink, tables: str, **options: Any) -> dict[str, str]:
    given = {
        "url": database.url,
        "tables": tables,
        "spool": folder / "spool",
        "deliver": "ranges",
        "state": "off",
        "parallelism": 2,
        "before": str(sink.before).lower(),
        **({} if sink.years is None else {"years": sink.years}),
        **options,
    }
    return {name: str(value) for name, value in given.items()}


class Pipeline:
    """Follows the database's tables until it is stopped; started again, it goes on."""

    def __init__(
        self,
        spark: SparkSession,
        target: Target,
        database: AnyDatabase,
        folder: Path,
        *,
        tables: str = "",
        routes: Sequence[Route] = (),
        settings: Mapping[str, Any] | None = None,
        around: Around | None = None,
        quarantine: Quarantine | None = None,
        refuses: bool = False,
        **options: Any,
    ) -> None:
        self.spark = spark
        self.quarantine = quarantine
        self._refuses = refuses
        self.target = target
        self.database = database
        self.folder = folder
        self.said: list[str] = []
        self._tables = tables or f"{database.schema}.*"
        self._routes = routes
        self._settings = settings or {}
        self._around = around
        self._options = options
        self._query: StreamingQuery | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        self.sink = Watched(self.target.make(self.folder, **self._settings), self._around)
        self.sink.check()
        self.sink.open(self.spark)
        options = stream_options(self.database, self.folder, self.sink, self._tables, **self._options)
        refusals = None
        if self._refuses:
            refusals = Refusals(StreamFolder(self.folder, "notes", NO_SETTINGS), read_options(options).open_spool())
        self._delivery = Delivery(
            self.spark, self.sink, options, self._routes, self.said.append, self.quarantine, refusals
        )
        stream = self.spark.readStream.format("dblog").options(**options).load().writeStream
        checkpoint = stream.option("checkpointLocation", str(self.folder / "checkpoint"))
        self._query = checkpoint.foreachBatch(self._delivery).start()
        return self

    def stop(self) -> None:
        if self._query is not None:
            self._delivery.stop()
            self._query.stop()
            self._query = None
            self.sink.close()

    @property
    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    def failure(self, seconds: float = 60.0) -> str:
        """What the pipeline says when it ends by itself."""
        assert self._query is not None
        deadline = time.monotonic() + seconds
        while self._query.isActive:
            assert time.monotonic() < deadline, "the pipeline goes on"
            time.sleep(0.1)
        return str(self._query.exception())

    def until(self, ready: Callable[[], bool], why: Callable[[], str] = str, seconds: float = 60.0) -> None:
        """Asked once for each batch that is written, and now and then: targets are slow to look into."""
        assert self._query is not None
        deadline = time.monotonic() + seconds
        asked, again = -1, 0.0
        while True:
            done, late = self.sink.done, time.monotonic() > deadline
            if done != asked or late or time.monotonic() > again:
                asked, again = done, time.monotonic() + 3.0
                if ready():
                    return
            assert self._query.isActive, f"the pipeline ended: {self._query.exception()}"
            assert not late, f"not reached in {seconds} s: {why()} {self.said}"
            time.sleep(0.1)

    def follows(self, *tables: str, key: Sequence[str] = ("id",), seconds: float = 60.0) -> None:
        """Until the target has the source's rows. The source stands still."""
        for table in tables or ("t",):
            source = self.source(table, key)

            def wrong(table: str = table, source: dict[Key, Row] = source) -> list[str]:
                return differences(self.rows(table), source)

            self.until(lambda: not wrong(), lambda: f"{table}: {wrong()[:10]}", seconds)  # noqa: B023

    def rows(self, table: str = "t") -> dict[Key, Row]:
        return self.target.rows(TableName(self.database.schema, table))

    def source(self, table: str = "t", key: Sequence[str] = ("id",)) -> dict[Key, Row]:
        return {tuple(row[k] for k in key): row for row in self.database.rows(self.database.quoted(table))}


def differences(target: Mapping[Key, Row], source: Mapping[Key, Row]) -> list[str]:
    """What is to be said of a target that should have the source's rows; it may have more columns."""
    found = [f"{key} is missing" for key in source.keys() - target.keys()]
    found += [f"{key} is too many" for key in target.keys() - source.keys()]
    for key in source.keys() & target.keys():
        row = target[key]
        wrong = [n for n, value in source[key].items() if n not in row or not same(row[n], value)]
        found += [f"{key}: {n!r} is {_short(row.get(n))}, not {_short(source[key][n])}" for n in wrong]
    return found


def same(mine: Any, theirs: Any) -> bool:
    """Whether two values are the same: a NaN is one, a time is the same in UTC with and without saying so."""
    return bool(_plain(mine) == _plain(theirs))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    offset = getattr(value, "utcoffset", lambda: None)()
    if offset is not None and hasattr(value, "replace"):
        return value.replace(tzinfo=None) - offset
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"
