"""Spark's daemon, which forks Python's workers, with everything imported that they need. Spark's own lets each import
it anew, because a library might start a thread and lose it in the fork; those that we use mind that."""

from __future__ import annotations

import gc

import pandas
import pyspark.sql.worker.create_data_source
import pyspark.sql.worker.lookup_data_sources
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker
from pyspark.daemon import manager

import dblog.spark.source

__all__ = ["dblog", "pandas", "pyspark"]

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
