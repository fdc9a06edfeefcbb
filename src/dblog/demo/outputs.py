"""What the demo writes to: Parquet files, by a query for each table, or a lake, by a pipeline as `dblog run` has it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from dblog.demo.database import Database
from dblog.demo.shop import Shop, ShopTable, Stock
from dblog.demo.streams import DemoProgress, DemoStream, ParquetStream
from dblog.demo.verify import Difference, examine


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


def output_of(sink: str, database: Database, work: Path, result: Path) -> Output:
    """The output for a value of `--sink`."""
    if sink == "parquet":
        return ParquetOutput(database, work, result)
    from dblog.demo.lake_output import LakeOutput  # a pipeline has much to import

    return LakeOutput(sink, database, work, result)
