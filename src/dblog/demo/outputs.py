"""What the demo writes to: Parquet files, by a query for each table, or a lake, by a pipeline as `dblog run` has it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from dblog.demo.database import Database
from dblog.demo.lake import LakeStream, check_sink
from dblog.demo.shop import Shop, ShopTable, Stock
from dblog.demo.streams import DemoProgress, DemoStream, ParquetStream
from dblog.demo.travel import earlier
from dblog.demo.verify import Difference, compare, examine
from dblog.demo.versions import LAKES, LakeTable


@dataclass(frozen=True)
class Examined:
    """The result of the comparison of all tables with the source."""

    rows: int
    events: int
    differences: tuple[Difference, ...]
    told: str
    """What was compared."""
    versions: int | None = None
    """How many earlier versions were compared; None for an output that has none."""


class Output(ABC):
    """What the demo writes to."""

    shown: str
    follows: str
    """How the tables are followed."""
    has_versions = False

    def __init__(self, database: Database, work: Path, result: Path) -> None:
        self._database = database
        self._work = work
        self._result = result

    def check(self) -> None:
        """Raise ConfigError if something is not installed."""
        return

    @abstractmethod
    def watched(self, shop: Shop) -> Sequence[ShopTable]:
        """What has a stream of its own."""

    @abstractmethod
    def start(self, spark: SparkSession, table: ShopTable) -> DemoStream:
        """Start the stream of one of `watched`."""

    @abstractmethod
    def examine(
        self, spark: SparkSession, shop: Shop, delivered: Mapping[str, DemoProgress], stock: Stock | None
    ) -> Examined:
        """Compare the result with the source."""

    @abstractmethod
    def kept(self) -> list[str]:
        """How to find the result, if it is kept."""


class ParquetOutput(Output):
    """A folder of Parquet files for each table, which has every change."""

    shown = "Parquet"
    follows = "one stream per table dumps and follows them"

    def watched(self, shop: Shop) -> Sequence[ShopTable]:
        return shop.tables

    def start(self, spark: SparkSession, table: ShopTable) -> DemoStream:
        return ParquetStream(spark, self._database.url, table, self._work, self._result)

    def examine(
        self, spark: SparkSession, shop: Shop, delivered: Mapping[str, DemoProgress], stock: Stock | None
    ) -> Examined:
        found = [examine(spark, table, shop.rows(table), self._result / table.name) for table in shop.tables]
        seen = sum(f.dumped + f.events for f in found)
        return Examined(
            sum(f.rows for f in found),
            sum(f.events for f in found),
            tuple(difference for f in found for difference in f.differences),
            f"compared with the source; order of {seen} delivered rows checked",
        )

    def kept(self) -> list[str]:
        return [f"the result is kept in {str(self._result)!r}: one folder of Parquet files per table"]


class LakeOutput(Output):
    """A lake: a table for each table, with the rows as they are. Earlier versions can be read."""

    follows = "one pipeline dumps and follows them, as dblog run does"
    has_versions = True

    def __init__(self, kind: str, shown: str, database: Database, work: Path, result: Path) -> None:
        super().__init__(database, work, result)
        self._kind = kind
        self.shown = shown
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


def output_of(sink: str, database: Database, work: Path, result: Path) -> Output:
    """The output for a value of `--sink`."""
    if sink in LAKE_NAMES:
        return LakeOutput(sink, LAKE_NAMES[sink], database, work, result)
    return ParquetOutput(database, work, result)


LAKE_NAMES: Mapping[str, str] = {"delta": "Delta Lake", "iceberg": "Apache Iceberg"}
