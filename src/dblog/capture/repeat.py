"""Repeating a planned batch from the log of another server, when its files on the spool are lost.

A batch is a set of transactions. Another server may have them at other positions, in another order, and between other
transactions (MariaDB's domains). The batch keeps its start and end, by which sinks know it. Between them its
transactions get new positions in the order of the new log.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dblog.capture.segments import OpenSegment, followed_part
from dblog.capture.spool import LogFile, LogWriter, Segments, Spool
from dblog.core.offset import Offset
from dblog.core.schema import TableSchema
from dblog.sources.base import LogStream, Run, Source

READ_SECONDS = 1.0
"""How long one read waits for the log, in seconds."""


def read_again(source: Source, spool: Spool, start: Offset, end: Offset, *, before: bool) -> Segments | None:
    """The log files of the batch between two offsets. None when the log that is read now has the batch at its planned
    positions, so that it can be read as usual."""
    assert start.position is not None
    assert end.position is not None
    stream = source.repeat(start.position, start.coordinate, end.coordinate, end.position)
    if stream is None:
        return None
    try:
        return _written(stream, spool, start, end, before=before)
    finally:
        stream.close()


def _written(stream: LogStream, spool: Spool, start: Offset, end: Offset, *, before: bool) -> Segments:
    assert start.position is not None
    assert end.position is not None
    life = uuid.uuid4().hex[:8]
    written: list[tuple[LogFile, ...]] = []
    files = 0

    def new_file(schema: TableSchema) -> LogWriter:
        nonlocal files
        files += 1
        return spool.log_writer(f"{life}-{files}", schema, before=before)

    def close(segment: OpenSegment) -> None:
        closed = segment.close()
        written.append(followed_part(closed, start.followed, spool.relabelled).files)
        spool.remove({f.path for f in closed.files} - {f.path for f in written[-1]})

    renumber = _Renumber(start.position, end.position)
    segment = OpenSegment(new_file, start.position, None)
    try:
        while stream.passing:
            for run in stream.read(READ_SECONDS):
                segment.append(renumber(run))
                if segment.large and segment.end is not None:
                    close(segment)
                    segment = OpenSegment(new_file, start.position, None)
        if segment.dirty:
            close(segment)
    except BaseException:
        segment.abort()
        spool.remove(f.path for closed in written for f in closed)
        raise
    return tuple(filter(None, written))


class _Renumber:
    """Gives the transactions of runs consecutive positions from `start` on."""

    def __init__(self, start: int, end: int) -> None:
        self._next, self._end = start, end
        self._last: int | None = None
        """The position of the last transaction in the log. The next run may continue that transaction."""

    def __call__(self, run: Run) -> Run:
        lsns = [batch.column("_lsn").to_numpy() for _, batch in run.changes]
        if not lsns:
            return run
        found = np.unique(np.concatenate(lsns))
        if found[0] == self._last:
            self._next -= 1
        numbers = self._next + np.arange(len(found))
        self._next, self._last = int(numbers[-1]) + 1, int(found[-1])
        # Positions count bytes, and a transaction is longer than one byte, so the numbers are enough.
        assert self._next <= self._end
        return replace(run, changes=[(schema, _moved(batch, found, numbers)) for schema, batch in run.changes])


def _moved(batch: pa.RecordBatch, found: np.ndarray, numbers: np.ndarray) -> pa.RecordBatch:
    at = batch.schema.get_field_index("_lsn")
    lsns = numbers[np.searchsorted(found, batch.column(at).to_numpy())]
    return batch.set_column(at, batch.schema.field(at), pa.array(lsns, pa.int64()))
