"""One Spark job that does the work of a whole batch in Python tasks.

A job costs Spark 0.2 seconds however small it is, so a sink that writes from tasks runs one per batch and not one per
table. A batch that is small is written by the driver itself, without a job. A task does several pieces of work side by
side: they wait for storage, and Arrow computes outside of Python's lock.

A piece of work that raises a SinkError does not fail its task: the error is returned. So Spark does not repeat the
task, and the driver raises the same error.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dblog.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

W = TypeVar("W")
R = TypeVar("R")

THREADS = 4
"""How many pieces of work a task does at the same time."""
DRIVER_BYTES = 1 << 20
"""Work of at most this many bytes in all is done in threads of the driver. That takes it less time than a job, and
little memory."""


def run_in_tasks(
    spark: SparkSession | None,
    works: Sequence[W],
    run: Callable[[W], R],
    weights: Sequence[int] | None = None,
    *,
    threads: int = THREADS,
    driver: bool = True,
) -> list[R]:
    """Run a function for each piece of work, in the tasks of one job. Returns the results in the order of the work.
    Without a session it is the active one.

    `weights` say how large the pieces are, in bytes, so that tasks get about the same. A task does `threads` of them at
    a time. If all of them together are small (`DRIVER_BYTES`), they run in threads of the driver. With `driver=False`
    they never do: for work that may take long however small it is, because stopping a query ends a job, but not a
    thread. Raises the first SinkError of a piece.
    """
    if not works:
        return []
    if driver and weights is not None and sum(weights) <= DRIVER_BYTES:
        return run_in_threads(works, run, threads)
    from pyspark import cloudpickle

    context = (spark or _active()).sparkContext
    shares = _shares(weights or [1] * len(works), min(len(works), context.defaultParallelism))
    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    given = [dumps((run, [(n, works[n]) for n in share])) for share in shares]
    done = context.parallelize(given, len(given)).mapPartitions(partial(_task, tuple(sys.path), threads)).collect()
    found: list[R] = [None] * len(works)  # type: ignore[list-item]
    for number, result, error in done:
        if error is not None:
            raise pickle.loads(error)  # pickled by our own task of this job
        found[number] = result
    return found


def _task(path: Sequence[str], threads: int, given: Iterable[bytes]) -> Iterator[tuple[int, Any, bytes | None]]:
    """What a task does. It looks for modules where the driver does: a sink of a user may be beside its pipeline's
    file. So the work is unpickled here and not by Spark."""
    sys.path += [folder for folder in path if folder not in sys.path]
    for share in given:
        run, mine = pickle.loads(share)  # pickled by our own driver for this job
        with ThreadPoolExecutor(min(threads, len(mine))) as pool:
            yield from pool.map(partial(_done, run), mine)


def _active() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.active()


def run_in_threads(works: Sequence[W], run: Callable[[W], R], threads: int = THREADS) -> list[R]:
    """Run the work in threads of this process. Raises the first error when all work has ended. The work cannot run
    Spark jobs: `dblog.sinks.base.Batch.each` is for that."""
    if len(works) <= 1:
        return [run(work) for work in works]
    with ThreadPoolExecutor(min(threads, len(works)), thread_name_prefix="dblog-task") as pool:
        return [made.result() for made in [pool.submit(run, work) for work in works]]


def run_on_frame(frame: DataFrame, run: Callable[[list[pa.RecordBatch]], R]) -> R:
    """Run a function on all rows of a DataFrame, in one task. The rows come in the order of the partitions."""
    names = list(frame.columns)

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = [batch.rename_columns(names) for batch in batches]
        _, result, error = _done(run, (0, given))
        yield pa.record_batch([pa.array([pickle.dumps(result)]), pa.array([error], pa.binary())], ["result", "error"])

    # Spark cannot pass columns to Arrow whose names have special characters or differ by case only.
    plain = frame.toDF(*(f"c{n}" for n in range(len(names)))).coalesce(1)
    (row,) = plain.mapInArrow(task, "result binary, error binary").collect()
    if row.error is not None:
        raise pickle.loads(row.error)  # pickled by our own task of this job
    result: R = pickle.loads(row.result)
    return result


def _done(run: Callable[[W], R], numbered: tuple[int, W]) -> tuple[int, R | None, bytes | None]:
    number, work = numbered
    try:
        return number, run(work), None
    except SinkError as error:
        return number, None, pickle.dumps(error)


def _shares(weights: Sequence[int], count: int) -> list[list[int]]:
    """The numbers of all pieces in `count` shares of about the same weight: the heaviest first, each to the share that
    is the lightest so far."""
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for number in sorted(range(len(weights)), key=lambda n: -weights[n]):
        lightest = loads.index(min(loads))
        shares[lightest].append(number)
        loads[lightest] += weights[number] + 1
    return [share for share in shares if share]
