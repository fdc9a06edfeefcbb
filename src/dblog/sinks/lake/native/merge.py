"""The current state of a table: which of its rows a batch replaces, and which rows it adds.

The table has the order `(_lsn, _seq)` of every row, and only a later one replaces a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.keys import key_columns, key_numbers
from dblog.sinks.net_rows import NetRows, Order, after


class Merge:
    """Merges the net effect of a batch with the rows of a table, file by file."""

    def __init__(self, net: NetRows, key: Sequence[str], others: pa.Schema, truncated: Order | None) -> None:
        """`net.rows` have the types of the table. `others` are columns of the table that the batch does not have: a row
        that is replaced keeps them."""
        size = net.rows.num_rows
        rows = net.rows
        for field in others:
            rows = rows.append_column(field, pa.nulls(size, field.type))
        missing = {**net.missing, **{field.name: np.ones(size, np.bool_) for field in others}}
        self._rows = rows
        self._key = key
        self._missing = {name: mask & ~net.whole for name, mask in missing.items()}
        self._truncated = truncated
        self._written = np.ones(size, np.bool_)
        self._deletes = pc.equal(rows["_op"], "delete").to_numpy()
        self._orders = rows.select(["_lsn", "_seq"])
        self._keys = key_columns(rows, key)

    @property
    def columns(self) -> list[str]:
        """The columns that `replaced` needs."""
        return [*self._key, "_lsn", "_seq", *self._missing]

    def replaced(self, old: pa.Table) -> np.ndarray:
        """Which rows of a file are replaced or deleted, as a mask. Takes over the values that they keep."""
        gone = np.zeros(old.num_rows, np.bool_)
        if self._truncated is not None:
            gone = ~after(old, _before(self._truncated)).to_numpy()
        mine, theirs = key_numbers(self._keys, key_columns(old, self._key))
        at = np.full(1 + max(mine.max(initial=-1), theirs.max(initial=-1)), -1, np.int64)
        at[mine] = np.arange(len(mine))
        found = at[theirs]
        matched = np.flatnonzero(found >= 0)
        if not len(matched):
            return gone
        by = found[matched]
        newer = _later(self._orders.take(pa.array(by)), old.select(["_lsn", "_seq"]).take(pa.array(matched)))
        self._written[by[~newer]] = False
        self._keep_values(old, matched[newer & ~gone[matched]], by[newer & ~gone[matched]])
        gone[matched[newer]] = True
        return gone

    def added(self) -> pa.Table:
        """The rows that the table gets, after all files have been seen."""
        return self._rows.filter(pa.array(self._written & ~self._deletes))

    def _keep_values(self, old: pa.Table, matched: np.ndarray, by: np.ndarray) -> None:
        for name, mask in self._missing.items():
            wanted = mask[by]
            if not wanted.any():
                continue
            column = self._rows[name].combine_chunks()
            index = np.arange(len(column))
            index[by[wanted]] = len(column) + np.arange(int(wanted.sum()))
            kept = old[name].combine_chunks().take(pa.array(matched[wanted]))
            values = pa.concat_arrays([column, kept]).take(pa.array(index))
            self._rows = self._rows.set_column(
                self._rows.schema.get_field_index(name), self._rows.schema.field(name), values
            )


def _before(order: Order) -> Order:
    return order[0], order[1] - 1


def _later(rows: pa.Table, others: pa.Table) -> np.ndarray:
    """For each pair of rows, whether the first is later."""
    lsn, seq = rows["_lsn"].to_numpy(), rows["_seq"].to_numpy()
    other_lsn, other_seq = others["_lsn"].to_numpy(), others["_seq"].to_numpy()
    later: np.ndarray = (lsn > other_lsn) | ((lsn == other_lsn) & (seq > other_seq))
    return later
