"""Work that Spark's tasks do with rows, and how it went.

A task that cannot do its work does not fail: it says why, as a row. So Spark neither repeats it nor reports it at
length, and the driver raises what the task has raised.
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
"""What a task does with the rows of its partition, whose number it is given; it may say something."""


def each_part(frame: DataFrame, work: Work) -> dict[int, str]:
    """Have a task work on each partition. What each of them said, by the partition's number; raises SinkError."""
    told = frame.mapInArrow(partial(_done, work), "part int, said string, error binary").collect()
    for row in told:
        if row.error is not None:
            # `_done` has pickled it in our own task of this very query; no row of a source or a user gets in there
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
