"""The rows of a batch in the columns of staged rows: the net effect of changes, and rows of dumps.

Changes are reduced to one row per key in windows of a bounded size. The windows of a table are applied in their order,
which gives the same rows as one net effect of all changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import RAW, WHOLE
from dblog.core.raw_values import counted, replaced, some, texts_of
from dblog.core.schema import TableSchema
from dblog.sinks.net_rows import NetRows, Order, net_changes, net_dump_rows, unchanged_of
from dblog.sinks.sql.staged import Kinds
from dblog.sinks.sql.target import GONE, Target

WINDOW_ROWS, WINDOW_BYTES = 100_000, 64 << 20
"""The greatest size of a window, in changes and in bytes, apart from the last batch of rows in it."""
PORTION_BYTES = 32 << 20
"""Rows are sent to the server in portions of at most this many bytes, as long as a row is not larger."""


@dataclass(frozen=True)
class TableShape:
    """What the rows of a table look like on the two sides."""

    schema: TableSchema
    """The columns of the batch's rows."""
    columns: tuple[str, ...]
    """The columns that the target has, with `_deleted` if deletes are soft."""
    soft: bool
    truncated: Order | None
    """The last truncate in the batch: changes up to it do not count."""
    exact: Target | None = None
    """The target, if it is of the source's family and can store raw values (`core.raw_values`)."""


def change_windows(batches: Iterable[pa.RecordBatch], shape: TableShape) -> Iterator[tuple[pa.Table, Kinds]]:
    """The net effects of changes, which come in order: a window with each, to be applied in this order."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(b.num_rows for b in held) >= WINDOW_ROWS or sum(b.nbytes for b in held) >= WINDOW_BYTES:
            yield from _window(held, shape)
            held = []
    if held:
        yield from _window(held, shape)


def _window(batches: list[pa.RecordBatch], shape: TableShape) -> Iterator[tuple[pa.Table, Kinds]]:
    net = net_changes(batches, shape.schema, shape.truncated)
    if net.rows.num_rows:
        yield staged_rows(net, shape)


def dump_windows(batches: Iterable[pa.RecordBatch], shape: TableShape) -> Iterator[tuple[pa.Table, Kinds]]:
    """Rows of dumps, batch by batch."""
    for batch in batches:
        if batch.num_rows:
            yield staged_rows(net_dump_rows([batch], shape.schema, overlapping=False), shape)


def spark_windows(batches: Iterable[pa.RecordBatch], shape: TableShape) -> Iterator[tuple[pa.Table, Kinds]]:
    """Rows of a net effect that Spark has computed (`dblog.sinks.net_effect`), batch by batch."""
    kinds = {field.name: field.type for field in shape.schema.arrow}
    for batch in batches:
        if batch.num_rows:
            columns = {n: c.cast(kinds.get(n, c.type)) for n, c in zip(batch.schema.names, batch.columns, strict=True)}
            rows = pa.table(columns)
            whole = np.asarray(rows[WHOLE].fill_null(False))
            yield staged_rows(NetRows(rows, unchanged_of(rows), whole), shape)


def staged_rows(net: NetRows, shape: TableShape) -> tuple[pa.Table, Kinds]:
    """The rows with the columns of staged rows, without those that no statement needs. A soft delete is a row with only
    its key."""
    deleted = pc.equal(net.rows["_op"], "delete").combine_chunks()
    gone = deleted.to_numpy(zero_copy_only=False)
    missing, whole = dict(net.missing), net.whole
    if shape.soft and gone.any():
        rest = [n for n in shape.schema.names if n not in shape.schema.key]
        missing = {n: missing[n] | gone if n in missing else gone for n in rest}
        whole = whole & ~gone
    columns = {name: deleted if name == GONE else net.rows[name] for name in shape.columns}
    if shape.exact is not None and some(net.rows):
        columns |= _raw_columns(columns, net.rows[RAW], shape.exact, shape.schema)
    columns |= {"_lsn": net.rows["_lsn"], "_seq": net.rows["_seq"]}
    if gone.any():
        columns["_gone"] = deleted
    if missing:
        columns |= {"_unchanged": _lists(missing), "_whole": pa.array(whole)}
    last = pc.max(net.rows["_lsn"].filter(deleted)).as_py() if gone.any() else -1
    return pa.table(columns), Kinds(bool(gone.any()), not gone.all(), bool(missing), last)


def _raw_columns(
    columns: Mapping[str, pa.ChunkedArray], raw: pa.ChunkedArray, target: Target, schema: TableSchema
) -> dict[str, pa.Array]:
    """The columns with raw values, as texts that the target reads."""
    found = {}
    for name in set(columns) & set(counted(raw)):
        # Bytes that are not text are written as \\x and digits. The target could not store them either.
        kind, given = schema.column(name).type, texts_of(raw, name)
        texts = {row: target.raw_text(kind, text) for row, text in given.items() if not text.startswith("\\x")}
        column = columns[name].combine_chunks()
        found[name] = replaced(target.input_texts(name, column), texts) if texts else column
    return found


def _lists(missing: Mapping[str, np.ndarray]) -> pa.DictionaryArray:
    """For each row the names of its missing columns; null without any. Few different lists occur."""
    names = list(missing)
    masks = np.packbits(np.stack([missing[n] for n in names], axis=1), axis=1)
    found, rows = np.unique(masks, axis=0, return_inverse=True)
    bits = np.unpackbits(found, axis=1, count=len(names)).astype(bool)
    lists = [[n for n, there in zip(names, mask, strict=True) if there] for mask in bits]
    empty = np.asarray(~bits.any(axis=1))
    indices = pa.array(rows.reshape(-1), pa.int32(), mask=empty[rows.reshape(-1)])
    return pa.DictionaryArray.from_arrays(indices, pa.array(lists, pa.list_(pa.string())))


def portions(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows in portions of a good size for the server."""
    step = max(1, min(32_768, PORTION_BYTES * rows.num_rows // max(rows.nbytes, 1)))
    for at in range(0, rows.num_rows, step):
        yield rows.slice(at, step).combine_chunks().to_batches()[0]
