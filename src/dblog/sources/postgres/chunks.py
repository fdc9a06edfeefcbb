"""Chunk reads: where a table is cut, and the rows between two cuts.

Keys travel as the database's own text and go back as literals of the column's type, so that only the database, with
the column's own collation, ever compares two of them. Row-value comparisons on the primary key use its index.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from psycopg2 import sql

from dblog.core.offset import Extent, Key
from dblog.core.schema import TableName, TableSchema
from dblog.errors import SchemaChanged
from dblog.sources.postgres.connect import Connection
from dblog.sources.postgres.copy import decode_rows, select_list

BATCH_BYTES = 2 << 20
"""Rows are decoded in portions that the processor's cache holds."""


def last_key(connection: Connection, schema: TableSchema) -> Key | None:
    """The greatest key of the table."""
    backwards = sql.SQL(", ").join(sql.SQL("{} desc").format(_column(k)) for k in schema.key)
    return _one_key(connection, schema, sql.SQL("order by {} limit 1").format(backwards))


def cuts(connection: Connection, schema: TableSchema, extent: Extent, rows: int, count: int) -> list[Key]:
    """Every `rows`-th key of the extent, at most `count`; ends with the extent's upper bound if that is near."""
    assert extent.upto is not None
    found: list[Key] = []
    while len(found) < count and extent.upto not in found:
        rest = Extent(found[-1] if found else extent.after, extent.upto)
        skip = sql.SQL("where {} order by {} offset {} limit 1").format(
            _within(schema, rest), _key(schema), sql.Literal(rows - 1)
        )
        found.append(_one_key(connection, schema, skip) or extent.upto)
    return found


def _one_key(connection: Connection, schema: TableSchema, clauses: sql.Composed) -> Key | None:
    query = sql.SQL("select {} from {} {}").format(_texts(schema), _from(connection, schema.table), clauses)
    with connection.cursor() as cursor:
        cursor.execute(query)
        found = cursor.fetchone()
    return None if found is None else tuple(found)


def touch(connection: Connection, table: TableName) -> sql.Composed:
    """A statement that reads nothing and takes the lock that every select takes."""
    return sql.SQL("select from {} limit 0").format(_from(connection, table))


def select(connection: Connection, schema: TableSchema, extent: Extent, take: Callable[[pa.RecordBatch], None]) -> None:
    """Hand the rows of the extent to `take`, batch by batch, as they arrive."""
    query = sql.SQL("copy (select {} from {} where {} order by {}) to stdout (format binary)").format(
        sql.SQL(", ").join(sql.SQL(e.replace("{", "{{").replace("}", "}}")).format() for e in select_list(schema)),
        _from(connection, schema.table),
        _within(schema, extent),
        _key(schema),
    )
    rows = _Rows(schema, take)
    with connection.cursor() as cursor:
        cursor.copy_expert(query.as_string(connection), rows)
    rows.decode()


class _Rows:
    """Collects what COPY sends and decodes it in portions."""

    def __init__(self, schema: TableSchema, take: Callable[[pa.RecordBatch], None]) -> None:
        self._schema = schema
        self._take = take
        self._rows: list[bytes] = []
        self._size = 0

    def write(self, row: bytes) -> None:
        """Called by the driver for each row."""
        self._rows.append(row)
        self._size += len(row)
        if self._size > BATCH_BYTES:
            self.decode()

    def decode(self) -> None:
        batch = decode_rows(self._rows, self._schema)
        self._rows, self._size = [], 0
        if batch.num_rows:
            self._take(batch)


def _column(name: str) -> sql.Composable:
    """A column of the table `t`. In ORDER BY a bare name would mean the output column, which may be a text."""
    return sql.Identifier("t", name)


def _key(schema: TableSchema) -> sql.Composed:
    return sql.SQL(", ").join(map(_column, schema.key))


def _texts(schema: TableSchema) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{}::pg_catalog.text").format(_column(k)) for k in schema.key)


def _within(schema: TableSchema, extent: Extent) -> sql.Composable:
    row = sql.SQL("({})").format(_key(schema))
    if extent.keys:
        keys = sql.SQL(", ").join(_literal(schema, k) for k in extent.keys)
        return sql.SQL("{} in ({})").format(row, keys)
    bounds: list[sql.Composable] = []
    if extent.after is not None:
        bounds.append(sql.SQL("{} > {}").format(row, _literal(schema, extent.after)))
    if extent.upto is not None:
        bounds.append(sql.SQL("{} <= {}").format(row, _literal(schema, extent.upto)))
    return sql.SQL(" and ").join(bounds) if bounds else sql.SQL("true")


def _literal(schema: TableSchema, key: Key) -> sql.Composed:
    """A key as a row of literals. The type's name comes from the catalog, which quotes it."""
    values = (
        sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(schema.column(name).type))
        for name, text in zip(schema.key, key, strict=True)
    )
    return sql.SQL("({})").format(sql.SQL(", ").join(values))


def _from(connection: Connection, table: TableName) -> sql.Composed:
    """The table to select from: a partitioned table with its partitions, any other without those that inherit from
    it, because that is what the log shows under its name."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select c.relkind = 'p' from pg_catalog.pg_class c "
            "join pg_catalog.pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s",
            tuple(table),
        )
        found = cursor.fetchone()
    name = sql.Identifier(*table)
    if found is None:
        raise SchemaChanged(f"table {table} does not exist", hint="it was dropped or renamed: restart the query")
    return sql.SQL("{} t" if found[0] else "only {} t").format(name)
