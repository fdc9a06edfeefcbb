"""Concurrent writers on an audited table `t`, in a process of their own, with a mix of all operations."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql.err

from dblog.databases.mysql.connect import Connection, parse
from tests.history import AUDIT, MYSQL_AUDIT, audited

if TYPE_CHECKING:
    from tests.conftest import Database, MySQLDatabase

MOVE = """
create function move(a int, b int) returns void language plpgsql as $$
begin
  update t set id = b where id = a;
exception when unique_violation then null;
end $$;
"""
SCRIPTS = {
    "update t set note = md5(random()::text) where id = :a": 70,
    "delete from t where id = :a": 10,
    "insert into t values (:a, 0, 'new') on conflict do nothing": 15,
    "select move(:a, :b)": 5,
}
MYSQL_SCRIPTS = {
    "update t set note = sha2(rand(), 224) where id = {a}": 70,
    "delete from t where id = {a}": 10,
    "insert ignore into t values ({a}, 0, 'new')": 15,
    "update ignore t set id = {b} where id = {a}": 5,
}


def create_hot(database: Database | MySQLDatabase, rows: int) -> None:
    """An audited table `t` of the keys 1 to `rows`."""
    if _is_mysql(database):
        database.execute("create table t (id int primary key, version bigint, note text)", *MYSQL_AUDIT)
        keys = database.series(1, rows)
        database.execute(f"insert into audit_gate select i from {keys}")
        database.execute(f"insert into t select i, 0, 'first' from {keys}")
        return
    database.execute(
        f"{AUDIT} {MOVE} create table t (id int primary key, version bigint, note text); {audited('t')}"
        f"insert into t select i, 0, 'first' from generate_series(1, {rows}) i"
    )


def versions_of(database: Database | MySQLDatabase) -> list[tuple[Any, ...]]:
    """The key and version of every state that a row of `t` ever had."""
    seen = "audit_seen" if _is_mysql(database) else "audit.seen where name = 't'"
    return database.execute(f"select id, version from {seen}")


@contextmanager
def writers(database: Database | MySQLDatabase, clients: int, rows: int, *, rate: int = 1000) -> Iterator[None]:
    """So many sessions that write at `rate` transactions a second together, until the block ends."""
    with (_mysql_writers if _is_mysql(database) else _pgbench)(database, clients, rows, rate):
        yield


def _is_mysql(database: Database | MySQLDatabase) -> bool:
    return not database.url.startswith("postgres")


@contextmanager
def _pgbench(database: Database, clients: int, rows: int, rate: int) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [database.server.bin / "pgbench", "-n", "-c", str(clients), "-T", "600"]
        for number, (statement, weight) in enumerate(SCRIPTS.items()):
            script = Path(folder, f"{number}.sql")
            script.write_text(f"\\set a random(1, {rows})\n\\set b random(1, {rows})\n{statement};\n")
            command += ["-f", f"{script}@{weight}"]
        command += ["-R", str(rate), database.url]
        said = Path(folder, "said")
        with said.open("w") as output:
            running = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield
            assert running.poll() is None, f"the writers stopped: {said.read_text()}"
        finally:
            running.kill()
            running.wait()


@contextmanager
def _mysql_writers(database: MySQLDatabase, clients: int, rows: int, rate: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    begun, ended = context.Event(), context.Event()
    running = context.Process(target=_write_all, args=(database.url, clients, rows, rate, begun, ended), daemon=True)
    running.start()
    try:
        assert begun.wait(30)
        yield
        assert running.is_alive(), "the writers stopped"
    finally:
        ended.set()  # and not killed: the server would go on with what they last said
        running.join(30)
        running.kill()


def _write_all(url: str, clients: int, rows: int, rate: int, begun: Any, ended: Any) -> None:
    pause = clients / rate
    threads = [
        threading.Thread(target=_write, args=(url, random.Random(number), rows, pause, begun, ended), daemon=True)
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    while all(thread.is_alive() for thread in threads):
        time.sleep(0.1)
    for thread in threads:
        thread.join()


def _write(url: str, dice: random.Random, rows: int, pause: float, begun: Any, ended: Any) -> None:
    at = parse(url)
    place = {"host": at.host, "port": at.port, "database": at.database}
    session = Connection(**place, user=at.user, password=at.password, autocommit=True)
    cursor = session.cursor()
    cursor.execute("set session transaction isolation level read committed")
    scripts, weights = list(MYSQL_SCRIPTS), list(MYSQL_SCRIPTS.values())
    due = time.monotonic()
    while not ended.is_set():
        (script,) = dice.choices(scripts, weights)
        statement = script.format(a=dice.randint(1, rows), b=dice.randint(1, rows))
        while True:
            try:
                cursor.execute(statement)
                break
            except pymysql.err.OperationalError as error:
                if error.args[0] != DEADLOCK:
                    raise
        begun.set()
        due += dice.expovariate(1 / pause)
        time.sleep(max(0.0, due - time.monotonic()))


DEADLOCK = 1213
