"""The sink `iceberg`: tables of Apache Iceberg, in a folder or in a catalog."""

from __future__ import annotations

from dblog.sinks.lake.by_spark.iceberg import IcebergBySpark
from dblog.sinks.lake.native.writer import NativeTables
from dblog.sinks.lake.sink import LakeSink


class IcebergSink(LakeSink):
    """Writes Iceberg tables."""

    format = "iceberg"

    def _spark_tables(self) -> IcebergBySpark:
        return IcebergBySpark(self.given, self.context)

    def _native_tables(self) -> NativeTables:
        raise NotImplementedError

    def _not_native(self) -> str | None:
        return "there is no native writer yet"
