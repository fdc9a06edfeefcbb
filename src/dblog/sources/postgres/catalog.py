"""Table schemas: from the present catalog, and from a Relation message in the log.

Both give equal `TableSchema`s for the same state of a table. The message has names, type OIDs and modifiers of the
columns; the types are looked up in `pg_type`. A type that was dropped since then is read as text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import unpack_from
from typing import Any, Protocol

from dblog.core.schema import TableName, TableSchema
from dblog.errors import PreconditionFailed
from dblog.sources.postgres.codecs import pg_column
from dblog.sources.postgres.column_types import PgColumn, PgType, TypeOptions
from dblog.sources.postgres.keys import KEY


@dataclass(frozen=True)
class RelationColumn:
    name: str
    oid: int
    typmod: int
    key: bool
    """Whether the column is part of the replica identity."""


@dataclass(frozen=True)
class Relation:
    """A Relation message: the table at the time of the changes that follow in the log."""

    oid: int
    schema: str
    name: str
    identity: str
    """Replica identity: `d`efault, `n`othing, `f`ull or `i`ndex."""
    columns: tuple[RelationColumn, ...]

    @classmethod
    def parse(cls, message: bytes) -> Relation:
        oid = int.from_bytes(message[1:5])
        schema, at = _cstring(message, 5)
        name, at = _cstring(message, at)
        identity, count = unpack_from(">cH", message, at)
        at += 3
        columns = []
        for _ in range(count):
            flags = message[at]
            column, at = _cstring(message, at + 1)
            kind, typmod = unpack_from(">Ii", message, at)
            at += 8
            columns.append(RelationColumn(column, kind, typmod, bool(flags & 1)))
        # The message has an empty schema name for pg_catalog.
        return cls(oid, schema or "pg_catalog", name, identity.decode(), tuple(columns))


def _cstring(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1


class CatalogCursor(Protocol):
    """The methods of a DB-API cursor that are used here."""

    def execute(self, query: str, args: Sequence[Any] = ..., /) -> Any: ...

    def fetchall(self) -> list[tuple[Any, ...]]: ...


_TABLES = """
select n.nspname, c.relname, c.oid
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where (n.nspname::text, c.relname::text) in %s and c.relkind in ('r', 'p')
"""

# Generated columns are left out, because they are not in the log.
_COLUMNS = """
select a.attrelid, a.attname, a.atttypid, a.atttypmod
from pg_catalog.pg_attribute a
where a.attrelid in %s and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
order by a.attrelid, a.attnum
"""

_KEYS = f"""
select i.indrelid, a.attname
from pg_catalog.pg_class c cross join {KEY} i
cross join unnest(i.indkey) with ordinality p(attnum, ordinal)
join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = p.attnum
where c.oid in %s and p.ordinal <= i.indnkeyatts
order by i.indrelid, p.ordinal
"""

# A type's own cast to text may give another text than its output function, so the output function is used. The last
# column has the operators that order the type in a btree index (access method 403), unless they are in pg_catalog.
_TYPES = """
select t.oid, t.typtype, t.typbasetype, t.typtypmod,
       case when t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc then t.typelem else 0 end,
       e.typdelim,
       case when exists (select from pg_catalog.pg_cast c where c.castsource = t.oid and c.casttarget = 25)
            then pg_catalog.format('%%I.%%I', n.nspname, p.proname) end,
       (select pg_catalog.array_agg(pg_catalog.format('%%I.%%s', s.nspname, o.oprname) order by m.amopstrategy)
        from pg_catalog.pg_opclass c join pg_catalog.pg_amop m on m.amopfamily = c.opcfamily
        join pg_catalog.pg_operator o on o.oid = m.amopopr join pg_catalog.pg_namespace s on s.oid = o.oprnamespace
        where c.opcmethod = 403 and c.opcdefault and c.opcintype = t.oid and s.nspname <> 'pg_catalog'
          and m.amoplefttype = t.oid and m.amoprighttype = t.oid)
from pg_catalog.pg_type t
join pg_catalog.pg_proc p on p.oid = t.typoutput
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
left join pg_catalog.pg_type e on e.oid = t.typelem
where t.oid in %s
"""

_SPELLED = """
select t.oid, t.typmod, pg_catalog.format_type(t.oid, t.typmod)
from unnest(%s::oid[], %s::int[]) t(oid, typmod)
"""


def read_tables(
    cursor: CatalogCursor, names: Sequence[TableName], options: TypeOptions | None = None
) -> dict[TableName, TableSchema]:
    """The schemas of the existing tables of these names, from the present catalog."""
    tables = table_oids(cursor, names)
    if not tables:
        return {}
    cursor.execute(_COLUMNS, (tuple(tables),))
    described: dict[int, list[tuple[str, int, int]]] = {oid: [] for oid in tables}
    for oid, name, kind, typmod in cursor.fetchall():
        described[oid].append((name, kind, typmod))
    keys = _keys(cursor, tables)
    columns = _columns(cursor, described, options or TypeOptions(), tables)
    return {name: _schema(name, columns[oid], keys.get(oid, ()), options) for oid, name in tables.items()}


def _schema(
    table: TableName, columns: tuple[PgColumn, ...], key: tuple[str, ...], options: TypeOptions | None
) -> TableSchema:
    """The table with its key or, without one, with the promised key."""
    if key or options is None:
        return TableSchema(table, columns, key)
    promised = options.keys.usable(table, [column.name for column in columns])
    return TableSchema(table, columns, promised, promised=bool(promised))


def table_oids(cursor: CatalogCursor, names: Collection[TableName]) -> dict[int, TableName]:
    """The existing tables of these names, by OID."""
    if not names:
        return {}
    cursor.execute(_TABLES, (tuple(tuple(name) for name in names),))
    return {oid: TableName(schema, name) for schema, name, oid in cursor.fetchall()}


class Unidentified(TableSchema):
    """The schema of a table without a replica identity: the log does not show which row has changed."""


def relation_schema(
    cursor: CatalogCursor, relation: Relation, options: TypeOptions | None = None, table: TableName | None = None
) -> TableSchema:
    """The schema in a Relation message, under the name `table`, which may differ from the message's. Raises
    PreconditionFailed if changes of the table would lack their key."""
    table = table or TableName(relation.schema, relation.name)
    described = {relation.oid: [(c.name, c.oid, c.typmod) for c in relation.columns]}
    columns = _columns(cursor, described, options or TypeOptions(), {relation.oid: table})[relation.oid]
    named = () if options is None else options.keys.usable(table, [column.name for column in columns])
    key, promised = _relation_key(cursor, table, relation, named)
    return TableSchema(table, columns, key, str(relation.oid), promised=promised)


def _relation_key(
    cursor: CatalogCursor, table: TableName, relation: Relation, promised: tuple[str, ...]
) -> tuple[tuple[str, ...], bool]:
    """The key, and whether it is the promised one."""
    flagged = tuple(column.name for column in relation.columns if column.key)
    hint = f"alter table {table} replica identity default (or full, or using index); the table needs a key"
    key = _keys(cursor, [relation.oid]).get(relation.oid, ())
    if relation.identity == "n" and key:
        return key, False  # the server refuses updates and deletes, and inserts have all columns
    if not flagged:
        raise PreconditionFailed(f"the changes of table {table} in the log do not identify their rows", hint=hint)
    if relation.identity == "d" and set(key) != set(flagged):
        return flagged, False  # the key has changed since; the message has the primary key of that time
    if not key and relation.identity == "f" and promised:
        return promised, True
    if not key:
        raise PreconditionFailed(f"table {table} has no key", hint=f"alter table {table} add primary key (...)")
    if not set(key) <= set(flagged):
        message = f"the log identifies rows of table {table} by {flagged!r}, which lacks the key {key!r}"
        raise PreconditionFailed(message, hint=hint)
    return key, False


def _keys(cursor: CatalogCursor, tables: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """The key of each table that has one: its columns in the key's order."""
    cursor.execute(_KEYS, (tuple(tables),))
    keys: dict[int, tuple[str, ...]] = {}
    for oid, name in cursor.fetchall():
        keys[oid] = (*keys.get(oid, ()), name)
    return keys


def _columns(
    cursor: CatalogCursor,
    tables: dict[int, list[tuple[str, int, int]]],
    options: TypeOptions,
    names: Mapping[int, TableName],
) -> dict[int, tuple[PgColumn, ...]]:
    wanted = sorted({(oid, typmod) for columns in tables.values() for _, oid, typmod in columns})
    facts = _type_facts(cursor, {oid for oid, _ in wanted})
    cursor.execute(_SPELLED, ([oid for oid, _ in wanted], [typmod for _, typmod in wanted]))
    spelled = {(oid, typmod): text for oid, typmod, text in cursor.fetchall()}

    def column(table: TableName, name: str, oid: int, typmod: int) -> PgColumn:
        text = spelled[oid, typmod] if oid in facts else "unknown"
        rule = options.values.of(table, name)
        return pg_column(name, oid, text, _resolved(facts, oid, typmod), options, rule)

    return {oid: tuple(column(names[oid], *described) for described in columns) for oid, columns in tables.items()}


def _type_facts(cursor: CatalogCursor, oids: set[int]) -> dict[int, tuple[Any, ...]]:
    """Rows of `_TYPES` by OID, for these types and their element and base types."""
    facts: dict[int, tuple[Any, ...]] = {}
    while oids:
        cursor.execute(_TYPES, (tuple(oids),))
        found = {row[0]: row[1:] for row in cursor.fetchall()}
        facts |= found
        oids = {oid for row in found.values() for oid in (row[1], row[3]) if oid and oid not in facts}
    return facts


def _resolved(facts: dict[int, tuple[Any, ...]], oid: int, typmod: int) -> PgType:
    if oid not in facts:
        return PgType(oid)
    kind, base, base_typmod, element, delimiter, output, operators = facts[oid]
    if kind == "d":
        return _resolved(facts, base, base_typmod)
    if element:
        return PgType(oid, typmod, output, _resolved(facts, element, typmod), delimiter)
    return PgType(oid, typmod, output, operators=operators and tuple(operators))
