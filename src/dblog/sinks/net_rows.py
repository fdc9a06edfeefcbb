"""The net effect of a batch in Arrow: one row per key, no matter how many changes the key has.

The same rule as `dblog.sinks.net_effect`, which has it for Spark's DataFrames: the net effect is the key's last change.
If that change lacks a column, the column gets the value of the last change of the batch that has it, unless the row was
deleted or created in between. If no change of the batch has it, the target keeps its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import RAW
from dblog.core.keys import key_columns, key_numbers
from dblog.core.raw_values import FIELD, by_row, raw_column, some, texts_of, with_raw
from dblog.core.schema import TableSchema

Order = tuple[int, int]
"""`(_lsn, _seq)`."""


@dataclass(frozen=True)
class NetRows:
    """One row per key."""

    rows: pa.Table
    """The table's columns, `_op`, `_lsn` and `_seq`; also `_raw_values` if a row has some."""
    missing: dict[str, np.ndarray]
    """By column, the rows (a mask) whose value the batch does not have. Columns without such rows are left out."""
    whole: np.ndarray
    """The rows (a mask) that were created in this batch: the target's old values of the key do not count."""

    @staticmethod
    def joined(parts: Sequence[NetRows]) -> NetRows:
        """The rows of several net effects that have no key in common."""
        if len(parts) == 1:
            return parts[0]
        names = {name for part in parts for name in part.missing}
        return NetRows(
            pa.concat_tables([p.rows for p in parts], promote_options="default"),
            {n: np.concatenate([p.missing.get(n, np.zeros(len(p.whole), np.bool_)) for p in parts]) for n in names},
            np.concatenate([p.whole for p in parts]),
        )


def net_changes(batches: Iterable[pa.RecordBatch], schema: TableSchema, truncated: Order | None) -> NetRows:
    """The net effect of changes, which come in order. Changes up to the last truncate do not count."""
    changes = _table(batches, schema)
    counted = pc.not_equal(changes["_op"], "truncate")
    if truncated is not None:
        counted = pc.and_(counted, after(changes, truncated))
    if not pc.all(counted).as_py():
        changes = changes.filter(counted)
    (keys,) = key_numbers(key_columns(changes, schema.key))
    size = int(keys.max(initial=-1)) + 1
    last = _last_of(keys, np.arange(len(keys)), size)
    kept = np.sort(last)
    starts = pc.is_in(changes["_op"], value_set=pa.array(["create", "delete"])).to_numpy()
    begun = _last_of(keys, np.flatnonzero(starts), size)
    rows = changes.take(pa.array(kept))
    missing: dict[str, np.ndarray] = {}
    lists = unchanged_of(changes)
    for name in [n for n in schema.names if n not in schema.key and n in lists]:
        has = ~lists[name]
        lacks = lists[name][kept]
        if not lacks.any():
            continue
        known = _last_of(keys, np.flatnonzero(has), size)[keys[kept]]
        held = lacks & (known >= 0) & (known >= begun[keys[kept]])
        values = changes[name].combine_chunks().take(pa.array(np.where(held, known, kept)))
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)
        if some(changes):
            rows = _with_held(rows, name, held, known, changes)
        if (lacks & ~held).any():
            missing[name] = lacks & ~held
    return NetRows(rows.select(_kept(rows, schema)), missing, begun[keys[kept]] >= 0)


def _with_held(rows: pa.Table, name: str, held: np.ndarray, known: np.ndarray, changes: pa.Table) -> pa.Table:
    """The rows with the raw values of a column from the changes that have its values."""
    raw, theirs = by_row(rows[RAW]), texts_of(changes[RAW], name)
    for row in np.flatnonzero(held).tolist():
        if (text := theirs.get(int(known[row]))) is not None:
            raw.setdefault(row, {})[name] = text
    return rows.set_column(rows.schema.get_field_index(RAW), FIELD, raw_column(rows.num_rows, raw))


def net_dump_rows(batches: Iterable[pa.RecordBatch], schema: TableSchema, *, overlapping: bool) -> NetRows:
    """Rows of dumps. If they overlap, a row that occurs twice is kept once: both are in the same state."""
    rows = _table(batches, schema)
    if overlapping:
        (keys,) = key_numbers(key_columns(rows, schema.key))
        rows = rows.take(pa.array(np.unique(keys, return_index=True)[1]))
    lists = unchanged_of(rows)
    missing = {n: lists[n] for n in schema.names if n in lists and lists[n].any()}
    return NetRows(rows.select(_kept(rows, schema)), missing, np.zeros(rows.num_rows, np.bool_))


def after(rows: pa.Table, order: Order) -> pa.ChunkedArray:
    """Which rows are later than an order."""
    lsn, seq = order
    same = pc.and_(pc.equal(rows["_lsn"], lsn), pc.greater(rows["_seq"], seq))
    return pc.or_(pc.greater(rows["_lsn"], lsn), same)


def _table(batches: Iterable[pa.RecordBatch], schema: TableSchema) -> pa.Table:
    batches = list(batches)
    wanted = [*_columns(schema), "_unchanged"]
    if any(map(some, batches)):
        wanted, batches = [*wanted, RAW], [with_raw(batch) for batch in batches]
    return pa.Table.from_batches([batch.select(wanted) for batch in batches]).combine_chunks()


def _kept(rows: pa.Table, schema: TableSchema) -> list[str]:
    return [*_columns(schema), RAW] if some(rows) else _columns(schema)


def _columns(schema: TableSchema) -> list[str]:
    return [*schema.names, "_op", "_lsn", "_seq"]


def _last_of(keys: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """For each key the greatest of these rows that has it; -1 without one. `rows` ascend."""
    found = np.full(size, -1, np.int64)
    found[keys[rows]] = rows  # of several values for one element the last is assigned
    return found


def unchanged_of(rows: pa.Table) -> dict[str, np.ndarray]:
    """By column, the rows (a mask) that name it in `_unchanged`."""
    lists = rows["_unchanged"].combine_chunks()
    if lists.null_count == len(lists):
        return {}
    parents = pc.list_parent_indices(lists).to_numpy()
    names = pc.list_flatten(lists)
    found = {}
    for name in names.unique().to_pylist():
        found[name] = np.zeros(len(lists), np.bool_)
        found[name][parents[pc.equal(names, name).to_numpy(zero_copy_only=False)]] = True
    return found
