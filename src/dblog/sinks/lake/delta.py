"""The sink `delta`: tables of Delta Lake, by their folder or in a catalog of Spark's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dblog.errors import ConfigError
from dblog.sinks.folder import Folder
from dblog.sinks.lake.by_spark.delta import DeltaBySpark
from dblog.sinks.lake.sink import LakeSink

if TYPE_CHECKING:
    from dblog.sinks.lake.native.delta import DeltaFolder


class DeltaSink(LakeSink):
    """Writes Delta tables."""

    format = "delta"

    def _spark_tables(self) -> DeltaBySpark:
        return DeltaBySpark(self.given, self.context)

    def check(self) -> None:
        super().check()
        if self.given["writer"] != "spark" and self._not_native() is None:
            self._native_tables().check()

    def _native_tables(self) -> DeltaFolder:
        try:
            from dblog.sinks.lake.native.delta import DeltaFolder
        except ImportError as error:
            raise ConfigError(f"sink 'delta' needs {error.name}", hint="pip install 'dblog[delta]'") from None
        return DeltaFolder(Folder.of(self.given["path"], self.context), self.context.pipeline)

    def _not_native(self) -> str | None:
        return None if self.given["path"] is not None else "a catalog of Spark's has the tables"
