"""The sink `delta`: tables of Delta Lake, by their folder or in a catalog of Spark's."""

from __future__ import annotations

from dblog.errors import ConfigError
from dblog.sinks.folder import Folder
from dblog.sinks.lake.by_spark.delta import DeltaBySpark
from dblog.sinks.lake.native.writer import NativeTables
from dblog.sinks.lake.sink import LakeSink


class DeltaSink(LakeSink):
    """Writes Delta tables."""

    format = "delta"

    def _spark_tables(self) -> DeltaBySpark:
        return DeltaBySpark(self.given, self.context)

    def _native_tables(self) -> NativeTables:
        try:
            from dblog.sinks.lake.native.delta import DeltaFolder
        except ImportError as error:
            raise ConfigError(f"sink 'delta' needs {error.name}", hint="pip install 'dblog[delta]'") from None
        return DeltaFolder(Folder.of(self.given["path"], self.context), self.context.pipeline)

    def _not_native(self) -> str | None:
        return None if self.given["path"] is not None else "a catalog of Spark's has the tables"
