"""PostgreSQL as a target: COPY into staging tables, then one statement with ON CONFLICT."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

import psycopg2
import pyarrow as pa

from dblog.core.schema import Column, TableName, TableSchema
from dblog.databases.postgres.connect import connect, identifier, literal, parse, translate
from dblog.errors import DBLogError, SinkError, SinkUnreachable, TargetRefused
from dblog.sinks.sql import text
from dblog.sinks.sql.postgres.copy_binary import HEADER, TRAILER, encoded
from dblog.sinks.sql.postgres.copy_text import copied, input_texts, literals, raw_text
from dblog.sinks.sql.shape import Found, of_mysql
from dblog.sinks.sql.staged import Inline, StagedRows, newer
from dblog.sinks.sql.target import DuplicateKey, Session, Target, refused

_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp without time zone",
    pa.timestamp("us", tz="UTC"): "timestamp with time zone",
}
NAME_BYTES = 63
"""The server cuts longer names without an error, and two tables could become one."""
_LOCK = 7_364_519
"""The number of the advisory lock under which all sinks change table definitions."""
_SETTINGS = {
    "lock_timeout": "60s",
    # The server ends the session of a client that is gone, and with it the locks. Its own default is two hours.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
_HOLDS = "the target's column cannot store the value: alter it, or leave the column out with exclude"
_OF_TABLE = ("22", "23", "42")
"""Classes of SQLSTATE that concern the table of a statement: values, constraints, definitions and privileges."""
_AT_ROW = re.compile(r"^COPY \w+, \w+ (\d+), \w+ (.+?)(?::|$)", re.MULTILINE)
"""The line (counted from 1) and the column of a value that COPY refused. Lines about the value may be before it."""
_AGAIN = {
    "40001": "there was a conflict with another transaction; the batch is written again",
    "40P01": "there was a deadlock with another transaction; the batch is written again",
    "53300": "raise max_connections or the role's CONNECTION LIMIT, or close other sessions",
}


@dataclass(frozen=True, repr=False)
class PostgresTarget(Target):
    """A PostgreSQL database."""

    url: str

    def __post_init__(self) -> None:
        parse(self.url)

    any_text = "text"
    scratch = "create unlogged table"
    moment = "timestamp with time zone"
    short_text = "text"
    schema = "public"
    unchanged = "text[]"
    for_share = "for share"

    def connect(self, *, durable: bool = True) -> Session:
        try:
            session = Session(self, connect(self.url))
        except DBLogError as error:
            raise refused(error) from error
        settings = _SETTINGS if durable else {**_SETTINGS, "synchronous_commit": "off"}
        session.run("; ".join(f"set {name} = '{value}'" for name, value in settings.items()))
        return session

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except psycopg2.Error as exc:
            address = parse(self.url)
            error = translate(exc, doing, secrets=address.secrets)
            if again := _AGAIN.get(exc.pgcode or ""):
                raise SinkUnreachable(error.message, hint=again) from exc
            hint = None
            if exc.pgcode == "42501":
                user = identifier(address.get("user"))
                hint = (
                    f"GRANT CREATE ON DATABASE {identifier(address.database)} TO {user}, or create the schemas and "
                    f"GRANT USAGE, CREATE ON SCHEMA ... TO {user}; existing tables must belong to this user"
                )
            elif (exc.pgcode or "")[:2] in ("22", "23"):
                hint = _HOLDS
            raise refused(error, hint, table=(exc.pgcode or "")[:2] in _OF_TABLE) from exc

    def quoted(self, *names: str) -> str:
        return identifier(*names)

    def literal(self, text: str) -> str:
        return literal(text)

    # -- definitions -------------------------------------------------------------------------------------------------

    def types(self, schema: TableSchema) -> dict[str, str]:
        if long := [n for n in (schema.table.name, *schema.names) if len(n.encode()) > NAME_BYTES]:
            raise SinkError(
                f"table {schema.table}: the name {long[0]!r} has more than {NAME_BYTES} bytes: PostgreSQL would cut it",
                hint="give it a shorter name in the target: target or rename in its [[table]]",
            )
        foreign = of_mysql(schema)
        return {c.name: _foreign_type(c) if foreign else _own_type(c) for c in schema.columns}

    def of_family(self, schema: TableSchema) -> bool:
        return not of_mysql(schema)

    def input_texts(self, name: str, values: pa.Array) -> pa.Array:
        return input_texts(name, values)

    def raw_text(self, kind: str, text: str) -> str:
        return raw_text(kind, text)

    def found(self, session: Session, tables: Sequence[TableName]) -> dict[TableName, Found]:
        if not tables:
            return {}
        listed = ", ".join(f"({literal(t.schema)}, {literal(t.name)})" for t in tables)
        rows = session.run(
            "select n.nspname, c.relname, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), "
            "pg_catalog.format_type(a.atttypid, -1), coalesce(a.attnum = any (i.indkey), false) "
            "from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace "
            "join pg_catalog.pg_attribute a on a.attrelid = c.oid "
            "left join pg_catalog.pg_index i on i.indrelid = c.oid and i.indisprimary "
            f"where (n.nspname, c.relname) in ({listed}) and c.relkind in ('r', 'p', 'v', 'm', 'f') "
            "and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' order by c.oid, a.attnum"
        )
        columns: dict[TableName, list[tuple[str, str, str, bool]]] = {}
        for schema, name, *column in rows:
            columns.setdefault(TableName(schema, name), []).append(tuple(column))
        return {
            table: Found(
                {name: kind for name, kind, _, _ in found},
                tuple(name for name, _, _, key in found if key),
                {name: plain for name, _, plain, _ in found},
            )
            for table, found in columns.items()
        }

    def create_schemas(self, session: Session, names: Iterable[str]) -> None:
        wanted = set(names)
        if not wanted:
            return
        listed = ", ".join(map(literal, wanted))
        there = session.run(f"select nspname from pg_catalog.pg_namespace where nspname in ({listed})")
        for name in sorted(wanted - {name for (name,) in there}):
            session.run(f"create schema if not exists {identifier(name)}", f"creating schema {name!r}")

    def table_options(self, session: Session) -> str:
        return ""

    def alter(self, column: str, kind: str, *, key: bool) -> str:
        return f"alter column {identifier(column)} type {kind} using {identifier(column)}::{kind}"

    def claim(self, session: Session, name: str) -> None:
        session.run(
            "select pg_catalog.pg_terminate_backend(pid) from pg_catalog.pg_stat_activity where application_name = "
            f"{literal(name)} and datname = current_database() and usename = current_user and pid <> pg_backend_pid()",
            "ending the session of an earlier leader",
        )
        session.run(f"set application_name = {literal(name)}")

    @contextmanager
    def alone(self, session: Session) -> Iterator[None]:
        session.run(f"select pg_advisory_lock({_LOCK})")
        try:
            yield
        finally:
            with suppress(SinkError):  # the lock ends with the session
                session.run(f"select pg_advisory_unlock({_LOCK})")

    def definitions(self, session: Session) -> AbstractContextManager[None]:
        return session.transaction()

    def tables_like(self, session: Session, schema: str, prefix: str) -> list[str]:
        where = f"schemaname = {literal(schema)} and starts_with(tablename, {literal(prefix)})"
        return [name for (name,) in session.run(f"select tablename from pg_catalog.pg_tables where {where}")]

    # -- rows --------------------------------------------------------------------------------------------------------

    def insert(self, session: Session, table: str, rows: pa.RecordBatch, types: Mapping[str, str]) -> None:
        binary = encoded(rows, types)
        names = list(rows.schema.names) if binary is None else binary[0]
        content = _lines(rows) if binary is None else b"".join([HEADER, binary[1], TRAILER])
        form = "text" if binary is None else "binary"
        copy = f"copy {table} ({', '.join(map(identifier, names))}) from stdin (format {form})"
        with self.errors(f"copying rows to {table}"), session.connection.cursor() as cursor:
            try:
                cursor.copy_expert(copy, io.BytesIO(content), size=1 << 18)
            except psycopg2.errors.UniqueViolation as exc:
                raise DuplicateKey(f"table {table} has a row with the same key: {exc.diag.message_detail}") from exc
            except psycopg2.DataError as exc:
                at_row = _AT_ROW.search(exc.diag.context or "")
                if at_row is None or at_row[2] not in names:
                    raise
                why = exc.diag.message_primary or str(exc)
                raise text.Refused(at_row[2], int(at_row[1]) - 1, why, hint=_HOLDS) from exc

    def inline(self, rows: pa.Table, types: Mapping[str, str], stage: str) -> Inline:
        # The types of the first row count for all rows: a literal without a type is read as its column's type.
        names = rows.schema.names
        cells = [literals(name, _plain(rows[name].combine_chunks())) for name in names]
        content, _ = text.buffer(text.surrounded(text.joined([c.slice(1) for c in cells], ",", "null"), ",(", ")"))
        first = ", ".join(f"{c[0].as_py() or 'null'}::{types[n]}" for n, c in zip(names, cells, strict=True))
        return Inline(f"(values ({first}){bytes(content).decode()}) as _s ({', '.join(map(identifier, names))})")

    def deletes(self, staged: StagedRows) -> str:
        return (
            f"delete from {staged.names.table} as t using {staged.source} "
            f"where {staged.matching('t', '_s')} and {newer('_s', 't')} and _s._gone"
        )

    def tombstones(self, staged: StagedRows, least: int, after: tuple[int, int]) -> str:
        key = ", ".join(staged.names.key)
        return (
            f"insert into {staged.names.deleted} as d ({key}, _lsn, _seq) "
            f"select {key}, _lsn, _seq from {staged.source} "
            f"where _s._gone and _s._lsn >= {least} and (_s._lsn, _s._seq) > ({after[0]}, {after[1]}) "
            f"on conflict ({key}) do update set _lsn = excluded._lsn, _seq = excluded._seq "
            f"where {newer('excluded', 'd')}"
        )

    def upserts(self, staged: StagedRows, where: str) -> Sequence[str]:
        names = staged.names
        columns = [*names.columns, "_lsn", "_seq"]
        rest = [name for name in columns if name not in names.key or name in names.signed]
        values = {
            name: f"case when {literal(names.plain[name])} = any (_s._unchanged) then t.{name} else _s.{name} end"
            for name in rest
            if name in names.plain
        }
        kept = ", ".join(f"{name} = {values.get(name, f'_s.{name}')}" for name in rest)
        partly = (
            f"update {names.table} as t set {kept} from {staged.source} where {staged.matching('t', '_s')} "
            f"and _s._unchanged is not null and not _s._whole and {newer('_s', 't')} and {where}"
        )
        listed = ", ".join(columns)
        whole = (
            f"insert into {names.table} as t ({listed}) select {listed} from {staged.source} where {where} "
            f"on conflict ({', '.join(names.key)}) do update "
            f"set {', '.join(f'{name} = excluded.{name}' for name in rest)} where {newer('excluded', 't')}"
        )
        # The second statement skips the rows that the first has updated: their order is not older any more.
        return [partly, whole] if staged.kinds.incomplete else [whole]

    def delete_joined(self, table: str, source: str, matching: str) -> str:
        return f"delete from {table} using {source} where {matching}"

    def update_joined(self, table: str, source: str, matching: str, values: Mapping[str, str]) -> str:
        changes = ", ".join(f"{name} = {value}" for name, value in values.items())
        return f"update {table} set {changes} from {source} where {matching}"

    def has_index(self, session: Session, table: TableName, name: str) -> bool:
        where = f"schemaname = {literal(table.schema)} and indexname = {literal(name)}"
        return bool(session.run(f"select 1 from pg_catalog.pg_indexes where {where}"))


def _lines(rows: pa.RecordBatch) -> memoryview:
    """Rows as lines of text."""
    fields = [copied(name, _plain(column)) for name, column in zip(rows.schema.names, rows.columns, strict=True)]
    return text.buffer(text.surrounded(text.joined(fields, "\t", "\\N"), "", "\n"))[0]


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary.take(column.indices) if pa.types.is_dictionary(column.type) else column


def _own_type(column: Column) -> str:
    """The source's own type, if it is a PostgreSQL type with the same meaning in every database; otherwise a type that
    can store its values."""
    name = column.type
    foreign = "." in name or name.startswith(("reg", "aclitem", "box["))  # a box array has another separator
    other = column.arrow != pa.string() and name.startswith(("bit", "point"))
    return _foreign_type(column) if foreign or other else name


def _foreign_type(column: Column) -> str:
    if column.arrow == pa.string() and column.type in ("json", "uuid"):
        return column.type
    return _type(column.arrow, column)


def _type(kind: pa.DataType, column: Column) -> str:
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return _type(kind.value_type, column) + "[]"
    raise TargetRefused(f"column {column.name!r} ({column.type}) has no type in PostgreSQL", hint="exclude it")
