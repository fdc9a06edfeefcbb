"""The sink `iceberg`: tables of Apache Iceberg, in a folder or in any catalog that Iceberg supports."""

from __future__ import annotations

from collections.abc import Mapping

from dblog.core.schema import TableName
from dblog.sinks.base import Batch
from dblog.sinks.folder import Folder
from dblog.sinks.lake.sink import BatchMark, LakeSink
from dblog.sinks.lake.target import quoted

CATALOG = "org.apache.iceberg.spark.SparkCatalog"
PROPERTY = "spark.sql.iceberg.snapshot-property"


class IcebergSink(LakeSink):
    """Writes Iceberg tables. The mark is in the snapshot's summary."""

    format = "iceberg"
    needed = CATALOG

    @property
    def _catalog(self) -> str:
        return self.given["catalog"] or "lake"

    @property
    def spark_settings(self) -> Mapping[str, str]:
        catalog = f"spark.sql.catalog.{self._catalog}"
        settings = {
            **super().spark_settings,
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        }
        options = dict(self.given["options"])
        if self.given["path"] is not None:
            options = {"type": "hadoop", "warehouse": Folder.of(self.given["path"], self.context).uri, **options}
        if options:  # otherwise Spark's own settings define the catalog
            settings[catalog] = CATALOG
        # A catalog with a cache would not see columns that another session has added.
        options["cache-enabled"] = "false"
        return {**settings, **{f"{catalog}.{name}": value for name, value in options.items()}}

    def _name(self, table: TableName) -> str:
        return f"{self._room(table)}.{quoted(table.name)}"

    def _room(self, table: TableName) -> str:
        return f"{quoted(self._catalog)}.{quoted(self.given['database'] or table.schema or 'default')}"

    def _make_room(self, table: TableName) -> None:
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._room(table)}")

    def _mark(self, batch: Batch) -> Mapping[str, str]:
        return {
            f"{PROPERTY}.dblog-pipeline": self.context.pipeline,
            f"{PROPERTY}.dblog-batch": str(batch.id),
            f"{PROPERTY}.dblog-position": str(batch.position),
        }

    def _last_mark(self, name: str) -> BatchMark | None:
        from pyspark.sql import functions as f

        summary = f.col("summary")
        ours = self._spark.table(f"{name}.snapshots").where(summary["dblog-pipeline"] == self.context.pipeline)
        found = (
            ours.orderBy(f.desc("committed_at"))
            .select(summary["dblog-batch"].cast("bigint"), summary["dblog-position"].cast("bigint"))
            .first()
        )
        return BatchMark(*found) if found else None
