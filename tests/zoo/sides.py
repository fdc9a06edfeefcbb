"""The servers of a zoo as source and as target: how statements run, and how the text of every value is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql.err
from deltalake import DeltaTable

from dblog.core.schema import Column, TableName, TableSchema
from dblog.databases.mysql.connect import identifier as mysql_identifier
from dblog.databases.postgres.connect import SESSION
from dblog.databases.postgres.connect import identifier as postgres_identifier
from dblog.sinks.folder import folder_name
from tests.conftest import Database, MySQLDatabase
from tests.zoo import canon
from tests.zoo.canon import Value
from tests.zoo.compare import Rows, Truth, keyed, shown
from tests.zoo.outputs import Key

LIVELY = "NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"
"""Lets MySQL and MariaDB store dates that do not exist, and what else does not fit."""


class OnPostgresSide:
    """A database of PostgreSQL."""

    limited = False
    quote = staticmethod(postgres_identifier)

    def __init__(self, database: Database) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in SESSION.items() if name != "search_path")
        self._session = database.connect(options=options, client_encoding="UTF8")

    def run(self, sql: str) -> bool:
        with self._session.cursor() as cursor:
            try:
                cursor.execute(sql)
            except psycopg2.IntegrityError:
                return False
        return True

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._session.cursor() as cursor:
            cursor.execute("set search_path = ''")
            cursor.execute(sql)
            return cursor.fetchall()

    output = staticmethod(canon.postgres_output)
    text = staticmethod(canon.postgres_text)


class OnMySQLSide:
    """A database of MySQL or MariaDB."""

    limited = True
    quote = staticmethod(mysql_identifier)

    def __init__(self, database: MySQLDatabase) -> None:
        self._session = database.connect()
        with self._session.cursor() as cursor:
            cursor.execute(f"set time_zone = '+00:00', sql_mode = '{LIVELY}'")

    def run(self, sql: str) -> bool:
        with self._session.cursor() as cursor:
            try:
                cursor.execute(sql)
            except pymysql.err.IntegrityError:
                return False
        return True

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._session.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    output = staticmethod(canon.mysql_output)
    text = staticmethod(canon.mysql_text)


Side = OnPostgresSide | OnMySQLSide


def own_texts(side: Side, schema: TableSchema, name: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """The server's own text of every value, in the order of the columns."""
    columns = ", ".join(side.output(side.quote(c.name)) for c in schema.columns)
    return side.rows(f"select {columns} from {side.quote(*name)}")


def shown_texts(side: Side, schema: TableSchema, name: tuple[str, ...]) -> list[dict[str, Value]]:
    columns = ", ".join(side.text(side.quote(c.name), c.arrow) for c in schema.columns)
    return shown(schema, side.rows(f"select {columns} from {side.quote(*name)}"))


def _output(side: Side, column: Column) -> str:
    """SQL for the text of a value of the source. Boxes in an array are separated by semicolons, texts by commas: the
    target has texts."""
    boxes = column.type.startswith("box[") or (column.name == "da" and "box" in column.type)
    return side.output(side.quote(column.name) + ("::text[]" if boxes else ""))


def truth(side: Side, schema: TableSchema) -> dict[Key, Truth]:
    """The rows of a table of the source."""
    own = ", ".join(_output(side, c) for c in schema.columns)
    texts = ", ".join(side.text(side.quote(c.name), c.arrow) for c in schema.columns)
    found = {}
    width = len(schema.columns)
    for row in side.rows(f"select {own}, {texts} from {side.quote(*schema.table)}"):
        (values,) = shown(schema, [row[width:]])
        key = tuple(values[name] for name in schema.key)
        found[key] = Truth(dict(zip(schema.names, row[:width], strict=True)), values)
    return found


def of_the_same_family(side: Side, schema: TableSchema, name: tuple[str, ...]) -> Rows:
    """The rows of a target by the server's own text of each value."""
    texts = own_texts(side, schema, name)
    return keyed(schema, [dict(zip(schema.names, row, strict=True)) for row in texts])


def of_another_family(
    side: Side, schema: TableSchema, name: tuple[str, ...], fix: Callable[[pa.DataType, Value], Value]
) -> Rows:
    rows = shown_texts(side, schema, name)
    kinds = {c.name: c.arrow for c in schema.columns}
    return keyed(schema, [{c: fix(kinds[c], value) for c, value in row.items()} for row in rows])


def in_delta(folder: Path, schema: TableSchema, table: TableName) -> Rows:
    """The rows of a table of a lake, from its files."""
    files = DeltaTable(str(folder / folder_name(table))).file_uris()
    found: list[dict[str, Value]] = []
    for file in files:
        with pa.OSFile(file.removeprefix("file://")) as opened:
            content = pq.ParquetFile(opened).read(columns=None)
        columns = {name: canon.values(content.column(name)) for name in schema.names}
        found += [{name: column[i] for name, column in columns.items()} for i in range(content.num_rows)]
    return keyed(schema, found)
