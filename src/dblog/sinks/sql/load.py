"""The executors' part: rows into a staging table.

Each row has the number of the Spark task that loaded it. Spark may run a task twice and count only one of them. The
driver learns the numbers of the counted tasks and ignores the rows of the others.

A task returns its error as a result, because Spark would not pass on the error's class.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dblog.core.schema import TableName
from dblog.errors import SinkError
from dblog.sinks.sql.target import Session, Target
from dblog.sinks.sql.text import Refused
from dblog.work.json_text import json_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN = 100
"""How many characters of a value an error shows."""

_DONE = "task long, rows long, error binary"


@dataclass(frozen=True)
class TaskLoad:
    """Loads the rows of one Spark task."""

    target: Target
    stage: str
    names: tuple[str, ...]
    table: TableName
    key: tuple[str, ...]

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
                    continue  # Spark expects the task to read all its input
                try:
                    session = session or self.target.connect()
                    number = pa.repeat(pa.scalar(task, pa.int64()), batch.num_rows)
                    named = pa.RecordBatch.from_arrays([*batch.columns, number], names=[*self.names, "_task"])
                    self.target.load(session, self.stage, named)
                    rows += batch.num_rows
                except Refused as refused:
                    error = self._explained(refused, named)
                except SinkError as refused:
                    error = refused
        finally:
            if session is not None:
                session.close()
        told = [pa.array([task]), pa.array([rows]), pa.array([error and pickle.dumps(error)], pa.binary())]
        yield pa.record_batch(told, names=["task", "rows", "error"])

    def _explained(self, refused: Refused, rows: pa.RecordBatch) -> SinkError:
        """The error with table, column, value and key."""
        value, *key = (_shown(rows.column(name), refused.row) for name in (refused.column, *self.key))
        return SinkError(
            f"table {self.table} cannot store {value} in column {refused.column!r} of the row with the key "
            f"({', '.join(key)}): {refused.why}",
            hint=refused.hint,
        )


def _shown(column: pa.Array, row: int) -> str:
    """A value as JSON, cut to `SHOWN` characters."""
    value = column.slice(row, 1)
    shown = json_text(value.cast(pa.string()) if pa.types.is_large_string(value.type) else value)[0].as_py() or "null"
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."


def load(
    rows: DataFrame, names: Sequence[str], target: Target, stage: str, table: TableName, key: Sequence[str]
) -> tuple[int, ...]:
    """Load rows into a staging table, and return the tasks whose rows count. `names` are its columns, `key` is the
    table's key. Raises SinkError."""
    done = rows.mapInArrow(TaskLoad(target, stage, tuple(names), table, tuple(key)), _DONE).collect()
    for told in done:
        if told.error is not None:
            # Safe to unpickle: `TaskLoad` pickled it in a task of this query, and it has no data of a source or user.
            error = pickle.loads(told.error)
            assert isinstance(error, SinkError)
            raise error
    return tuple(told.task for told in done if told.rows)
