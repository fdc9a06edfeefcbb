"""The three kinds of work a batch consists of. They run on the executors, any number of times each.

    log      the changes of the batch, in commit order
    emit     the rows of a staged chunk that no change of the batch touches
    select   a chunk's rows, staged on the spool for the next batch to emit

Each yields change batches (`core.event`) with the schema they were captured under; `select` yields none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.capture.spool import LogFile, Spool
from dblog.core.dump import Staged
from dblog.core.event import BEFORE, CHANGE_FIELDS, DUMP_SEQ, RAW, Op
from dblog.core.keys import key_columns, matches
from dblog.core.offset import Chunk
from dblog.core.promised_keys import refusing_nulls
from dblog.core.raw_values import FIELD, counted, some
from dblog.core.schema import TableName, TableSchema
from dblog.core.set_aside import set_aside
from dblog.core.window import complete, survivors
from dblog.errors import DecodeError, TableUnreadable
from dblog.sources.base import Selection, Source


@dataclass(frozen=True)
class Window:
    """The log in `(start, end]`: the files of its segments. The outer segments may reach beyond it."""

    start: int
    end: int
    segments: tuple[tuple[LogFile, ...], ...]
    ends: tuple[tuple[TableName, int], ...] = ()
    """Where the log of tables ends that are set aside within the window."""

    @property
    def files(self) -> Iterator[LogFile]:
        return (file for segment in self.segments for file in segment)

    def end_of(self, table: TableName) -> int:
        """Where the log of a table ends."""
        return min([self.end, *(end for name, end in self.ends if name == table)])


@dataclass(frozen=True)
class Log:
    """Deliver the log of the window, completed from the chunks that end in it."""

    window: Window
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Emit:
    """Deliver the rows of a chunk that the window's log does not touch."""

    window: Window
    chunk: Chunk
    early: bool = False
    """Whether the rows are delivered with an order before the window's log: it has cascades, which act on them."""


@dataclass(frozen=True)
class Select:
    """Stage a chunk."""

    chunk: Chunk


EXAMPLES = 20
"""How many dropped rows of a chunk are reported as events, at most."""

Changes = Iterator[tuple[TableSchema, pa.RecordBatch]]
Stride = list[tuple[TableSchema, pa.RecordBatch]]
"""Changes of several tables, all before the changes of the next stride; each batch is in order."""


def log_changes(spool: Spool, log: Log) -> Iterator[Stride]:
    """The changes of the window in commit order, stride by stride."""
    for segment in log.window.segments:
        yield from _strides([_file_changes(spool, log, file) for file in segment])


def _file_changes(spool: Spool, log: Log, file: LogFile) -> Changes:
    schema, batches = spool.read_log(file.path)
    changes: Iterable[pa.RecordBatch] = (_within(log.window, schema.table, b) for b in batches)
    mine = [c for c in log.chunks if c.table == file.table]
    if file.incomplete and mine:
        changes = _completed(spool, log, file, schema, list(changes), mine)
    return ((schema, batch) for batch in changes if batch.num_rows)


def _strides(files: Sequence[Changes]) -> Iterator[Stride]:
    """Merge the changes of files that are each in order: deliver up to the order that all have reached, repeat."""
    heads = [(head, rest) for rest in files if (head := next(rest, None)) is not None]
    while heads:
        reach = min(_order(batch, -1) for (_, batch), _ in heads)
        stride, later = [], []
        for (schema, batch), rest in heads:
            size = _count_upto(batch, reach)
            if size:
                stride.append((schema, batch.slice(0, size)))
            head = (schema, batch.slice(size)) if size < batch.num_rows else next(rest, None)
            if head is not None:
                later.append((head, rest))
        heads = later
        yield stride


def _order(batch: pa.RecordBatch, row: int) -> tuple[int, int]:
    return batch.column("_lsn")[row].as_py(), batch.column("_seq")[row].as_py()


def _count_upto(batch: pa.RecordBatch, reach: tuple[int, int]) -> int:
    """How many rows of an ordered batch are at or before an order."""
    lsn, seq = batch.column("_lsn").to_numpy(), batch.column("_seq").to_numpy()
    first, last = np.searchsorted(lsn, reach[0], "left"), np.searchsorted(lsn, reach[0], "right")
    return int(first + np.searchsorted(seq[first:last], reach[1], "right"))


def emitted_rows(spool: Spool, emit: Emit, *, before: bool) -> Changes:
    """The rows of the chunk that no change of the window touches, as `read` events at the window's end."""
    chunk = emit.chunk
    assert chunk.stamp is not None
    schema, keys = spool.read_chunk(chunk.id, chunk.stamp)
    key = pa.schema([schema.arrow.field(k) for k in schema.key])
    rows = pa.Table.from_batches([b.select(schema.key) for b in keys], key)
    keep = survivors(rows, schema.key, _touching(spool, emit.window, schema))
    _, batches = spool.read_chunk(chunk.id, chunk.stamp)
    at, raw = 0, Counter[str]()
    for batch in batches:
        mine = keep.slice(at, batch.num_rows)
        left = batch if mine.true_count == len(mine) else batch.filter(mine)  # a filter would copy it
        at += batch.num_rows
        if some(left):
            raw += counted(left.column(RAW))
        if left.num_rows:
            position = emit.window.start if emit.early else emit.window.end
            yield schema, _read_events(left, position - 1, before=before)
    kept = pc.sum(keep).as_py() or 0
    facts: dict[str, Any] = {"rows": kept, "dropped": rows.num_rows - kept, **({"raw": raw} if raw else {})}
    if kept < rows.num_rows:
        stale = rows.filter(pc.invert(keep)).slice(0, EXAMPLES)
        spool.note(chunk.id, {**facts, "examples": _examples(stale, _touching(spool, emit.window, schema), schema.key)})
    else:
        spool.note(chunk.id, facts)


def _examples(stale: pa.Table, log: Iterable[pa.RecordBatch], key: Sequence[str]) -> list[dict[str, Any]]:
    """For each of these rows, which were dropped, its key and the last change of the window that touched it."""
    causes: dict[tuple[str, ...], dict[str, Any]] = {}
    everything: dict[str, Any] | None = None
    for batch in log:
        truncates = pc.equal(batch.column("_op"), int(Op.truncate))
        touching = pc.or_(truncates, matches(key_columns(batch, key), key_columns(stale, key)))
        for row in batch.filter(touching).to_pylist():
            cause = {"op": Op(row["_op"]).name, "lsn": row["_lsn"], "seq": row["_seq"]}
            if row["_op"] == Op.truncate:
                everything = cause
            else:
                causes[tuple(str(row[k]) for k in key)] = cause
    rows = [tuple(str(row[k]) for k in key) for row in stale.to_pylist()]
    return [{"key": list(row), "by": causes.get(row, everything)} for row in rows]


def stage(source: Source, spool: Spool, chunk: Chunk) -> Staged:
    """Select a chunk onto the spool, unless it is there already. If it cannot be read, stage the reason."""
    staged = spool.staged(chunk.id)
    if staged is not None:
        return staged
    try:
        selected = source.select(chunk.table, chunk.extent, chunk.key)
        read = selected.read
        if selected.schema.promised:
            read = partial(_read_keyed, selected)
        return spool.stage(chunk.id, selected.schema, read)
    except TableUnreadable as error:
        return spool.stage_failed(chunk.id, error.message)
    except DecodeError as error:
        about = {k: v for k, v in set_aside(error, 0, 0.0).to_json().items() if k not in ("position", "at")}
        return spool.stage_failed(chunk.id, error.message, about)


def _read_keyed(selected: Selection, take: Callable[[pa.RecordBatch], None]) -> None:
    selected.read(refusing_nulls(selected.schema, take))


def _within(window: Window, table: TableName, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The changes of the batch that belong to the window. A commit is before its end position, so the transactions that
    end in `(start, end]` are those with `start <= lsn < end`."""
    lsn = batch.column("_lsn")
    bounds, end = pc.min_max(lsn).as_py(), window.end_of(table)
    if bounds["min"] is None or (window.start <= bounds["min"] and bounds["max"] < end):
        return batch
    return batch.filter(pc.and_(pc.greater_equal(lsn, window.start), pc.less(lsn, end)))


def _touching(spool: Spool, window: Window, schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """The window's changes of a table, operation and key only."""
    for file in window.files:
        if file.table == schema.table:
            _, batches = spool.read_log(file.path, ["_op", "_lsn", "_seq", *schema.key])
            for batch in batches:
                yield _within(window, schema.table, batch)


def _completed(
    spool: Spool, log: Log, file: LogFile, schema: TableSchema, changes: Sequence[pa.RecordBatch], chunks: list[Chunk]
) -> Iterator[pa.RecordBatch]:
    """The file's changes, with columns the log left out filled from the table's chunks where that is exact.

    All changes of the window count for this, so the table's other files are read too.
    """
    others = [
        _within(log.window, schema.table, batch)
        for other in log.window.files
        if other.table == file.table and other.path != file.path
        for batch in spool.read_log(other.path, ["_op", "_lsn", "_unchanged", *schema.key])[1]
    ]
    for chunk in chunks:
        assert chunk.stamp is not None
        _, batches = spool.read_chunk(chunk.id, chunk.stamp)
        for rows in batches:
            changes = complete(changes, schema.key, [pa.Table.from_batches([rows])], others)
    yield from changes


def _read_events(rows: pa.RecordBatch, lsn: int, *, before: bool) -> pa.RecordBatch:
    """Chunk rows as change batches."""
    size, raw = rows.num_rows, None
    if RAW in rows.schema.names:
        raw, rows = rows.column(RAW), rows.drop_columns([RAW])
    metadata = {"_op": int(Op.read), "_lsn": lsn, "_seq": DUMP_SEQ}
    arrays = [
        pa.repeat(pa.scalar(metadata[f.name], f.type), size) if f.name in metadata else pa.nulls(size, f.type)
        for f in CHANGE_FIELDS
    ]
    fields = [*CHANGE_FIELDS, *rows.schema]
    arrays += rows.columns
    if before:
        fields.append(pa.field(BEFORE, pa.struct(list(rows.schema))))
        arrays.append(pa.nulls(size, fields[-1].type))
    if raw is not None and raw.null_count < size:
        fields.append(FIELD)
        arrays.append(raw)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
