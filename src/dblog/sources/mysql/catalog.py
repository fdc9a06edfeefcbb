"""Table schemas from the catalog as it is now. The log describes its tables itself (`tablemap`), in equal terms."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from dblog.core.schema import TableName, TableSchema
from dblog.sources.mysql.connect import Connection
from dblog.sources.mysql.flavor import Flavor
from dblog.sources.mysql.kinds import MyType, TypeOptions
from dblog.sources.mysql.spelling import read_type
from dblog.sources.mysql.types import my_column

SYSTEM = ("mysql", "information_schema", "performance_schema", "sys", "dblog")

_CANDIDATES = "select table_schema, table_name from information_schema.tables where table_type = 'BASE TABLE'"

_COLUMNS = """
select c.table_schema, c.table_name, c.column_name, c.column_type, c.character_octet_length, {collation}
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


def candidates(connection: Connection) -> list[TableName]:
    """Every table that could be captured."""
    return [TableName(*row) for row in _rows(connection, _CANDIDATES, ()) if row[0].lower() not in SYSTEM]


def read_types(
    connection: Connection, names: Collection[TableName], flavor: Flavor
) -> dict[TableName, dict[str, MyType]]:
    """The columns of these tables in their order; tables that do not exist are absent."""
    if not names:
        return {}
    where, values = _among(names)
    collation, join = _COLLATIONS[flavor.name]
    found: dict[TableName, dict[str, MyType]] = {}
    for schema, table, column, text, octets, number in _rows(
        connection, _COLUMNS.format(collation=collation, join=join, where=where), values
    ):
        found.setdefault(TableName(schema, table), {})[column] = read_type(text, octets, number, flavor)
    return found


def read_tables(
    connection: Connection, names: Collection[TableName], flavor: Flavor, options: TypeOptions
) -> dict[TableName, TableSchema]:
    """The tables of these names as the catalog describes them now; those that do not exist are absent."""
    if not names:
        return {}
    types = read_types(connection, names, flavor)
    where, values = _among(names)
    keys: dict[TableName, tuple[str, ...]] = {}
    for schema, table, column in _rows(connection, _KEYS.format(where=where), values):
        name = TableName(schema, table)
        keys[name] = (*keys.get(name, ()), column)
    return {
        table: TableSchema(
            table, tuple(my_column(name, kind, flavor, options) for name, kind in columns.items()), keys.get(table, ())
        )
        for table, columns in types.items()
    }


def _among(names: Collection[TableName]) -> tuple[str, list[str]]:
    pairs = " or ".join(["(c.table_schema = %s and c.table_name = %s)"] * len(names))
    return f"({pairs})", [part for name in names for part in name]


def _rows(connection: Connection, query: str, values: Iterable[str]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, tuple(values) or None)
        return list(cursor.fetchall())
