"""DBLog on Spark: change data capture as a streaming source.

import dblog
dblog.register(spark)
spark.readStream.format("dblog").option("url", ...).option("table", "public.orders").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dblog.errors import DBLogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__version__ = "0.2.0"
__all__ = ["DBLogError", "__version__", "register", "session"]


def register(spark: SparkSession) -> None:
    """Make the format `dblog` known to a Spark session."""
    from dblog.spark.format import register

    register(spark)


def session(*args: Any, **settings: Any) -> SparkSession:
    """A Spark session tuned for change data capture; see `dblog.spark.session.session`."""
    from dblog.spark.session import session

    return session(*args, **settings)
