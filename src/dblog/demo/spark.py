"""Spark for the demo: is there a Java for it, and where does its chatter go?"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dblog.errors import ConfigError, DBLogError
from dblog.spark.session import session

LEAST_JAVA = 17
_GET_JAVA = (
    f"install Java {LEAST_JAVA} or newer (Debian: apt install openjdk-17-jre-headless) or point JAVA_HOME to one"
)


def check_java() -> None:
    """Raise ConfigError unless there is a Java that Spark can run on. Spark's own words for this are hard to read."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    if shutil.which(java) is None:
        where = f"JAVA_HOME is {home!r}, but there is no bin/java in it" if home else "there is no java on the PATH"
        raise ConfigError(f"Spark needs Java: {where}", hint=_GET_JAVA)
    shown = subprocess.run([java, "-version"], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    version = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    if version is None:
        raise ConfigError(f"{java!r} does not tell its version", hint=_GET_JAVA)
    if int(version[1]) < LEAST_JAVA:
        raise ConfigError(f"Spark needs Java {LEAST_JAVA} or newer, and {java!r} is Java {version[1]}", hint=_GET_JAVA)


@contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Send standard error to a file, that of child processes too: the JVM and Spark's Python workers inherit it."""
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
    """A session on this machine alone, whose files are all in `work`."""
    with suppress(KeyError):
        del os.environ["SPARK_REMOTE"]  # a session elsewhere would not see the demo's files
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(work / "local"),
        "spark.python.unix.domain.socket.dir": str(work),
        # the name of a socket has 103 bytes at most, of which Spark takes 42
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
    # Spark's own handler cancels jobs first; here the streams are stopped in order
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    finally:
        spark.stop()
