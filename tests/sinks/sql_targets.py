"""Databases as targets of the sink `sql`, as the tests see them."""

from __future__ import annotations

import base64
import datetime
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pymysql.cursors

from dblog.core.schema import Column, TableName
from dblog.databases.mysql.connect import identifier as my_name
from dblog.databases.postgres.connect import SESSION
from dblog.databases.postgres.connect import identifier as pg_name
from tests.conftest import Database, MySQLDatabase
from tests.proxy import Proxy
from tests.sinks.target import Key, Row, Target

_AS_THEY_ARE = ("boolean", "smallint", "integer", "bigint", "double precision", "bytea", "date", "timestamp", "text")


class PostgresTarget(Target):
    """A database of PostgreSQL, behind a proxy."""

    sink = "sql"

    def __init__(self, database: Database, proxy: Proxy) -> None:
        self.database = database
        self.proxy = proxy

    def settings(self) -> dict[str, Any]:
        return {"url": self.proxy.url(self.database.name)}

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return self.database.execute(sql)

    def name(self, table: TableName) -> str:
        return pg_name(*table)

    def ledger(self, table: str) -> str:
        return f"dblog.{table}"

    def types(self, table: TableName) -> dict[str, str]:
        return dict(
            self.execute(
                "select attname, format_type(atttypid, atttypmod) from pg_attribute "
                f"where attrelid = to_regclass('{pg_name(*table)}') and attnum > 0 and not attisdropped"
            )
        )

    def rows(self, table: TableName) -> dict[Key, Row]:
        types = self.types(table)
        if not types:
            return {}
        key = self.execute(
            "select attname from pg_index i join pg_attribute a on attrelid = indrelid and attnum = any (indkey) "
            f"where indrelid = to_regclass('{pg_name(*table)}') and indisprimary "
            "order by array_position(indkey, attnum)"
        )
        shown = ", ".join(_shown(pg_name(name), kind) for name, kind in types.items())
        options = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
        session = self.database.connect(options=options)
        try:
            with session.cursor() as cursor:
                cursor.execute(f"select {shown} from {pg_name(*table)}")
                found = [dict(zip(types, row, strict=True)) for row in cursor.fetchall()]
        finally:
            session.close()
        return {tuple(row[n] for (n,) in key): row for row in found}

    @contextmanager
    def away(self) -> Iterator[None]:
        self.proxy.refuse()
        self.proxy.cut()
        yield
        self.proxy.accept()


def _shown(name: str, kind: str) -> str:
    """A column as the tests read it: types that Spark delivers as text as text."""
    array = "[]" * kind.endswith("[]")
    kind = kind.removesuffix("[]")
    if kind == "real":
        return f"{name}::double precision{array}"
    if kind in ("oid", "xid", "cid"):
        return f"{name}::text{array}::bigint{array}"
    if kind.startswith(_AS_THEY_ARE) or (kind.startswith("numeric(") and int(kind[8:].partition(",")[0]) <= 38):
        return name
    # What a type prints is not always what its cast to text gives.
    shown = "case when {0} is not null then format('%s', {0}) end"
    if not array:
        return shown.format(name)
    return f"case when {name} is not null then array(select {shown.format('e')} from unnest({name}) e) end"


class MySQLTarget(Target):
    """A database of MySQL or MariaDB, behind a proxy: all tables go there, whatever the source's schema is."""

    sink = "sql"

    def __init__(self, database: MySQLDatabase, proxy: Proxy) -> None:
        self.database = database
        self.proxy = proxy

    @property
    def records(self) -> str:
        return f"{self.database.name}_records"

    def settings(self) -> dict[str, Any]:
        return {"url": self.proxy.url(), "schema": self.database.name, "records": self.records}

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return self.database.execute(sql)

    def name(self, table: TableName) -> str:
        return my_name(self.database.name, table.name)

    def ledger(self, table: str) -> str:
        return f"{self.records}.{table}"

    def types(self, table: TableName) -> dict[str, str]:
        where = f"table_schema = '{self.database.name}' and table_name = '{table.name}'"
        return dict(
            self.execute(
                f"select column_name, column_type from information_schema.columns where {where} "
                "order by ordinal_position"
            )
        )

    def rows(self, table: TableName) -> dict[Key, Row]:
        types = self.types(table)
        if not types:
            return {}
        # A float is shown with six digits, unless one calculates with it.
        names = (f"{my_name(n)} + 0e0 as {my_name(n)}" if kind == "float" else my_name(n) for n, kind in types.items())
        key = self.execute(
            "select column_name from information_schema.statistics where index_name = 'PRIMARY' and "
            f"table_schema = '{self.database.name}' and table_name = '{table.name}' order by seq_in_index"
        )
        session = self.database.connect(cursorclass=pymysql.cursors.DictCursor)
        try:
            with session.cursor() as cursor:
                cursor.execute("set time_zone = '+00:00'")
                cursor.execute(f"select {', '.join(names)} from {self.name(table)}")
                return {tuple(row[n] for (n,) in key): row for row in cursor.fetchall()}
        finally:
            session.close()

    def shown(self, column: Column, value: Any) -> Any:
        if value is None:
            return None
        if column.arrow == pa.bool_():
            return int(value)
        if isinstance(value, list):
            return _json(value)
        return value

    @contextmanager
    def away(self) -> Iterator[None]:
        self.proxy.refuse()
        self.proxy.cut()
        yield
        self.proxy.accept()

    def drop(self) -> None:
        self.database.server_execute(f"drop database if exists {self.records}")
        self.database.drop()


def _json(value: Any) -> str:
    """As Spark writes it."""
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        value = base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        value = value.isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, datetime.date):
        value = str(value)
    return json.dumps(value, ensure_ascii=False)


def fresh_name() -> str:
    return f"test_{uuid.uuid4().hex[:12]}"
