"""MySQL and MariaDB as targets: INSERTs of many rows, then one statement with ON DUPLICATE KEY UPDATE.

LOAD DATA LOCAL is not used: most servers disable it, and it turns every value that does not fit into a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pymysql.err

from dblog.core.schema import Column, TableName, TableSchema
from dblog.databases.mysql.connect import RIGHTS, connect, identifier, parse, server, translate
from dblog.databases.mysql.flavor import MARIADB
from dblog.errors import DBLogError, SinkError, SinkUnreachable
from dblog.sinks.sql import text
from dblog.sinks.sql.shape import Found, of_mysql
from dblog.sinks.sql.target import Session, StagedRows, Target, newer, refused

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression

_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "tinyint(1)",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "longtext",
    pa.binary(): "longblob",
    pa.date32(): "date",
    pa.timestamp("us"): "datetime(6)",
    pa.timestamp("us", tz="UTC"): "datetime(6)",
}
_OWN_TEXT = re.compile(r"(char|varchar|time|decimal)(\([\d,]+\))?( unsigned)?|(enum|set)\(.*\)", re.DOTALL)
_OWN_BYTES = re.compile(r"(tiny|medium|long)?blob|(var)?binary\(\d+\)")
_COMPRESSED = re.compile(r" /\*.*\*/$")
_LENGTH = re.compile(r"(char|varchar|character|character varying)\((\d+)\)")

INDEX_BYTES, ROW_BYTES = 3072, 60_000
"""The server's limits, in bytes, of a key and (with a margin) of all columns of a row that it does not store
separately."""
STATEMENT_BYTES = 1 << 20
_LOCK, _WAIT_SECONDS = "dblog definitions", 60
_LIMITS = {1040, 1203, 1226}
_HOLDS = "the target's column cannot store the value: alter it, or leave the column out with exclude"
_AT_ROW = re.compile(r"column (?:`[^`]*`\.)*[`'](.+)[`'] at row (\d+)")
_VALUES = {1048, 1264, 1265, 1292, 1366, 1406, 1411, 3140, 4025}


@dataclass(frozen=True, repr=False)
class MySQLTarget(Target):
    """A MySQL or MariaDB server. Its databases are used as schemas."""

    url: str

    def __post_init__(self) -> None:
        parse(self.url)

    any_text = "longtext"
    scratch = "create table"
    moment = "datetime(6)"
    short_text = "varchar(190)"
    unchanged = "longtext"

    @property
    def schema(self) -> str:  # type: ignore[override]
        found = parse(self.url).database
        if not found:
            raise SinkError("the setting 'url' has no database", hint="append the database to it, or set schema")
        return found

    def connect(self) -> Session:
        try:
            # No default database: it may not exist yet, and all names are qualified.
            return Session(self, connect(replace(parse(self.url), database="")))
        except DBLogError as error:
            raise refused(error) from error

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (pymysql.err.MySQLError, OSError) as exc:
            address = parse(self.url)
            error = translate(exc, doing, secrets=address.secrets)
            number = exc.args[0] if exc.args else 0
            if number in _LIMITS:
                raise SinkUnreachable(error.message, hint=error.hint) from exc
            hint = None
            if number in RIGHTS:
                rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX"
                hint = f"GRANT {rights} ON ... TO {address.user}, on the databases of the tables and of 'records'"
            elif number in _VALUES:
                hint = _HOLDS
            elif number == 1071:
                hint = "a key of the target has at most 3072 bytes: create the table by hand with a shorter one"
            raise refused(error, hint) from exc

    def quoted(self, *names: str) -> str:
        return identifier(*names)

    def literal(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"

    # -- definitions -------------------------------------------------------------------------------------------------

    def types(self, schema: TableSchema) -> dict[str, str]:
        own = of_mysql(schema)
        open_ended = [
            c for c in schema.columns if c.name in schema.key and _type(c, own=own) in ("longtext", "longblob")
        ]
        share = (INDEX_BYTES - 40 * len(schema.key)) // max(len(open_ended), 1)
        found = {c.name: _type(c, own=own) for c in schema.columns}
        for column in open_ended:
            text = found[column.name] == "longtext"
            found[column.name] = f"varchar({share // 4})" if text else f"varbinary({share})"
        if sum(map(_bytes, found.values())) > ROW_BYTES:
            wide = {name for name, kind in found.items() if kind.startswith("var") and name not in schema.key}
            found |= {name: "longtext" if found[name].startswith("varchar") else "longblob" for name in wide}
        return found

    def found(self, session: Session, table: TableName) -> Found | None:
        where = f"where table_schema = {self.literal(table.schema)} and table_name = {self.literal(table.name)}"
        columns = session.run(
            "select column_name, column_type, character_set_name, collation_name from information_schema.columns "
            f"{where} and coalesce(generation_expression, '') = '' order by ordinal_position"
        )
        key = session.run(
            f"select column_name from information_schema.statistics {where} and index_name = 'PRIMARY' "
            "order by seq_in_index"
        )
        types = {
            name: kind + (f" character set {charset} collate {collation}" if collation else "")
            for name, kind, charset, collation in columns
        }
        return Found(types, tuple(name for (name,) in key)) if types else None

    def create_schema(self, session: Session, name: str) -> None:
        if not session.run(f"select 1 from information_schema.schemata where schema_name = {self.literal(name)}"):
            session.run(f"create database if not exists {identifier(name)}", f"creating database {name!r}")

    def table_options(self, session: Session) -> str:
        """Texts are compared byte by byte, trailing spaces included, so that different keys of the source stay
        different."""
        plain = "utf8mb4_nopad_bin" if server(session.connection).flavor is MARIADB else "utf8mb4_0900_bin"
        return f" engine = InnoDB default character set utf8mb4 collate {plain}"

    def alter(self, column: str, kind: str, *, key: bool) -> str:
        return f"modify column {identifier(column)} {kind} {'not null' if key else 'null'}"

    def staged_type(self, kind: str) -> str:
        return kind[: kind.rindex(")")] + ",'')" + kind[kind.rindex(")") + 1 :] if _lacks_blank(kind) else kind

    @contextmanager
    def alone(self, session: Session) -> Iterator[None]:
        if session.run(f"select get_lock('{_LOCK}', {_WAIT_SECONDS})") != [(1,)]:
            raise SinkUnreachable("another pipeline has held the lock for table definitions for a minute")
        try:
            yield
        finally:
            with suppress(SinkError):  # the lock ends with the session
                session.run(f"select release_lock('{_LOCK}')")

    def tables_like(self, session: Session, schema: str, prefix: str) -> list[str]:
        where = f"table_schema = {self.literal(schema)} and left(table_name, {len(prefix)}) = {self.literal(prefix)}"
        return [name for (name,) in session.run(f"select table_name from information_schema.tables where {where}")]

    # -- rows --------------------------------------------------------------------------------------------------------

    def cell(self, name: str, kind: pa.DataType) -> Expression:
        from pyspark.sql import functions as f

        column = f.col("`" + name.replace("`", "``") + "`")
        return f.to_json(column) if pa.types.is_list(kind) else column

    def load(self, session: Session, stage: str, rows: pa.RecordBatch) -> None:
        cells = [_written(name, column) for name, column in zip(rows.schema.names, rows.columns, strict=True)]
        content, at = text.buffer(text.surrounded(text.joined(cells, ",", "NULL"), "(", "),"))
        [(limit,)] = session.run("select @@max_allowed_packet")
        doing = f"inserting rows into {stage}"
        with session.transaction():
            begin = 0
            while begin < len(rows):
                end = max(int(np.searchsorted(at, at[begin] + STATEMENT_BYTES, "right")) - 1, begin + 1)
                statement = b"insert into " + stage.encode() + b" values " + bytes(content[at[begin] : at[end] - 1])
                if len(statement) >= limit:
                    raise SinkError(
                        f"a row needs a statement of {len(statement)} bytes; the server accepts at most {limit}",
                        hint="raise max_allowed_packet on the server",
                    )
                with self.errors(doing), session.connection.cursor() as cursor:
                    try:
                        cursor.execute(statement)
                    except pymysql.err.MySQLError as exc:
                        number, said = (*exc.args, "", "")[:2]
                        at_row = _AT_ROW.search(str(said)) if number in _VALUES else None
                        if at_row is None:
                            raise
                        raise text.Refused(at_row[1], begin + int(at_row[2]) - 1, str(said), hint=_HOLDS) from exc
                begin = end

    def deletes(self, staged: StagedRows) -> str:
        table = staged.table  # no alias: the server would look for it in the default database
        return (
            f"delete {table} from {staged.stage} as s straight_join {table} on {staged.matching(table, 's')} "
            f"where {newer('s', table)} and s._gone and {staged.counted}"
        )

    def tombstones(self, staged: StagedRows, least: int, after: tuple[int, int]) -> str:
        key = ", ".join(staged.key)
        return (
            f"insert into {staged.deleted} ({key}, _lsn, _seq) "
            f"select {', '.join(f's.{name}' for name in staged.key)}, s._lsn, s._seq from {staged.stage} as s "
            f"where s._gone and {staged.counted} and s._lsn >= {least} and (s._lsn, s._seq) > ({after[0]}, {after[1]}) "
            f"on duplicate key update {_newer_order(staged.deleted)}"
        )

    def upserts(self, staged: StagedRows, where: str) -> Sequence[str]:
        columns = [*staged.columns, "_lsn", "_seq"]
        table = staged.table
        blank = [n for n in staged.columns if n not in staged.key and _lacks_blank(staged.types[n])]

        def given(name: str) -> str:
            return f"nullif(s.{name}, '')" if name in blank else f"s.{name}"

        def value(name: str) -> str:
            if not staged.incomplete or name not in staged.names:
                return given(name)
            quoted = self.literal(json.dumps(staged.names[name], ensure_ascii=False))
            kept = f"s._unchanged is not null and not s._whole and json_contains(s._unchanged, {quoted})"
            return f"if({kept}, {table}.{name}, {given(name)})"

        changed = [
            f"{name} = if({newer('s', table)}, {value(name)}, {table}.{name})"
            for name in staged.columns
            if name not in staged.key or name in staged.signed
        ]
        upsert = (
            f"insert into {table} ({', '.join(columns)}) select {', '.join(map(given, columns))} "
            f"from {staged.stage} as s where {where} "
            f"on duplicate key update {', '.join([*changed, _newer_order(table)])}"
        )
        return [upsert, *self._blanks(staged, blank)] if blank else [upsert]

    def _blanks(self, staged: StagedRows, columns: Sequence[str]) -> Sequence[str]:
        """Statements that write the error value '' of ENUMs to the rows just written. A strict session refuses it."""
        table = staged.table
        here = f"({table}._lsn, {table}._seq) = (s._lsn, s._seq) and {staged.counted}"
        return [
            "set @dblog_mode = @@session.sql_mode",
            "set session sql_mode = ''",
            *(
                f"update {staged.stage} as s straight_join {table} on {staged.matching(table, 's')} "
                f"set {table}.{name} = '' where s.{name} = '' and {here}"
                for name in columns
            ),
            "set session sql_mode = @dblog_mode",
        ]


def _lacks_blank(kind: str) -> bool:
    """Whether a type is an ENUM without the member ''. The server stores '' for an invalid value of such an ENUM."""
    return kind.startswith("enum(") and "''" not in re.findall(r"'(?:[^']|'')*'", kind)


def _newer_order(table: str) -> str:
    """Assignments of `_seq` and `_lsn`, each taken if the new row is newer.

    The server assigns from left to right and reads values that it has already assigned. So `_seq` comes first, and
    `_lsn`, which only grows, needs no condition."""
    return f"_seq = if({newer('s', table)}, s._seq, {table}._seq), _lsn = greatest({table}._lsn, s._lsn)"


def _type(column: Column, *, own: bool) -> str:
    kind, name = column.arrow, _COMPRESSED.sub("", column.type)
    if kind == pa.string():
        if own and _OWN_TEXT.fullmatch(name):
            return name
        if column.type == "uuid":
            return "char(36)"
        limited = _LENGTH.fullmatch(name)
        return f"varchar({limited[2]})" if limited and int(limited[2]) <= 255 else "longtext"
    if kind == pa.binary():
        return name if own and _OWN_BYTES.fullmatch(name) else "longblob"
    if pa.types.is_list(kind):
        return "longtext"
    if own and column.type != "uuid":
        return name
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})" if kind.scale <= 30 else f"varchar({kind.precision + 4})"
    raise SinkError(f"column {column.name!r} ({column.type}) has no type in MySQL", hint="exclude it")


def _bytes(kind: str) -> int:
    """The bytes that a string or binary column of this type takes in a row; 0 for other types."""
    found = re.fullmatch(r"(var)?(char|binary)\((\d+)\)", kind)
    return 0 if found is None else int(found[3]) * (4 if found[2] == "char" else 1)


def _written(name: str, values: pa.Array) -> pa.Array:
    """The values of a column as SQL literals."""
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return text.surrounded(text.hexed(values), "x'", "'")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return text.surrounded(text.escaped(values, {"\\": "\\\\", "'": "\\'"}), "'", "'")
    if pa.types.is_temporal(kind):
        return text.surrounded(text.temporal(name, values, _odd), "'", "'")
    if pa.types.is_decimal(kind) and kind.scale:
        # Arrow writes small decimals with an exponent, and the server reads a number with an exponent as a float.
        return text.surrounded(values.cast(text.TEXT), "'", "'")
    if pa.types.is_floating(kind):
        text.refuse(name, pc.invert(pc.is_finite(values)), "the server cannot store infinity and NaN")
    if kind == pa.float32():
        values = values.cast(pa.float64())  # the shortest text of the greatest float32 is out of its range
    texts = values.cast(text.TEXT)
    if pa.types.is_floating(kind):  # as a number -0 loses its sign, as text it does not
        texts = pc.if_else(pc.equal(texts, "-0"), pa.scalar("'-0'", text.TEXT), texts)
    return texts


def _odd(days: int, micros: int, infinite: bool) -> str | None:
    return "0000-00-00" if infinite and days < 0 else None
