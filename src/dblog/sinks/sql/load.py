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
class Load:
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
                    continue  # Spark wants all of it to be taken
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
        """An error that says where the value is."""
        value, *key = (_shown(rows.column(name), refused.row) for name in (refused.column, *self.key))
        return SinkError(
            f"table {self.table} cannot hold {value} in column {refused.column!r} of the row with the key "
            f"({', '.join(key)}): {refused.why}",
            hint=refused.hint,
        )


def _shown(column: pa.Array, row: int) -> str:
    """A value as JSON, which has every one."""
    value = column.slice(row, 1)
    shown = json_text(value.cast(pa.string()) if pa.types.is_large_string(value.type) else value)[0].as_py() or "null"
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."


def load(
    rows: DataFrame, names: Sequence[str], target: Target, stage: str, table: TableName, key: Sequence[str]
) -> tuple[int, ...]:
    """Put rows, whose columns have these names there, into the staging table of a table with this key; the tasks whose
    rows count. Raises SinkError."""
    done = rows.mapInArrow(Load(target, stage, tuple(names), table, tuple(key)), _DONE).collect()
    for told in done:
        if told.error is not None:
            # `Load` has pickled it in our own task of this very query; no row of a source or a user gets in there
            error = pickle.loads(told.error)
            assert isinstance(error, SinkError)
            raise error
    return tuple(told.task for told in done if told.rows)
