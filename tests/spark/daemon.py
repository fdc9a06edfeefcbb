"""Spark's daemon, which forks Python's workers, with everything imported that they need. Spark's own lets each import
it anew, because a library might start a thread and lose it in the fork; those that we use mind that."""

from __future__ import annotations

import gc
from contextlib import suppress

import pandas
import pyspark.worker
from pyspark.daemon import manager

__all__ = ["pandas", "pyspark"]

with suppress(ImportError):  # sinks are also tested with versions of Spark that the source does not run on
    import dblog.spark.source  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
