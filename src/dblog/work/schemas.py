"""The schemas that the files of a batch were written under.

Every file has its schema, but opening a file takes longer than anything else that is planned for a small table. So a
schema is read once, and then known by its version. It lives in the driver, for all batches of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dblog.capture.spool import LogFile, Spool
from dblog.core.schema import TableName, TableSchema
from dblog.work.tasks import Emit

MOST_KNOWN = 10_000
"""How many schemas are kept at most. When there are more, all are read again."""


@dataclass(frozen=True)
class StagedChunk:
    """What is known of a chunk's file without its rows."""

    schema: TableSchema
    size: int | None
    """In bytes; None if it is not known."""


class Schemas:
    """The schemas of the files of a spool."""

    def __init__(self) -> None:
        self._known: dict[tuple[TableName, str], TableSchema] = {}

    def of_log(self, spool: Spool, files: Sequence[LogFile]) -> list[TableSchema]:
        """The schemas of log files of one table, the oldest first."""
        last = {f.version: f for f in files}
        order = dict.fromkeys(f.version for f in reversed(files))
        return [self._of_file(spool, last[version]) for version in reversed(order)]

    def _of_file(self, spool: Spool, file: LogFile) -> TableSchema:
        known = self._known.get((file.table, file.version))
        if known is not None:
            return known
        return self._learn(file.table, spool.read_log(file.path, ())[0])

    def of_chunk(self, spool: Spool, emit: Emit) -> StagedChunk:
        """The schema that a chunk was read under, and the size of its file."""
        chunk, stamp = emit.chunk, emit.chunk.stamp or ""
        facts = spool.chunk_facts(chunk.id, stamp)
        if facts is None:
            return StagedChunk(spool.read_chunk(chunk.id, stamp, ())[0], None)
        version, size = facts
        known = self._known.get((chunk.table, version))
        if known is None:
            known = self._learn(chunk.table, spool.read_chunk(chunk.id, stamp, ())[0])
        return StagedChunk(known, size)

    def _learn(self, table: TableName, schema: TableSchema) -> TableSchema:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[table, schema.version] = schema
        return schema
