"""Foreign keys that act, as the catalog has them, and the cascade events (`core.cascades`) that the log needs for them.

InnoDB deletes and changes the rows of children itself. The log has the parent's change alone, with its old and its new
row. So a change of a parent's referenced columns becomes a cascade event of each foreign key that refers to them. A
session with `foreign_key_checks = 0` sets no rule off: its row events have a flag. MySQL 9.6 and later logs the
children's changes; what counts is the version of the server that has written the log file.

The catalog has the foreign keys of now, and the log may be older. So they are read again at each statement in the log
that changes a definition, and count from there on. If the log shows a change of foreign keys that was made before the
catalog was read, the rules before it are unknown: then the children are emptied, and dumped again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core import cascades
from dblog.core.arrays import Ints
from dblog.core.cascades import CASCADE, SET_NULL, ForeignKey
from dblog.core.event import Op, change_schema
from dblog.core.schema import TableName, TableSchema
from dblog.errors import DecodeError, PreconditionFailed
from dblog.sources import columns
from dblog.sources.mysql.codecs import decode
from dblog.sources.mysql.column_types import BINARY, INTEGERS, Code, MyType
from dblog.sources.mysql.rows import Changes, march
from dblog.sources.mysql.statements import Statement

_ACTIONS = {"CASCADE": CASCADE, "SET NULL": SET_NULL}
LOGGED_FROM = (9, 6)
"""The version of MySQL that logs what foreign keys do."""
_UNCHECKED = 2
"""The flag of a row event whose session had `foreign_key_checks = 0`."""
_EXACT = {*INTEGERS, Code.decimal, Code.bit, Code.year, Code.date, Code.datetime, Code.timestamp, Code.time}
"""Types whose values are equal in every database if they are equal in this one."""

# Each query is about one table and has no joins: otherwise MariaDB reads all tables of the server.
_RULES = """
select constraint_name, delete_rule, update_rule from information_schema.referential_constraints
where constraint_schema = %s and table_name = %s
"""
_COLUMNS = """
select constraint_name, column_name, referenced_table_schema, referenced_table_name, referenced_column_name
from information_schema.key_column_usage
where table_schema = %s and table_name = %s and referenced_table_name is not null
order by constraint_name, ordinal_position
"""


def read_keys(cursor: Any, table: TableName) -> tuple[ForeignKey, ...]:
    """The foreign keys of a table that act on its rows."""
    cursor.execute(_RULES, tuple(table))
    acting = {name: (_ACTIONS.get(d, ""), _ACTIONS.get(u, "")) for name, d, u in cursor.fetchall()}
    acting = {name: actions for name, actions in acting.items() if any(actions)}
    if not acting:
        return ()
    cursor.execute(_COLUMNS, tuple(table))
    found: dict[str, list[tuple[str, str, str, str]]] = {}
    for name, *column in cursor.fetchall():
        found.setdefault(name, []).append(tuple(column))
    return tuple(
        ForeignKey(
            name,
            table,
            tuple(own for own, *_ in found[name]),
            TableName(*found[name][0][1:3]),
            tuple(other for *_, other in found[name]),
            *acting[name],
        )
        for name in sorted(acting.keys() & found.keys())
    )


def inexact(key: ForeignKey, types: Mapping[str, MyType]) -> str | None:
    """Why a target cannot find the rows that a foreign key acts on; None if it can."""
    for name in key.columns:
        kind = types.get(name)
        if kind is None:
            return f"column {name!r} of {key.name} is unknown"
        binary = kind.code in (Code.string, Code.varchar) and kind.collation == BINARY
        if kind.code not in _EXACT and not binary and not kind.special:
            return f"column {name!r} of {key.name} has texts, which the server and a target may compare differently"
    return None


def gaps(
    tables: Iterable[TableName],
    known: Mapping[TableName, tuple[ForeignKey, ...]],
    followed: Callable[[TableName], bool],
) -> dict[TableName, str]:
    """Those of the tables whose cascades cannot be followed, because rules change rows of a parent that is not
    followed; and why. `known` has the foreign keys of the tables and of their parents."""
    found: dict[TableName, str] = {}
    wrong = {t for t, keys in known.items() if keys and not followed(t)}
    while more := {t: k for t in tables if t not in found for k in known.get(t, ()) if k.parent in wrong}:
        found |= {
            table: f"{key.name} refers to {key.parent}, whose rows foreign keys change too, and which is not followed"
            for table, key in more.items()
        }
        wrong |= more.keys()
    return found


class KnownTables(Protocol):
    """What the events need to know of the database."""

    @property
    def followed(self) -> Collection[TableName]: ...

    def foreign_keys(self, tables: Collection[TableName]) -> Mapping[TableName, tuple[ForeignKey, ...]]:
        """The foreign keys that act on each of these tables."""
        ...

    def describe(self, tables: Collection[TableName]) -> Mapping[TableName, TableSchema]: ...

    def log_end(self) -> int:
        """The position of the end of the log now."""
        ...


@dataclass
class _Reading:
    """The foreign keys as they were read at one time, and count from a position on."""

    begin: int
    keys: Mapping[TableName, tuple[ForeignKey, ...]]
    """By parent."""
    schemas: Mapping[TableName, TableSchema]
    tables: dict[ForeignKey, TableSchema] = field(default_factory=dict)
    """The tables of cascade events, by foreign key."""


class Cascades:
    """Makes the cascade events of a log. `mode` is the option `cascades`; `native` says whether the connected server
    runs foreign keys in the storage engine, if its version could do otherwise. `ignored` is called with the number of
    events that are not delivered."""

    def __init__(
        self, tables: KnownTables, mode: str, *, native: bool, ignored: Callable[[int], None] = lambda count: None
    ) -> None:
        self._tables = tables
        self._mode = mode
        self._native = native
        self._ignored = ignored
        self._known: dict[TableName, tuple[ForeignKey, ...]] = {}
        self._readings: list[_Reading] = []
        self._followed: frozenset[TableName] = frozenset()
        self._read_at = 0

    def watched(self, table: TableName) -> bool:
        """Whether the changes of a table may set off a rule."""
        return any(table in reading.keys for reading in self._readings)

    def begin(self, position: int) -> None:
        """Events from the position on follow. Reads the foreign keys, if other tables are followed than before."""
        del self._readings[:-1]
        if frozenset(self._tables.followed) != self._followed or not self._readings:
            self._read(position)

    def redefine(self, statement: Statement, position: int) -> set[TableName]:
        """Note what a statement does to foreign keys. Returns the tables whose rows it leaves unknown."""
        named = {*statement.emptied, *(definition.table for definition in statement.defined)}
        named |= {table for table in self._known if table.schema == statement.dropped}
        followed, before = self._tables.followed, self._readings[-1]
        if not named & (self._known.keys() | set(followed)):
            return set()
        if statement.dropped or statement.emptied or any(definition.arrives for definition in statement.defined):
            self._known.clear()  # a renamed parent has another name in the foreign keys of others
        for table in named:
            self._known.pop(table, None)
        late, unknown = position < self._read_at, set()
        changed = [d for d in statement.defined if (d.unbinds or d.cascades) and not d.arrives and d.table in followed]
        self._read(position)
        for definition in changed if late else ():
            keys = [k for keys in (*before.keys.values(), *self._readings[-1].keys.values()) for k in keys]
            unknown |= {definition.table, *(key.child for key in cascades.reached(definition.table, keys))}
        return {table for table in unknown if table in followed}

    def _read(self, position: int) -> None:
        """Read the foreign keys of the followed tables, and of their parents up to those that no rule changes."""
        self._followed = frozenset(self._tables.followed)
        read_at = self._tables.log_end()
        missing = set(self._followed) - self._known.keys()
        while missing:
            self._known |= self._tables.foreign_keys(missing)
            parents = {key.parent for keys in self._known.values() for key in keys}
            missing = parents - self._known.keys()
        keys: dict[TableName, list[ForeignKey]] = {}
        for found in self._known.values():
            for key in found:
                keys.setdefault(key.parent, []).append(key)
        children = {key.child for found in keys.values() for key in found if key.child in self._followed}
        schemas = self._tables.describe(children) if children else {}
        self._read_at = max(self._read_at, read_at)
        self._readings.append(_Reading(position, {p: tuple(found) for p, found in keys.items()}, schemas))

    # -- events ------------------------------------------------------------------------------------------------------

    def events(
        self, changes: Changes, flags: Ints, position: Ints, version: str, told: tuple[Any, ...], *, before: bool
    ) -> Iterator[tuple[TableSchema, pa.RecordBatch, Ints]]:
        """The cascade events of a parent's changes: each with the row event that it belongs to.

        By row event: its `flags`, its `position`, and `told` as in `rows.table_batch`. `version` is that of the
        server that has written the log."""
        table = changes.layout.schema.table
        if not self.watched(table) or not self.silent(version):
            return
        checked = flags & _UNCHECKED == 0
        bounds = [*(r.begin for r in self._readings[1:]), np.iinfo(np.int64).max]
        first = np.iinfo(np.int64).min
        for reading, last in zip(self._readings, bounds, strict=True):
            mine = checked & (position >= first) & (position < last)
            first = last
            rows = np.flatnonzero(mine[changes.event] & (changes.op != Op.create))
            for key in reading.keys.get(table, ()) if rows.size else ():
                yield from self._of_key(reading, key, changes, rows, told, before=before)

    def silent(self, version: str) -> bool:
        """Whether a server of this version runs foreign keys without a record in the log."""
        number = re.match(r"(\d+)\.(\d+)", version)
        logs = (
            number is not None and "mariadb" not in version.lower() and tuple(map(int, number.groups())) >= LOGGED_FROM
        )
        return self._native if logs else True

    def _of_key(
        self, reading: _Reading, key: ForeignKey, changes: Changes, rows: Ints, told: tuple[Any, ...], *, before: bool
    ) -> Iterator[tuple[TableSchema, pa.RecordBatch, Ints]]:
        schema, kept = changes.layout.schema, changes.layout.kept
        if lost := [name for name in key.referenced if name not in schema.names]:
            raise PreconditionFailed(
                f"the foreign key {key.name} refers to the columns {lost} of {schema.table}, which are not captured",
                hint="capture them too, or set cascades to skip",
            )
        indexes = [schema.names.index(name) for name in key.referenced]
        wanted = [kept[index] for index in indexes]
        deleted = changes.op[rows] == Op.delete
        old, new = (march(changes, at[rows], wanted) for at in (changes.was, changes.at))
        fires = np.where(deleted, bool(key.on_delete), False)
        if key.on_update:
            differs = np.zeros(len(rows), np.bool_)
            for was, now in zip(old.cells, new.cells, strict=True):
                differs |= columns.differ(was, now)
            fires = fires | (differs & ~deleted)
        for cell in old.cells:
            fires &= cell.length >= 0  # no row refers to NULL
        chosen = np.flatnonzero(fires)
        if not chosen.size or not self._delivers(reading, key, len(chosen)):
            return
        rules = reading.tables.get(key)
        types = [schema.columns[index] for index in indexes]
        if rules is None:
            every = [k for keys in reading.keys.values() for k in keys if k.child in reading.schemas]
            rules = cascades.cascade_schema(cascades.rules_of(key, every, reading.schemas), types)
            reading.tables[key] = rules
        lsn, preceding, txid, committed_at = told
        event = changes.event[rows[chosen]]
        seq = 2 * (preceding[event] + changes.ordinal[rows[chosen]])
        meta = (np.full(len(chosen), int(Op.cascade)), lsn[event], seq, txid[event], committed_at[event])
        fields = change_schema(rules.arrow, before=before)
        narrow = TableSchema(schema.table, tuple(types), ())
        olds = decode(narrow, [c.take(chosen) for c in old.cells], log=True)
        news = decode(narrow, [c.take(chosen) for c in new.cells], log=True)
        if olds.raw or news.raw:
            raise DecodeError(
                f"the foreign key {key.name} refers to a value of {schema.table} that its column's type cannot hold",
                hint="deliver such columns as text, or set cascades to skip",
            )
        gone = pa.array(deleted[chosen])
        after = [pc.if_else(gone, pa.scalar(None, array.type), array) for array in news.arrays]
        arrays = [pa.array(values).cast(f.type) for values, f in zip(meta, fields, strict=False)]
        arrays += [pa.nulls(len(chosen), fields.field(len(meta)).type), gone, *olds.arrays, *after]
        arrays += [pa.nulls(len(chosen), f.type) for f in list(fields)[len(arrays) :]]
        batch = pa.RecordBatch.from_arrays(arrays, schema=fields)
        yield rules, batch, event

    def _delivers(self, reading: _Reading, key: ForeignKey, count: int) -> bool:
        """Whether cascade events are delivered. Raises PreconditionFailed if they cannot be, or must not happen."""
        below = {key.child, *(k.child for k in cascades.reached(key.child, _all(reading)))} & self._followed
        if not below:
            return False
        if self._mode == "ignore":
            self._ignored(count)
            return False
        if self._mode == "stop" or key.child not in self._followed:
            names = ", ".join(map(str, sorted(below)))
            why = "" if self._mode == "stop" else f", and {key.child} is not followed"
            raise PreconditionFailed(
                f"the foreign key {key.name} has changed rows of {names} without a record in the log{why}",
                hint="set cascades to follow, and follow all tables between: some sinks apply the rule, others deliver "
                "an event of the kind cascade; or set it to skip, which leaves such tables out; then start with a new "
                "checkpoint, which dumps the tables again",
            )
        return True


def _all(reading: _Reading) -> Iterable[ForeignKey]:
    return (key for keys in reading.keys.values() for key in keys)
