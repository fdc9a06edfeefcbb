"""The pipeline of the demo that writes a lake: read from a file and run as `dblog run` does."""

from __future__ import annotations

import json
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dblog.core.settings import check_settings
from dblog.demo.shop import ShopTable
from dblog.demo.streams import PARALLELISM, ROUNDS, DemoProgress, DemoStream, progress_of
from dblog.errors import DBLogError
from dblog.pipelines.config import read_config
from dblog.pipelines.running import streams_of
from dblog.pipelines.sink_kinds import sink_class
from dblog.sinks.base import SinkContext

FILE = """\
[source]
url = {url}
tables = ["*"]
options = {{ chunkRows = "{chunk}", parallelism = "{parallelism}" }}

[pipeline]
every = 0.5
state = "state.db"

[[sink]]
type = "{kind}"
path = {path}
writer = "native"
"""
STOP_SECONDS = 15.0


class LakeStream(DemoStream):
    """The running pipeline, which has one stream for all tables."""

    def __init__(self, spark: SparkSession, url: str, table: ShopTable, kind: str, work: Path, result: Path) -> None:
        """`table` stands for all tables."""
        self.table = table
        file = work / "shop.toml"
        chunk = max(10, table.seeded // (ROUNDS * PARALLELISM) + 1)
        text = FILE.format(
            url=json.dumps(url), chunk=chunk, parallelism=PARALLELISM, kind=kind, path=json.dumps(str(result))
        )
        file.touch(mode=0o600)
        file.write_text(text, "utf-8")
        (self._stream,) = streams_of(read_config(file), lambda sink, text: None)
        self.pipeline = self._stream.name
        self.tables = {name.name: name for name in self._stream.read.source.tables()}
        self._spark = spark
        if (wrong := self._stream.check()) is not None:
            raise wrong
        self._stream.start(spark, once=False)

    def progress(self) -> DemoProgress | None:
        if self._stream.error is not None:
            raise self._stream.error
        if self._stream.ended:
            raise DBLogError("the pipeline has ended", hint="dblog demo --verbose shows Spark's own output")
        query = self._query()
        return None if query is None else progress_of(query)

    def _query(self) -> StreamingQuery | None:
        """The query, once it has started."""
        return next((query for query in self._spark.streams.active if query.name == self.pipeline), None)

    def stop(self) -> None:
        self._stream.take_no_more()
        self._stream.stop(time.monotonic() + STOP_SECONDS)
        self._stream.join(STOP_SECONDS)


def check_sink(kind: str, result: Path) -> None:
    """Raise ConfigError if the sink's Python package is not installed."""
    maker = sink_class(kind)
    given, _ = check_settings("sink", {"path": str(result), "writer": "native"}, maker.settings)
    maker(given, SinkContext("shop", result)).check()
