"""Checks of single tables: read a table's definition from the catalog, and find why it cannot be followed.

The preflight checks every table before a stream starts. While the stream runs, a table is checked again when the log
changes its definition, and some tables at every heartbeat: an ALTER can make rows change without a record in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dblog.core.promised_keys import PromisedKeys
from dblog.core.schema import TableName
from dblog.databases.mysql.connect import identifier
from dblog.sources.mysql.keys import HIDDEN_KEYS, KeyParts, read_key
from dblog.sources.mysql.statements import Definition
from dblog.sources.problems import NO_KEY, Problem
from dblog.sources.promised import promise_problems, unused_promise

TRANSACTIONAL = ("INNODB", "ROCKSDB")
_KINDS = {"VIEW": "a view", "SYSTEM VIEW": "a view", "SEQUENCE": "a sequence", "TEMPORARY": "temporary"}
_NATIVE_KEYS = "innodb_native_foreign_keys"
_UNORDERED = {
    *("json", "vector", "geometry", "geomcollection", "geometrycollection", "point", "linestring", "polygon"),
    *("multipoint", "multilinestring", "multipolygon"),
}
SKIP, FOLLOW = "skip", "follow"
"""Values of the option `cascades`: leave out tables whose rows foreign keys change; deliver what these keys do."""


@dataclass(frozen=True)
class Table:
    """A table as the catalog has it."""

    name: TableName
    kind: str
    engine: str | None
    key: KeyParts
    columns: list[str]
    cascades: list[str]
    """Foreign keys with an action (cascade, set null): the server changes rows of this table through them."""
    promised: tuple[str, ...] = ()
    """The key that the user promises."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Columns that no promised key can have, and why."""


# Each query is about one table and has no joins: otherwise MariaDB reads all tables of the server.
_OF_ONE = "table_schema = %s and table_name = %s"
_TABLE = f"select table_schema, table_name, table_type, engine from information_schema.tables where {_OF_ONE}"
_COLUMNS = f"select column_name, data_type, extra from information_schema.columns where {_OF_ONE}"
_CASCADES = """
select constraint_name from information_schema.referential_constraints
where constraint_schema = %s and table_name = %s
and (delete_rule in ('CASCADE', 'SET NULL', 'SET DEFAULT') or update_rule in ('CASCADE', 'SET NULL', 'SET DEFAULT'))
order by constraint_name
"""


def read_table(cursor: Any, name: TableName, keys: PromisedKeys | None = None) -> Table | None:
    """Read a table; None if the catalog does not show it. Names that differ in letter case are different tables."""

    def ask(query: str) -> list[tuple[Any, ...]]:
        cursor.execute(query, tuple(name))
        return list(cursor.fetchall())

    found = ask(_TABLE)
    if not found or TableName(*found[0][:2]) != name:
        return None
    _, _, kind, engine = found[0]
    key = read_key(cursor, name) if kind == "BASE TABLE" else []
    described = ask(_COLUMNS)
    columns, promised = [column for column, *_ in described], () if keys is None else keys.of(name)
    unusable = {column: "its type has no order" for column, of_type, _ in described if of_type in _UNORDERED}
    unusable |= {column: "it is virtual" for column, _, extra in described if "VIRTUAL" in extra.upper()}
    cascades = [constraint for (constraint,) in ask(_CASCADES)]
    return Table(name, kind, engine, key, columns, cascades, promised, unusable)


def read_settings(cursor: Any) -> dict[str, str]:
    """Read the server settings that `problems` uses. A setting that this server does not have is left out."""
    cursor.execute("show global variables where variable_name in (%s, %s)", (_NATIVE_KEYS, HIDDEN_KEYS))
    return dict(cursor.fetchall())


def problems(table: Table, settings: Mapping[str, str], cascades: str = SKIP) -> Iterator[Problem]:
    """Return the reasons why a table cannot be followed. `cascades` is the option."""
    shown, q = repr(str(table.name)), identifier(*table.name)
    if table.kind == "SYSTEM VERSIONED":
        why = "system-versioned: rows of its history would be captured as current rows"
        fix = f"ALTER TABLE {q} DROP SYSTEM VERSIONING;  -- or leave it out"
        yield Problem(f"table {shown} is {why}", fix, table=table.name, reason=f"each is {why}")
        return
    if table.kind != "BASE TABLE":
        yield from of_kind(table.name, table.kind)
        return
    if (table.engine or "").upper() not in TRANSACTIONAL:
        why = f"the engine {table.engine}, which has no transactions"
        yield Problem(f"table {shown} has {why}", f"ALTER TABLE {q} ENGINE = InnoDB;", table=table.name, reason=why)
    promised = table.promised if settings.get(HIDDEN_KEYS, "ON") == "ON" else ()
    if not table.key and promised:
        yield from promise_problems(table.name, promised, table.columns, table.unusable)
    elif promised:
        yield unused_promise(table.name, promised, [column for column, _ in table.key])
    if not table.key and not promised:
        why = NO_KEY
        fix = f"choose its columns: ALTER TABLE {q} ADD PRIMARY KEY (...);"
        if settings.get(HIDDEN_KEYS, "ON") == "OFF":
            fix += f"\nSET PERSIST {HIDDEN_KEYS} = ON;  -- on Amazon RDS and Aurora: in the parameter group"
        yield Problem(f"table {shown} has {why}", fix, table=table.name, reason=why)
    for column, prefix in table.key:
        if prefix is not None:
            what = f"the primary key of {shown} has only a prefix of column {column!r}: the server cannot read rows in "
            what += "the order of the index, and sorts the rest of the table for every chunk"
            fix, reason = (
                "use whole columns in the key, or set chunkRows to the size of the table",
                "prefixes in the key",
            )
            yield Problem(what, fix, fatal=False, table=table.name, reason=f"{reason}: every chunk sorts the table")
    if table.cascades and silent(settings) and cascades == SKIP:
        what = f"foreign keys change rows of {shown} without a record in the log: {', '.join(table.cascades)}"
        fix = "make them ON DELETE RESTRICT ON UPDATE RESTRICT, set cascades to follow, or leave the table out"
        reason = "foreign keys change their rows without a record in the log (ON ... CASCADE or SET NULL)"
        yield Problem(what, fix, table=table.name, reason=reason)


def of_kind(table: TableName, kind: str) -> Iterator[Problem]:
    """The problem of what is not a table."""
    said = _KINDS.get(kind, "not a table")
    what, reason = f"{str(table)!r} is {said}: the log has no changes of it", f"each is {said}: the log has no changes"
    yield Problem(what, "capture the tables behind it", table=table, reason=reason)


def faults(said: Definition, settings: Mapping[str, str], cascades: str = SKIP) -> list[str]:
    """Why a table cannot be followed after a statement of the log, even if a later statement has repaired it."""
    acts = said.cascades and silent(settings) and cascades == SKIP
    found = ["its rows changed by foreign keys without a record in the log"] if acts else []
    found += ["system-versioned"] if said.versioned else []
    return found + ([f"of engine {said.engine}, which has no transactions"] if said.engine else [])


def silent(settings: Mapping[str, str]) -> bool:
    """Whether the storage engine runs foreign key actions, which the log then lacks. MySQL 9.6 and later logs them."""
    return settings.get(_NATIVE_KEYS, "ON") != "OFF"
