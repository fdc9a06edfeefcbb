"""A simulated database: rows, transactions, a log, and a gap between the two.

What it copies from PostgreSQL, because the algorithm depends on it:

* a commit record enters the log first; the transaction becomes visible to selects some steps later
* a transaction locks the keys it touches until it is visible, so the log orders all changes of a key
* an update leaves a large value it did not touch out of the log; a key update is a delete and a create
* a truncate locks its table until it is visible, so that no select runs meanwhile

Every version of a row has a number that only grows, kept in its column `v`: it tells at which time a key had it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from dblog.core.dump import NO_ROWS
from dblog.core.event import Op
from dblog.core.offset import Extent, Key
from dblog.core.schema import Column, TableName, TableSchema


class Violation(AssertionError):
    """The algorithm, or the world around it, broke a promise."""


ITEMS = TableSchema(
    TableName("public", "items"),
    (Column("id", "bigint", pa.int64()), Column("v", "bigint", pa.int64()), Column("doc", "text", pa.string())),
    ("id",),
)
PARTS = TableSchema(
    TableName("public", "parts"),
    (
        Column("area", "text", pa.string()),
        Column("n", "bigint", pa.int64()),
        Column("v", "bigint", pa.int64()),
        Column("doc", "text", pa.string()),
    ),
    ("area", "n"),
)
TABLES = {s.table: s for s in (ITEMS, PARTS)}

Id = tuple[Any, ...]
"""A key as typed values."""

KEYS: dict[TableName, tuple[Id, ...]] = {
    ITEMS.table: tuple((n,) for n in range(1, 7)),
    PARTS.table: tuple((area, n) for area in "ab" for n in (9, 10)),
}

BAD = "bad"
"""How a document begins that cannot be delivered."""
LEFT_OUT = "<left out>"
"""The log does not carry the value of `doc`."""


class Row(NamedTuple):
    v: int
    doc: str | None


class Change(NamedTuple):
    """One event of the log. `v` numbers the version it makes; a delete makes one too."""

    table: TableName
    op: Op
    seq: int
    id: Id | None
    v: int
    doc: str | None = None
    lsn: int = 0
    moved: bool = False
    """The delete of a key update."""


class Entry(NamedTuple):
    """A transaction in the log: its commit record, and the position behind it."""

    lsn: int
    end: int
    xid: int
    changes: tuple[Change, ...]
    token: str | None = None
    """The watermark that the transaction wrote."""


class Published(NamedTuple):
    """Since when the log has the changes of a table; those of transactions that were running then are never in it."""

    position: int
    running: frozenset[int]


@dataclass
class Transaction:
    xid: int
    changes: list[Change] = field(default_factory=list)
    rows: dict[tuple[TableName, Id], Row | None] = field(default_factory=dict)
    locks: set[tuple[TableName, Id]] = field(default_factory=set)
    truncates: TableName | None = None
    age: int = 0
    committed: bool = False
    delay: int = 0
    """Steps from the commit record to visibility."""
    stays: int = 0
    """Steps before it commits or rolls back, at least."""

    def __str__(self) -> str:
        late = f", visible {self.delay} steps later" if self.delay else ""
        return f"xid {self.xid}{late}: {' '.join(map(_shown, self.changes))}"


class Database:
    def __init__(
        self, rng: Random, *, slow: float = 0.3, truncate: float = 0.02, long: float = 0.1, bad: float = 0.0
    ) -> None:
        self.rng = rng
        self.slow, self.truncate, self.long, self.bad = slow, truncate, long, bad
        self.rows: dict[TableName, dict[Id, Row]] = {t: {} for t in TABLES}
        """What a select sees now."""
        self.log: list[Entry] = []
        self.ends: list[int] = []
        self.forgotten = 0
        self.published: dict[TableName, Published] = {}
        self.made: dict[tuple[int, int], int] = {}
        """The version that each change of the log made, by `(lsn, seq)`."""
        self.versions: dict[tuple[TableName, Id], dict[int, str | None]] = {}
        """Of each key, the versions it has ever had and their documents."""
        self._open: dict[int, Transaction] = {}
        self._locked: dict[tuple[TableName, Id], int] = {}
        self._closed: dict[TableName, int] = {}
        self._xid, self._v, self.end = 100, 0, 1000
        for table, keys in KEYS.items():
            for key in keys:
                if rng.random() < 0.6:
                    self.rows[table][key] = self._version(table, key, self._document())

    # what the algorithm asks

    def last_key(self, table: TableName) -> Key | None:
        self.wait(table)
        return text(max(self.rows[table])) if self.rows[table] else None

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        self.wait(table)
        keys = [k for k in sorted(self.rows[table]) if within(table, k, Extent(after, upto))]
        found: list[Key] = []
        for at in range(rows - 1, rows * count, rows):
            if at >= len(keys) - 1:
                return [*found, upto]
            found.append(text(keys[at]))
        return found

    def select(self, table: TableName, extent: Extent) -> dict[Id, Row]:
        """One statement, so one snapshot."""
        self.wait(table)
        return {k: row for k, row in self.rows[table].items() if within(table, k, extent)}

    def watermark(self, token: str) -> int:
        """Written, committed and visible at once; the position behind it."""
        self._xid += 1
        return self._append(self._xid, (), token).end

    def publish(self, table: TableName) -> Published:
        """From now on the log has the table's changes."""
        if table not in self.published:
            self.published[table] = Published(self.end, frozenset(self._open))
        return self.published[table]

    def decoded(self, entry: Entry) -> list[Change]:
        """What the log shows of a transaction."""
        found = []
        for change in entry.changes:
            since = self.published.get(change.table)
            if since is not None and entry.lsn >= since.position and entry.xid not in since.running:
                found.append(change)
        return found

    def read(self, after: int, upto: int) -> list[Entry]:
        if after < self.forgotten:
            raise Violation(f"the log after {after} was read again, but acknowledged up to {self.forgotten}")
        return self.log[bisect_right(self.ends, after) : bisect_right(self.ends, upto)]

    def acknowledge(self, position: int) -> None:
        self.forgotten = max(self.forgotten, position)

    def invisible(self, xids: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(x for x in xids if x in self._open))

    def in_progress(self) -> tuple[int, ...]:
        return tuple(self._open)

    # what the writers do

    def step(self, *, begin: bool = True) -> tuple[str, Transaction] | None:
        """Some writer takes a step; what it did."""
        for tx in list(self._open.values()):
            tx.age += 1
            if tx.committed and tx.age > tx.delay:
                self._show(tx)
        waiting = [tx for tx in self._open.values() if not tx.committed and (tx.age > tx.stays or not begin)]
        if begin and len(self._open) < 5 and (not waiting or self.rng.random() < 0.5):
            tx = self._begin()
            return tx and ("begins", tx)
        if waiting:
            tx = self.rng.choice(waiting)
            if self.rng.random() < 0.05:
                self._forget(tx)
                return "rolls back", tx
            self._commit(tx)
            return "commits", tx
        return None

    def settle(self) -> None:
        """Every writer finishes, and all becomes visible."""
        while self._open:
            self.step(begin=False)

    def tick(self) -> None:
        """A transaction of tables that nobody follows."""
        self._xid += 1
        self._append(self._xid, ())

    def mend(self) -> None:
        """Somebody replaces all documents that cannot be delivered. No other writer is there."""
        self._xid += 1
        self.bad, tx = 0.0, Transaction(self._xid)
        self._open[tx.xid] = tx
        for table, rows in self.rows.items():
            for key in [k for k, row in rows.items() if is_bad(row.doc)]:
                self._put(tx, table, key, Op.update, f"mended{self._v + 1}")
        self._commit(tx)
        self.settle()

    def wait(self, table: TableName) -> None:
        """A truncate holds the table: whoever wants to read it waits."""
        while table in self._closed:
            tx = self._open[self._closed[table]]
            if not tx.committed:
                self._commit(tx)
            if tx.xid in self._open:
                self._show(tx)

    def _begin(self) -> Transaction | None:
        self._xid += 1
        tx = Transaction(self._xid)
        if self.rng.random() < self.long and not any(other.stays for other in self._open.values()):
            tx.stays = self.rng.choice((10, 40, 100, 300))
        if self.rng.random() < self.truncate:
            self._truncate(tx, self.rng.choice(list(TABLES)))
        else:
            for _ in range(2 if tx.stays else self.rng.choice((1, 1, 1, 2, 3))):
                self._change(tx)
        if not tx.changes:
            self._unlock(tx)
            return None
        self._open[tx.xid] = tx
        return tx

    def _truncate(self, tx: Transaction, table: TableName) -> None:
        if table in self._closed or any(t == table for t, _ in self._locked):
            return
        tx.truncates = table
        self._closed[table] = tx.xid
        self._record(tx, Change(table, Op.truncate, 0, None, self._next_v()))
        for key in self.rows[table]:
            tx.rows[table, key] = None
        if self.rng.random() < 0.5:
            self._put(tx, table, self.rng.choice(KEYS[table]), Op.create, self._document())

    def _change(self, tx: Transaction) -> None:
        rng = self.rng
        table = rng.choice((ITEMS.table, ITEMS.table, PARTS.table))
        keys = [k for k in KEYS[table] if self._locked.get((table, k), tx.xid) == tx.xid]
        if table in self._closed or not keys:
            return
        state = {k: self._current(tx, table, k) for k in keys}
        here = [k for k in keys if state[k] is not None]
        free = [k for k in keys if state[k] is None]
        what = rng.random()
        if what < 0.2 or not here:
            if free:
                self._put(tx, table, rng.choice(free), Op.create, self._document())
            return
        key = rng.choice(here)
        row = state[key]
        assert row is not None
        if what < 0.35:
            self._put(tx, table, key, Op.update, self._document())
        elif what < 0.6:
            self._put(tx, table, key, Op.update, row.doc, left_out=self._toasted(row))
        elif what < 0.7:
            self._delete(tx, table, key)
        elif what < 0.78:
            self._delete(tx, table, key)
            self._put(tx, table, key, Op.create, self._document())
        elif what < 0.94:
            if free:
                self._move(tx, table, key, rng.choice(free))
        elif len(here) > 1 and free:
            other, spare = rng.choice([k for k in here if k != key]), rng.choice(free)
            self._move(tx, table, key, spare)
            self._move(tx, table, other, key)
            self._move(tx, table, spare, other)

    def _move(self, tx: Transaction, table: TableName, old: Id, new: Id) -> None:
        row = self._current(tx, table, old)
        assert row is not None
        fresh = self.rng.random() < 0.2
        left_out = not fresh and self._toasted(row)
        self._delete(tx, table, old, moved=True)
        doc = self._document() if fresh else row.doc
        self._put(tx, table, new, Op.create, doc, left_out=left_out, seq=tx.changes[-1].seq + 1)

    def _put(
        self,
        tx: Transaction,
        table: TableName,
        key: Id,
        op: Op,
        doc: str | None,
        *,
        left_out: bool = False,
        seq: int = -1,
    ) -> None:
        row = self._version(table, key, doc)
        tx.rows[table, key] = row
        shown = LEFT_OUT if left_out else doc
        self._record(tx, Change(table, op, seq if seq >= 0 else _next_seq(tx), key, row.v, shown))

    def _delete(self, tx: Transaction, table: TableName, key: Id, *, moved: bool = False) -> None:
        tx.rows[table, key] = None
        self._record(tx, Change(table, Op.delete, _next_seq(tx), key, self._next_v(), moved=moved))

    def _record(self, tx: Transaction, change: Change) -> None:
        tx.changes.append(change)
        if change.id is not None and tx.truncates is None:
            tx.locks.add((change.table, change.id))
            self._locked[change.table, change.id] = tx.xid

    def _current(self, tx: Transaction, table: TableName, key: Id) -> Row | None:
        return tx.rows[table, key] if (table, key) in tx.rows else self.rows[table].get(key)

    def _toasted(self, row: Row) -> bool:
        """Whether the log leaves the unchanged document out: a null or a short one is always carried."""
        return row.doc is not None and self.rng.random() < 0.8

    def _document(self) -> str | None:
        if self.bad and self.rng.random() < self.bad:
            return f"{BAD}{self._v + 1}"
        return None if self.rng.random() < 0.1 else f"doc{self._v + 1}"

    def _version(self, table: TableName, key: Id, doc: str | None) -> Row:
        row = Row(self._next_v(), doc)
        self.versions.setdefault((table, key), {})[row.v] = doc
        return row

    def _next_v(self) -> int:
        self._v += 1
        return self._v

    # the life of a transaction

    def _append(self, xid: int, changes: Iterable[Change], token: str | None = None) -> Entry:
        lsn = self.end + self.rng.choice((0, 3))
        entry = Entry(lsn, lsn + self.rng.choice((1, 4)), xid, tuple(c._replace(lsn=lsn) for c in changes), token)
        self.made.update(((lsn, c.seq), c.v) for c in entry.changes)
        self.end = entry.end
        self.log.append(entry)
        self.ends.append(entry.end)
        return entry

    def _commit(self, tx: Transaction) -> None:
        self._append(tx.xid, tx.changes)
        tx.committed, tx.age = True, 0
        if self.rng.random() < self.slow:
            late = any(other.delay > 6 for other in self._open.values())  # else no dump would ever find its moment
            tx.delay = self.rng.choice((1, 1, 2, 2, 3, 6) if late else (1, 1, 2, 2, 3, 6, 20, 50))
        else:
            self._show(tx)

    def _show(self, tx: Transaction) -> None:
        for (table, key), row in tx.rows.items():
            if row is None:
                self.rows[table].pop(key, None)
            else:
                self.rows[table][key] = row
        self._forget(tx)

    def _forget(self, tx: Transaction) -> None:
        self._unlock(tx)
        del self._open[tx.xid]

    def _unlock(self, tx: Transaction) -> None:
        for lock in tx.locks:
            del self._locked[lock]
        if tx.truncates is not None:
            del self._closed[tx.truncates]


def is_bad(doc: str | None) -> bool:
    """Whether a document cannot be delivered."""
    return doc is not None and doc.startswith(BAD)


def text(key: Id) -> Key:
    return tuple(str(part) for part in key)


def typed(table: TableName, key: Key) -> Id:
    return (int(key[0]),) if table == ITEMS.table else (key[0], int(key[1]))


def within(table: TableName, key: Id, extent: Extent) -> bool:
    if extent.where == NO_ROWS:
        return False
    if extent.keys:
        return text(key) in extent.keys
    if extent.after is not None and key <= typed(table, extent.after):
        return False
    return extent.upto is None or key <= typed(table, extent.upto)


def _next_seq(tx: Transaction) -> int:
    """Every statement's row counts two, since a key update makes two events."""
    return (tx.changes[-1].seq // 2 + 1) * 2 if tx.changes else 0


def _shown(change: Change) -> str:
    where = "" if change.id is None else "/".join(text(change.id))
    doc = "" if change.op in (Op.delete, Op.truncate) else f" doc={change.doc}"
    return f"[{change.op.name} {change.table.name} {where} v{change.v}{doc}]"
