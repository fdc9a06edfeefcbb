"""Changes between a chunk's select and the end of its window, one at a time and each at a known place."""

from __future__ import annotations

import pytest

from tests.engine.conftest import MakeQuery, check, create_large, on_every
from tests.engine.query import Query
from tests.families import AnyDatabase, OnPostgres

pytestmark = [pytest.mark.server, on_every]


def test_rows_that_do_not_change_are_delivered_once(window: Query, database: AnyDatabase) -> None:
    check(window, database)
    assert [e["_op"] for e in window.history.events] == ["read"] * 60


def test_an_update_inside_the_window_replaces_the_selected_row(window: Query, database: AnyDatabase) -> None:
    database.execute("update t set n = 1 where id = 5")
    check(window, database)
    assert window.history.ops(5) == ["update"]


def test_a_delete_inside_the_window_is_not_resurrected(window: Query, database: AnyDatabase) -> None:
    database.execute("delete from t where id = 5")
    check(window, database)
    assert window.history.ops(5) == ["delete"]


def test_a_row_deleted_and_inserted_inside_the_window_comes_from_the_log_alone(
    window: Query, database: AnyDatabase
) -> None:
    database.execute("delete from t where id = 5")
    database.execute("insert into t values (5, 7, 'again')")
    check(window, database)
    assert window.history.ops(5) == ["delete", "create"]


def test_a_row_inserted_and_deleted_inside_the_window_leaves_nothing(window: Query, database: AnyDatabase) -> None:
    database.execute("insert into t values (0, 7, 'short')")
    database.execute("delete from t where id = 0")
    check(window, database)
    assert window.history.ops(0) == ["create", "delete"]


def test_a_change_of_a_row_that_is_selected_later_comes_before_its_row(window: Query, database: AnyDatabase) -> None:
    database.execute("update t set n = 1 where id = 55")
    check(window, database)
    assert window.history.ops(55) == ["update", "read"]


def test_a_rolled_back_change_drops_nothing(window: Query, database: AnyDatabase) -> None:
    session = database.connect(autocommit=False)
    session.cursor().execute("update t set n = 1 where id = 5")
    session.rollback()
    check(window, database)
    assert window.history.ops(5) == ["read"]


def test_a_change_of_another_table_drops_nothing(database: AnyDatabase, query: MakeQuery) -> None:
    for name in ("t", "u"):
        database.execute(f"create table {name} (id int primary key, n int)")
        database.execute(f"insert into {name} select i, 0 from {database.series(1, 9)}")
    stream = query(tables=f"{database.schema}.*", key=("_table", "id"), parallelism=1)
    stream.open_window()
    database.execute("update u set n = 1 where id = 5", "delete from u where id = 6")
    stream.catch_up()
    stream.history.check_order()
    assert stream.history.ops("t", 5) == stream.history.ops("t", 6) == ["read"]
    assert len(stream.history.state()) == 17


def test_a_row_that_moves_inside_the_window_leaves_no_copy_at_its_old_key(window: Query, database: AnyDatabase) -> None:
    database.execute("update t set id = 105, big = 'small' where id = 5")
    check(window, database)
    assert window.history.ops(5) == ["delete"]
    assert window.history.ops(105) == ["create"]


def test_a_row_that_moves_onto_a_selected_key_replaces_its_row(window: Query, database: AnyDatabase) -> None:
    database.execute("delete from t where id = 6")
    database.execute("update t set id = 6, big = 'small' where id = 55")
    check(window, database)
    assert window.history.ops(6) == ["delete", "create"]


def test_keys_that_are_swapped_inside_the_window_keep_their_own_rows(window: Query, database: AnyDatabase) -> None:
    database.transact(
        "update t set id = -1 where id = 5", "update t set id = 5 where id = 6", "update t set id = 6 where id = -1"
    )
    check(window, database)


def test_a_truncate_inside_the_window_drops_every_selected_row(window: Query, database: AnyDatabase) -> None:
    database.execute("insert into t values (0, 1, 'before')")
    database.execute("truncate t")
    database.execute("insert into t values (5, 1, 'after')")
    check(window, database)
    assert window.history.ops(5) == ["create"]
    assert window.history.count("truncate") == 1
    assert window.history.count("read") == 0


def test_with_the_old_rows_in_it_the_log_leaves_nothing_out(database: AnyDatabase, query: MakeQuery) -> None:
    create_large(database, 20)
    if isinstance(database, OnPostgres):
        database.execute("alter table t replica identity full")
    stream = query(before=True, chunkRows=5, parallelism=1)
    stream.open_window()
    database.execute("update t set n = 1 where id = 3")
    database.execute("update t set id = 104 where id = 4")
    database.execute("delete from t where id = 15")
    check(stream, database)
    assert all(e["_unchanged"] is None for e in stream.history.events)
    assert stream.history.of(3)[0]["_before"]["n"] == 0
    assert stream.history.ops(104) == ["create"]
