"""The state store's tables in a database of MySQL or MariaDB: `dblog_state_*` in the database that the URL names, or in
the database `dblog`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from dblog.databases.mysql.connect import Connection, connect, parse, translating
from dblog.errors import StateError
from dblog.state.keys import LONGEST_KEY
from dblog.state.sql.dialect import Tables

DATABASE = "dblog"
LOCK = "dblog state store"
"""The name of the lock that a process holds while it creates the tables."""

_T = Tables.named("dblog_state_")
# Bytes: in a text, MySQL would take names for equal that differ in trailing spaces or in case.
_KEY = f"varbinary({LONGEST_KEY}) NOT NULL"
_VALUE = "longtext CHARACTER SET ascii NOT NULL"
_ENGINE = "ENGINE = InnoDB"


class MySQLDialect:
    """The state store in a MySQL or MariaDB database."""

    tables = _T
    create = (
        f"CREATE TABLE IF NOT EXISTS {_T.store}"
        f" (id varchar(64) NOT NULL PRIMARY KEY, format int NOT NULL, writes bigint NOT NULL) {_ENGINE}",
        f"CREATE TABLE IF NOT EXISTS {_T.document} (parent {_KEY}, name {_KEY}, version bigint NOT NULL,"
        f" value {_VALUE}, PRIMARY KEY (parent, name)) {_ENGINE}",
        f"CREATE TABLE IF NOT EXISTS {_T.entry} (log {_KEY}, number bigint NOT NULL, value {_VALUE},"
        f" PRIMARY KEY (log, number)) {_ENGINE}",
        f"CREATE TABLE IF NOT EXISTS {_T.counter} (kind varbinary(8) NOT NULL, `key` {_KEY}, last bigint NOT NULL,"
        f" PRIMARY KEY (kind, `key`)) {_ENGINE}",
    )
    put = f"REPLACE INTO {_T.document} VALUES (%s, %s, %s, %s)"
    count = f"REPLACE INTO {_T.counter} VALUES (%s, %s, %s)"
    key = "`key`"
    # The first statement waits for the writers before; only then the transaction's snapshot is made.
    begin = "START TRANSACTION"

    def __init__(self, url: str) -> None:
        given = parse(url)
        self.address = given if given.database else replace(given, database=DATABASE)

    def __str__(self) -> str:
        return self.address.masked

    def connect(self, patience: float) -> Connection:
        return connect(self.address, program="dblog state", patience=patience)

    @contextmanager
    def failing(self, doing: str) -> Iterator[None]:
        with translating(doing, secrets=self.address.secrets):
            yield

    def waiting(self, connection: Connection, patience: float) -> nullcontext[None]:
        return nullcontext()  # the connection itself has the limit

    def exists(self, cursor: Any) -> bool:
        cursor.execute("SHOW TABLES LIKE %s", [_T.store.replace("_", r"\_")])
        return cursor.fetchone() is not None

    def may_create(self, cursor: Any) -> bool:
        return True  # the server's list of grants has too many forms

    @contextmanager
    def locked(self, cursor: Any) -> Iterator[None]:
        cursor.execute("SELECT get_lock(%s, 10)", [LOCK])
        if cursor.fetchone()[0] != 1:
            raise StateError("the tables of the state store are being created by another process", hint="try again")
        yield
        cursor.execute("SELECT release_lock(%s)", [LOCK])
