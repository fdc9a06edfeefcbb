"""The tables of a batch in parts, for sinks whose targets keep every event: files of a change log, requests.

A part is a piece of work for a task (`dblog.sinks.task_job`). The parts of a table have its rows in order: first the
changes, then the rows of dumps. A sink that writes parts side by side gives their results in the order of the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from dblog.core.schema import TableSchema
from dblog.sinks.base import ArrowRows, TableBatch


@dataclass(frozen=True)
class Part:
    """A part of a table's rows in a batch. A task gets it pickled."""

    table: int
    """The table's index among those that were divided."""
    number: int
    """The part's index among the parts of the table."""
    schema: TableSchema
    rows: ArrowRows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, with the table's columns and the metadata."""
        return chain(self.rows.changes(), self.rows.dump_rows())


def read_in_tasks(tables: Sequence[TableBatch]) -> tuple[list[TableBatch], list[TableBatch]]:
    """The tables whose rows tasks can read themselves, and the others. Spark has to read rows that a route computes
    with Spark, and those of two dumps that overlap: it leaves out what they have twice."""
    mine = [table for table in tables if table.arrow is not None and not table.arrow.overlapping]
    chosen = set(map(id, mine))
    return mine, [table for table in tables if id(table) not in chosen]


def parts_of(tables: Sequence[TableBatch]) -> list[Part]:
    """All parts of tables that tasks can read."""
    found: list[Part] = []
    for index, table in enumerate(tables):
        assert table.arrow is not None
        rows = [*table.arrow.log_parts(), *table.arrow.dump_parts()]
        found += [Part(index, number, table.schema, part) for number, part in enumerate(rows)]
    return found


def weights_of(parts: Sequence[Part]) -> list[int]:
    return [part.rows.weight for part in parts]
