"""PostgreSQL to measure on. Others read the log through slots of their own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg2

from bench.database import DELETES, INSERTS, UPDATES, Database, Stretch
from bench.debezium import FORMATS
from bench.figures import Bound
from dblog.testing.postgres_server import PostgresServer

SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",  # no checkpoint in the middle of a measurement
    "checkpoint_timeout": "1h",
    "autovacuum": "off",  # nor a vacuum: tables are vacuumed when they are filled
    "wal_keep_size": "0",
    "max_locks_per_transaction": "512",  # a transaction over thousands of tables
}

SLOT_LIMIT = "bench_limit"

# The row of id `g`: 191 bytes in COPY's binary format.
_ROW = """
    g, mod(g, 100000)::int, md5(g::text) || substr(md5((g + 1)::text), 1, 14), g * 1.2345,
    timestamptz '2026-01-01' + g * interval '1 second', case when mod(g, 10) = 0 then null else mod(g, 2) = 0 end,
    jsonb_build_object('k', g, 'tag', 't' || mod(g, 10)), md5(g::text)::uuid, decode(md5(g::text), 'hex'), g / 7.0
"""

_WRITER = f"""
create or replace procedure write_changes(last bigint, transactions int) language plpgsql as $$
begin
    for i in 1..transactions loop
        insert into wide select {_ROW} from generate_series(last + 1, last + {INSERTS}) g;
        update wide set n = n + 1, amount = amount + 1
        where id between last - {INSERTS - 1} and last - {INSERTS - UPDATES};
        delete from wide
        where id between last - {INSERTS - UPDATES - 1} and last - {INSERTS - UPDATES - DELETES};
        last := last + {INSERTS};
        commit;
    end loop;
end $$
"""


class Postgres(Database):
    family = "PostgreSQL"
    receiver, receiver_bound = "pg_recvlogical to /dev/null", Bound(3.0, 5.0)
    reader, reader_bound = "COPY binary to /dev/null", Bound(0.45, 0.6)
    debezium_bound, debezium_dump_bound = Bound(5.0, 8.0), Bound(11.0, 15.0)
    schema = "public"
    columns = """
        id bigint primary key, n int, name text, amount numeric(18,4), at timestamptz, flag bool, doc jsonb, ref uuid,
        raw bytea, score double precision
    """

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.url = server.url()
        self.version = server.version
        self.pid = server_pid(server)
        super().__init__()
        self.run("create publication bench for table wide")
        self.run(_WRITER)

    def connect(self) -> Any:
        connection = psycopg2.connect(self.url)
        connection.autocommit = True
        return connection

    def settle(self, table: str) -> None:
        self.run(f"vacuum analyze {table}")
        self.run("checkpoint")

    def write_transaction(self, table: str, rows: int) -> None:
        self.run(f"insert into {table} select {_ROW} from generate_series(1, %s::bigint) g", rows)

    def position(self) -> str:
        return str(self.ask("select pg_current_wal_insert_lsn()"))

    def change(self, statements: str) -> int:
        """Run statements as one transaction. Returns a position within it, as the number that our offsets have: a batch
        that ends there or later has the transaction. The end of the log may already have something behind the commit
        that no batch delivers."""
        return number_of(str(self.ask(f"{statements}; select pg_current_wal_insert_lsn()"))) + 1

    @contextmanager
    def readers(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in (SLOT_LIMIT, *map(_debezium_slot, FORMATS)):
                stack.enter_context(self._slot(name))
            yield

    @contextmanager
    def _slot(self, name: str) -> Iterator[None]:
        self.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", name)
        try:
            yield
        finally:
            self._drop_slot(name)

    def _drop_slot(self, name: str) -> None:
        """Drop a slot when its reader has let go of it."""
        self.run(
            "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots "
            "where slot_name = %s and active_pid is not null",
            name,
        )
        self.run("select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", name)

    def forget(self, stream: str) -> None:
        self._drop_slot(stream)
        self.run(f"drop publication if exists {stream}")

    def receive_log(self, stretch: Stretch) -> float:
        program = str(self.server.bin / "pg_recvlogical")
        begin = time.monotonic()
        subprocess.run(
            [
                *(program, "-d", self.url, "--slot", SLOT_LIMIT, "--start", "--no-loop"),
                *("-o", "proto_version=1", "-o", "publication_names=bench"),
                *("--endpos", stretch.upto, "-f", "/dev/null"),
            ],
            check=True,
        )
        return time.monotonic() - begin

    def read_out(self, table: str) -> float:
        begin = time.monotonic()
        self.run(f"copy (select * from {table}) to '/dev/null' (format binary)")
        return time.monotonic() - begin

    def debezium_follows(self, stretch: Stretch, form: str) -> Mapping[str, str]:
        return self._debezium(_debezium_slot(form), "bench")

    @contextmanager
    def debezium_dumps(self, table: str, signals: str) -> Iterator[Mapping[str, str]]:
        self.run("drop publication if exists bench_dump")
        self.run(f"create publication bench_dump for table {table}, {signals}")
        with self._slot(f"debezium_{table}"):
            yield self._debezium(f"debezium_{table}", "bench_dump")

    @contextmanager
    def debezium_reads_tables(self, *tables: str) -> Iterator[Mapping[str, str]]:
        """The properties of Debezium's connector for the log of some tables, from now on."""
        self.run("drop publication if exists bench_dump")
        self.run(f"create publication bench_dump for table {', '.join(tables)}")
        with self._slot(f"debezium_{tables[0]}"):
            yield self._debezium(f"debezium_{tables[0]}", "bench_dump")

    def debezium_reads(self) -> bool:
        found = self.ask("select count(*) from pg_replication_slots where active and slot_name like 'debezium_%%'")
        return bool(found)

    def _debezium(self, slot: str, publication: str) -> Mapping[str, str]:
        place = urlsplit(self.url)
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "slot.name": slot,
            "slot.drop.on.stop": "false",
            "publication.name": publication,
            "publication.autocreate.mode": "disabled",
            "snapshot.mode": "no_data",
            "database.hostname": str(place.hostname),
            "database.port": str(place.port),
            "database.user": str(place.username),
            "database.password": unquote(place.password or ""),
            "database.dbname": place.path[1:],
        }


def number_of(position: str) -> int:
    """A position of the log as the number that our offsets have."""
    high, low = position.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def server_pid(server: PostgresServer) -> int:
    return int((server.data / "postmaster.pid").read_text().split()[0])


def _debezium_slot(form: str) -> str:
    return f"bench_debezium_{form.lower()}"


@contextmanager
def postgres() -> Iterator[Postgres]:
    with PostgresServer(settings=SETTINGS) as server:
        yield Postgres(server)
