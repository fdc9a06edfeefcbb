"""The state store's tables in a PostgreSQL database: `dblog.state_*`."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dblog.databases.postgres.connect import Address, Connection, connect, parse, translating
from dblog.state.sql.dialect import Tables

SCHEMA = "dblog"
LOCK = 0x64626C6F67737400
"""The number of the advisory lock that a process holds while it creates the tables ("dblogst" in ASCII)."""

_T = Tables.named(f"{SCHEMA}.state_")
# Keys are compared byte by byte, whatever the collation of the database is.
_KEY = 'text COLLATE "C" NOT NULL'


class PostgresDialect:
    """The state store in a PostgreSQL database."""

    tables = _T
    create = (
        f"CREATE TABLE IF NOT EXISTS {_T.store} (id text NOT NULL, format int NOT NULL, writes bigint NOT NULL)",
        f"CREATE TABLE IF NOT EXISTS {_T.document} (parent {_KEY}, name {_KEY}, version bigint NOT NULL,"
        " value text NOT NULL, PRIMARY KEY (parent, name))",
        f"CREATE TABLE IF NOT EXISTS {_T.entry} (log {_KEY}, number bigint NOT NULL, value text NOT NULL,"
        " PRIMARY KEY (log, number))",
        f"CREATE TABLE IF NOT EXISTS {_T.counter} (kind {_KEY}, key {_KEY}, last bigint NOT NULL,"
        " PRIMARY KEY (kind, key))",
    )
    put = (
        f"INSERT INTO {_T.document} VALUES (%s, %s, %s, %s)"
        " ON CONFLICT (parent, name) DO UPDATE SET version = excluded.version, value = excluded.value"
    )
    count = f"INSERT INTO {_T.counter} VALUES (%s, %s, %s) ON CONFLICT (kind, key) DO UPDATE SET last = excluded.last"
    key = "key"
    # Writers take turns, so each statement must see what the writer before has committed.
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED"

    def __init__(self, url: str) -> None:
        self.address: Address = parse(url)

    def __str__(self) -> str:
        return self.address.masked

    def connect(self, patience: float) -> Connection:
        address = self.address
        if not address.get("connect_timeout"):
            address = Address((*address.parameters, ("connect_timeout", str(max(2, round(patience))))))
        return connect(address, application_name="dblog state")

    @contextmanager
    def failing(self, doing: str) -> Iterator[None]:
        with translating(doing, secrets=self.address.secrets):
            yield

    @contextmanager
    def waiting(self, connection: Connection, patience: float) -> Iterator[None]:
        """The driver has no time limit for an answer: end the connection's traffic from another thread."""
        late = threading.Timer(patience, _shut, (connection.fileno(),))
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()
            late.join()

    def exists(self, cursor: Any) -> bool:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [_T.store])
        return bool(cursor.fetchone()[0])

    def may_create(self, cursor: Any) -> bool:
        cursor.execute(
            "SELECT has_database_privilege(current_database(), 'CREATE') OR EXISTS (SELECT FROM pg_namespace"
            " WHERE nspname = %s AND has_schema_privilege(oid, 'CREATE'))",
            [SCHEMA],
        )
        return bool(cursor.fetchone()[0])

    @contextmanager
    def locked(self, cursor: Any) -> Iterator[None]:
        cursor.execute("BEGIN")
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        cursor.execute("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", [SCHEMA])
        if not cursor.fetchone()[0]:  # a user without CREATE on the database may use a schema that exists
            cursor.execute(f"CREATE SCHEMA {SCHEMA}")
        yield
        cursor.execute("COMMIT")


def _shut(descriptor: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as same:
        same.shutdown(socket.SHUT_RDWR)
