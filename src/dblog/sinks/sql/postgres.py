"""PostgreSQL as a target: COPY into staging tables, then one statement with ON CONFLICT."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.schema import Column, TableName, TableSchema
from dblog.databases.postgres.connect import connect, identifier, literal, parse, translate
from dblog.errors import DBLogError, SinkError, SinkUnreachable
from dblog.sinks.sql import text
from dblog.sinks.sql.shape import Found, of_mysql
from dblog.sinks.sql.target import Session, StagedRows, Target, newer, refused

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression

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
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_LOCK = 7_364_519
"""The number of the advisory lock under which all sinks change table definitions."""
_WAIT = "60s"
_HOLDS = "the target's column cannot store the value: alter it, or leave the column out with exclude"
_AT_ROW = re.compile(r"COPY \w+, \w+ (\d+), \w+ (.+?)(?::|$)")
"""The line (counted from 1) and the column of a value that COPY refused."""
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

    def connect(self) -> Session:
        try:
            session = Session(self, connect(self.url))
        except DBLogError as error:
            raise refused(error) from error
        session.run(f"set lock_timeout = '{_WAIT}'")
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
            raise refused(error, hint) from exc

    def quoted(self, *names: str) -> str:
        return identifier(*names)

    def literal(self, text: str) -> str:
        return literal(text)

    # -- definitions -------------------------------------------------------------------------------------------------

    def types(self, schema: TableSchema) -> dict[str, str]:
        foreign = of_mysql(schema)
        return {c.name: _foreign_type(c) if foreign else _own_type(c) for c in schema.columns}

    def found(self, session: Session, table: TableName) -> Found | None:
        relation = f"to_regclass({literal(identifier(*table))})"
        types = session.run(
            "select attname, pg_catalog.format_type(atttypid, atttypmod) from pg_catalog.pg_attribute "
            f"where attrelid = {relation} and attnum > 0 and not attisdropped and attgenerated = '' order by attnum"
        )
        key = session.run(
            "select a.attname from pg_catalog.pg_index i join pg_catalog.pg_attribute a on a.attrelid = i.indrelid "
            f"and a.attnum = any (i.indkey) where i.indrelid = {relation} and i.indisprimary"
        )
        return Found(dict(types), tuple(name for (name,) in key)) if types else None

    def create_schema(self, session: Session, name: str) -> None:
        if not session.run(f"select 1 from pg_catalog.pg_namespace where nspname = {literal(name)}"):
            session.run(f"create schema if not exists {identifier(name)}", f"creating schema {name!r}")

    def table_options(self, session: Session) -> str:
        return ""

    def alter(self, column: str, kind: str, *, key: bool) -> str:
        return f"alter column {identifier(column)} type {kind} using {identifier(column)}::{kind}"

    @contextmanager
    def alone(self, session: Session) -> Iterator[None]:
        session.run(f"select pg_advisory_lock({_LOCK})")
        try:
            yield
        finally:
            with suppress(SinkError):  # the lock ends with the session
                session.run(f"select pg_advisory_unlock({_LOCK})")

    def tables_like(self, session: Session, schema: str, prefix: str) -> list[str]:
        where = f"schemaname = {literal(schema)} and starts_with(tablename, {literal(prefix)})"
        return [name for (name,) in session.run(f"select tablename from pg_catalog.pg_tables where {where}")]

    # -- rows --------------------------------------------------------------------------------------------------------

    def cell(self, name: str, kind: pa.DataType) -> Expression:
        from pyspark.sql import functions as f

        return f.col("`" + name.replace("`", "``") + "`")

    def load(self, session: Session, stage: str, rows: pa.RecordBatch) -> None:
        fields = [_copied(name, column) for name, column in zip(rows.schema.names, rows.columns, strict=True)]
        lines = text.surrounded(text.joined(fields, "\t", "\\N"), "", "\n")
        content, _ = text.buffer(lines)
        doing = f"copying rows to {stage}"
        with self.errors(doing), session.connection.cursor() as cursor:
            try:
                cursor.copy_expert(f"copy {stage} from stdin", io.BytesIO(content), size=1 << 18)
            except psycopg2.DataError as exc:
                at_row = _AT_ROW.match(exc.diag.context or "")
                if at_row is None or at_row[2] not in rows.schema.names:
                    raise
                why = exc.diag.message_primary or str(exc)
                raise text.Refused(at_row[2], int(at_row[1]) - 1, why, hint=_HOLDS) from exc

    def deletes(self, staged: StagedRows) -> str:
        return (
            f"delete from {staged.table} as t using {staged.stage} as s "
            f"where {staged.matching('t', 's')} and {newer('s', 't')} and s._gone and {staged.counted}"
        )

    def tombstones(self, staged: StagedRows, least: int, after: tuple[int, int]) -> str:
        key = ", ".join(staged.key)
        return (
            f"insert into {staged.deleted} as d ({key}, _lsn, _seq) "
            f"select {key}, _lsn, _seq from {staged.stage} as s "
            f"where s._gone and {staged.counted} and s._lsn >= {least} and (s._lsn, s._seq) > ({after[0]}, {after[1]}) "
            f"on conflict ({key}) do update set _lsn = excluded._lsn, _seq = excluded._seq "
            f"where {newer('excluded', 'd')}"
        )

    def upserts(self, staged: StagedRows, where: str) -> Sequence[str]:
        columns = [*staged.columns, "_lsn", "_seq"]
        rest = [name for name in columns if name not in staged.key or name in staged.signed]
        values = {
            name: f"case when {literal(staged.names[name])} = any (s._unchanged) then t.{name} else s.{name} end"
            for name in rest
            if name in staged.names
        }
        kept = ", ".join(f"{name} = {values.get(name, f's.{name}')}" for name in rest)
        partly = (
            f"update {staged.table} as t set {kept} from {staged.stage} as s where {staged.matching('t', 's')} "
            f"and s._unchanged is not null and not s._whole and {newer('s', 't')} and {where}"
        )
        listed = ", ".join(columns)
        whole = (
            f"insert into {staged.table} as t ({listed}) select {listed} from {staged.stage} as s where {where} "
            f"on conflict ({', '.join(staged.key)}) do update "
            f"set {', '.join(f'{name} = excluded.{name}' for name in rest)} where {newer('excluded', 't')}"
        )
        # The second statement skips the rows that the first has updated: their order is not older any more.
        return [partly, whole] if staged.incomplete else [whole]


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
    raise SinkError(f"column {column.name!r} ({column.type}) has no type in PostgreSQL", hint="exclude it")


def _copied(name: str, values: pa.Array) -> pa.Array:
    """The values of a column as COPY reads them."""
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return text.surrounded(text.hexed(values), "\\\\x", "")
    if pa.types.is_list(kind):
        return text.escaped(_array(name, values), _ESCAPES)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text.refuse_nul(name, values)
        return text.escaped(values, _ESCAPES).cast(text.TEXT)
    if pa.types.is_temporal(kind):
        return text.temporal(name, values, _odd)
    return values.cast(text.TEXT)


def _array(name: str, values: pa.Array) -> pa.Array:
    """One-dimensional array literals."""
    items = values.flatten()
    try:
        shown = _items(name, items)
    except text.Refused as refused:
        row = pc.list_parent_indices(values)[refused.row].as_py()
        raise text.Refused(name, row, refused.why) from None
    lengths = pc.list_value_length(values).fill_null(0)
    ends = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
    lists = pa.LargeListArray.from_arrays(ends, shown.fill_null("NULL"))
    literals = text.surrounded(pc.binary_join(lists, pa.scalar(",", text.TEXT)), "{", "}")
    return pc.if_else(pc.is_valid(values), literals, pa.scalar(None, text.TEXT))


def _items(name: str, items: pa.Array) -> pa.Array:
    """The items of arrays as they are written in an array literal."""
    if pa.types.is_binary(items.type):
        return text.surrounded(text.hexed(items), '"\\\\x', '"')
    if pa.types.is_string(items.type):
        text.refuse_nul(name, items)
        return text.surrounded(text.escaped(items, {"\\": "\\\\", '"': '\\"'}), '"', '"')
    if pa.types.is_temporal(items.type):
        return text.surrounded(text.temporal(name, items, _odd), '"', '"')
    return items.cast(text.TEXT)


def _odd(days: int, micros: int, infinite: bool) -> str:
    if infinite:
        return "infinity" if days > 0 else "-infinity"
    year, month, day = text.civil(days)
    shown = f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02} {text.clock(micros)}"
    return shown if year > 0 else shown + " BC"
