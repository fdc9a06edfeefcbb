"""MySQL and MariaDB as targets: rows into staging tables, then one statement with ON DUPLICATE KEY UPDATE."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pymysql.err
from pymysql.constants import CLIENT

from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.connect import RIGHTS, connect, identifier, parse, server, translate
from dblog.databases.mysql.flavor import MARIADB
from dblog.errors import DBLogError, SinkError, SinkUnreachable
from dblog.sinks.sql import text
from dblog.sinks.sql.mysql.load_data import load_rows
from dblog.sinks.sql.mysql.rows import HOLDS, VALUES, input_texts, insert_rows, value_lists
from dblog.sinks.sql.mysql.types import column_types, lacks_blank
from dblog.sinks.sql.shape import Found, of_mysql
from dblog.sinks.sql.staged import Inline, StagedRows, newer
from dblog.sinks.sql.target import Session, Target, refused

_LOCK, _WAIT_SECONDS = "dblog definitions", 60
_LIMITS = {1040, 1203, 1226}
_OF_TABLE = VALUES | {1054, 1062, 1071, 1136, 1142, 1143, 1146, 1364, 1369, 1451, 1452, 1690, 3819}
"""Errors that concern the table of a statement: values, constraints, definitions and privileges."""


class MySQLSession(Session):
    """A session with MySQL or MariaDB."""

    local_files = False
    """Whether the server allows LOAD DATA LOCAL."""


@dataclass(frozen=True, repr=False)
class MySQLTarget(Target):
    """A MySQL or MariaDB server. Its databases are used as schemas."""

    url: str

    def __post_init__(self) -> None:
        parse(self.url)

    years = "1-9999"
    any_text = "longtext"
    scratch = "create table"
    moment = "datetime(6)"
    short_text = "varchar(190)"
    unchanged = "longtext"
    for_share = "lock in share mode"
    keeps_stages = True

    @property
    def schema(self) -> str:  # type: ignore[override]
        found = parse(self.url).database
        if not found:
            raise SinkError("the setting 'url' has no database", hint="append the database to it, or set schema")
        return found

    def connect(self, *, durable: bool = True) -> Session:
        try:
            # No default database: it may not exist yet, and all names are qualified.
            flags = CLIENT.MULTI_STATEMENTS | CLIENT.LOCAL_FILES
            session = MySQLSession(self, connect(replace(parse(self.url), database=""), client_flag=flags))
        except DBLogError as error:
            raise refused(error) from error
        # A source of the same family may have dates like 2024-02-31.
        session.run("set session sql_mode = concat(@@session.sql_mode, ',ALLOW_INVALID_DATES')")
        [(limit, local_files)] = session.run("select @@max_allowed_packet, @@local_infile")
        session.text_size = min(session.text_size, limit // 4)
        session.local_files = bool(local_files)
        return session

    def last_rows(self, cursor: Any) -> list[tuple[Any, ...]]:
        rows = super().last_rows(cursor)
        while cursor.nextset():
            rows = super().last_rows(cursor)
        return rows

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
            elif number in VALUES:
                hint = HOLDS
            elif number == 1071:
                hint = "a key of the target has at most 3072 bytes: create the table by hand with a shorter one"
            raise refused(error, hint, table=number in _OF_TABLE) from exc

    def quoted(self, *names: str) -> str:
        return identifier(*names)

    def literal(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"

    # -- definitions -------------------------------------------------------------------------------------------------

    def types(self, schema: TableSchema) -> dict[str, str]:
        return column_types(schema)

    def of_family(self, schema: TableSchema) -> bool:
        return of_mysql(schema)

    def input_texts(self, name: str, values: pa.Array) -> pa.Array:
        return input_texts(name, values)

    def found(self, session: Session, tables: Sequence[TableName]) -> dict[TableName, Found]:
        if not tables:
            return {}
        listed = ", ".join(f"({self.literal(t.schema)}, {self.literal(t.name)})" for t in tables)
        where = f"where (table_schema, table_name) in ({listed})"
        columns = session.run(
            "select table_schema, table_name, column_name, column_type, character_set_name, collation_name "
            f"from information_schema.columns {where} and coalesce(generation_expression, '') = '' "
            "order by table_schema, table_name, ordinal_position"
        )
        keys = session.run(
            f"select table_schema, table_name, column_name from information_schema.statistics {where} "
            "and index_name = 'PRIMARY' order by table_schema, table_name, seq_in_index"
        )
        types: dict[TableName, dict[str, str]] = {}
        for schema, table, name, kind, charset, collation in columns:
            spelled = kind + (f" character set {charset} collate {collation}" if collation else "")
            types.setdefault(TableName(schema, table), {})[name] = spelled
        key: dict[TableName, list[str]] = {}
        for schema, table, name in keys:
            key.setdefault(TableName(schema, table), []).append(name)
        return {table: Found(kinds, tuple(key.get(table, ())), kinds) for table, kinds in types.items()}

    def create_schemas(self, session: Session, names: Iterable[str]) -> None:
        wanted = set(names)
        if not wanted:
            return
        listed = ", ".join(map(self.literal, wanted))
        there = session.run(f"select schema_name from information_schema.schemata where schema_name in ({listed})")
        for name in sorted(wanted - {name for (name,) in there}):
            session.run(f"create database if not exists {identifier(name)}", f"creating database {name!r}")

    def table_options(self, session: Session) -> str:
        """Texts are compared byte by byte, trailing spaces included, so that different keys of the source stay
        different."""
        plain = "utf8mb4_nopad_bin" if server(session.connection).flavor is MARIADB else "utf8mb4_0900_bin"
        return f" engine = InnoDB default character set utf8mb4 collate {plain}"

    def alter(self, column: str, kind: str, *, key: bool) -> str:
        return f"modify column {identifier(column)} {kind} {'not null' if key else 'null'}"

    def staged_type(self, kind: str) -> str:
        return kind[: kind.rindex(")")] + ",'')" + kind[kind.rindex(")") + 1 :] if lacks_blank(kind) else kind

    def claim(self, session: Session, name: str) -> None:
        lock, doing = self.literal(name), "ending the session of an earlier leader"
        [(holder,)] = session.run(f"select is_used_lock({lock})", doing)
        if holder is not None:
            with suppress(SinkError):  # it has ended by itself
                session.run(f"kill {int(holder)}", doing)
        if session.run(f"select get_lock({lock}, {_WAIT_SECONDS})", doing) != [(1,)]:
            raise SinkUnreachable("the session of an earlier leader still holds its lock")

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

    def insert(self, session: Session, table: str, rows: pa.RecordBatch, types: Mapping[str, str]) -> None:
        if not (isinstance(session, MySQLSession) and session.local_files and load_rows(session, table, rows, types)):
            insert_rows(session, table, rows)

    def inline(self, rows: pa.Table, types: Mapping[str, str], stage: str) -> Inline:
        names = ", ".join(map(identifier, rows.schema.names))
        content, _ = text.buffer(value_lists(rows, ","))
        insert = f"insert into {stage} ({names}) values {bytes(content[:-1]).decode()}"
        return Inline(f"{stage} as _s", (insert,), (f"delete from {stage}",))

    def deletes(self, staged: StagedRows) -> str:
        table = staged.names.table  # no alias: the server would look for it in the default database
        return (
            f"delete {table} from {staged.source} straight_join {table} on {staged.matching(table, '_s')} "
            f"where {newer('_s', table)} and _s._gone"
        )

    def tombstones(self, staged: StagedRows, least: int, after: tuple[int, int]) -> str:
        key, deleted = staged.names.key, staged.names.deleted
        return (
            f"insert into {deleted} ({', '.join(key)}, _lsn, _seq) "
            f"select {', '.join(f'_s.{name}' for name in key)}, _s._lsn, _s._seq from {staged.source} "
            f"where _s._gone and _s._lsn >= {least} and (_s._lsn, _s._seq) > ({after[0]}, {after[1]}) "
            f"on duplicate key update {_newer_order(deleted)}"
        )

    def upserts(self, staged: StagedRows, where: str) -> Sequence[str]:
        names = staged.names
        columns = [*names.columns, "_lsn", "_seq"]
        table = names.table
        blank = [n for n in names.columns if n not in names.key and lacks_blank(names.types[n])]

        def given(name: str) -> str:
            return f"nullif(_s.{name}, '')" if name in blank else f"_s.{name}"

        def value(name: str) -> str:
            if not staged.kinds.incomplete or name not in names.plain:
                return given(name)
            quoted = self.literal(json.dumps(names.plain[name], ensure_ascii=False))
            kept = f"_s._unchanged is not null and not _s._whole and json_contains(_s._unchanged, {quoted})"
            return f"if({kept}, {table}.{name}, {given(name)})"

        changed = [
            f"{name} = if({newer('_s', table)}, {value(name)}, {table}.{name})"
            for name in names.columns
            if name not in names.key or name in names.signed
        ]
        upsert = (
            f"insert into {table} ({', '.join(columns)}) select {', '.join(map(given, columns))} "
            f"from {staged.source} where {where} "
            f"on duplicate key update {', '.join([*changed, _newer_order(table)])}"
        )
        return [upsert, *self._blanks(staged, blank)] if blank else [upsert]

    def delete_joined(self, table: str, source: str, matching: str) -> str:
        return f"delete {table} from {source} straight_join {table} on {matching}"

    def update_joined(self, table: str, source: str, matching: str, values: Mapping[str, str]) -> str:
        changes = ", ".join(f"{table}.{name} = {value}" for name, value in values.items())
        return f"update {source} straight_join {table} on {matching} set {changes}"

    def has_index(self, session: Session, table: TableName, name: str) -> bool:
        of_table = f"table_schema = {self.literal(table.schema)} and table_name = {self.literal(table.name)}"
        where = f"{of_table} and index_name = {self.literal(name)}"
        return bool(session.run(f"select 1 from information_schema.statistics where {where} limit 1"))

    def _blanks(self, staged: StagedRows, columns: Sequence[str]) -> Sequence[str]:
        """Statements that write the error value '' of ENUMs to the rows just written. A strict session refuses it."""
        table = staged.names.table
        here = f"({table}._lsn, {table}._seq) = (_s._lsn, _s._seq)"
        return [
            "set @dblog_mode = @@session.sql_mode",
            "set session sql_mode = ''",
            *(
                f"update {staged.source} straight_join {table} on {staged.matching(table, '_s')} "
                f"set {table}.{name} = '' where _s.{name} = '' and {here}"
                for name in columns
            ),
            "set session sql_mode = @dblog_mode",
        ]


def _newer_order(table: str) -> str:
    """Assignments of `_seq` and `_lsn`, each taken if the new row is newer.

    The server assigns from left to right and reads values that it has already assigned. So `_seq` comes first, and
    `_lsn`, which only grows, needs no condition."""
    return f"_seq = if({newer('_s', table)}, _s._seq, {table}._seq), _lsn = greatest({table}._lsn, _s._lsn)"
