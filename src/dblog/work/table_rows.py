"""The rows that a batch has for one table, as Arrow: for a sink that writes from Spark's tasks.

A task reads the spool itself. Nothing goes through Spark's JVM, and Spark plans nothing per table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from dblog.capture.spool import Spool
from dblog.sources.base import Source
from dblog.work.lanes import Work, delivered
from dblog.work.rows import Typed
from dblog.work.tasks import Emit, Log

Lanes = tuple[tuple[Work, ...], ...]
CHUNK_WEIGHT = 16 << 20
"""What a chunk counts in `TableRows.weight` if its size is not known, in bytes."""


@dataclass(frozen=True)
class TableRows:
    """The rows of one table in a batch. It is small, and a task gets it pickled."""

    spool: Spool
    shape: Typed
    log: Lanes
    """The changes, in this order."""
    chunks: Lanes
    """The chunks whose rows the batch delivers."""
    overlapping: bool = False
    """Whether two chunks may have the same row: they belong to different dumps. Both have it in the same state."""
    chunk_bytes: Mapping[str, int] = field(default_factory=dict, compare=False)
    """The sizes of chunks' files, by the chunks' ids. It may lack some."""

    def changes(self) -> Iterator[pa.RecordBatch]:
        """The changes of the log in order, with the table's columns and the metadata."""
        return self._read(self.log)

    def dump_rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of dumps, in no order. No change of the batch has their keys."""
        return self._read(self.chunks)

    def split(self) -> list[TableRows]:
        """The same rows in parts that may be written side by side: no two of them have rows of the same key."""
        if self.overlapping:
            return [self]
        parts = [replace(self, log=(), chunks=(lane,)) for lane in self.chunks]
        return [replace(self, chunks=()), *parts] if self.log else parts

    def log_parts(self) -> list[TableRows]:
        """The changes alone, in parts that follow each other: a later part may have the keys of an earlier one."""
        return [replace(self, log=((work,),), chunks=()) for lane in self.log for work in lane]

    def dump_parts(self) -> list[TableRows]:
        """The rows of dumps alone, in parts. No part has a key twice; if they are `overlapping`, two parts may have the
        same row."""
        lanes = [(work,) for lane in self.chunks for work in lane] if self.overlapping else self.chunks
        return [replace(self, log=(), chunks=(lane,)) for lane in lanes]

    @property
    def weight(self) -> int:
        """About how much there is to read, in bytes: the sizes of the files."""
        log = sum(f.size for lane in self.log for w in lane if isinstance(w, Log) for f in w.window.files)
        emits = (w for lane in (*self.log, *self.chunks) for w in lane if isinstance(w, Emit))
        return log + sum(self.chunk_bytes.get(emit.chunk.id, CHUNK_WEIGHT) for emit in emits)

    def _read(self, lanes: Lanes) -> Iterator[pa.RecordBatch]:
        for lane in lanes:
            yield from delivered(lane, self.shape, self.spool, _no_source, before=self.shape.before)


def _no_source() -> Source:
    raise AssertionError("the rows of a batch are on the spool")
