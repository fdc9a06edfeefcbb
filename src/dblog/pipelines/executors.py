"""Checks what the executors of a cluster have and see, before the first batch. A local Spark needs no such check.

    package     the same release of dblog as the driver
    spool       the driver's files on it
    folders     the folders of sinks that are paths: without a shared one, each executor would write to its own disk,
                and the rows would be lost
    source      reached or not; only a warning, because it may be away for a while

The check is one small job with a task for each core. An executor that joins later is not asked.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from dblog.errors import ConfigError, SinkUnreachable
from dblog.pipelines.running import Stream
from dblog.spark.failure import cause
from dblog.spark.session import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.5
WARN_SECONDS = 20.0
"""After how many seconds without an answer of an executor a warning is logged."""
SHIPPING = "install the same dblog and Python on all nodes, or ship them with the job: docs/cluster.md"

Found = tuple[str, str, str]
"""What an executor reports: its host, what is wrong (`package`, `spool`, `folder` or `source`), and details."""


@dataclass(frozen=True)
class Wanted:
    """What an executor must have and see."""

    version: str
    """Of dblog."""
    folders: Mapping[str, str]
    """Paths of files that the driver has written, by the folder that they are in."""
    streams: tuple[tuple[Mapping[str, str], str], ...]
    """The options of each stream, and the name of a range file that the driver has written to its spool."""


def check_executors(
    spark: SparkSession,
    streams: Sequence[Stream],
    version: str,
    warned: Callable[[str], None],
    stopped: Callable[[float], bool],
) -> None:
    """Ask the executors, unless Spark is local. Raises ConfigError if one of them could not do its work.

    `version` is that of the driver's dblog. `warned` gets warnings. `stopped` waits for some seconds, and returns
    whether the pipeline is to be stopped.
    """
    if is_local(spark.sparkContext.master):
        return
    with ExitStack() as stack:
        folders = {path: stack.enter_context(_file_in(path)) for path in _paths(streams)}
        ranges = tuple((dict(stream.options), stack.enter_context(_range_on(stream))) for stream in streams)
        pool = ThreadPoolExecutor(1, thread_name_prefix="dblog-executors")
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        answer = pool.submit(_ask, spark, Wanted(version, folders, ranges))
        waited = 0.0
        while not answer.done():
            if stopped(LOOK_SECONDS):
                return
            waited += LOOK_SECONDS
            if waited == WARN_SECONDS:
                master = spark.sparkContext.master
                warned(
                    f"no executor of {master} has answered for {WARN_SECONDS:.0f} s: see that the cluster has cores "
                    "and memory left, and that executors can connect to this machine (spark.driver.host)"
                )
        _judge(answer.result(), warned)


def _paths(streams: Sequence[Stream]) -> list[str]:
    """The paths to which tasks write files."""
    uris = [uri for stream in streams for uri in stream.sink.folders]
    paths = [uri.removeprefix("file://") for uri in uris if "://" not in uri or uri.startswith("file:///")]
    return list(dict.fromkeys(paths))


@contextmanager
def _file_in(folder: str) -> Iterator[str]:
    """Write an empty file into a folder; its path. It is removed at the end."""
    path = os.path.join(folder, f".dblog-{uuid.uuid4().hex}")
    try:
        os.makedirs(folder, exist_ok=True)
        open(path, "x").close()
    except OSError as error:
        raise SinkUnreachable(f"cannot write to {folder!r}: {error}", hint="check its permissions") from None
    try:
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)


@contextmanager
def _range_on(stream: Stream) -> Iterator[str]:
    """Write a range file to the spool of a stream, as for a batch; its name. It is removed at the end."""
    spool = stream.read.open_spool()
    name, path = spool.write_range_file(["{}"])
    try:
        yield name
    finally:
        with suppress(OSError):
            spool.remove([path])


def _ask(spark: SparkSession, wanted: Wanted) -> list[Found]:
    """What the executors report. Raises ConfigError if they cannot run Python."""
    context = spark.sparkContext
    tasks = max(context.defaultParallelism, 2)
    look = _looking(wanted.version, dict(wanted.folders), wanted.streams)
    try:
        return sorted(set(context.parallelize(range(tasks), tasks).mapPartitions(look).collect()))
    except (PySparkException, Py4JJavaError) as error:
        said = cause(str(error))
        raise ConfigError(f"the executors cannot run Python for dblog: {said.message}", hint=SHIPPING) from error


def _looking(
    version: str, folders: Mapping[str, str], streams: Sequence[tuple[Mapping[str, str], str]]
) -> Callable[[Iterable[int]], list[Found]]:
    """The work of a task. It is a function within a function, which is pickled with its code: an executor without dblog
    can run it too."""

    def look(_: Iterable[int]) -> list[Found]:
        import os
        import socket
        from importlib import import_module

        host = socket.gethostname()
        try:
            there = import_module("dblog").__version__
            from dblog.errors import DBLogError
            from dblog.spark.options import read_options
        except ImportError as error:
            return [(host, "package", f"cannot import it: {error}")]
        found = [(host, "folder", folder) for folder, file in folders.items() if not os.path.exists(file)]
        if there != version:
            found.append((host, "package", f"it has {there}, and the driver has {version}"))
        for options, name in streams:
            read = read_options(options)
            try:
                if "://" not in read.spool and not os.path.exists(read.spool):
                    found.append((host, "spool", repr(read.spool)))  # to open the spool would create the folder
                else:
                    read.open_spool().read_range_file(name)
            except DBLogError as error:
                found.append((host, "spool", f"{read.spool!r}: {error.message}"))
            try:
                read.source.tables()
            except DBLogError as error:
                found.append((host, "source", error.message))
        return found

    return look


def _judge(found: Sequence[Found], warned: Callable[[str], None]) -> None:
    """Raise ConfigError for what keeps the executors from their work; warn of the rest."""
    by_problem: dict[tuple[str, str], list[str]] = {}
    for host, what, details in found:
        by_problem.setdefault((what, details), []).append(host)
    for (what, details), hosts in by_problem.items():
        where = f"the executors on {', '.join(hosts)}"
        if what == "package":
            raise ConfigError(f"{where} do not have this dblog: {details}", hint=SHIPPING)
        if what == "spool":
            raise ConfigError(
                f"{where} do not see the driver's files on the spool {details}",
                hint="set pipeline.spool, or pipeline.folder, to storage that the driver and all executors share, like "
                "s3://bucket/path: docs/cluster.md",
            )
        if what == "folder":
            raise ConfigError(
                f"{where} do not see the driver's files in {details!r}, to which they are to write",
                hint="set the path of the sink to storage that the driver and all executors share, like "
                "s3://bucket/path: docs/cluster.md",
            )
        warned(f"{where} cannot reach the source, and executors select the rows of dumps: {details}")
