"""The streams of the demo and their progress; one streaming query per table, from the database to Parquet files."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from dblog.core.offset import Offset
from dblog.demo.database import Database
from dblog.demo.shop import ShopTable
from dblog.spark.failure import cause
from dblog.spark.progress import last, offset

ROUNDS = 10
"""The number of rounds of a table's dump: enough that many changes happen during the dump."""

PARALLELISM = 2


@dataclass(frozen=True)
class DemoProgress:
    """The progress of a stream."""

    position: int = 0
    """The log is delivered up to this position."""
    dumping: bool = True
    windows: int = 0
    dumped: int = 0
    dropped: int = 0
    """Dump rows that were not delivered because the log has newer ones."""
    events: int = 0


class DemoStream(ABC):
    """A running stream."""

    table: ShopTable
    """The table that it follows."""

    @abstractmethod
    def progress(self) -> DemoProgress | None:
        """The progress so far; None before the first batch. Raises the error that ended the stream."""

    @abstractmethod
    def stop(self) -> None: ...


class ParquetStream(DemoStream):
    """The running query of one table."""

    def __init__(self, spark: SparkSession, url: str, table: ShopTable, work: Path, result: Path) -> None:
        self.table = table
        changes = (
            spark.readStream.format("dblog")
            .option("url", url)
            .option("table", table.name)
            .option("chunkRows", max(10, table.seeded // (ROUNDS * PARALLELISM) + 1))
            .option("parallelism", PARALLELISM)
            .option("spool", str(work / "spool" / table.name))
            .option("state", str(work / "state.db"))  # not the user's: the demo removes all its files
            .load()
        )
        self._query: StreamingQuery = (
            changes.writeStream.queryName(table.name)
            .foreachBatch(_to_parquet(result / table.name))
            .option("checkpointLocation", str(work / "checkpoint" / table.name))
            .start()
        )

    def progress(self) -> DemoProgress | None:
        failure = self._query.exception()
        if failure is not None:
            raise cause(str(failure), "demo") from failure
        return progress_of(self._query)

    def stop(self) -> None:
        # an interrupt during a call may have broken the connection to Spark; then Spark's own end stops the query
        with suppress(Py4JError):
            self._query.stop()


def progress_of(query: StreamingQuery) -> DemoProgress | None:
    """The progress of a query; None before its first batch."""
    told = last(query)
    if told is None:
        return None
    end, report = Offset.from_json(offset(told, "endOffset")), offset(told, "latestOffset")
    counts = {name: report.get(name, 0) for name in ("windows", "dumped", "dropped", "events")}
    return DemoProgress(end.position or 0, end.dumping or not end.tables, **counts)


def _to_parquet(folder: Path) -> Callable[[DataFrame, int], None]:
    """Write each batch to its own folder, with the order of its rows. A repeated batch replaces its folder."""

    def write(rows: DataFrame, batch: int) -> None:
        ordered = rows.withColumn("_row", f.monotonically_increasing_id())
        ordered.write.mode("overwrite").parquet(str(folder / f"batch={batch}"))

    return write


class LogEnd:
    """Samples the end of the database's log, to tell how long ago it passed a position."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: deque[tuple[float, int]] = deque(maxlen=2000)

    def look(self) -> None:
        self._seen.append((time.monotonic(), self._database.latest()))

    def lag(self, position: int) -> float:
        """The age, in seconds, of the oldest change that a stream at this position has not delivered."""
        waiting = next((at for at, end in self._seen if end > position), None)
        return 0.0 if waiting is None else time.monotonic() - waiting
