"""Table schemas from the catalog as it is now. The log describes its tables itself (`tablemap`), in equal terms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import count
from typing import Any

from dblog.core.schema import TableName, TableSchema
from dblog.sources.mysql.connect import Connection
from dblog.sources.mysql.flavor import Flavor
from dblog.sources.mysql.kinds import Code, MyType, TypeOptions
from dblog.sources.mysql.spelling import read_type
from dblog.sources.mysql.tablemap import MappedColumn, TableMap
from dblog.sources.mysql.types import my_column

SYSTEM = ("mysql", "information_schema", "performance_schema", "sys", "dblog")

_CANDIDATES = """
select table_schema, table_name from information_schema.tables where table_type in ('BASE TABLE', 'SYSTEM VERSIONED')
"""

_COLUMNS = """
select c.table_schema, c.table_name, c.column_name, c.is_nullable = 'YES', c.column_type, c.character_octet_length,
       {collation}
from information_schema.columns c {join}
where {where} order by c.table_schema, c.table_name, c.ordinal_position
"""
# A name of MariaDB's may stand for a collation in several character sets.
_COLLATIONS = {
    "MariaDB": (
        "a.id",
        "left join information_schema.collation_character_set_applicability a "
        "on a.full_collation_name = c.collation_name and a.character_set_name = c.character_set_name",
    ),
    "MySQL": ("a.id", "left join information_schema.collations a on a.collation_name = c.collation_name"),
}

_KEYS = """
select c.table_schema, c.table_name, c.column_name from information_schema.statistics c
where c.index_name = 'PRIMARY' and {where} order by c.table_schema, c.table_name, c.seq_in_index
"""

_HASHES = """
select c.table_schema, c.table_name, max(c.nullable = 'YES') from information_schema.statistics c
where c.index_type = 'HASH' and {where} group by c.table_schema, c.table_name, c.index_name
"""


def candidates(connection: Connection) -> list[TableName]:
    """Every table that a pattern may mean; the preflight says which of them cannot be captured."""
    return [TableName(*row) for row in _rows(connection, _CANDIDATES, ()) if row[0].lower() not in SYSTEM]


def read_types(
    connection: Connection, names: Collection[TableName], flavor: Flavor
) -> dict[TableName, dict[str, MyType]]:
    """The columns of these tables in their order; tables that do not exist are absent."""
    found = _columns(connection, names, flavor)
    return {table: {column.name: column.type for column in columns} for table, columns in found.items()}


def read_tables(
    connection: Connection, names: Collection[TableName], flavor: Flavor, options: TypeOptions
) -> dict[TableName, TableSchema]:
    """The tables of these names as the catalog describes them now; those that do not exist are absent."""
    keys = _keys(connection, names)
    return {
        table: TableSchema(
            table, tuple(my_column(name, kind, flavor, options) for name, kind in columns.items()), keys.get(table, ())
        )
        for table, columns in read_types(connection, names, flavor).items()
    }


def read_map(connection: Connection, table: TableName, flavor: Flavor) -> TableMap | None:
    """The table as the log would describe it now; None when there is none."""
    columns = _columns(connection, [table], flavor).get(table)
    if columns is None:
        return None
    # MariaDB keeps a hash for each unique key of long columns, behind all other columns.
    for _, (nullable,) in _among(connection, _HASHES, [table]):
        columns.append(MappedColumn(_hidden_name(columns), MyType(Code.bigint, unsigned=True), bool(nullable)))
    return TableMap(0, table, tuple(columns), _keys(connection, [table]).get(table, ()))


def _hidden_name(columns: Collection[MappedColumn]) -> str:
    """A name as the server gives it, which no column has."""
    taken = {column.name for column in columns}
    return next(name for name in (f"DB_ROW_HASH_{n}" for n in count(1)) if name not in taken)


def _columns(
    connection: Connection, names: Collection[TableName], flavor: Flavor
) -> dict[TableName, list[MappedColumn]]:
    collation, join = _COLLATIONS[flavor.name]
    found: dict[TableName, list[MappedColumn]] = {}
    for table, (column, nullable, text, octets, number) in _among(
        connection, _COLUMNS.format(collation=collation, join=join, where="{where}"), names
    ):
        kind = read_type(text, octets, number, flavor)
        found.setdefault(table, []).append(MappedColumn(column, kind, bool(nullable)))
    return found


def _keys(connection: Connection, names: Collection[TableName]) -> dict[TableName, tuple[str, ...]]:
    keys: dict[TableName, tuple[str, ...]] = {}
    for table, (column,) in _among(connection, _KEYS, names):
        keys[table] = (*keys.get(table, ()), column)
    return keys


def _among(
    connection: Connection, query: str, names: Collection[TableName]
) -> Iterator[tuple[TableName, tuple[Any, ...]]]:
    """The rows about these tables, by table. The catalog also finds names in other letter case: those are others."""
    if not names:
        return
    wanted = set(names)
    pairs = " or ".join(["(c.table_schema = %s and c.table_name = %s)"] * len(names))
    values = [part for name in names for part in name]
    for schema, table, *rest in _rows(connection, query.format(where=f"({pairs})"), values):
        if TableName(schema, table) in wanted:
            yield TableName(schema, table), tuple(rest)


def _rows(connection: Connection, query: str, values: Iterable[str]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, tuple(values) or None)
        return list(cursor.fetchall())
