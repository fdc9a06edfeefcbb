"""What a log may hold besides single changes: open, partial and foreign transactions, several tables, odd columns."""

from __future__ import annotations

import pytest

from dblog.errors import ConfigError, SchemaChanged
from tests.engine.conftest import MakeQuery, check, on_postgres
from tests.engine.ddl import alter
from tests.families import AnyDatabase, OnPostgres

pytestmark = pytest.mark.server


def test_a_transaction_that_is_open_while_the_table_is_dumped_comes_after_the_dump(
    table: AnyDatabase, query: MakeQuery
) -> None:
    stream = query()
    stream.step()
    session = table.connect(autocommit=False)
    session.cursor().execute("update t set n = 1 where id = 5")
    stream.dump()
    assert stream.history.ops(5) == ["read"]
    session.commit()
    check(stream, table)
    assert stream.history.ops(5) == ["read", "update"]


def test_a_transaction_that_ends_inside_the_window_counts_though_it_began_before(
    table: AnyDatabase, query: MakeQuery
) -> None:
    stream = query()
    stream.step()
    session = table.connect(autocommit=False)
    session.cursor().execute("update t set n = 1 where id = 5")
    session.cursor().execute("delete from t where id = 6")
    stream.open_window()
    session.commit()
    check(stream, table)
    assert (stream.history.ops(5), stream.history.ops(6)) == (["update"], ["delete"])


def test_a_savepoint_that_is_rolled_back_leaves_nothing(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query()
    stream.open_window()
    table.transact(
        "update t set n = 1 where id = 5",
        "savepoint a",
        "update t set n = 2 where id = 6",
        "savepoint b",
        "update t set n = 3 where id = 5",
        "rollback to savepoint a",
        "update t set n = 4 where id = 7",
    )
    check(stream, table)
    assert [stream.history.ops(i) for i in (5, 6, 7)] == [["update"], ["read"], ["update"]]


def test_a_row_that_changes_many_times_in_one_transaction_keeps_its_order(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query()
    stream.open_window()
    table.transact(*(f"update t set n = {i} where id = 5" for i in range(1, 51)))
    check(stream, table)
    assert [e["n"] for e in stream.history.of(5)] == list(range(1, 51))
    assert len({e["_lsn"] for e in stream.history.of(5)}) == 1


def test_changes_of_several_tables_come_in_the_order_of_their_transactions(
    table: AnyDatabase, query: MakeQuery
) -> None:
    table.execute("create table u (id int primary key, n int)")
    stream = query(tables=f"{table.schema}.*", key=("_table", "id"))
    stream.catch_up()
    begin = len(stream.history.events)
    for n in range(10):
        table.transact(
            f"update t set n = {n + 2} where id = 1",
            f"insert into u values ({n}, 0)",
            f"update t set n = {n + 2} where id = 2",
        )
        table.execute(f"update u set n = 1 where id = {n}")
    stream.catch_up()
    events = stream.history.events[begin:]
    assert [(e["_table"], e["id"]) for e in events] == [
        each for n in range(10) for each in (("t", 1), ("u", n), ("t", 2), ("u", n))
    ]
    assert events == sorted(events, key=lambda e: (e["_lsn"], e["_seq"]))


@on_postgres
def test_a_truncate_of_several_tables_empties_each(table: OnPostgres, query: MakeQuery) -> None:
    table.execute("create table u (id int primary key, t int references t); insert into u values (1, 1)")
    stream = query(tables="public.*", key=("_table", "id"))
    stream.open_window()
    table.execute("truncate t cascade")
    table.execute("insert into t values (1, 7)")
    stream.until(lambda: stream.history.count("truncate") == 2)
    stream.catch_up()
    assert {e["_table"] for e in stream.history.events if e["_op"] == "truncate"} == {"t", "u"}
    assert [e["_op"] for e in stream.history.of("t", 1)] == ["create"]


@on_postgres
def test_changes_that_were_replicated_from_elsewhere_are_changes(table: OnPostgres, query: MakeQuery) -> None:
    stream = query()
    stream.open_window()
    session = table.connect()
    origin = f"elsewhere_{table.name}"
    try:
        session.cursor().execute("select pg_replication_origin_create(%s)", [origin])
        session.cursor().execute("select pg_replication_origin_session_setup(%s)", [origin])
        session.cursor().execute("update t set n = 1 where id = 5")
        session.cursor().execute("select pg_logical_emit_message(true, 'prefix', 'message')")
        check(stream, table)
    finally:
        session.cursor().execute("select pg_replication_origin_session_reset()")
        session.cursor().execute("select pg_replication_origin_drop(%s)", [origin])
    assert stream.history.ops(5) == ["update"]


def test_a_table_of_nothing_but_its_key_is_a_table(database: AnyDatabase, query: MakeQuery) -> None:
    database.execute("create table t (id int primary key)", f"insert into t select i from {database.series(1, 15)}")
    stream = query()
    stream.open_window()
    database.execute("delete from t where id = 5", "insert into t values (16)", "update t set id = 17 where id = 6")
    check(stream, database)


@pytest.mark.parametrize("option", ["tables", "table"])
def test_a_column_that_is_named_like_our_own_is_refused(database: AnyDatabase, query: MakeQuery, option: str) -> None:
    database.execute("create table t (id int primary key, _op varchar(9), n int)", "insert into t values (1, 'a', 1)")
    with pytest.raises(ConfigError, match=r"columns named \['_op'\]"):
        query(**{option: f"{database.schema}.t"}).step()
    stream = query(columns="n")
    stream.catch_up()
    assert stream.history.state() == {(1,): {"id": 1, "n": 1}}


@pytest.mark.parametrize("ddl", ["retype", "drop", "add"])
def test_a_table_that_is_altered_in_the_middle_of_its_dump_is_noticed_without_a_change(
    table: AnyDatabase, query: MakeQuery, ddl: str
) -> None:
    """A chunk that no longer has the stream's columns must not be delivered with holes in it."""
    stream = query(parallelism=1)
    stream.open_window()
    alter(table, ddl)
    try:
        stream.catch_up()
    except SchemaChanged:
        stream.restart()
        stream.catch_up()
    assert all(e["_unchanged"] is None for e in stream.history.events)


@pytest.mark.parametrize("ddl", ["retype", "drop", "add"])
def test_a_chunk_that_was_selected_before_a_change_of_the_table_is_read_again_by_the_next_life(
    table: AnyDatabase, query: MakeQuery, ddl: str
) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    stream.stop()
    alter(table, ddl)
    check(stream, table)
