"""Spark for the demo: a local session, and a file for its messages."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dblog.errors import DBLogError
from dblog.spark.session import session


@contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Redirect standard error to a file, also that of child processes: the JVM and Spark's Python workers inherit
    it."""
    sys.stderr.flush()
    saved = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


@contextmanager
def local_spark(work: Path) -> Iterator[SparkSession]:
    """A local session with all its files in `work`."""
    with suppress(KeyError):
        del os.environ["SPARK_REMOTE"]  # a remote session would not see the demo's files
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(work / "local"),
        "spark.python.unix.domain.socket.dir": str(work),
        # a socket's path has at most 103 bytes, of which Spark uses 42
        "spark.python.unix.domain.socket.enabled": "true" if len(os.fsencode(work)) <= 60 else "false",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    }
    try:
        spark = session("dblog demo", master="local[*]", **{k.replace(".", "__"): v for k, v in settings.items()})
    except (PySparkException, OSError) as error:
        raise DBLogError(
            f"Spark did not start: {error}", hint="dblog demo --verbose shows all that Spark says"
        ) from error
    # replaces Spark's handler, which cancels jobs; the demo stops its streams in order
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    finally:
        spark.stop()
