"""The executors' part: rows into a staging table.

Rows carry the number of the Spark task that brought them. Spark may run a task twice, and only counts one of them: the
driver, which is told the number of that one, leaves the rows of others aside.

What the target refuses is handed to the driver as a result, because Spark knows nothing of our errors.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dblog.errors import SinkError
from dblog.sinks.sql.target import Session, Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DONE = "task long, rows long, error binary"


@dataclass(frozen=True)
class Load:
    """Loads the rows of one Spark task."""

    target: Target
    stage: str
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task = context.taskAttemptId()
        session: Session | None = None
        error: SinkError | None = None
        rows = 0
        try:
            for batch in batches:
                if error is not None or not batch.num_rows:
                    continue  # Spark wants all of it to be taken
                try:
                    session = session or self.target.connect()
                    number = pa.repeat(pa.scalar(task, pa.int64()), batch.num_rows)
                    named = pa.RecordBatch.from_arrays([*batch.columns, number], names=[*self.names, "_task"])
                    self.target.load(session, self.stage, named)
                    rows += batch.num_rows
                except SinkError as refused:
                    error = refused
        finally:
            if session is not None:
                session.close()
        told = [pa.array([task]), pa.array([rows]), pa.array([error and pickle.dumps(error)], pa.binary())]
        yield pa.record_batch(told, names=["task", "rows", "error"])


def load(rows: DataFrame, names: Sequence[str], target: Target, stage: str) -> tuple[int, ...]:
    """Put rows, whose columns have these names there, into a staging table; the tasks whose rows count. Raises
    SinkError."""
    done = rows.mapInArrow(Load(target, stage, tuple(names)), _DONE).collect()
    for told in done:
        if told.error is not None:
            error = pickle.loads(told.error)
            assert isinstance(error, SinkError)
            raise error
    return tuple(told.task for told in done if told.rows)
