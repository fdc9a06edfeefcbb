"""Chunk reads: the keys at which a table is cut, and the rows between two of them.

Keys are read as the database's own text and sent back as literals of the column's type. So only the database compares
keys, with the column's own collation and operators. Row-value comparisons on the key use its index.

The search path is empty, so operators of an extension's type (citext) are named with their schema. Without it the
server would cast to a type whose operators it finds: a citext would be compared as a text, and not in the order of its
index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from psycopg2 import sql

from dblog.core.offset import Extent, Key
from dblog.core.promised_keys import null_in_key, two_rows
from dblog.core.schema import TableName, TableSchema
from dblog.databases.postgres.connect import Connection
from dblog.errors import SchemaChanged, TableUnreadable
from dblog.sources.postgres.column_types import PgColumn
from dblog.sources.postgres.copy import decode_rows, select_list
from dblog.sources.postgres.keys import KEY, KEY_TEXT
from dblog.sources.postgres.promised import promised_text

BATCH_BYTES = 2 << 20
"""Bytes of rows that are decoded at once: as many as fit into the processor's cache."""

KEYS_PER_QUERY = 1000


def key_text(connection: Connection, table: TableName, promised: Sequence[str] = ()) -> str:
    """A text that identifies the key: its columns, types and collations, which define the order. `promised` is the key
    of a table that has none of its own."""
    found = key_texts(connection, (table,))
    if table not in found:
        raise TableUnreadable(f"table {table} does not exist")
    if (key := found[table]) is None:
        with connection.cursor() as cursor:
            key = promised_text(cursor, table, promised)
    if key is None:
        raise TableUnreadable(
            f"table {table} has no primary key and no unique index over NOT NULL columns",
            hint=f"alter table {table} add primary key (...)",
        )
    return key


def key_texts(connection: Connection, tables: Sequence[TableName]) -> dict[TableName, str | None]:
    """The `key_text` of those of the tables that exist; None for a table without a key."""
    with connection.cursor() as cursor:
        cursor.execute(_KEYS, ([t.schema for t in tables], [t.name for t in tables]))
        return {TableName(schema, name): key for schema, name, key in cursor.fetchall()}


_NAMED = """
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and (n.nspname, c.relname) in (select * from unnest(%s::text[], %s::text[]))
"""
_KEYS = f"""
select n.nspname, c.relname, (
    select {KEY_TEXT}
    from {KEY} i cross join unnest(i.indkey) with ordinality p(attnum, ordinal)
    join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = p.attnum
    where p.ordinal <= i.indnkeyatts)
{_NAMED}
"""


def small(connection: Connection, schemas: Sequence[TableSchema], rows: int) -> dict[TableName, Key | None]:
    """The greatest keys of those of the tables that have at most `rows` rows, in one query; None for an empty table."""
    from_clauses = _froms(connection, [schema.table for schema in schemas])
    asked = [
        sql.SQL(
            "(select {}, (select array[{}] from {} order by {} limit 1), exists (select from {} offset {}))"
        ).format(
            sql.Literal(number),
            _texts(schema),
            from_clauses[schema.table],
            _backwards(schema),
            from_clauses[schema.table],
            sql.Literal(rows),
        )
        for number, schema in enumerate(schemas)
    ]
    with connection.cursor() as cursor:
        cursor.execute(sql.SQL(" union all ").join(asked))
        found = cursor.fetchall()
    return {schemas[number].table: last and tuple(last) for number, last, more in found if not more}


def last_key(connection: Connection, schema: TableSchema) -> Key | None:
    """The greatest key of the table."""
    return _one_key(connection, schema, sql.SQL("order by {} limit 1").format(_backwards(schema)))


def cuts(connection: Connection, schema: TableSchema, extent: Extent, rows: int, count: int) -> list[Key]:
    """Every `rows`-th key of the extent, at most `count`. The last is the extent's upper bound if the extent ends
    there."""
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
    table = _from(connection, schema.table)
    if schema.promised:  # rows without a key are refused when chunks are read
        there = sql.SQL(" and ").join(sql.SQL("{} is not null").format(_column(name)) for name in schema.key)
        table = sql.SQL("(select * from {} where {}) t").format(table, there)
    query = sql.SQL("select {} from {} {}").format(_texts(schema), table, clauses)
    with connection.cursor() as cursor:
        cursor.execute(query)
        found = cursor.fetchone()
    return None if found is None else tuple(found)


def check_promise(connection: Connection, schema: TableSchema, extent: Extent) -> None:
    """Raise KeyRefused if two rows of the extent have the same promised key, as the database compares keys. The first
    extent of a table also finds every row with NULL in its key: it lies between no two keys, so no chunk would have
    it."""
    table = _from(connection, schema.table)
    query = sql.SQL("select {} from {} where {} group by {} having pg_catalog.count(*) > 1 limit 1")
    with connection.cursor() as cursor:
        for name in schema.key if extent.after is None and not extent.keys else ():
            nulls = sql.SQL("select t::pg_catalog.text from {} where {} is null limit 1")
            cursor.execute(nulls.format(table, _column(name)))
            if found := cursor.fetchone():
                raise null_in_key(schema, name, found[0])
        cursor.execute(query.format(_texts(schema), table, _within(schema, extent), _key(schema)).as_string(connection))
        if (key := cursor.fetchone()) is not None:
            equal = _keys_within(schema, Extent(keys=(tuple(key),)))
            cursor.execute(sql.SQL("select t::pg_catalog.text from {} where {} limit 2").format(table, equal))
            raise two_rows(schema, key, [row for (row,) in cursor.fetchall()])


def touch(connection: Connection, table: TableName) -> sql.Composed:
    """A statement that reads no rows and takes the same lock as every select."""
    return sql.SQL("select from {} limit 0").format(_from(connection, table))


def select(connection: Connection, schema: TableSchema, extent: Extent, take: Callable[[pa.RecordBatch], None]) -> None:
    """Pass the rows of the extent to `take`, batch by batch, as they arrive."""
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
    """Collects the rows that COPY sends, and decodes `BATCH_BYTES` of them at a time."""

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
    """A column of the table `t`. An unqualified name in ORDER BY would mean the output column, which may be its
    text."""
    return sql.Identifier("t", name)


def _key(schema: TableSchema) -> sql.Composed:
    return sql.SQL(", ").join(map(_column, schema.key))


def _backwards(schema: TableSchema) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{} desc").format(_column(k)) for k in schema.key)


def _texts(schema: TableSchema) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{}::pg_catalog.text").format(_column(k)) for k in schema.key)


def missing(connection: Connection, schema: TableSchema, keys: Sequence[Key]) -> list[Key]:
    """The keys that no row has. The database compares them, so another spelling of an existing key is found."""
    table = _from(connection, schema.table)
    names = [sql.Identifier(f"k{n}") for n in range(len(schema.key))]
    equal = sql.SQL(" and ").join(
        sql.SQL("{} {} k.{}").format(_column(k), _operator(schema, k, "="), name)
        for k, name in zip(schema.key, names, strict=True)
    )
    found: list[Key] = []
    for first in range(0, len(keys), KEYS_PER_QUERY):
        portion = keys[first : first + KEYS_PER_QUERY]
        rows = (
            sql.SQL("({}, {})").format(sql.Literal(n), sql.SQL(", ").join(_literals(schema, k)))
            for n, k in enumerate(portion)
        )
        query = sql.SQL(
            "select k.n from (values {}) k (n, {}) where not exists (select from {} where {}) order by k.n"
        ).format(sql.SQL(", ").join(rows), sql.SQL(", ").join(names), table, equal)
        with connection.cursor() as cursor:
            cursor.execute(query)
            found += [portion[n] for (n,) in cursor.fetchall()]
    return found


def explain(connection: Connection, table: TableName, where: str) -> None:
    """Let the database plan a select with the condition, without running it."""
    query = sql.SQL("explain select from {} where ({})").format(_from(connection, table), sql.SQL(where))
    with connection.cursor() as cursor:
        cursor.execute(query.as_string(connection))


def estimate(connection: Connection, table: TableName) -> int | None:
    """The number of rows at the last VACUUM or ANALYZE, over all partitions; None if there was none."""
    with connection.cursor() as cursor:
        cursor.execute(_ESTIMATE, tuple(table))
        (rows,) = cursor.fetchone()
    return None if rows is None else int(rows)


# A table that was never analyzed has -1 (before version 14: 0), even if it has rows; then its size decides.
_ESTIMATE = """
with recursive part as (
    select c.oid, c.reltuples, c.relkind, c.relpages from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s
    union all
    select c.oid, c.reltuples, c.relkind, c.relpages from pg_catalog.pg_inherits i
    join part on i.inhparent = part.oid and part.relkind = 'p' join pg_catalog.pg_class c on c.oid = i.inhrelid
)
select case when bool_and(reltuples > 0 or pg_catalog.pg_relation_size(oid) = 0) then sum(greatest(reltuples, 0)) end
from part where relkind <> 'p'
"""


def _within(schema: TableSchema, extent: Extent) -> sql.Composable:
    part = _keys_within(schema, extent)
    return part if extent.where is None else sql.SQL("{} and ({})").format(part, sql.SQL(extent.where))


def _keys_within(schema: TableSchema, extent: Extent) -> sql.Composable:
    if extent.keys and all(_operators(schema, name) is None for name in schema.key):
        keys = sql.SQL(", ").join(_literal(schema, k) for k in extent.keys)
        return sql.SQL("({}) in ({})").format(_key(schema), keys)
    if extent.keys:
        return sql.SQL("({})").format(sql.SQL(" or ").join(_compared(schema, "=", k) for k in extent.keys))
    bounds: list[sql.Composable] = []
    if extent.after is not None:
        bounds.append(_compared(schema, ">", extent.after))
    if extent.upto is not None:
        bounds.append(_compared(schema, "<=", extent.upto))
    return sql.SQL(" and ").join(bounds) if bounds else sql.SQL("true")


def _compared(schema: TableSchema, operator: str, key: Key) -> sql.Composed:
    """A comparison of the key's columns with a key: as rows, or column by column if the columns have operators of
    different names."""
    if len({_operators(schema, name) for name in schema.key}) == 1:
        compare = _operator(schema, schema.key[0], operator)
        return sql.SQL("({}) {} {}").format(_key(schema), compare, _literal(schema, key))
    literals = _literals(schema, key)

    def column(number: int, operator: str) -> sql.Composed:
        name = schema.key[number]
        return sql.SQL("{} {} {}").format(_column(name), _operator(schema, name, operator), literals[number])

    last = len(schema.key) - 1
    found = column(last, operator)
    for number in reversed(range(last)):
        if operator == "=":
            found = sql.SQL("({} and {})").format(column(number, "="), found)
        else:  # the first condition is for the index
            loose, strict = (f"{operator[0]}=", operator[0])
            both = sql.SQL("({} or {})").format(column(number, strict), found)
            found = sql.SQL("({} and {})").format(column(number, loose), both)
    return found


_STRATEGIES = ("<", "<=", "=", ">=", ">")
"""The usual names of the operators of a btree index, in the order of their numbers."""


def _operator(schema: TableSchema, name: str, operator: str) -> sql.SQL:
    """The operator that compares values of a key column, given its usual name. hstore has others: `#<=#`."""
    own = _operators(schema, name)
    return sql.SQL(operator if own is None else f"operator({own[_STRATEGIES.index(operator)]})")


def _operators(schema: TableSchema, name: str) -> tuple[str, ...] | None:
    column = schema.column(name)
    return column.operators if isinstance(column, PgColumn) else None


def _literal(schema: TableSchema, key: Key) -> sql.Composed:
    """A key as a row of literals."""
    return sql.SQL("({})").format(sql.SQL(", ").join(_literals(schema, key)))


def _literals(schema: TableSchema, key: Key) -> list[sql.Composed]:
    """A key's values as literals. The type's name comes from the catalog, which quotes it."""
    return [
        sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(schema.column(name).type))
        for name, text in zip(schema.key, key, strict=True)
    ]


def _from(connection: Connection, table: TableName) -> sql.Composed:
    """The FROM clause: a partitioned table with its partitions, any other table without tables that inherit from it.
    These are the rows that the log shows under the table's name."""
    return _froms(connection, (table,))[table]


def _froms(connection: Connection, tables: Sequence[TableName]) -> dict[TableName, sql.Composed]:
    """The FROM clauses of several tables."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"select n.nspname, c.relname, c.relkind = 'p' {_NAMED}",
            ([t.schema for t in tables], [t.name for t in tables]),
        )
        partitioned = {TableName(schema, name): parted for schema, name, parted in cursor.fetchall()}
    for table in tables:
        if table not in partitioned:
            raise SchemaChanged(f"table {table} does not exist", hint="it was dropped or renamed: restart the query")
    return {t: sql.SQL("{} t" if partitioned[t] else "only {} t").format(sql.Identifier(*t)) for t in tables}
