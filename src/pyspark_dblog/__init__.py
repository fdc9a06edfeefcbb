"""Spark finds the format `dblog` here by itself: it looks for modules named `pyspark_*` with a `DefaultSource`."""

from dblog.spark.format import DBLogSource as DefaultSource

__all__ = ["DefaultSource"]
