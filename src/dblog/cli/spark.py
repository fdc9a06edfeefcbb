"""A Spark session in the process of a command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(
    work: Path,
    *,
    verbose: bool,
    short: bool = False,
    settings: Mapping[str, str] | None = None,
    master: str | None = None,
) -> Iterator[SparkSession]:
    """A session that keeps its temporary files in `work`. A `short` one ends by itself, and others will follow. Without
    a `master` it is the one of `session`."""
    from pyspark.errors import PySparkException

    from dblog.sinks.packages import fetching
    from dblog.spark.failure import cause
    from dblog.spark.quick_start import quick_start
    from dblog.spark.session import JVM_GONE, TUNED, chosen_master, environment, session

    own = {"spark.ui.enabled": "false", "spark.log.level": "WARN" if verbose else "ERROR"}
    own["spark.sql.warehouse.dir"] = str(work / "warehouse")
    own["spark.hadoop.fs.permissions.umask-mode"] = f"{_umask():03o}"  # Java does not use the umask of the process
    own |= settings or {}
    start = quick_start(os.environ, master=master or chosen_master(os.environ), record=short)
    java_options = "spark.driver.extraJavaOptions"
    own[java_options] = f"{own.get(java_options, TUNED[java_options])} {start.java_options}".rstrip()
    try:
        with fetching(own.get("spark.jars.packages", "")), environment(start.environment):
            spark = session("dblog run", master=master, **{k.replace(".", "__"): v for k, v in own.items()})
    except (PySparkException, OSError) as error:
        raise cause(f"Spark did not start: {error}") from error
    try:
        yield spark
    finally:
        with suppress(*JVM_GONE):
            spark.stop()


def _umask() -> int:
    """The umask of this process. The system only returns it when another one is set."""
    found = os.umask(0o077)
    os.umask(found)
    return found


def own_console(stack: ExitStack) -> Console:
    """A console on the present standard error. It keeps working when standard error is redirected later."""
    file = stack.enter_context(os.fdopen(os.dup(2), "w", encoding="utf-8"))
    return Console(file=file, markup=False, highlight=False, emoji=False)
