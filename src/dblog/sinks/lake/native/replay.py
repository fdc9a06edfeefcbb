"""The log of a batch, replayed in its order, to find the rows that foreign keys have changed (`core.cascades`).

The state of the tables concerned is in a temporary database of SQLite, which uses memory as long as there is little of
it, and then a file. It has the columns that decide (the key, and those that foreign keys have or refer to) of the rows
that may be concerned: rows of the batch, and rows of the lake that refer to a value which a parent had. The latter are
read when they are needed. A row that the log has changed by then stays as it is.

All effects at one place in the log are one change of a row: its key's order in the log must grow.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from heapq import merge
from typing import Any

from dblog.core.cascades import CASCADE, ForeignKey
from dblog.errors import SinkError

DEPTH = 100
"""How many foreign keys may set off each other in a row. The source's limit is 15."""
Values = tuple[Any, ...]
Place = tuple[int, int, Any, Any]
"""`_lsn`, `_seq`, `_txid` and `_committed_at` of a parent's change."""


@dataclass
class ReplayTable:
    """A table that cascades may change."""

    columns: tuple[str, ...]
    """The columns that decide: first the key."""
    width: int
    """The number of key columns."""
    foreign: tuple[ForeignKey, ...] = ()
    """The foreign keys that act on it."""
    referring: tuple[ForeignKey, ...] = ()
    """The foreign keys that refer to it, and whose children are replayed."""
    emptied: bool = field(default=False, init=False)
    """Whether a truncate was replayed: no row of the lake counts any more."""
    number: int = field(default=0, init=False)

    def at(self, names: Iterable[str]) -> list[int]:
        return [self.columns.index(name) for name in names]


class Replay:
    """The replay of one batch. `load(table, foreign key, values)` gives the rows of the lake that refer to some values:
    the columns that decide, `_lsn`, `_seq`, and a number by which the caller finds the row. More rows do no harm."""

    def __init__(self, tables: Sequence[ReplayTable], load: Callable[[ForeignKey, set[Values]], Iterable[Values]]):
        self._tables = tables
        self._load = load
        self._of = {key: table for table in tables for key in table.foreign}
        self._known: dict[ForeignKey, set[Values]] = {key: set() for key in self._of}
        self._events: dict[ForeignKey, tuple[int, list[str]]] = {}
        self._touched: dict[tuple[int, Values], bool] = {}
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute("pragma journal_mode = off")
        for number, table in enumerate(tables):
            table.number = number
            names = self._names(table)
            key = ", ".join(names[: table.width])
            listed = ", ".join(names)
            self._db.execute(f"create table t{number} ({listed}, lsn, seq, row, gone, primary key ({key}))")
            self._db.execute(f"create table i{number} (lsn, seq, op, {listed}, row)")
            self._db.execute(f"create table o{number} (lsn, seq, txid, at, op, {listed}, row)")
            for n, foreign in enumerate(table.foreign):
                columns = ", ".join(f"c{at}" for at in table.at(foreign.columns))
                self._db.execute(f"create index x{number}_{n} on t{number} ({columns})")

    def close(self) -> None:
        self._db.close()

    # -- what happened ---------------------------------------------------------------------------------------------

    def add_rows(self, table: ReplayTable, rows: Iterable[Values]) -> None:
        """Add changes and dump rows of the batch: `_lsn`, `_seq`, `_op`, the columns that decide, and a number."""
        marks = ", ".join("?" * (4 + len(table.columns)))
        self._db.executemany(f"insert into i{table.number} values ({marks})", rows)

    def add_events(self, key: ForeignKey, rows: Iterable[Values]) -> None:
        """Add cascade events: `_lsn`, `_seq`, `_txid`, `_committed_at`, `deleted`, old values, new values."""
        if key not in self._of:
            return
        width = len(key.columns)
        names = [f"o{n}" for n in range(width)] + [f"n{n}" for n in range(width)]
        if key not in self._events:
            self._events[key] = len(self._events), names[:width]
            self._db.execute(f"create table e{self._events[key][0]} (lsn, seq, txid, at, gone, {', '.join(names)})")
        marks = ", ".join("?" * (5 + 2 * width))
        self._db.executemany(f"insert into e{self._events[key][0]} values ({marks})", rows)

    # -- the replay ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Replay the batch."""
        self._prefetch()
        place: Place | None = None
        for lsn, seq, event, key, *rest in merge(*self._streams(), key=lambda item: item[:3]):
            if place is not None and (lsn, seq) != place[:2]:
                self._flush(place)
                place = None
            if not event:
                self._change(self._tables[key], lsn, seq, *rest)
                continue
            txid, at, gone, *values = rest
            place = lsn, seq, txid, at
            width = len(values) // 2
            self._act(key, bool(gone), tuple(values[:width]), tuple(values[width:]), place)
        if place is not None:
            self._flush(place)

    def changes(self, table: ReplayTable) -> Iterator[Values]:
        """The changes that foreign keys made, in order: `_lsn`, `_seq`, `_txid`, `_committed_at`, `_op`, the columns
        that decide, and the number of the row whose other columns a created row has."""
        yield from self._db.execute(f"select * from o{table.number} order by rowid")

    def _streams(self) -> Iterator[Iterator[Any]]:
        for table in self._tables:
            yield self._stream(f"i{table.number}", False, table.number)
        for key, (number, _) in self._events.items():
            yield self._stream(f"e{number}", True, key)

    def _stream(self, name: str, event: bool, about: int | ForeignKey) -> Iterator[Any]:
        """The changes of a table or the events of a foreign key, in order."""
        for lsn, seq, *rest in self._db.execute(f"select * from {name} order by lsn, seq, rowid"):
            yield (lsn, seq, event, about, *rest)

    def _prefetch(self) -> None:
        """Read rows of the lake for many values at a time: those that may be needed, level by level."""
        wanted: dict[ForeignKey, set[Values]] = {}
        for key, (number, names) in self._events.items():
            wanted[key] = set(self._db.execute(f"select {', '.join(names)} from e{number}"))
        while wanted := {key: new for key, values in wanted.items() if (new := values - self._known[key])}:
            following: dict[ForeignKey, set[Values]] = {}
            for key, values in wanted.items():
                table = self._of[key]
                self._fetch(key, values)
                for other in table.referring:
                    following.setdefault(other, set()).update(self._referenced(table, key, other, values))
            wanted = following

    def _referenced(self, table: ReplayTable, key: ForeignKey, other: ForeignKey, values: set[Values]) -> set[Values]:
        """What rows that refer to some values have in the columns that another foreign key refers to."""
        own, width = [*table.at(key.columns), *table.at(other.referenced)], len(key.columns)
        columns = ", ".join(f"c{at}" for at in own)
        both = f"select {columns} from t{table.number} union select {columns} from i{table.number}"
        return {row[width:] for row in self._db.execute(both) if row[:width] in values and None not in row[width:]}

    def _fetch(self, key: ForeignKey, values: set[Values]) -> None:
        table = self._of[key]
        self._known[key] |= values
        if not table.emptied:
            marks = ", ".join("?" * (3 + len(table.columns)))
            self._db.executemany(f"insert or ignore into t{table.number} values ({marks}, 0)", self._load(key, values))

    def _change(self, table: ReplayTable, lsn: int, seq: int, op: str, *row: Any) -> None:
        if op == "truncate":
            self._db.execute(f"delete from t{table.number}")
            table.emptied = True
            return
        known = self._found(table, row[: table.width])
        if known is not None and (known[-4], known[-3]) >= (lsn, seq):
            return
        self._put(table, row[:-1], lsn, seq, row[-1], gone=op == "delete")

    def _act(self, key: ForeignKey, gone: bool, old: Values, new: Values, place: Place, depth: int = 0) -> None:
        """Apply a foreign key to the rows that refer to the old values."""
        action = key.action(deleted=gone)
        if not action or None in old or key not in self._of:
            return
        if depth > DEPTH:
            raise SinkError(f"the foreign key {key.name} sets off others without an end")
        if old not in self._known[key]:
            self._fetch(key, {old})
        table = self._of[key]
        mine = table.at(key.columns)
        where = " and ".join(f"c{at} = ?" for at in mine)
        found = self._db.execute(f"select * from t{table.number} where {where} and not gone", old).fetchall()
        removes = gone and action == CASCADE
        given = new if action == CASCADE and not gone else (None,) * len(old)
        after: list[tuple[Values, Values | None]] = []
        for *values, _, _, number, _ in found:
            row, now = tuple(values), list(values)
            for at, value in zip(mine, given, strict=True):
                now[at] = value
            after.append((row, None if removes else tuple(now)))
            if removes or row[: table.width] != tuple(now[: table.width]):
                self._put(table, row, *place[:2], None, gone=True)
                self._touch(table, row)
            if not removes:
                self._move(table, row, tuple(now), place, number)
        for row, left in after:
            for other in table.referring:
                self._set_off(table, other, row, left, place, depth + 1)

    def _move(self, table: ReplayTable, row: Values, now: Values, place: Place, number: int | None) -> None:
        """Give a row other values, and with them perhaps another key."""
        created = row[: table.width] != now[: table.width]
        if created:
            there = self._found(table, now[: table.width])
            if there is not None and not there[-1]:
                return  # a dump has read it after the cascade
        self._put(table, now, *place[:2], number, gone=False)
        self._touch(table, now, created=created)

    def _set_off(
        self, table: ReplayTable, key: ForeignKey, row: Values, left: Values | None, place: Place, depth: int
    ) -> None:
        """Apply a foreign key that refers to a row which was deleted (`left` is None) or changed."""
        at = table.at(key.referenced)
        old = tuple(row[n] for n in at)
        new = (None,) * len(old) if left is None else tuple(left[n] for n in at)
        if left is None or new != old:
            self._act(key, left is None, old, new, place, depth)

    # -- the state -------------------------------------------------------------------------------------------------

    def _names(self, table: ReplayTable) -> list[str]:
        return [f"c{n}" for n in range(len(table.columns))]

    def _found(self, table: ReplayTable, key: Values) -> Any:
        where = " and ".join(f"c{n} = ?" for n in range(table.width))
        with closing(self._db.execute(f"select * from t{table.number} where {where}", key)) as found:
            return found.fetchone()

    def _put(self, table: ReplayTable, row: Sequence[Any], lsn: int, seq: int, number: Any, *, gone: bool) -> None:
        marks = ", ".join("?" * (4 + len(row)))
        self._db.execute(
            f"insert or replace into t{table.number} values ({marks})", (*row, lsn, seq, number, int(gone))
        )

    def _touch(self, table: ReplayTable, row: Values, *, created: bool = False) -> None:
        at = table.number, tuple(row[: table.width])
        self._touched[at] = self._touched.get(at, False) or created

    def _flush(self, place: Place) -> None:
        """Write the changes at one place."""
        for (number, key), created in self._touched.items():
            table = self._tables[number]
            *row, _, _, held, gone = self._found(table, key)
            op = "delete" if gone else "create" if created else "update"
            marks = ", ".join("?" * (6 + len(table.columns)))
            self._db.execute(f"insert into o{number} values ({marks})", (*place, op, *row, held))
        self._touched.clear()
