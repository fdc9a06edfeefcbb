"""A lake as the output of the demo: it has earlier versions too, and lines that show how to query them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from dblog.demo.database import Database
from dblog.demo.lake import LakeStream, check_sink
from dblog.demo.outputs import Examined, Output
from dblog.demo.shop import Shop, ShopTable, Stock
from dblog.demo.streams import DemoProgress, DemoStream
from dblog.demo.travel import earlier
from dblog.demo.verify import compare
from dblog.demo.versions import LAKES, LakeTable

NAMES: Mapping[str, str] = {"delta": "Delta Lake", "iceberg": "Apache Iceberg"}


class LakeOutput(Output):
    """A lake: a table for each table, with the rows as they are. Earlier versions can be read."""

    follows = "one pipeline dumps and follows them, as dblog run does"
    has_versions = True

    def __init__(self, kind: str, database: Database, work: Path, result: Path) -> None:
        super().__init__(database, work, result)
        self._kind = kind
        self.shown = NAMES[kind]
        self._stream: LakeStream | None = None
        self._lines: list[str] = []

    def check(self) -> None:
        check_sink(self._kind, self._result)

    def watched(self, shop: Shop) -> Sequence[ShopTable]:
        names = f"{len(shop.tables)} tables"
        return [ShopTable(names, (), (), sum(table.seeded for table in shop.tables))]

    def start(self, spark: SparkSession, table: ShopTable) -> DemoStream:
        self._stream = LakeStream(spark, self._database.url, table, self._kind, self._work, self._result)
        return self._stream

    def examine(
        self, spark: SparkSession, shop: Shop, delivered: Mapping[str, DemoProgress], stock: Stock | None
    ) -> Examined:
        assert self._stream is not None
        assert stock is not None
        lake = {table.name: self._table(table.name) for table in shop.tables}
        rows, found = 0, []
        for table in shop.tables:
            source = shop.rows(table)
            rows += len(source)
            found += compare(
                table, source, [tuple(r.values()) for r in lake[table.name].read(table.columns).to_pylist()]
            )
        travelled = earlier(shop.tables, lake, stock)
        version = lake["orders"].at(stock.position)
        self._lines = [f"{name}: {line}" for name, line in lake["orders"].lines(version).items()]
        return Examined(
            rows,
            sum(progress.events for progress in delivered.values()),
            (*found, *travelled.differences),
            f"compared with the source, now and at the stocktaking; {travelled.versions} earlier versions checked",
            travelled.versions,
        )

    def _table(self, name: str) -> LakeTable:
        assert self._stream is not None
        return LAKES[self._kind](self._result, self._stream.tables[name], self._stream.pipeline)

    def kept(self) -> list[str]:
        return [
            f"the lake is kept in {str(self._result)!r}; the orders as they were at the stocktaking:",
            *self._lines,
        ]
