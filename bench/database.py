"""The source that everything is measured on: one PostgreSQL, one ten-column table, and a writer of changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg2

from dblog.demo.server import PostgresServer

SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",  # no checkpoint in the middle of a measurement
    "checkpoint_timeout": "1h",
    "autovacuum": "off",  # nor a vacuum: tables are vacuumed when they are filled
    "wal_keep_size": "0",
}

COLUMNS = """
    id bigint primary key, n int, name text, amount numeric(18,4), at timestamptz, flag bool, doc jsonb, ref uuid,
    raw bytea, score double precision
"""

# The row of id `g`: 191 bytes in COPY's binary format.
_ROW = """
    g, mod(g, 100000)::int, md5(g::text) || substr(md5((g + 1)::text), 1, 14), g * 1.2345,
    timestamptz '2026-01-01' + g * interval '1 second', case when mod(g, 10) = 0 then null else mod(g, 2) = 0 end,
    jsonb_build_object('k', g, 'tag', 't' || mod(g, 10)), md5(g::text)::uuid, decode(md5(g::text), 'hex'), g / 7.0
"""

# 100 changes in every transaction: 60 inserts, 30 updates and 10 deletes of rows of the transaction before.
_WRITER = f"""
create or replace procedure write_changes(last bigint, transactions int) language plpgsql as $$
begin
    for i in 1..transactions loop
        insert into wide select {_ROW} from generate_series(last + 1, last + 60) g;
        update wide set n = n + 1, amount = amount + 1 where id between last - 59 and last - 30;
        delete from wide where id between last - 29 and last - 20;
        last := last + 60;
        commit;
    end loop;
end $$
"""
CHANGES_PER_TRANSACTION = 100


class Database:
    """The server's one database; `rows` and `wide` are tables of the same columns, to dump and to change."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.url = server.url()
        self._session = connect(self.url)
        self._last = 60
        self.run(f"create table wide ({COLUMNS})")
        self.run(f"insert into wide select {_ROW} from generate_series(1, 60) g")  # for the first updates
        self.run("create publication bench for table wide")
        self.run(_WRITER)

    def run(self, statement: str, *values: Any) -> None:
        with self._session.cursor() as cursor:
            cursor.execute(statement, values or None)

    def ask(self, query: str, *values: Any) -> Any:
        """The first column of the only row."""
        with self._session.cursor() as cursor:
            cursor.execute(query, values or None)
            return cursor.fetchone()[0]

    def fill(self, table: str, rows: int) -> None:
        """Make a table of the ten columns with this many rows, as a server finds it after a while."""
        self.run(f"drop table if exists {table}")
        self.run(f"create table {table} ({COLUMNS})")
        self.run(f"insert into {table} select {_ROW} from generate_series(1, %s::bigint) g", rows)
        self.run(f"vacuum analyze {table}")
        self.run("checkpoint")

    def write_changes(self, changes: int) -> int:
        """Write about this many changes of `wide`; exactly how many."""
        transactions = max(1, changes // CHANGES_PER_TRANSACTION)
        self.run("call write_changes(%s, %s)", self._last, transactions)
        self._last += 60 * transactions
        return transactions * CHANGES_PER_TRANSACTION

    def write_transaction(self, table: str, rows: int) -> None:
        """Insert this many rows in one transaction."""
        self.run(f"insert into {table} select {_ROW} from generate_series(1, %s::bigint) g", rows)

    def position(self) -> str:
        return str(self.ask("select pg_current_wal_insert_lsn()"))

    def create_slot(self, name: str) -> None:
        self.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", name)

    def drop_slot(self, name: str) -> None:
        """Drop a slot when its reader has let go of it."""
        self.run(
            "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots "
            "where slot_name = %s and active_pid is not null",
            name,
        )
        self.run("select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", name)


def connect(url: str) -> Any:
    connection = psycopg2.connect(url)
    connection.autocommit = True
    return connection


@contextlib.contextmanager
def database() -> Iterator[Database]:
    with PostgresServer(settings=SETTINGS) as server:
        yield Database(server)
