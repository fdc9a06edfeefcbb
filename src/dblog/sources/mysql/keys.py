"""The key of a table: which of its indexes identifies rows.

It is the primary key. Without one, the server itself takes the first unique index of whole columns that are all NOT
NULL, and the log names that index as the key. So the same index is chosen here, in the order in which the server
lists them. A table whose primary key is the server's own and hidden has another key in the log than the catalog shows:
then none is chosen.
"""

from __future__ import annotations

from typing import Any

import pymysql.err

from dblog.core.schema import TableName
from dblog.databases.mysql.connect import GONE, identifier

# The query is about one table and has no joins: otherwise MariaDB reads all tables of the server.
_PRIMARY = """
select column_name, sub_part from information_schema.statistics
where index_name = 'PRIMARY' and table_schema = %s and table_name = %s order by seq_in_index
"""
_VIRTUAL = """
select column_name from information_schema.columns
where table_schema = %s and table_name = %s and extra like '%%VIRTUAL%%'
"""
HIDDEN_KEYS = "show_gipk_in_create_table_and_information_schema"
"""The setting with which MySQL shows primary keys of its own making."""

KeyParts = list[tuple[str, int | None]]
"""The columns of a key, each with the length of its indexed prefix (None: the whole column)."""


def read_key(cursor: Any, table: TableName) -> KeyParts:
    """The key of a table; empty without a key or table. Only a primary key may have prefixes."""
    cursor.execute(_PRIMARY, tuple(table))
    primary = [(column, prefix) for column, prefix in cursor.fetchall()]
    return primary or _unique(cursor, table)


def _unique(cursor: Any, table: TableName) -> KeyParts:
    cursor.execute("show variables like %s", (HIDDEN_KEYS,))
    if any(value == "OFF" for _, value in cursor.fetchall()):
        return []
    try:
        cursor.execute(f"show index from {identifier(*table)}")
    except pymysql.err.MySQLError as error:
        if error.args[0] in GONE:
            return []
        raise
    names = [column[0].lower() for column in cursor.description]
    indexes: dict[str, list[dict[str, Any]]] = {}
    for row in cursor.fetchall():
        part = dict(zip(names, row, strict=True))
        if not int(part["non_unique"]):
            indexes.setdefault(part["key_name"], []).append(part)
    fit = [[p["column_name"] for p in parts] for parts in indexes.values() if all(map(_is_whole, parts))]
    if not fit:
        return []
    cursor.execute(_VIRTUAL, tuple(table))
    virtual = {column for (column,) in cursor.fetchall()}
    return next(([(column, None) for column in key] for key in fit if not virtual & set(key)), [])


def _is_whole(part: dict[str, Any]) -> bool:
    """Whether a part of an index is a whole column that is NOT NULL. An expression has no column, and MariaDB keeps
    only a hash of some columns."""
    plain = part["column_name"] is not None and part["sub_part"] is None
    return plain and part["null"] != "YES" and part["index_type"] == "BTREE"
