"""The servers of a zoo as source and as target: how statements run, and how the text of every value is read."""

from __future__ import annotations

import base64
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
from dblog.sinks.folder import delta_folder_name
from tests.conftest import Database, MySQLDatabase
from tests.zoo import canon
from tests.zoo.canon import Value
from tests.zoo.compare import Rows, Truth, keyed, shown, unsigned
from tests.zoo.outputs import Key

LIVELY = "NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"
"""Lets MySQL and MariaDB store dates that do not exist, and what else does not fit."""


CONSTRAINTS = {1701, 1761, 1762}
"""Errors about foreign keys: a truncate of a parent, and a cascade that would make a key twice."""


class OnPostgresSide:
    """A database of PostgreSQL."""

    limited = False
    quote = staticmethod(postgres_identifier)

    def __init__(self, database: Database) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in SESSION.items() if name != "search_path")
        self._session = database.connect(options=f"{options} -c search_path=ext", client_encoding="UTF8")
        self._reader = database.connect(options=f"{options} -c search_path=", client_encoding="UTF8")

    def run(self, sql: str) -> bool:
        with self._session.cursor() as cursor:
            try:
                cursor.execute(sql)
            except psycopg2.IntegrityError:
                return False
        return True

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._reader.cursor() as cursor:
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
            except pymysql.err.OperationalError as error:
                if error.args[0] not in CONSTRAINTS:
                    raise
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
    columns = ", ".join(_own(side, c) for c in schema.columns)
    return side.rows(f"select {columns} from {side.quote(*name)}")


def shown_texts(side: Side, schema: TableSchema, name: tuple[str, ...]) -> list[dict[str, Value]]:
    columns = ", ".join(side.text(side.quote(c.name), c.arrow) for c in schema.columns)
    return shown(schema, side.rows(f"select {columns} from {side.quote(*name)}"))


GEOMETRIES = ("geometry", "point", "linestring", "polygon", "multi", "geomcollection")


def _own(side: Side, column: Column) -> str:
    """SQL for the server's own text of a value. MySQL shows bytes as digits, and numbers without the zeros of
    ZEROFILL and of FLOAT(7,3), which are how the column is shown and not what it holds."""
    name, kind = side.quote(column.name), column.arrow
    plain = pa.types.is_binary(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)
    shown_so = side.limited and (plain or pa.types.is_floating(kind))
    return side.text(name, kind) if shown_so else side.output(name)


def _copied(side: Side, column: Column) -> str:
    """SQL for the text that a target of the same family shows. Boxes in an array are separated by semicolons; a target
    has an array of texts."""
    boxes = column.type.startswith("box[") or (column.name == "da" and "box" in column.type)
    return side.output(side.quote(column.name) + "::text[]") if boxes else _own(side, column)


def truth(side: Side, schema: TableSchema) -> dict[Key, Truth]:
    """The rows of a table of the source."""
    own = [_own(side, c) for c in schema.columns]
    shapes = [c.name for c in schema.columns if side.limited and c.type.startswith(GEOMETRIES)]
    copied = [_copied(side, c) for c in schema.columns]
    texts = [side.text(side.quote(c.name), c.arrow) for c in schema.columns]
    found, names, width = {}, schema.names, len(schema.columns)
    for row in side.rows(f"select {', '.join([*own, *copied, *texts])} from {side.quote(*schema.table)}"):
        (values,) = shown(schema, [row[2 * width :]])
        key = tuple(values[name] for name in schema.key)
        same = dict(zip(names, row[width : 2 * width], strict=True))
        for name in shapes:
            values[name] = same[name] = values[name] and canon.delivered_geometry(str(values[name]))
        found[key] = Truth(dict(zip(names, row[:width], strict=True)), values, same)
    return found


def of_the_same_family(side: Side, schema: TableSchema, name: tuple[str, ...]) -> Rows:
    """The rows of a target by the server's own text of each value."""
    texts = own_texts(side, schema, name)
    return keyed(schema, [dict(zip(schema.names, row, strict=True)) for row in texts])


def of_another_family(side: Side, schema: TableSchema, name: tuple[str, ...]) -> Rows:
    rows = [unsigned(row) for row in shown_texts(side, schema, name)]
    for column in schema.columns:
        if pa.types.is_list(column.arrow) and pa.types.is_binary(column.arrow.value_type):  # JSON has bytes as base64
            for row in rows:
                items = row[column.name]
                row[column.name] = items and tuple(i and base64.b64decode(str(i)).hex() for i in items)
    return keyed(schema, rows)


def in_delta(folder: Path, schema: TableSchema, table: TableName) -> Rows:
    """The rows of a table of a lake, from its files."""
    home = folder / delta_folder_name(table)
    names = pa.table(DeltaTable(str(home)).get_add_actions(flatten=True))["path"].to_pylist()
    found: list[dict[str, Value]] = []
    for name in names:
        with pa.OSFile(str(home / name)) as opened:
            content = pq.ParquetFile(opened).read()
        columns = {name: canon.values(content.column(name)) for name in schema.names}
        found += [{name: column[i] for name, column in columns.items()} for i in range(content.num_rows)]
    return keyed(schema, found)
