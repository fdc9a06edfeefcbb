"""A Spark session with settings for fast small batches. The source also works without them, but slower."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from dblog.spark.versions import CHECKPOINT_MANAGER
from dblog.work.lanes import SWITCH

# Saves a fifth of a task's time: Arrow's Java does not check the bounds of every single value. Whole batches are
# checked before they leave Python.
_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

TUNED = {
    # saves 45 ms per task: no delayed acknowledgements between the JVM and its Python workers
    "spark.python.unix.domain.socket.enabled": "true",
    # saves 55 ms per batch on a local disk: the default checkpoint writer forks processes for every file
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
    # a driver that dies while it writes its first offset leaves an incomplete file, and must be able to start again
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    # stopping a query inside a Python foreachBatch needs a deep stack
    "spark.driver.extraJavaOptions": f"-Xss16m {_UNCHECKED}",
    "spark.executor.extraJavaOptions": _UNCHECKED,
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


LOOPBACK = "127.0.0.1"
"""The address that a local Spark listens on: no other machine needs to reach it."""

JVM_GONE = (Py4JError, OSError)
"""Exceptions of calls into Spark when its JVM has ended. Other failures raise them too."""
JVM_SECONDS = 5.0
"""How long a JVM that does not answer may take to end, in seconds."""


def jvm_ended(spark: SparkSession) -> bool:
    """Whether the session's JVM has ended. Then no query can be started."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    try:
        return process is not None and process.wait(JVM_SECONDS) is not None
    except subprocess.TimeoutExpired:
        return False


def kill_jvm(spark: SparkSession) -> None:
    """Kill the session's JVM, unless spark-submit has started it."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()


def session(app_name: str = "dblog", *, master: str | None = None, **settings: str) -> SparkSession:
    """A session tuned for change data capture, with the format `dblog` registered.

    Without a `master` it is the one that the environment variable MASTER names, or that spark-submit was given, or
    local[*]. With a local master it listens on 127.0.0.1 only, unless `SPARK_LOCAL_IP` or `settings` say otherwise.
    `settings` are Spark's, with `__` for dots: `session(spark__driver__memory="2g")`.
    """
    from dblog.spark.format import register

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run the python3 on the PATH
    master = master or chosen_master(os.environ)
    alone = is_local(master) and "SPARK_LOCAL_IP" not in os.environ
    here = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK} if alone else {}
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in {
        **TUNED,
        **tuning(os.environ),
        **here,
        **{k.replace("__", "."): v for k, v in settings.items()},
    }.items():
        builder = builder.config(name, value)
    # the address of Spark's web page can only be set so
    with environment({"SPARK_LOCAL_IP": LOOPBACK} if alone else {}):
        spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def chosen_master(environment: Mapping[str, str]) -> str | None:
    """The master of a session for which none is named. None: the one that spark-submit was given. It has started the
    JVM and this program."""
    under_submit = "PYSPARK_GATEWAY_PORT" in environment
    return environment.get("MASTER") or (None if under_submit else "local[*]")


def is_local(master: str | None) -> bool:
    """Whether this master runs its tasks in the driver's own JVM."""
    return master is not None and re.fullmatch(r"local(\[.*\])?", master) is not None


def tuning(environment: Mapping[str, str]) -> dict[str, str]:
    """The setting that gives the executors this environment's switch of `dblog.work.lanes.tune_worker`."""
    return {f"spark.executorEnv.{SWITCH}": environment[SWITCH]} if SWITCH in environment else {}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the body runs. They must not be set before."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
