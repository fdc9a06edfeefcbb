"""Run a function on each partition of a DataFrame, in Spark's tasks.

A task whose function raises an error does not fail: it returns the error as a row. So Spark does not repeat the task,
and the driver raises the same error.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from dblog.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Work: TypeAlias = Callable[[int, Iterator[pa.RecordBatch]], str]
"""Takes the number of a partition and its rows; returns a text for the driver."""


def each_part(frame: DataFrame, work: Work) -> dict[int, str]:
    """Run `work` on each partition, and return its texts by partition number. Raises SinkError."""
    told = frame.mapInArrow(partial(_done, work), "part int, said string, error binary").collect()
    for row in told:
        if row.error is not None:
            # Safe to unpickle: `_done` pickled it in a task of this query, and it contains no data of a source or user.
            raise pickle.loads(row.error)
    return {row.part: row.said for row in told}


def _done(work: Work, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    said: str | None = None
    error: bytes | None = None
    try:
        said = work(task.partitionId(), batches)
    except SinkError as raised:
        error = pickle.dumps(raised)
    columns = [
        pa.array([task.partitionId()], pa.int32()),
        pa.array([said], pa.string()),
        pa.array([error], pa.binary()),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=["part", "said", "error"])
