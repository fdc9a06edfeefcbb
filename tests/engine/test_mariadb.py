"""A stream over MariaDB: the same reader, the same properties."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from dblog.state.requests import State
from tests.conftest import MySQLDatabase
from tests.engine.control import Control
from tests.engine.query import Query

pytestmark = pytest.mark.server


def make(database: MySQLDatabase, tmp_path: Path, **options: Any) -> Query:
    given = {"url": database.url, "spool": str(tmp_path / "spool"), "table": "t", **options}
    return Query(**given)


def rows_of(database: MySQLDatabase) -> list[dict[str, Any]]:
    return [dict(zip(("id", "n"), row, strict=True)) for row in database.execute("select id, n from t")]


def test_a_dump_and_the_log(mysql_database: MySQLDatabase, tmp_path: Path) -> None:
    database = mysql_database
    database.execute("create table t (id int primary key, n int)")
    database.execute("insert into t select seq, 0 from seq_1_to_60")
    stream = make(database, tmp_path)
    try:
        stream.open_window()
        database.execute("update t set n = 1 where id in (5, 55)")
        database.execute("delete from t where id = 7")
        database.execute("update t set id = 700 where id = 8")
        stream.catch_up()
        stream.history.check_order()
        stream.history.check_state(rows_of(database))
        stream.restart()
        database.execute("insert into t values (1000, 5)")
        stream.catch_up()
        stream.history.check_state(rows_of(database))
        control = Control(stream)
        dump = control.ask("t", keys=[5, 9999])
        assert control.finish(dump).state is State.completed
        assert control.dump(dump).emitted == 1
    finally:
        stream.stop()


@contextmanager
def writers(database: MySQLDatabase, count: int, rows: int) -> Iterator[None]:
    stop = threading.Event()

    def write(seed: int) -> None:
        dice = random.Random(seed)
        connection = database.connect()
        with connection.cursor() as cursor:
            while not stop.is_set():
                key = dice.randint(1, rows)
                try:
                    match dice.random():
                        case x if x < 0.2:
                            cursor.execute("delete from t where id = %s", (key,))
                        case x if x < 0.5:
                            cursor.execute("insert into t values (%s, 0) on duplicate key update n = n + 1", (key,))
                        case _:
                            cursor.execute("update t set n = n + 1 where id = %s", (key,))
                except pymysql.err.OperationalError:
                    continue  # a deadlock
                time.sleep(0.002)
        connection.close()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_dump_under_concurrent_writers_converges(mysql_database: MySQLDatabase, tmp_path: Path) -> None:
    database = mysql_database
    database.execute("create table t (id int primary key, n int)")
    database.execute("insert into t select seq, 0 from seq_1_to_300")
    stream = make(database, tmp_path, chunkRows=7, parallelism=2)
    try:
        with writers(database, 4, 300):
            stream.dump()
            for _ in range(10):
                stream.step()
        stream.catch_up()
        stream.history.check_order()
        stream.history.check_state(rows_of(database))
    finally:
        stream.stop()
