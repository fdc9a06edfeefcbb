"""Tables of Delta Lake for Spark's writer, by their folder or in a catalog. The mark is the commit's `userMetadata`."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, TimestampNTZType

from dblog.core.schema import TableName
from dblog.sinks.folder import Folder, delta_folder_name
from dblog.sinks.lake.by_spark.writer import SparkTables
from dblog.sinks.lake.columns import quoted
from dblog.sinks.lake.marks import BatchMark, delta_mark

CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
ODD = set(" ,;{}()\n\t=")
"""Characters that a column's name may have only with Delta's column mapping."""
SNAPSHOT_PARTITIONS = "2"
"""How many tasks read the log of a table. With Delta's default, 50, a MERGE of a few rows takes three times as long."""
LOOK_BACK = 1000
"""How many commits are searched for the last mark. Other writers, like a compaction, may have committed since."""


class DeltaBySpark(SparkTables):
    """What Spark's writer needs to know of Delta."""

    format = "delta"
    needed = CATALOG

    @property
    def settings(self) -> Mapping[str, str]:
        catalog = self.given["catalog"] or "spark_catalog"
        return {
            **super().settings,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": CATALOG,
            "spark.databricks.delta.snapshotPartitions": SNAPSHOT_PARTITIONS,
            **{f"spark.sql.catalog.{catalog}.{name}": value for name, value in self.given["options"].items()},
        }

    def name(self, table: TableName) -> str:
        if self.given["path"] is not None:
            folder = Folder.of(self.given["path"], self.context) / delta_folder_name(table)
            return f"delta.{quoted(folder.uri)}"
        return f"{self._room(table)}.{quoted(table.name)}"

    def _room(self, table: TableName) -> str:
        return f"{quoted(self.given['catalog'])}.{quoted(self.given['database'] or table.schema or 'default')}"

    def make_room(self, spark: SparkSession, table: TableName) -> None:
        if self.given["path"] is None:
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {self._room(table)}")

    @property
    def of_new_tables(self) -> Mapping[str, str]:
        """Deletion vectors, which the native writer cannot write: only for tables that it is not to write to."""
        needed = self.given["mode"] != "log"
        alone = self.given["writer"] == "spark" or self.given["path"] is None
        return {"delta.enableDeletionVectors": "true"} if needed and alone else {}

    def properties(self, columns: Mapping[str, DataType], *, widened: bool) -> dict[str, str]:
        """Features are enabled only if they are needed, because older readers cannot read a table that has them."""
        found = {}
        if any(ODD & set(name) for name in columns):
            found["delta.columnMapping.mode"] = "name"
        if any(_has_local_times(kind) for kind in columns.values()):
            found["delta.feature.timestampNtz"] = "supported"
        if widened:
            found["delta.enableTypeWidening"] = "true"
        return found

    def mark(self, mark: BatchMark) -> Mapping[str, str]:
        return {"spark.databricks.delta.commitInfo.userMetadata": delta_mark(mark, self.context.pipeline)}

    def last_mark(self, spark: SparkSession, name: str) -> BatchMark | None:
        from pyspark.sql import functions as f

        marks = f.from_json("userMetadata", "dblog string, batch bigint, position bigint").alias("mark")
        history = spark.sql(f"DESCRIBE HISTORY {name} LIMIT {LOOK_BACK}").select("version", marks)
        ours = history.where(f.col("mark.dblog") == self.context.pipeline).orderBy(f.desc("version"))
        found = ours.select("mark.batch", "mark.position").first()
        return BatchMark(*found) if found else None


def _has_local_times(kind: DataType) -> bool:
    return isinstance(kind, TimestampNTZType) or (isinstance(kind, ArrayType) and _has_local_times(kind.elementType))
