"""PostgreSQL's own ways from one server to another: a subscription, and `pg_dump | psql`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg2

from bench.cpu import metered
from bench.figures import Cpu
from bench.postgres import SETTINGS, Postgres, server_pid
from dblog.testing.postgres_server import PostgresServer

LOOK_SECONDS = 0.01
PATIENCE = 1800.0


class Target:
    """The server that gets the rows."""

    def __init__(self, server: PostgresServer) -> None:
        self.server, self.url, self.pid = server, server.url(), server_pid(server)
        self._session: Any = psycopg2.connect(self.url)
        self._session.autocommit = True

    def run(self, statement: str) -> None:
        with self._session.cursor() as cursor:
            cursor.execute(statement)

    def ask(self, query: str) -> Any:
        with self._session.cursor() as cursor:
            cursor.execute(query)
            found = cursor.fetchone()
            return found and found[0]

    def database(self, name: str) -> str:
        """A new, empty database of the server. Returns its URL."""
        self.run(f"drop database if exists {name} with (force)")
        self.run(f"create database {name}")
        return self.server.url(name)

    def settle(self) -> None:
        self.run("checkpoint")


@contextmanager
def target_server() -> Iterator[Target]:
    with PostgresServer(settings=SETTINGS) as server:
        yield Target(server)


class Subscription:
    """A subscription of the target to tables of the source. It copies them first, or only follows them."""

    def __init__(self, source: Postgres, target: Target, name: str, tables: Sequence[str], columns: str) -> None:
        """`columns` is the definition of each of the tables; empty if the target has them already."""
        self._source, self._target, self.name = source, target, name
        for table in tables if columns else ():
            target.run(f"drop table if exists {table}")
            target.run(f"create table {table} ({columns})")
        source.run(f"create publication {name} for table {', '.join(tables)}")

    def start(self, *, copies: bool) -> float:
        """Create it. Returns the seconds until every table is copied and follows the log."""
        begin = time.monotonic()
        self._target.run(
            f"create subscription {self.name} connection '{self._source.url}' publication {self.name} "
            f"with (copy_data = {str(copies).lower()})"
        )
        self._until("select count(*) = 0 from pg_subscription_rel where srsubstate <> 'r'")
        return time.monotonic() - begin

    def pause(self) -> None:
        self._target.run(f"alter subscription {self.name} disable")
        self._until(f"select count(*) = 0 from pg_stat_subscription where subname = '{self.name}' and pid is not null")

    def catch_up(self, position: str) -> float:
        """Go on. Returns the seconds until the target has applied the log up to a position."""
        begin = time.monotonic()
        self._target.run(f"alter subscription {self.name} enable")
        self._until(
            f"select remote_lsn >= '{position}' from pg_replication_origin_status "
            f"where external_id = (select 'pg_' || oid from pg_subscription where subname = '{self.name}')"
        )
        return time.monotonic() - begin

    def measured(self, position: str) -> tuple[float, Cpu]:
        """Seconds and processor time until the target has caught up."""
        with metered(source=[self._source.pid], target=[self._target.pid]) as sides:
            seconds = self.catch_up(position)
        return seconds, sides.used

    def _until(self, query: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._target.ask(query):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the subscription has not got there: {query}")
            time.sleep(LOOK_SECONDS)

    def drop(self) -> None:
        """Drop it, its slot and its publication."""
        self._target.run(f"drop subscription if exists {self.name}")
        self._source.run(f"drop publication if exists {self.name}")


def copied(source: Postgres, target: Target, table: str, columns: str, rows: int) -> tuple[float, Cpu]:
    """Seconds and processor time of a subscription's first copy of a table."""
    subscription = Subscription(source, target, "bench_copy", [table], columns)
    try:
        with metered(source=[source.pid], target=[target.pid]) as sides:
            seconds = subscription.start(copies=True)
        _expect(target.ask(f"select count(*) from {table}"), rows)
    finally:
        subscription.drop()
    return seconds, sides.used


def dumped(source: Postgres, target: Target, table: str, rows: int) -> tuple[float, Cpu]:
    """Seconds and processor time of `pg_dump | psql`."""
    target.run(f"drop table if exists {table}")
    programs = source.server.bin
    begin = time.monotonic()
    with metered(source=[source.pid], target=[target.pid], waited=True) as sides:
        writer = subprocess.Popen([programs / "pg_dump", "-t", f"public.{table}", source.url], stdout=subprocess.PIPE)
        reader = subprocess.Popen([programs / "psql", "-qX", "-v", "ON_ERROR_STOP=1", target.url], stdin=writer.stdout,
                                  stdout=subprocess.DEVNULL)  # fmt: skip
        assert writer.stdout is not None
        writer.stdout.close()
        if reader.wait() or writer.wait():
            raise RuntimeError("pg_dump | psql failed")
        seconds = time.monotonic() - begin
    _expect(target.ask(f"select count(*) from {table}"), rows)
    return seconds, sides.used


def _expect(found: int, rows: int) -> None:
    if found != rows:
        raise RuntimeError(f"the target has {found} rows instead of {rows}")
