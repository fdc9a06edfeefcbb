"""Which rows the log has changed lately, by their keys: those that a promoted server may not know about.

It belongs to a process, and its size is limited. So it may be that the keys of a stretch of the log are not known: then
whole tables must be read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import Op
from dblog.core.schema import TableName, TableSchema
from dblog.sources.base import Run

MOST_BYTES = 32 << 20
"""How much memory the keys of recent changes may use."""


@dataclass
class TableChanges:
    """The changes of one table."""

    schemas: list[TableSchema] = field(default_factory=list)
    keys: list[pa.Table] = field(default_factory=list)
    """The columns of the key, for each of the schemas. A key may be there several times."""
    emptied: bool = False
    """Whether a change concerns all rows."""


class RecentChanges:
    """The keys of the changes from some position on."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._since: int | None = None
        self._kept: deque[tuple[int, TableSchema, pa.RecordBatch]] = deque()
        self._nbytes = 0

    def begin(self, position: int) -> None:
        """The log is read from this position on. What was noted earlier stays."""
        if self._since is None:
            self._since = position

    def note(self, runs: Sequence[Run]) -> None:
        """Note the keys of the next changes in the log."""
        for run in runs:
            for schema, batch in run.changes:
                if batch.num_rows:
                    part = batch.select(["_op", "_lsn", *schema.key])
                    self._kept.append((int(part.column("_lsn")[-1].as_py()), schema, part))
                    self._nbytes += part.nbytes
        while self._nbytes > self._most:
            last, _, part = self._kept.popleft()
            self._nbytes -= part.nbytes
            self._since = max(self._since or 0, last + 1)

    def after(self, position: int) -> dict[TableName, TableChanges] | None:
        """The changes at and after a position; None if they are not known completely."""
        if self._since is None or position < self._since:
            return None
        found: dict[TableName, TableChanges] = {}
        for last, schema, part in self._kept:
            if last < position:
                continue
            mine = part.filter(pc.greater_equal(part.column("_lsn"), position))
            changes = found.setdefault(schema.table, TableChanges())
            changes.emptied |= bool(pc.any(pc.equal(mine.column("_op"), int(Op.truncate))).as_py())
            changes.schemas.append(schema)
            changes.keys.append(pa.Table.from_batches([mine.select(list(schema.key))]))
        return found
