"""The watermark window. Every decision on what is delivered, and in which order, is made in this file.

The DBLog paper's Algorithm 1, with one watermark at each batch boundary instead of two around each chunk:

    w[i]    is written and read back; batch i ends there                       (paper: steps 1, 2 and 4)
    round i is selected while batch i runs, after w[i] and before w[i+1]       (step 3)
    batch i+1 delivers the log between w[i] and w[i+1], then the rows of
    round i whose keys do not occur in that log                                (steps 5 to 7)

`plan` makes the offset that ends a batch. `survivors` is the anti-join. `complete` takes column values that the log
left out from chunk rows that are dropped. All three are pure functions of what the database and the spool have
returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.boundaries import Boundaries
from dblog.core.dump import Orders, Staged, failed, next_round, ordered, read_again, repaired
from dblog.core.event import RAW, Op
from dblog.core.keys import key_columns, matches
from dblog.core.offset import Chunk, Cursor, Key, Offset, Tally, pinned
from dblog.core.pace import Pace
from dblog.core.raw_values import read, with_raw, written
from dblog.core.schema import TableName
from dblog.errors import WatermarkError


@dataclass(frozen=True)
class Mark:
    """Where a batch ends, and what was observed there."""

    position: int
    token: str | None
    """The watermark written at this position; None for a batch that just ends at some commit."""
    suspects: tuple[int, ...] = ()
    """Transactions shown by the log up to here that a select started now might not see."""
    holes: Mapping[TableName, Sequence[Key] | None] = field(default_factory=dict)
    """Keys of rows that the batch's log leaves incomplete, so that no sink can complete them; None for very many."""
    coordinate: str | None = None
    """The position in terms that another server of the cluster understands."""


def plan(
    start: Offset,
    mark: Mark,
    *,
    staged: Mapping[str, Staged],
    orders: Orders,
    pace: Pace,
    boundaries: Boundaries,
    tally: Sequence[Tally] = (),
) -> Offset:
    """The offset that ends the batch after `start`.

    `staged` has the staged files of the chunks of `start`, `orders` what users want from the dumps, and `tally` what
    the dumps have delivered up to `start`.

    1. `mark` is the high watermark of the round of `start`: its chunks are emitted, each pinned to its staged file.
    2. A chunk without a staged file is read again in a later round: rows delivered twice do no harm, missing rows do.
       A chunk that can never be read ends the dump of its table.
    3. `mark` is also the low watermark of a new round, unless a select might miss what the log has shown (the
       visibility barrier).
    """
    # 1. the round of the start offset ends here
    if start.read and mark.token is None:
        raise WatermarkError("a batch that ends a window must end at a watermark")
    unreadable = {c: reason for c in start.read if c.id in staged and (reason := staged[c.id].failed) is not None}
    emit = tuple(pinned(c, staged[c.id].stamp) for c in start.read if c.id in staged and c not in unreadable)
    # 2. lost chunks go back to their cursors
    lost = [c for c in start.emit if c.id not in staged or staged[c.id].stamp != c.stamp]
    lost += [c for c in start.read if c.id not in staged]
    measured = _measured(emit, staged)
    dumps = tuple(_resized(c, measured.get((c.dump, c.table), ()), pace) for c in start.dumps if c.failed is None)
    dumps = failed(read_again(dumps, lost, pace), unreadable, pace)
    dumps, tables = ordered(repaired(dumps, mark.holes, pace), start.tables, orders, pace)
    # 3. open the next round
    read: tuple[Chunk, ...] = ()
    if mark.token is not None and not mark.suspects:
        read, dumps = next_round(dumps, pace, boundaries, mark.token, orders)
    going = {(d, c.table) for c in (*emit, *read) for d in c.dumps} | {(d, c.table) for c in dumps for d in c.dumps}
    kept = tuple(t for t in tally if (t.dump, t.table) in going)
    taken = orders.taken or start.taken
    return Offset(mark.position, emit, read, dumps, mark.suspects, tables, taken, kept, mark.coordinate)


def _measured(
    emit: Sequence[Chunk], staged: Mapping[str, Staged]
) -> Mapping[tuple[str, TableName], list[tuple[int, float]]]:
    """The rows and seconds of the ranges that were read, by dump and table."""
    found: dict[tuple[str, TableName], list[tuple[int, float]]] = {}
    for chunk in emit:
        if not chunk.extent.keys:
            read = staged[chunk.id]
            found.setdefault((chunk.dump, chunk.table), []).append((read.rows, read.seconds))
    return found


def _resized(cursor: Cursor, measured: Sequence[tuple[int, float]], pace: Pace) -> Cursor:
    if cursor.where is not None:  # the select has read more rows than it returned
        measured = [(cursor.rows, seconds) for _, seconds in measured]
    rows = pace.next_rows(cursor.rows, measured)
    return cursor if rows == cursor.rows else replace(cursor, rows=rows)


def survivors(rows: pa.Table, key: Sequence[str], log: Iterable[pa.RecordBatch]) -> pa.BooleanArray:
    """Which chunk rows are delivered: those whose key no change of the window touches.

    `rows` needs only the key columns. `log` holds the table's change batches of the window, of the same schema.
    Every key a change names counts, the old one of a key update as well as the new one (it is a delete and a create);
    a truncate touches all.
    """
    keys = key_columns(rows, key)
    keep = np.ones(rows.num_rows, np.bool_)
    for batch in log:
        if pc.any(pc.equal(batch.column("_op"), int(Op.truncate))).as_py():
            return pa.array(np.zeros(rows.num_rows, np.bool_))
        touched = matches(keys, key_columns(batch, key))
        keep &= ~touched.to_numpy(zero_copy_only=False)
    return pa.array(keep)


def complete(
    changes: Sequence[pa.RecordBatch],
    key: Sequence[str],
    chunks: Sequence[pa.Table],
    others: Sequence[pa.RecordBatch] = (),
) -> Sequence[pa.RecordBatch]:
    """The changes, with values that the log left out taken from chunk rows of the window.

    A chunk row was read at an unknown moment of the window. So its value is the event's value only if nothing in the
    window changed it: every change of the key is an update, and none of them has the column. In all other cases the log
    has delivered the value or will deliver it, or it is a hole that `plan` repairs. `others` are further changes of the
    window: they are not completed, but they count for this rule.
    """
    rescuable = [_rescuable(changes, key, chunk) for chunk in chunks]
    rows = {_identity(row, key): row for found in rescuable for row in found.to_pylist()}
    if not rows:
        return changes
    left_out = _left_out([*changes, *others], key, pa.concat_tables(rescuable))
    return [_filled(batch, key, rows, left_out) for batch in changes]


_Identity = tuple[str, ...]
_Row = Mapping[str, Any]


def _identity(row: _Row, key: Sequence[str]) -> _Identity:
    """The row's key as text, because a NaN does not equal itself."""
    return tuple(repr(row[k]) for k in key)


def _rescuable(changes: Sequence[pa.RecordBatch], key: Sequence[str], chunk: pa.Table) -> pa.Table:
    """The chunk rows whose key has an incomplete change."""
    found = np.zeros(chunk.num_rows, np.bool_)
    for batch in changes:
        incomplete = batch.filter(pc.is_valid(batch.column("_unchanged")))
        if incomplete.num_rows:
            hit = matches(key_columns(chunk, key), key_columns(incomplete, key))
            found |= hit.to_numpy(zero_copy_only=False)
    return chunk.filter(pa.array(found))


def _left_out(changes: Sequence[pa.RecordBatch], key: Sequence[str], rows: pa.Table) -> dict[_Identity, set[str]]:
    """For the key of each row, the columns that no change of the window has. No column at all if the window creates or
    deletes the row."""
    left_out: dict[_Identity, set[str]] = {}
    for batch in changes:
        about = batch.filter(matches(key_columns(batch, key), key_columns(rows, key)))
        for change in about.select(["_op", "_unchanged", *key]).to_pylist():
            absent = set(change["_unchanged"] or ()) if change["_op"] == Op.update else set()
            k = _identity(change, key)
            left_out[k] = left_out.get(k, absent) & absent
    return left_out


def _filled(
    batch: pa.RecordBatch, key: Sequence[str], rows: Mapping[_Identity, _Row], left_out: Mapping[_Identity, set[str]]
) -> pa.RecordBatch:
    """The batch with the values, and raw values, of the rows filled in. The filled columns are removed from
    `_unchanged`."""
    fills: dict[str, dict[int, Any]] = {}
    incomplete = np.flatnonzero(pc.is_valid(batch.column("_unchanged")).to_numpy(zero_copy_only=False))
    changes = batch.select(["_unchanged", *key]).take(pa.array(incomplete)).to_pylist()
    for i, change in zip(incomplete.tolist(), changes, strict=True):
        k = _identity(change, key)
        rescued = [name for name in change["_unchanged"] if k in rows and name in left_out[k]]
        for name in rescued:
            fills.setdefault(name, {})[i] = rows[k][name]
        if rescued:
            rest = [name for name in change["_unchanged"] if name not in rescued]
            fills.setdefault("_unchanged", {})[i] = rest or None
            raw = {n: text for n, text in read(rows[k].get(RAW)).items() if n in rescued}
            if raw:
                batch = with_raw(batch)
                fills.setdefault(RAW, {})[i] = written({**read(batch.column(RAW)[i].as_py()), **raw})
    for name, values in fills.items():
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, batch.schema.field(at), _replaced(batch.column(at), values))
    return batch


def _replaced(column: pa.Array, values: Mapping[int, Any]) -> pa.Array:
    """The column with the values at the given rows replaced."""
    fresh = pa.array(list(values.values()), column.type)
    index = np.arange(len(column))
    index[list(values)] = len(column) + np.arange(len(values))
    return pa.concat_arrays([column, fresh]).take(pa.array(index))
