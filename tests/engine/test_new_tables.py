"""Tables that come under a followed pattern while the stream runs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg2
import pymysql.err
import pytest

from tests.engine.conftest import MakeQuery, on_every, on_families, on_postgres
from tests.engine.query import Query
from tests.families import AnyDatabase, OnPostgres

pytestmark = pytest.mark.server

CREATE = "create table u (id int primary key, n int)"


def follow(database: AnyDatabase, query: MakeQuery, **options: Any) -> Query:
    """A stream of all tables that looks for new ones every second."""
    given = {"tables": f"{database.schema}.*", "key": ("_table", "id"), "heartbeatSeconds": 1, "slot": database.name}
    return query(**{**given, **options})


def state_of(stream: Query, table: str = "u") -> dict[int, int]:
    return {row["id"]: row["n"] for (name, _), row in stream.history.state().items() if name == table}


def agree(stream: Query, database: AnyDatabase, table: str = "u") -> None:
    rows = {row["id"]: row["n"] for row in database.rows(table)}
    try:
        stream.until(lambda: stream.dumped and state_of(stream, table) == rows, seconds=30)
    except AssertionError:
        assert state_of(stream, table) == rows
        raise
    stream.catch_up()
    assert state_of(stream, table) == rows
    stream.history.check_order()


def status(stream: Query) -> dict[str, Any]:
    return dict(stream.engine._planner.status())


@on_every
@pytest.mark.parametrize("watermark", ["table", "none"])
def test_a_new_table_is_dumped_and_followed(table: AnyDatabase, query: MakeQuery, watermark: str) -> None:
    stream = follow(table, query, watermark=watermark)
    stream.catch_up()
    table.execute(CREATE, f"insert into u select i, i from {table.series(1, 50)}", "update t set n = 1 where id = 1")
    stream.until(lambda: bool(state_of(stream)))
    table.execute("update u set n = 0 where id < 10", "delete from u where id = 20", "insert into u values (99, 1)")
    agree(stream, table)
    agree(stream, table, "t")
    stream.restart()
    table.execute("update u set n = 7 where id = 30")
    agree(stream, table)
    assert stream.history.count("truncate") == 0


@on_every
def test_a_new_table_that_is_empty_is_followed(table: AnyDatabase, query: MakeQuery) -> None:
    stream = follow(table, query)
    stream.catch_up()
    table.execute(CREATE)
    stream.until(lambda: [table.schema, "u"] in stream.committed["tables"])
    table.execute("insert into u values (1, 1)")
    agree(stream, table)
    assert stream.history.ops("u", 1) == ["create"]


@contextmanager
def writers(database: AnyDatabase, count: int) -> Iterator[None]:
    """Sessions that write to `u` as soon as there is one, in transactions that overlap."""
    ended = threading.Event()

    def write(seed: int) -> None:
        dice = random.Random(seed)
        session: Any = database.connect(autocommit=False)
        cursor = session.cursor()
        while not ended.is_set():
            try:
                for _ in range(dice.randint(1, 4)):
                    key = dice.randrange(40) * count + seed  # a key is one session's: they never wait for each other
                    verb = dice.choice(["insert", "update", "delete"])
                    cursor.execute(
                        {
                            "insert": f"insert into u values ({key}, {dice.randrange(10**6)})",
                            "update": f"update u set n = {dice.randrange(10**6)} where id = {key}",
                            "delete": f"delete from u where id = {key}",
                        }[verb]
                    )
                    time.sleep(dice.choice([0.0, 0.002, 0.05]))
                session.commit()
            except (psycopg2.Error, pymysql.err.MySQLError):  # there is no table yet, or the key is there
                session.rollback()
                time.sleep(0.002)
        with suppress(psycopg2.Error, pymysql.err.MySQLError):
            session.commit()
        session.close()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@on_every
@pytest.mark.parametrize("moment", ["followed", "stopped"])
def test_nothing_is_lost_of_a_new_table_that_is_being_written(
    table: AnyDatabase, query: MakeQuery, moment: str
) -> None:
    stream = follow(table, query, chunkRows=7)
    stream.catch_up()
    with writers(table, 4):
        time.sleep(0.1)
        if moment == "stopped":
            stream.stop()
        table.execute(CREATE)
        stream.until(lambda: [table.schema, "u"] in stream.committed["tables"])
        seen = len(stream.history.events)
        stream.until(lambda: len(stream.history.events) > seen + 200, seconds=60)
    agree(stream, table)


@on_postgres
def test_a_transaction_that_wrote_before_the_table_was_met_is_not_lost(table: OnPostgres, query: MakeQuery) -> None:
    stream = follow(table, query)
    stream.catch_up()
    table.execute(CREATE)
    session = table.connect(autocommit=False)
    session.cursor().execute("insert into u values (1, 1)")
    stream.until(lambda: bool(table.execute("select 1 from pg_publication_tables where tablename = 'u'")))
    table.execute("insert into u values (2, 2)")
    stream.until(lambda: status(stream)["joining"] == [f"{table.schema}.u"])
    for _ in range(5):
        stream.step()
    assert not state_of(stream)  # the dump waits for the transaction
    table.execute("update t set n = 5 where id = 5")
    stream.until(lambda: stream.history.ops("t", 5) == ["read", "update"])  # the log does not
    session.cursor().execute("update u set n = 3 where id = 2; insert into u values (3, 3)")
    session.commit()
    session.close()
    agree(stream, table)
    assert state_of(stream) == {1: 1, 2: 3, 3: 3}


@on_families
def test_a_new_table_can_be_told_instead(table: AnyDatabase, query: MakeQuery) -> None:
    stream = follow(table, query, newTables="tell")
    stream.catch_up()
    table.execute(CREATE, "insert into u values (1, 1)")
    name = f"{table.schema}.u"
    stream.until(lambda: name in status(stream)["left_out"])
    assert "newTables" in status(stream)["left_out"][name]
    table.execute("insert into u values (2, 2)", "update t set n = 5 where id = 5")
    stream.until(lambda: stream.history.ops("t", 5) == ["read", "update"])
    assert not state_of(stream)
    assert name not in status(stream)["tables"]
    stream.restart()
    agree(stream, table)


@on_families
def test_a_new_table_that_cannot_be_followed_is_left_out_until_it_can(table: AnyDatabase, query: MakeQuery) -> None:
    stream = follow(table, query)
    stream.catch_up()
    table.execute("create table u (id int not null, n int)", "insert into u values (1, 1)")
    name = f"{table.schema}.u"
    stream.until(lambda: name in status(stream)["left_out"])
    assert "primary key" in status(stream)["left_out"][name]
    table.execute("update t set n = 5 where id = 5")
    stream.restart()  # nor does it keep the stream from starting again
    stream.until(lambda: stream.history.ops("t", 5) == ["read", "update"])
    stream.until(lambda: name in status(stream)["left_out"])
    assert not state_of(stream)
    table.execute("update u set n = 2", "alter table u add primary key (id)")
    agree(stream, table)
    assert name in status(stream)["tables"]
    assert not status(stream)["left_out"]


@on_families
def test_a_batch_with_the_first_log_of_a_new_table_is_repeated_as_it_was(table: AnyDatabase, query: MakeQuery) -> None:
    stream = follow(table, query)
    stream.catch_up()
    table.execute(CREATE)
    for n in range(60):
        table.execute(f"insert into u values ({n}, 0)", f"update t set n = {n} where id = 5")
        while stream.plan():
            from dblog.work.tasks import Emit, Log

            rows = list(stream.rows(stream.work(), Log, Emit))
            again = n % 3 == 0
            if again:
                stream.restart()
            else:
                stream.finish()
            assert stream.history.batches[stream.done - 1] == rows
    agree(stream, table)


@on_families
def test_the_first_dump_of_a_new_table_is_shown(table: AnyDatabase, query: MakeQuery) -> None:
    stream = follow(table, query)
    stream.catch_up()
    table.execute(CREATE, "insert into u values (1, 1)")
    agree(stream, table)
    stream.catch_up()
    shown = status(stream)
    assert set(shown["tables"]) == {f"{table.schema}.t", f"{table.schema}.u"}
    assert (shown["left_out"], shown["joining"]) == ({}, [])


@on_postgres
def test_a_new_table_that_the_publication_would_name_by_its_partitions_is_left_out(
    table: OnPostgres, query: MakeQuery
) -> None:
    table.execute("create schema if not exists dblog")
    table.execute("create table dblog.watermark (id smallint primary key check (id = 1), token text not null)")
    table.execute(
        "create publication theirs for table t, dblog.watermark", "insert into dblog.watermark values (1, '')"
    )
    stream = follow(table, query, publication="theirs")
    stream.catch_up()
    table.execute("create table p (id int primary key, n int) partition by range (id)")
    table.execute("create table p1 partition of p for values from (0) to (9)", CREATE, "insert into u values (1, 1)")
    stream.until(lambda: "public.p" in status(stream)["left_out"])
    agree(stream, table)
    table.execute("alter publication theirs set (publish_via_partition_root = true)", "insert into p values (1, 1)")
    agree(stream, table, "p")


def test_a_table_that_the_patterns_stop_and_begin_to_name_is_dumped_again(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute(CREATE, "insert into u values (1, 1), (2, 2)")
    stream = follow(table, query)
    stream.catch_up()
    stream.restart(tables=f"{table.schema}.t")
    stream.until(lambda: [name for _, name, *_ in stream.committed["followed"]] == ["t"], seconds=20)
    table.execute("update u set n = 3 where id = 1", "insert into u values (3, 3)")
    stream.catch_up()
    stream.restart(tables=f"{table.schema}.*")
    agree(stream, table)
