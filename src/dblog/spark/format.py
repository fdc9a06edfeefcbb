"""The format `dblog` as Spark first meets it: the class that it registers, pickles and makes the readers with.

Spark starts processes that need this class and nothing else, one of them only to list the formats. So this module
imports neither Arrow nor the engine; the methods do.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from dblog.spark import versions
from dblog.spark.versions import DataSource, DataSourceReader, DataSourceStreamReader


def register(spark: SparkSession) -> None:
    """Make the format `dblog` known to a session. Spark also finds it by itself, through `pyspark_dblog`."""
    versions.register(spark, DBLogSource)


class DBLogSource(DataSource):
    """A source database as a stream of changes."""

    @classmethod
    def name(cls) -> str:
        return "dblog"

    def schema(self) -> StructType:
        from dblog.spark.source import schema_of

        return schema_of(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from dblog.spark.source import stream_reader

        return stream_reader(self.options, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        from dblog.spark.source import batch_reader

        return batch_reader(self.options)
