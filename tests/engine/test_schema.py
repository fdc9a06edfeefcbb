"""Tables that are altered while they are dumped and while they are followed."""

from __future__ import annotations

import threading
import time

import pytest

from dblog.errors import SchemaChanged
from tests.engine.conftest import MakeQuery, on_families, rows_of
from tests.engine.ddl import DDL, alter
from tests.engine.query import Query
from tests.families import AnyDatabase

pytestmark = [pytest.mark.server, on_families]


@pytest.fixture
def table(database: AnyDatabase) -> AnyDatabase:
    database.execute("create table t (id int primary key, n int, touched int)")
    database.execute(f"insert into t select i, i, 0 from {database.series(1, 30)}")
    return database


def rows_by_id(database: AnyDatabase) -> dict[int, dict[str, object]]:
    return {row["id"]: row for row in rows_of(database)}


def state_by_id(stream: Query) -> dict[int, dict[str, object]]:
    return {key[0]: row for key, row in stream.history.state().items()}


@pytest.mark.parametrize("ddl", DDL)
def test_envelopes_go_on_through_a_change_of_the_table_inside_the_window(
    table: AnyDatabase, query: MakeQuery, ddl: str
) -> None:
    stream = query(tables="t", parallelism=1)
    stream.open_window()
    table.execute("update t set touched = 1 where id = 4")
    alter(table, ddl)
    table.execute("update t set touched = 1 where id = 5", "delete from t where id = 6")
    stream.catch_up()
    stream.history.check_order()
    mine, theirs = state_by_id(stream), rows_by_id(table)
    assert mine.keys() == theirs.keys()
    # the chunk was selected before: it is read again, as the table is now
    assert {k: mine[k] for k in theirs if k not in (4,)} == {k: theirs[k] for k in theirs if k not in (4,)}
    assert mine[4]["touched"] == 1


@pytest.mark.parametrize("ddl", DDL)
def test_envelopes_go_on_through_a_change_of_a_table_that_is_followed(
    table: AnyDatabase, query: MakeQuery, ddl: str
) -> None:
    stream = query(tables="t")
    stream.catch_up()
    table.execute("update t set touched = 1 where id = 4")
    alter(table, ddl)
    table.execute("update t set touched = 1 where id = 5")
    stream.catch_up()
    before, after = stream.history.of(4)[-1], stream.history.of(5)[-1]
    assert before["_schema"] != after["_schema"]
    assert (before["n"], before["touched"]) == (4, 1)
    assert state_by_id(stream)[5] == rows_by_id(table)[5]


@pytest.mark.parametrize("ddl", DDL)
def test_a_typed_stream_stops_at_a_change_of_its_table_and_goes_on_with_the_new_columns(
    table: AnyDatabase, query: MakeQuery, ddl: str
) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    alter(table, ddl)
    table.execute("update t set touched = 1 where id = 5", "delete from t where id = 6")
    with pytest.raises(SchemaChanged, match=r"no longer has the columns of this stream.*column"):
        stream.catch_up()
    stream.restart()
    stream.catch_up()
    stream.history.check_order()
    stream.history.check_state(rows_of(table))  # nothing had been delivered in the old form


@pytest.mark.parametrize("ddl", DDL)
def test_a_typed_stream_that_is_restarted_delivers_the_log_from_before_the_change(
    table: AnyDatabase, query: MakeQuery, ddl: str
) -> None:
    """What the old log does not carry is named, never null without a word."""
    stream = query()
    stream.catch_up()
    stream.stop()
    table.execute("update t set touched = 1 where id = 4")
    alter(table, ddl)
    table.execute("update t set touched = 1 where id = 5")
    stream.catch_up()
    mine, theirs = state_by_id(stream), rows_by_id(table)
    assert mine[5] == theirs[5]
    old = stream.history.of(4)[-1]
    assert old["touched"] == 1
    for name in theirs[4].keys() - {"id", "touched"}:
        assert old[name] == theirs[4][name] or name in (old["_unchanged"] or ()) or ddl in ("retype", "swap")


def test_a_table_that_is_dropped_in_the_middle_of_its_dump_does_not_hold_the_others_up(
    table: AnyDatabase, query: MakeQuery
) -> None:
    table.execute("create table u as select * from t", "alter table u add primary key (id)")
    stream = query(tables="t, u", key=("_table", "id"), parallelism=1)
    stream.open_window()
    table.execute("drop table t")
    stream.catch_up()
    assert sum(table == "u" for table, _ in stream.history.state()) == 30


def test_a_new_primary_key_stops_a_typed_stream(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query()
    stream.catch_up()
    table.rekey("t", "id, n")
    table.execute("update t set touched = 1 where id = 5")
    with pytest.raises(SchemaChanged, match="the primary key changed"):
        stream.catch_up()


@pytest.mark.parametrize("when", ["before the boundaries", "before the select"])
def test_the_log_goes_on_while_somebody_locks_the_table_of_a_dump(
    table: AnyDatabase, query: MakeQuery, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(f"{table.source.__module__}.LOCK_SECONDS", 1)
    table.execute("create table other (id int primary key, n int, touched int)")
    stream = query(tables=f"{table.schema}.*", key=("_table", "id"), parallelism=1)
    stream.open_window()
    if when == "before the select":
        assert stream.plan()
    lock = table.lock("t")
    stop = threading.Event()
    threading.Timer(6, lambda: (lock.close(), stop.set())).start()
    table.execute("insert into other values (1, 1, 1)")
    began = time.monotonic()
    if when == "before the select":
        stream.finish()
    stream.until(lambda: ("other", 1) in stream.history.state())
    assert time.monotonic() - began < 5
    assert not stop.is_set(), "the log came only when the lock was gone"
    stop.wait()
    stream.catch_up()
    assert len(stream.history.state()) == 31
