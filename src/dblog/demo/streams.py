"""One streaming query per table, from the database into Parquet, and what each has done so far."""

from __future__ import annotations

import time
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
from dblog.spark.progress import offset

ROUNDS = 10
"""Into so many rounds the dump of a table is cut, so that it meets many changes."""

PARALLELISM = 2


@dataclass(frozen=True)
class DemoProgress:
    """What a stream has done."""

    position: int = 0
    """The log is delivered up to here."""
    dumping: bool = True
    windows: int = 0
    dumped: int = 0
    dropped: int = 0
    """Rows of the dump that were stale: the log has something newer, so they were not delivered."""
    events: int = 0


class DemoStream:
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
            .option("state", str(work / "state.db"))  # not the user's own: the demo leaves nothing behind
            .load()
        )
        self._query: StreamingQuery = (
            changes.writeStream.queryName(table.name)
            .foreachBatch(_to_parquet(result / table.name))
            .option("checkpointLocation", str(work / "checkpoint" / table.name))
            .start()
        )

    def progress(self) -> DemoProgress | None:
        """What has been delivered; None before the first batch. Raises what made the query fail."""
        failure = self._query.exception()
        if failure is not None:
            raise cause(str(failure), "demo") from failure
        last = self._query.lastProgress
        if last is None:
            return None
        end, report = Offset.from_json(offset(last, "endOffset")), offset(last, "latestOffset")
        counts = {name: report.get(name, 0) for name in ("windows", "dumped", "dropped", "events")}
        return DemoProgress(end.position or 0, end.dumping or not end.tables, **counts)

    def stop(self) -> None:
        # an interruption while Spark was spoken to may have cost us the line to it; its own end ends the query too
        with suppress(Py4JError):
            self._query.stop()


def _to_parquet(folder: Path) -> Callable[[DataFrame, int], None]:
    """Write each batch to a folder of its own, with the order of its rows. A batch that is repeated replaces itself."""

    def write(rows: DataFrame, batch: int) -> None:
        ordered = rows.withColumn("_row", f.monotonically_increasing_id())
        ordered.write.mode("overwrite").parquet(str(folder / f"batch={batch}"))

    return write


class LogEnd:
    """Where the database's log ends, looked at again and again: how long ago did it pass a position?"""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: deque[tuple[float, int]] = deque(maxlen=2000)

    def look(self) -> None:
        self._seen.append((time.monotonic(), self._database.latest()))

    def lag(self, position: int) -> float:
        """Seconds since the oldest change was made that a stream at this position has not delivered."""
        waiting = next((at for at, end in self._seen if end > position), None)
        return 0.0 if waiting is None else time.monotonic() - waiting
