"""Tables of Apache Iceberg for Spark's writer, in a folder or in any catalog that Iceberg supports. The mark is in the
snapshot's summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from dblog.core.schema import TableName
from dblog.sinks.folder import Folder
from dblog.sinks.lake.by_spark.writer import SparkTables
from dblog.sinks.lake.columns import quoted
from dblog.sinks.lake.marks import BatchMark, iceberg_mark, mark_property, read_iceberg_mark

CATALOG = "org.apache.iceberg.spark.SparkCatalog"
PROPERTY = "spark.sql.iceberg.snapshot-property"
_SCHEMES = {"http": "rest", "https": "rest", "thrift": "hive", "sqlite": "sql", "postgresql": "sql"}
"""The types of catalogs by the scheme of their `uri`."""
_JDBC = ("postgresql",)
"""Schemes of database servers that Iceberg's catalog of the type `jdbc` is known to work with."""


def catalog_type(options: Mapping[str, str]) -> str | None:
    """The type of a catalog with these options; None if they do not say."""
    if (given := options.get("type")) is not None:
        return given.lower()
    if "catalog-impl" in options:
        return options["catalog-impl"]
    scheme = options.get("uri", "").partition(":")[0]
    return _SCHEMES.get(scheme.partition("+")[0])


class IcebergBySpark(SparkTables):
    """What Spark's writer needs to know of Iceberg."""

    format = "iceberg"
    needed = CATALOG

    @property
    def _catalog(self) -> str:
        return self.given["catalog"] or "lake"

    @property
    def settings(self) -> Mapping[str, str]:
        catalog = f"spark.sql.catalog.{self._catalog}"
        settings = {
            **super().settings,
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        }
        options = dict(self.given["options"])
        if self.given["path"] is not None:
            kind = {} if catalog_type(options) else {"type": "hadoop"}
            options = {**kind, "warehouse": Folder.of(self.given["path"], self.context).uri, **options}
        if options:  # otherwise Spark's own settings define the catalog
            settings[catalog] = CATALOG
            options = _of_spark(options)
        # A catalog with a cache would not see columns that another session has added.
        options["cache-enabled"] = "false"
        return {**settings, **{f"{catalog}.{name}": value for name, value in options.items()}}

    def name(self, table: TableName) -> str:
        return f"{self._room(table)}.{quoted(table.name)}"

    def _room(self, table: TableName) -> str:
        return f"{quoted(self._catalog)}.{quoted(self.given['database'] or table.schema or 'default')}"

    def make_room(self, spark: SparkSession, table: TableName) -> None:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._room(table)}")

    @property
    def of_new_tables(self) -> Mapping[str, str]:
        """The native writer reads deletes by position, which version 2 of the format has."""
        modes = {f"write.{statement}.mode": "merge-on-read" for statement in ("delete", "update", "merge")}
        return {"format-version": "2", **({} if self.given["mode"] == "log" else modes)}

    def mark(self, mark: BatchMark) -> Mapping[str, str]:
        return {f"{PROPERTY}.{name}": value for name, value in iceberg_mark(mark, self.context.pipeline).items()}

    def last_mark(self, spark: SparkSession, name: str) -> BatchMark | None:
        from pyspark.sql import functions as f

        summary = f.col("summary")
        ours = spark.table(f"{name}.snapshots").where(summary["dblog-pipeline"] == self.context.pipeline)
        found = (
            ours.orderBy(f.desc("committed_at"))
            .select(summary["dblog-batch"].cast("bigint"), summary["dblog-position"].cast("bigint"))
            .first()
        )
        if found:
            return BatchMark(*found)
        # The native writer also keeps its mark in a property, which stays when snapshots are expired.
        kept = spark.sql(f"SHOW TBLPROPERTIES {name}").where(f.col("key") == mark_property(self.context.pipeline))
        said = kept.select("value").first()
        return read_iceberg_mark(json.loads(said[0]), self.context.pipeline) if said else None


def _of_spark(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a catalog for Spark, which needs its type, and calls a catalog in a database `jdbc`."""
    kind = catalog_type(options)
    if kind != "sql":
        return dict(options) if kind is None or "catalog-impl" in options else {**options, "type": kind}
    found = urlsplit(options.get("uri", ""))
    scheme = found.scheme.partition("+")[0]
    made = {**options, "type": "jdbc"}
    if scheme == "sqlite":
        return {**made, "uri": f"jdbc:sqlite:{found.path.removeprefix('/')}"}
    address = f"{found.hostname}:{found.port}" if found.port else found.hostname
    query = f"?{found.query}" if found.query else ""
    login = {"jdbc.user": found.username, "jdbc.password": found.password}
    made["uri"] = f"jdbc:{scheme}://{address}{found.path}{query}"
    return {**made, **{name: unquote(value) for name, value in login.items() if value is not None}}
