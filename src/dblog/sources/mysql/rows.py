"""From row events of one table to a change batch.

A row event has the number of the table's columns, a bitmap of the present columns (two for an update: for the old and
the new row), and then row images up to its end. An image is a bitmap of nulls, then the values, each of fixed width or
with its length before it. The number of images is not in the event.

So the images are found first (`find_changes`): one step finds the next image of all events at once; the last few, long
events are walked one by one. This also counts the changes of each event, which the ordinals of a transaction need. Then
the images are decoded column by column (`table_batch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog.core import event
from dblog.core.arrays import Bytes, Ints, Mask
from dblog.core.event import DUMP_SEQ, Op, change_schema
from dblog.core.promised_keys import null_in_key
from dblog.core.raw_values import alike
from dblog.core.schema import TableSchema
from dblog.errors import DecodeError
from dblog.sources import columns
from dblog.sources.columns import Cells, Nulls, Raw, Rows
from dblog.sources.mysql.codecs import decode
from dblog.sources.mysql.layout import Layout
from dblog.sources.mysql.partial import completed

_BLOCK = 49152
_FEW = 40
"""The number of events below which a loop in Python is faster than a step with arrays."""

_NONE = -1
_OP = np.full(256, _NONE, np.int8)
_OP[[23, 30, 166, 169]] = Op.create
_OP[[24, 31, 167, 170]] = Op.update
_OP[[25, 32, 168, 171]] = Op.delete
"""The operation by type of event: those of MariaDB and MySQL, and MariaDB's compressed ones after decompression."""
_EXTRA = np.isin(np.arange(256), [30, 31, 32, 169, 170, 171])
"""The types of events that begin with a field of extra data."""


@dataclass(frozen=True, eq=False)
class Changes:
    """The changes of some row events, in order, with the starts of their images."""

    layout: Layout
    raw: Raw
    event: Ints
    """The event of each change."""
    op: npt.NDArray[np.int8]
    at: Ints
    """The start of the row's image; for an update, of the new row's."""
    was: Ints
    """The start of the old row's image for an update; otherwise as `at`."""
    ordinal: Ints
    """How many changes of the same event precede each change."""
    counts: Ints
    """The number of changes of each event."""


def find_changes(layout: Layout, raw: Raw, start: Ints, end: Ints, kind: Bytes) -> Changes:
    """The changes of row events, whose bodies are at `start` to `end`; `kind` has their types."""
    raw, start, end, kind = completed(layout, raw, start, end, kind)
    op = _OP[kind]
    if np.any(op == _NONE):
        raise DecodeError(f"an event of table {layout.schema.table} has type {kind[np.argmin(op)]}: not a row event")
    layout, first = _heads(layout, raw, start, end, op, _EXTRA[kind])
    found, images = _images(layout, raw, first, end)
    events = np.repeat(np.arange(len(start)), images)
    update = op == Op.update
    if np.any(images[update] & 1):
        raise DecodeError(f"an update of table {layout.schema.table} in the log has no new row")
    ordinal = np.arange(len(found)) - np.repeat(np.cumsum(images) - images, images)
    paired = update[events]
    new = np.flatnonzero(~paired | (ordinal & 1 == 1))
    event, pair = events[new], paired[new]
    return Changes(
        layout,
        raw,
        event,
        op[event],
        found[new],
        found[new - pair],
        ordinal[new] >> pair,
        images >> update,
    )


def _heads(
    layout: Layout, raw: Raw, start: Ints, end: Ints, op: npt.NDArray[np.int8], extra: Mask
) -> tuple[Layout, Ints]:
    """The layout of the present columns, and the start of the first image of each event."""
    table, width = layout.schema.table, len(layout.widths)
    at = start + 8
    at = at + np.where(extra, raw.le32(at) & np.uint32(0xFFFF), 0)
    head = raw.le32(np.minimum(at, raw.tail))
    count = np.where(head & 0xFF == 252, head >> 8 & 0xFFFF, head & 0xFF)
    if np.any(count != width):
        raise DecodeError(f"a row of table {table} in the log does not have {width} columns")
    at = at + np.where(head & 0xFF == 252, 3, 1)
    pair = op == Op.update
    first = at + (1 + pair) * layout.bitmap
    if np.any(first > end):
        raise DecodeError(f"a row event of table {table} in the log ends within its head")
    maps = np.concatenate([at, at[pair] + layout.bitmap])
    present = raw.data[maps[:, None] + np.arange(layout.bitmap)]
    if not len(maps):
        return layout, first
    missing = ~np.unpackbits(np.bitwise_and.reduce(present), bitorder="little")[:width].astype(np.bool_)
    for index, column in enumerate(layout.kept):
        if missing[column]:
            raise DecodeError(
                f"a change of table {table} in the log lacks column {layout.schema.names[index]!r}",
                hint="set global binlog_row_image = FULL; sessions that are open keep the old setting",
            )
    if not missing.any():
        return layout, first
    if np.any(present != present[0]):
        raise DecodeError(f"some changes of table {table} in the log have fewer columns than others")
    return _only(layout, tuple(np.flatnonzero(~missing).tolist())), first


@lru_cache(maxsize=1000)
def _only(layout: Layout, present: tuple[int, ...]) -> Layout:
    """The layout of images with only some of the columns."""
    return Layout(
        layout.schema,
        tuple(layout.widths[column] for column in present),
        tuple(layout.nullable[column] for column in present),
        tuple(present.index(column) for column in layout.kept),
        tuple(present.index(column) for column in layout.documents if column in present),
    )


def _images(layout: Layout, raw: Raw, at: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The starts of all images, event by event, and the number of images of each event."""
    count = len(at)
    event = np.flatnonzero(at < end)
    at, end = at[event], end[event]
    found, events, ordinals = [], [], []
    step = 0
    while len(event) >= _FEW:
        found.append(at)
        events.append(event)
        ordinals.append(np.full(len(at), step))
        step += 1
        try:
            at = _next(layout, raw, at)
        except IndexError:
            raise _misfit(layout) from None
        more = at < end
        if np.any(at > end):
            raise _misfit(layout)
        at, end, event = at[more], end[more], event[more]
    for number, first, last in zip(event.tolist(), at.tolist(), end.tolist(), strict=True):
        walked = _walk(layout, raw, first, last)
        found.append(np.array(walked, np.int64))
        events.append(np.full(len(walked), number))
        ordinals.append(np.arange(step, step + len(walked)))
    empty = np.empty(0, np.int64)
    event = np.concatenate([empty, *events])
    counts = np.bincount(event, minlength=count)
    ordered = np.empty(len(event), np.int64)
    ordered[(np.cumsum(counts) - counts)[event] + np.concatenate([empty, *ordinals])] = np.concatenate([empty, *found])
    return ordered, counts


def _misfit(layout: Layout) -> DecodeError:
    return DecodeError(f"a row event of table {layout.schema.table} in the log does not end where its last row does")


def _next(layout: Layout, raw: Raw, at: Ints) -> Ints:
    """The ends of the images that start at `at`. Raises IndexError if an end is beyond the buffer."""
    nulls = Nulls(raw, at, layout.bitmap)
    skip = layout.bitmap
    for stride in layout.strides:
        at = at + (skip + stride.fixed)
        for byte, table in stride.nulls:
            if nulls.some[byte]:
                at -= table[nulls.bytes[byte]]
        if stride.prefix:
            size = _length(raw, at, stride.prefix)
            missing = nulls.of(*stride.bit) if stride.bit is not None else None
            if missing is not None:
                size[missing] = -stride.prefix
            at += size
        skip = stride.prefix
    return at


def _length(raw: Raw, at: Ints, prefix: int) -> Ints:
    if prefix == 1:
        return raw.data[at].astype(np.int64)
    if prefix == 2:
        return raw.le16(at).astype(np.int64)
    return (raw.le32(at) & np.uint32((1 << 8 * prefix) - 1)).astype(np.int64)


def _walk(layout: Layout, raw: Raw, at: int, end: int) -> list[int]:
    """The starts of the images of one event."""
    data = raw.data.data
    plans: dict[bytes, list[tuple[int, int]]] = {}
    found = []
    while at < end:
        found.append(at)
        nulls = bytes(data[at : at + layout.bitmap])
        plan = plans.get(nulls)
        if plan is None:
            plan = plans[nulls] = _plan(layout, nulls)
        at += layout.bitmap
        for fixed, prefix in plan:
            at += fixed
            if prefix:
                at += prefix + int.from_bytes(data[at : at + prefix], "little")
    if at != end:
        raise _misfit(layout)
    return found


def _plan(layout: Layout, nulls: bytes) -> list[tuple[int, int]]:
    """For images with these nulls: the bytes up to each length, and the size of that length."""
    plan = []
    fixed = 0
    for stride in layout.strides:
        fixed += stride.fixed - sum(int(table[nulls[byte]]) for byte, table in stride.nulls)
        if stride.bit is None or not nulls[stride.bit[0]] & stride.bit[1]:
            plan.append((fixed, stride.prefix))
            fixed = 0
    return plan


def march(changes: Changes, at: Ints, kept: Sequence[int]) -> Rows:
    """The cells of the columns `kept` (ascending or not) of the images at `at`."""
    layout, raw = changes.layout, changes.raw
    rows = Rows.empty(raw, len(kept), len(at))
    indexes = {column: index for index, column in enumerate(kept)}
    last = max(kept, default=-1)
    nulls, at = Nulls(raw, at, (last >> 3) + 1), at + layout.bitmap
    for column in range(last + 1):
        width = layout.widths[column]
        size: Any = width if width >= 0 else _length(raw, at, -width)
        begin = at if width >= 0 else at - width
        null = nulls.of(column >> 3, 1 << (column & 7)) if layout.nullable[column] else None
        if column in indexes:
            rows.start[indexes[column]] = begin
            rows.length[indexes[column]] = size
            if null is not None:
                rows.length[indexes[column], null] = -1
        after = begin + size
        at = after if null is None else np.where(null, at, after)
    return rows


def table_batch(
    changes: Changes,
    lsn: Ints,
    preceding: Ints,
    txid: Ints,
    committed_at: Ints,
    *,
    before: bool = False,
) -> tuple[pa.RecordBatch, Ints]:
    """The change batch, and the event of each of its rows.

    The arguments by event: position and id of its transaction, the number of changes of the transaction (of all tables)
    before it, and the time of the commit. `_seq` is twice the ordinal of the change in its transaction. An update that
    changes the key becomes a delete and a create, whose `_seq` is one greater.
    """
    cuts = range(0, max(len(changes.at), 1), _BLOCK)
    by_event = (lsn, preceding, txid, committed_at)
    made = [_change_batch(changes, slice(at, at + _BLOCK), *by_event, before=before) for at in cuts]
    if len(made) == 1:
        return made[0]
    whole = pa.Table.from_batches(alike([batch for batch, _ in made])).combine_chunks()
    return whole.to_batches()[0], np.concatenate([event for _, event in made])


def _change_batch(
    changes: Changes, block: slice, lsn: Ints, preceding: Ints, txid: Ints, committed_at: Ints, *, before: bool
) -> tuple[pa.RecordBatch, Ints]:
    layout = changes.layout
    schema = layout.schema
    kind, was = changes.op[block], changes.was[block]
    new = march(changes, changes.at[block], layout.kept)
    updated = np.flatnonzero(kind == Op.update)
    moved = np.zeros(len(kind), np.bool_)
    moved[updated] = _key_differs(changes, was[updated], new, updated)

    # From here on by row of the batch: `source` is the change of each row; `gone` marks deletes of old keys.
    row, op, event, ordinal = new, kind, changes.event[block], changes.ordinal[block]
    source: Any = slice(None)
    gone = np.flatnonzero(moved)
    if gone.size:
        source = np.repeat(np.arange(len(kind)), 1 + moved)
        gone += np.arange(len(gone))
        row, op, event, ordinal = new.take(source), kind[source], event[source], ordinal[source]
        row.put(gone, march(changes, was[moved], layout.kept))
        op[gone], op[gone + 1] = Op.delete, Op.create
    _check_key(schema, row)
    seq = 2 * (preceding[event] + ordinal)
    seq[gone + 1] += 1
    if seq.max(initial=0) >= DUMP_SEQ - 1:
        raise DecodeError("a transaction in the log has more than 2**30 changes")

    fields = change_schema(schema.arrow, before=before)
    meta: tuple[npt.NDArray[Any], ...] = (op, lsn[event], seq.astype(np.int32), txid[event], committed_at[event])
    arrays = [columns.fixed(field.type, values, None) for field, values in zip(fields, meta, strict=False)]
    positions = lsn[event]
    found, old_values = decode(schema, row.cells, log=True, positions=positions), None
    arrays += [row.absent(schema.names), *found.arrays]
    if before:
        known = (kind != Op.create)[source]
        known[gone + 1] = False
        old = march(changes, was, layout.kept).take(source)
        old.length[:, ~known] = -1
        old_values = decode(schema, old.cells, log=True, positions=positions)
        arrays.append(pa.StructArray.from_arrays(old_values.arrays, fields=list(schema.arrow), mask=pa.array(~known)))
    return found.batch(arrays, fields, old_values), event


def _key_differs(changes: Changes, was: Ints, new: Rows, updated: Ints) -> Mask:
    """Which updates change the key."""
    schema, kept = changes.layout.schema, changes.layout.kept
    differs = np.zeros(len(was), np.bool_)
    if not len(was):
        return differs
    indexes = [schema.names.index(name) for name in schema.key]
    old = march(changes, was, [kept[index] for index in indexes])
    for left, index in zip(old.cells, indexes, strict=True):
        right = Cells(new.raw, new.start[index][updated], new.length[index][updated])
        differs |= columns.differ(left, right)
    return differs


def _check_key(schema: TableSchema, rows: Rows) -> None:
    for name in schema.key:
        if np.any(rows.length[schema.names.index(name)] < 0):
            if schema.promised:
                raise null_in_key(schema, name)
            raise DecodeError(f"a change of table {schema.table} in the log lacks its key column {name!r}")


def truncation(
    schema: TableSchema, lsn: int, preceding: int, txid: int, committed_at: int, *, before: bool = False
) -> pa.RecordBatch:
    """The batch of a TRUNCATE: one change without a row. The arguments are those of `table_batch`."""
    return event.truncation(schema.arrow, lsn, 2 * preceding, txid, committed_at, before=before)
