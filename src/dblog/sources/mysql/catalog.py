"""Table schemas from the present catalog. They equal those that the log gives for the same table (`tablemap`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.connect import Connection
from dblog.databases.mysql.flavor import Flavor
from dblog.sources.mysql.codecs import my_column
from dblog.sources.mysql.column_types import Code, MyType, TypeOptions
from dblog.sources.mysql.keys import read_key
from dblog.sources.mysql.spelling import read_type
from dblog.sources.mysql.tablemap import MappedColumn, TableMap

SYSTEM = ("mysql", "information_schema", "performance_schema", "sys", "dblog")

_CANDIDATES = "select table_schema, table_name, table_type from information_schema.tables"
TABLES = ("BASE TABLE", "SYSTEM VERSIONED")
_BROUGHT = (*TABLES, "VIEW")

# Each query is about one table and has no joins: otherwise MariaDB reads all tables of the server.
_COLUMNS = """
select column_name, is_nullable = 'YES', column_type, character_octet_length, character_set_name, collation_name
from information_schema.columns where table_schema = %s and table_name = %s order by ordinal_position
"""
# MariaDB keeps a hash of each unique key on long columns, in a hidden column.
_HASHES = """
select max(nullable = 'YES') from information_schema.statistics
where index_type = 'HASH' and table_schema = %s and table_name = %s group by index_name
"""
# On MariaDB one name can mean collations of several character sets.
_COLLATIONS = {
    "MariaDB": (
        "select character_set_name, full_collation_name, id "
        "from information_schema.collation_character_set_applicability"
    ),
    "MySQL": "select character_set_name, collation_name, id from information_schema.collations",
}

_KNOWN: WeakKeyDictionary[Connection, dict[tuple[str, str], int]] = WeakKeyDictionary()
"""The collations of each connection's server."""


def candidates(connection: Connection) -> dict[TableName, str]:
    """Everything that a pattern can match, with its kind. The preflight finds what cannot be captured."""
    rows = _rows(connection, _CANDIDATES, ())
    return {TableName(s, t): kind for s, t, kind in rows if kind in _BROUGHT and s.lower() not in SYSTEM}


def read_types(
    connection: Connection, names: Collection[TableName], flavor: Flavor
) -> dict[TableName, dict[str, MyType]]:
    """The columns of the existing tables of these names, in their order."""
    found = {name: {c.name: c.type for c in _columns(connection, name, flavor)} for name in names}
    return {name: columns for name, columns in found.items() if columns}


def _columns(connection: Connection, table: TableName, flavor: Flavor) -> list[MappedColumn]:
    collations = _collations(connection, flavor)
    return [
        MappedColumn(column, read_type(text, octets, collations.get((charset, collation)), flavor), bool(nullable))
        for column, nullable, text, octets, charset, collation in _rows(connection, _COLUMNS, table)
    ]


def _collations(connection: Connection, flavor: Flavor) -> dict[tuple[str, str], int]:
    """The numbers of collations, by character set and name."""
    if connection not in _KNOWN:
        rows = _rows(connection, _COLLATIONS[flavor.name], ())
        _KNOWN[connection] = {(charset, name): int(number) for charset, name, number in rows}
    return _KNOWN[connection]


def read_tables(
    connection: Connection, names: Collection[TableName], flavor: Flavor, options: TypeOptions
) -> dict[TableName, TableSchema]:
    """The schemas of the existing tables of these names, from the present catalog."""
    found = {}
    for table, types in read_types(connection, names, flavor).items():
        columns = (my_column(n, kind, flavor, options, options.values.of(table, n)) for n, kind in types.items())
        key = key_columns(connection, table)
        promised = () if key else options.keys.usable(table, types)
        found[table] = TableSchema(table, tuple(columns), key or promised, promised=bool(promised))
    return found


def read_map(connection: Connection, table: TableName, flavor: Flavor) -> TableMap | None:
    """The table map that the log would have now; None if the table does not exist."""
    columns = _columns(connection, table, flavor)
    for (nullable,) in _rows(connection, _HASHES, table):  # hidden columns come last
        columns.append(MappedColumn(_hidden_name(columns), MyType(Code.bigint, unsigned=True), bool(nullable)))
    return TableMap(0, table, tuple(columns), key_columns(connection, table)) if columns else None


def key_columns(connection: Connection, table: TableName) -> tuple[str, ...]:
    """The columns of the key, in its order; empty without a key or table."""
    with connection.cursor() as cursor:
        return tuple(column for column, _ in read_key(cursor, table))


def _hidden_name(columns: Collection[MappedColumn]) -> str:
    """A name for a hidden column, like the server's, that no other column has."""
    taken = {column.name for column in columns}
    return next(name for name in (f"DB_ROW_HASH_{n}" for n in count(1)) if name not in taken)


def _rows(connection: Connection, query: str, values: Iterable[str]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, tuple(values) or None)
        return list(cursor.fetchall())
