"""The history of a table (SCD type 2) in Arrow: the versions that a batch closes and opens.

The rules are those of `dblog.sinks.lake.history`, which has them for Spark's DataFrames. Times are microseconds since
1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import UTC_MICROS
from dblog.core.keys import key_columns, key_numbers
from dblog.sinks.net_rows import unchanged_of

Truncate = tuple[int, int, int]
"""A truncate: its `_lsn`, its `_seq`, and its time."""
FACTS = ("_op", "_lsn", "_seq", "_committed_at", "_unchanged")
"""The metadata that decide on versions."""
TIMES = ("valid_from", "valid_to")
NEVER = np.iinfo(np.int64).max


class Versions:
    """The versions of a batch's keys: those that are open in the table, and those that the batch opens."""

    def __init__(
        self,
        tables: Iterable[pa.Table],
        target: pa.Schema,
        key: Sequence[str],
        now: int,
        *,
        overlapping: bool = False,
    ) -> None:
        """`tables` have the changes and the dump rows, with the columns that are written and `FACTS`. `target` has the
        columns of the table. If dump rows are `overlapping`, a row may occur twice, in the same state."""
        facts = pa.concat_tables(tables).combine_chunks()
        truncates = facts.filter(pc.equal(facts["_op"], "truncate"))
        times = pc.fill_null(truncates["_committed_at"].cast(pa.int64()), now)
        self.truncates: list[Truncate] = sorted(
            zip(truncates["_lsn"].to_pylist(), truncates["_seq"].to_pylist(), times.to_pylist(), strict=True)
        )
        self._facts = facts.filter(pc.not_equal(facts["_op"], "truncate"))
        if overlapping:
            keys, lsn, seq = (
                *key_numbers(key_columns(self._facts, key)),
                self._facts["_lsn"].to_numpy(),
                self._facts["_seq"].to_numpy(),
            )
            once = np.unique(np.stack([keys, lsn, seq], axis=1), axis=0, return_index=True)[1]
            self._facts = self._facts.take(pa.array(np.sort(once)))
        self._names = [name for name in facts.schema.names if name not in FACTS]
        self._target = target
        self._key = list(key)
        self._now = now
        self._open: list[pa.Table] = []
        self._keys = key_columns(self._facts, self._key)

    @property
    def first_keys(self) -> pa.Array:
        """The values of the first key column."""
        return self._keys[0]

    @property
    def columns(self) -> list[str]:
        """The columns by which `closed` finds versions."""
        return [*self._key, "_lsn", "_seq", *TIMES]

    def closed(self, old: pa.Table) -> np.ndarray:
        """Which rows of a file are open versions that the batch may close, as a mask."""
        mine, theirs = key_numbers(self._keys, key_columns(old, self._key))
        found: np.ndarray = np.isin(theirs, mine)
        if self.truncates:
            lsn, seq, _ = self.truncates[0]
            found |= _earlier(old["_lsn"].to_numpy(), old["_seq"].to_numpy(), lsn, seq)
        found &= pc.is_null(old["valid_to"]).to_numpy()
        return found

    def take(self, rows: pa.Table) -> None:
        """Take versions that `closed` has found, with all columns of the table. `result` gives them back, closed or
        not."""
        self._open.append(rows)

    def result(self) -> pa.Table:
        """The rows that the table gets: the versions that were taken, and those that the batch opens."""
        old = pa.concat_tables(self._open) if self._open else self._target.empty_table()
        old = old.combine_chunks()
        return self._opened_and_closed(old) if self._facts.num_rows else self._emptied(old, None)

    def _opened_and_closed(self, old: pa.Table) -> pa.Table:
        facts, keys, had = self._sorted(old)
        at = _times(facts["_committed_at"], self._now)
        since = _times(old["valid_from"], 0)
        at = np.where(had >= 0, np.maximum(at, since[had] if len(since) else 0), at)
        first = np.r_[True, keys[1:] != keys[:-1]][: len(keys)]
        group = np.cumsum(first) - 1
        begins = _running_max(at, group)
        starts = np.flatnonzero(first)[group]
        values = {name: self._carried(facts, name, old, had, starts) for name in self._names}
        told = np.ones(len(keys), np.bool_)
        if not self.truncates:  # after a truncate there is no open version that a dump row could match
            told = ~self._known_already(facts, values, old, had)
        closes = np.full(old.num_rows, NEVER, np.int64)
        lsn, seq = facts["_lsn"].to_numpy(), facts["_seq"].to_numpy()
        new = np.flatnonzero(told)
        new = new[np.r_[True, group[new][1:] != group[new][:-1]][: len(new)]]  # the first one of each key
        closing = new[had[new] >= 0]
        closes[had[closing]] = self._first_end(lsn[closing], seq[closing], begins[closing])
        ends = self._ends(np.flatnonzero(told), group, lsn, seq, begins)
        opens = told & (pc.not_equal(facts["_op"], "delete").to_numpy())
        kept = pa.array(np.flatnonzero(opens))
        made = {name: column.take(kept) for name, column in values.items()}
        made |= {"_lsn": facts["_lsn"].combine_chunks().take(kept), "_seq": facts["_seq"].combine_chunks().take(kept)}
        made["valid_from"] = pa.array(begins[opens]).cast(UTC_MICROS)
        to = np.maximum(ends[opens], begins[opens])
        made["valid_to"] = pa.array(to, mask=ends[opens] == NEVER).cast(UTC_MICROS)
        opened = pa.table([_column(made, field, len(kept)) for field in self._target], schema=self._target)
        return pa.concat_tables([opened, self._emptied(old, closes)])

    def _sorted(self, old: pa.Table) -> tuple[pa.Table, np.ndarray, np.ndarray]:
        """The facts by key and order, without those that the table has already; the numbers of their keys; and for
        each its key's open version in `old`, or -1."""
        mine, theirs = key_numbers(self._keys, key_columns(old, self._key))
        at = np.full(1 + max(mine.max(initial=-1), theirs.max(initial=-1)), -1, np.int64)
        at[theirs] = np.arange(len(theirs))
        had = at[mine]
        lsn, seq = self._facts["_lsn"].to_numpy(), self._facts["_seq"].to_numpy()
        new = np.ones(len(mine), np.bool_)
        found = np.flatnonzero(had >= 0)
        if len(found):
            old_lsn, old_seq = old["_lsn"].to_numpy()[had[found]], old["_seq"].to_numpy()[had[found]]
            new[found] = _earlier(old_lsn, old_seq, lsn[found], seq[found])
        order = np.lexsort((seq, lsn, mine))
        order = order[new[order]]
        return self._facts.take(pa.array(order)).combine_chunks(), mine[order], had[order]

    def _carried(self, facts: pa.Table, name: str, old: pa.Table, had: np.ndarray, starts: np.ndarray) -> pa.Array:
        """A column's values. Where the log has left it out, the value of the version before."""
        column = facts[name].combine_chunks()
        left_out = unchanged_of(facts).get(name)
        if left_out is None:
            return column
        whole = pc.is_in(facts["_op"], value_set=pa.array(["create", "delete"])).to_numpy()
        given = np.where(left_out & ~whole, -1, np.arange(len(column)))
        last = np.maximum.accumulate(given)
        nothing = len(column) + old.num_rows
        before = np.where(had >= 0, len(column) + had, nothing)
        index = np.where(last >= starts, last, before)
        chosen = pa.concat_arrays([column, old[name].combine_chunks(), pa.nulls(1, column.type)])
        return chosen.take(pa.array(index))

    def _known_already(
        self, facts: pa.Table, values: dict[str, pa.Array], old: pa.Table, had: np.ndarray
    ) -> np.ndarray:
        """Which facts are dump rows that show the open version."""
        read: np.ndarray = pc.equal(facts["_op"], "read").to_numpy() & (had >= 0)
        rows = np.flatnonzero(read)
        same = np.ones(len(rows), np.bool_)
        for name, column in values.items():
            if name not in self._key and len(rows):
                theirs = old[name].combine_chunks().take(pa.array(had[rows]))
                mine, other = key_numbers([column.take(pa.array(rows))], [theirs])
                same &= mine == other
        read[rows] = same
        return read

    def _first_end(self, lsn: np.ndarray, seq: np.ndarray, at: np.ndarray) -> np.ndarray:
        """When the open version of a key ends: with the key's first fact, or with a truncate before it."""
        if not self.truncates:
            return at
        first_lsn, first_seq, first_at = self.truncates[0]
        return np.where(_earlier(lsn, seq, first_lsn, first_seq), at, first_at)

    def _ends(
        self, told: np.ndarray, group: np.ndarray, lsn: np.ndarray, seq: np.ndarray, begins: np.ndarray
    ) -> np.ndarray:
        """When the version of each fact ends: with the next fact of its key, or with a truncate before that."""
        ends = np.full(len(group), NEVER, np.int64)
        same = group[told[:-1]] == group[told[1:]]
        followed, after = told[:-1][same], told[1:][same]
        ends[followed] = begins[after]
        end_lsn, end_seq = np.full(len(group), NEVER, np.int64), np.zeros(len(group), np.int64)
        end_lsn[followed], end_seq[followed] = lsn[after], seq[after]
        for cut_lsn, cut_seq, cut_at in reversed(self.truncates):
            cut = _earlier(lsn, seq, cut_lsn, cut_seq) & ~_earlier(end_lsn, end_seq, cut_lsn, cut_seq)
            ends[cut], end_lsn[cut], end_seq[cut] = cut_at, cut_lsn, cut_seq
        return ends

    def _emptied(self, old: pa.Table, closes: np.ndarray | None) -> pa.Table:
        """The versions that were taken, with the times at which they end."""
        closes = np.full(old.num_rows, NEVER, np.int64) if closes is None else closes
        if self.truncates:
            lsn, seq, at = self.truncates[0]
            emptied = _earlier(old["_lsn"].to_numpy(), old["_seq"].to_numpy(), lsn, seq)
            closes = np.where(emptied & (closes == NEVER), at, closes)
        to = np.maximum(closes, _times(old["valid_from"], 0))
        column = pa.array(to, mask=closes == NEVER).cast(UTC_MICROS)
        return old.set_column(old.schema.get_field_index("valid_to"), self._target.field("valid_to"), column)


def _column(made: dict[str, pa.Array], field: pa.Field, size: int) -> pa.Array:
    return made[field.name].cast(field.type) if field.name in made else pa.nulls(size, field.type)


def _times(column: pa.ChunkedArray, absent: int) -> np.ndarray:
    times: np.ndarray = pc.fill_null(column.cast(UTC_MICROS).cast(pa.int64()), absent).to_numpy()
    return times


def _earlier(lsn: np.ndarray, seq: np.ndarray, other_lsn: object, other_seq: object) -> np.ndarray:
    """Whether orders are less than others."""
    earlier: np.ndarray = (lsn < other_lsn) | ((lsn == other_lsn) & (seq < other_seq))
    return earlier


def _running_max(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The greatest value so far, in each group. Groups are numbered in ascending order."""
    distinct, rank = np.unique(values, return_inverse=True)
    base = group * len(distinct)
    found: np.ndarray = distinct[np.maximum.accumulate(base + rank) - base]
    return found
