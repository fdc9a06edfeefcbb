"""The sink `iceberg`: tables of Apache Iceberg, in a folder or in a catalog."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dblog.errors import ConfigError
from dblog.sinks.folder import Folder
from dblog.sinks.lake.by_spark.iceberg import IcebergBySpark, catalog_type
from dblog.sinks.lake.sink import LakeSink

if TYPE_CHECKING:
    from dblog.sinks.lake.native.iceberg import IcebergCatalog

NATIVE = ("rest", "sql", "glue", "hive")
"""Types of catalogs in which pyiceberg can commit."""
OWN = "catalog.db"
"""The SQLite database of a catalog in a folder."""


class IcebergSink(LakeSink):
    """Writes Iceberg tables."""

    format = "iceberg"
    _tables: IcebergCatalog | None = None
    """The tables of the native writer, while it is open."""

    def _spark_tables(self) -> IcebergBySpark:
        return IcebergBySpark(self.given, self.context)

    def _not_native(self) -> str | None:
        kind = catalog_type(self.given["options"])
        if kind is not None:
            return None if kind in NATIVE else f"pyiceberg cannot commit to a catalog of the type {kind!r}"
        if self.given["path"] is None:
            return "its options have no type" if self.given["options"] else "Spark's own settings define the catalog"
        folder = self._folder
        if folder is not None and any(folder.glob("*/*/metadata/version-hint.text")):
            return "the folder has tables of Spark's writer (a catalog of the type 'hadoop')"
        return None

    @property
    def _by_spark(self) -> bool:
        # In a folder without a named catalog each writer has a catalog of its own, and does not see the other's tables.
        if self.given["writer"] != "spark" and self.given["path"] is not None and self._not_native() is None:
            return catalog_type(self.given["options"]) is not None and super()._by_spark
        return super()._by_spark

    def check(self) -> None:
        super().check()
        folder = self._folder
        if self.given["writer"] != "spark" and self._not_native() is None and folder is None:
            self._native_tables().check()
            if self.given["path"] is not None:
                Folder.of(self.given["path"], self.context).reach()
        if self.given["writer"] == "spark" and folder is not None and (folder / OWN).exists():
            raise ConfigError(
                f"the tables in {str(folder)!r} are in the native writer's catalog ({OWN}), which Spark cannot open",
                hint='leave out writer = "spark", or write to another folder',
            )

    @property
    def _folder(self) -> Path | None:
        """The folder whose catalog is in the folder itself, if it is a local one."""
        if self.given["path"] is None or catalog_type(self.given["options"]) is not None:
            return None
        uri = Folder.of(self.given["path"], self.context).uri.removeprefix("file://")
        return None if "://" in uri else Path(uri)

    def _native_tables(self) -> IcebergCatalog:
        try:
            from dblog.sinks.lake.native.iceberg import IcebergCatalog
            from dblog.sinks.lake.native.iceberg_catalog import OpenCatalog

            name = self.given["catalog"] or "lake"
            catalog = OpenCatalog(name, self._options(), self._folder)
        except ImportError as error:
            raise ConfigError(f"sink 'iceberg' needs {error.name}", hint="pip install 'dblog[iceberg]'") from None
        self._tables = IcebergCatalog(catalog, self.given["database"], self.context.pipeline)
        return self._tables

    def close(self) -> None:
        super().close()
        if self._tables is not None:
            self._tables.close()

    def _options(self) -> Mapping[str, str]:
        """The options of the catalog for pyiceberg, and how it reaches object storage."""
        kind = catalog_type(self.given["options"])
        options = {**self.context.objects.iceberg_properties(), **self.given["options"]}
        if self.given["path"] is None:
            return {"type": str(kind), **options}
        uri = Folder.of(self.given["path"], self.context).uri
        if kind is not None:
            return {"type": kind, "warehouse": uri, **options}
        folder = self._folder
        if folder is None:
            raise ConfigError(
                f"sink 'iceberg' cannot have its catalog at {uri!r}: the native writer needs a database for it",
                hint='name a catalog: catalog, and options with its type and uri; or set writer = "spark"',
            )
        return {**options, "type": "sql", "uri": f"sqlite:///{folder / OWN}", "warehouse": str(folder)}
