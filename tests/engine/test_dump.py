"""The life of a dump: where it begins and ends, what is lost and read again, and when a stream stops by itself."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from dblog.errors import PreconditionFailed
from dblog.spark.source import Lane
from dblog.work.tasks import Emit, Log, Select, stage
from tests.engine.conftest import MakeQuery, check, on_families, on_postgres, rows_of
from tests.engine.query import Query
from tests.engine.writers import create_hot, writers
from tests.families import AnyDatabase, OnPostgres

pytestmark = pytest.mark.server


# -- from the first key to the frontier ----------------------------------------------------------------------


def test_an_empty_table_is_dumped_at_once_and_then_followed(database: AnyDatabase, query: MakeQuery) -> None:
    database.execute("create table t (id int primary key, n int)")
    stream = query()
    stream.dump()
    database.execute("insert into t values (1, 1)")
    check(stream, database)
    assert stream.history.ops(1) == ["create"]


def test_a_table_that_is_emptied_between_two_rounds_ends_its_dump(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    table.execute("delete from t")
    check(stream, table)
    assert not stream.history.state()


def test_a_frontier_row_that_is_deleted_does_not_hold_the_dump_up(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    table.execute("delete from t where id > 25")
    check(stream, table)


def test_rows_above_the_frontier_come_by_the_log_alone(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    table.execute(f"insert into t select i, 0 from {table.series(61, 80)}")
    check(stream, table)
    assert all(stream.history.ops(i) == ["create"] for i in range(61, 81))


def test_without_a_dump_only_changes_are_delivered(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(dump="never")
    stream.step()
    table.execute("update t set n = 1 where id = 5")
    stream.until(lambda: bool(stream.history.events))
    assert [(e["id"], e["_op"]) for e in stream.history.events] == [(5, "update")]


def test_a_table_that_appears_later_gets_its_dump(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(tables=f"{table.schema}.*", key=("_table", "id"))
    stream.dump()
    table.execute("create table later (id int primary key, n int)", "insert into later values (1, 1), (2, 2)")
    stream.catch_up()
    stream.restart()
    stream.until(lambda: len(stream.history.state()) == 62)
    stream.catch_up()
    assert stream.history.ops("later", 1) == ["read"]
    assert stream.history.ops("t", 1) == ["read"]


def test_a_dump_goes_on_after_a_restart_where_it_was(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    stream.step()
    stream.restart()
    check(stream, table)
    assert stream.history.count("read") == 60


# -- staged chunks -------------------------------------------------------------------------------------------


def remove_staged(stream: Query) -> None:
    for path in Path(stream.given["spool"], "chunk").iterdir():
        path.unlink()


def test_a_chunk_that_is_lost_before_its_window_ends_is_selected_again(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query()
    stream.open_window()
    remove_staged(stream)
    table.execute("update t set n = 1 where id = 5")
    check(stream, table)
    assert stream.history.count("read") == 59


def test_a_chunk_that_is_lost_after_its_window_has_ended_is_read_again(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query()
    stream.open_window()
    assert stream.plan()
    remove_staged(stream)
    stream.finish()
    table.execute("update t set n = 1 where id = 5")
    check(stream, table)


def test_a_spool_that_is_lost_between_two_lives_costs_nothing_but_time(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    table.execute("update t set n = 1 where id = 5")
    assert stream.plan()
    stream.stop()
    for path in Path(stream.given["spool"]).rglob("*"):
        if path.is_file():
            path.unlink()
    stream.restart()
    check(stream, table)


def test_a_select_that_finishes_late_does_not_replace_the_rows_of_the_window(
    table: AnyDatabase, query: MakeQuery
) -> None:
    stream = query()
    stream.open_window()
    late = late_selects(stream)
    table.execute("update t set n = 1 where id = 5")
    assert stream.plan()  # the window is over
    table.execute("update t set n = 2")
    for task in late:
        stage(stream.engine._source, stream.engine._spool, task.chunk)
    stream.finish()
    assert {e["n"] for e in stream.history.events if e["_op"] == "read"} == {0}
    check(stream, table)


def test_a_select_that_finishes_after_its_file_was_removed_is_not_delivered(
    table: AnyDatabase, query: MakeQuery
) -> None:
    """The offset names the very file: another one for the same chunk does not count."""
    stream = query()
    stream.open_window()
    late = late_selects(stream)
    assert stream.plan()
    remove_staged(stream)
    table.execute("update t set n = 2 where id = 5")
    for task in late:
        stage(stream.engine._source, stream.engine._spool, task.chunk)
    stream.finish()
    assert stream.history.events == []
    check(stream, table)


def late_selects(stream: Query) -> list[Select]:
    """The selects of the last finished batch, as a task that was thought lost would do them."""
    start = stream.offsets[stream.done - 2] if stream.done > 1 else stream.reader.initialOffset()
    lanes = stream.reader.partitions(start, stream.offsets[stream.done - 1])
    return [work for lane in lanes if isinstance(lane, Lane) for work in lane.work if isinstance(work, Select)]


def test_nothing_is_left_on_the_spool_when_everything_is_committed(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(heartbeatSeconds=1)
    stream.catch_up()
    table.execute("update t set n = 1")
    stream.catch_up()
    for n in range(2):  # a batch is committed when the next is planned, and for that the log must go on
        done = stream.done
        table.execute(f"create table other{n} (id int)")
        stream.until(lambda: stream.done > done)  # noqa: B023
    (note,) = [p for p in Path(stream.given["spool"]).rglob("*") if p.is_file()]
    assert json.loads(note.read_text())["segments"] == []  # the batch that was planned last has no files


# -- batches that are limited, streams that end --------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [({"maxRowsPerTrigger": 10}, [10, 9, 12, 8]), ({"maxRowsPerTrigger": 1}, [7, 3, 9, 12, 1, 7])],
)
def test_a_limit_cuts_the_log_between_transactions(
    table: AnyDatabase, query: MakeQuery, limit: dict[str, int], sizes: list[int]
) -> None:
    stream = query(**limit)
    stream.catch_up()
    begin, events = stream.done, stream.engine.report()["events"]
    for n in (7, 3, 9, 12, 1, 7):
        table.execute(f"update t set n = n + 1 where id <= {n}")
    stream.wait_captured()
    stream.catch_up()
    assert [len(stream.history.batches[i]) for i in range(begin, stream.done)] == sizes
    assert stream.engine.report()["events"] - events == 39
    check(stream, table)


def test_a_batch_that_ends_inside_a_captured_segment_is_the_same_in_the_next_life(
    table: AnyDatabase, query: MakeQuery
) -> None:
    stream = query(maxRowsPerTrigger=5)
    stream.catch_up()
    for n in range(1, 11):
        table.execute(f"update t set n = n + 1 where id between {n} and {n + 2}")
    stream.wait_captured()
    while stream.plan():
        first = list(stream.rows(stream.work(), Log, Emit))
        stream.restart()  # repeats the batch from a log that is captured anew, and cut elsewhere
        assert list(stream.history.batches[stream.done - 1]) == first
    check(stream, table)


def test_a_stream_that_drains_stops_when_all_of_now_is_delivered(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query()
    stream.reader.prepareForTriggerAvailableNow()
    while stream.step():
        pass
    stream.history.check_state(rows_of(table))
    stream.restart()
    table.execute("update t set n = 1 where id < 4")
    stream.reader.prepareForTriggerAvailableNow()
    while stream.step():
        pass
    stream.history.check_state(rows_of(table))
    assert (stream.history.count("read"), stream.history.count("update")) == (60, 3)


def test_a_stream_that_drains_does_not_wait_for_the_changes_of_others(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(heartbeatSeconds=8)
    stream.catch_up()
    stream.restart()
    table.execute(f"create table other as select i from {table.series(1, 1000)}")
    began = time.monotonic()
    stream.reader.prepareForTriggerAvailableNow()
    while stream.step():
        pass
    assert time.monotonic() - began < 6


def test_a_stream_that_drains_ends_though_the_writers_do_not(database: AnyDatabase, query: MakeQuery) -> None:
    create_hot(database, 50)
    stream = query()
    with writers(database, 2, 50, rate=200):
        stream.reader.prepareForTriggerAvailableNow()
        deadline = time.monotonic() + 15
        while stream.step():
            assert time.monotonic() < deadline, "it goes on with what is written meanwhile"
    assert stream.history.count("read")
    stream.history.check_order()


# -- tables that are not plain -------------------------------------------------------------------------------


def test_a_partitioned_table_is_one_table(database: AnyDatabase, query: MakeQuery) -> None:
    partitioned = "create table t (id int primary key, n int) partition by range (id)"
    if isinstance(database, OnPostgres):
        database.execute(
            partitioned,
            "create table low partition of t for values from (0) to (20)",
            "create table high partition of t for values from (20) to (100)",
        )
    else:
        database.execute(f"{partitioned} (partition a values less than (20), partition b values less than (100))")
    database.execute(f"insert into t select i, 0 from {database.series(1, 40)}")
    stream = query(parallelism=1)
    stream.open_window()
    database.execute("update t set n = 1 where id in (5, 35)", "delete from t where id = 6")
    database.execute("update t set id = 70 where id = 7")  # from one partition to the other
    check(stream, database)
    assert stream.history.ops(5) == ["update"]
    assert stream.history.ops(7) == ["delete"]
    assert stream.history.ops(70) == ["create"]


@on_postgres
def test_a_table_that_others_inherit_from_is_refused(database: OnPostgres, query: MakeQuery) -> None:
    database.execute("create table t (id int primary key, n int); create table child () inherits (t)")
    with pytest.raises(PreconditionFailed, match="children by inheritance"):
        query().step()


@on_families
@pytest.mark.parametrize(
    "name", ["a b", 'quo"te', "back`tick", "dot.ted", "ÜñíçØdé", "per%s{}", "select", "back\\slash"]
)
def test_odd_names_are_names_like_any_other(
    database: AnyDatabase, query: MakeQuery, request: pytest.FixtureRequest, name: str
) -> None:
    odd = type(database)(database.server, f"{database.name} {name}")
    odd.create()
    request.addfinalizer(odd.drop)
    column, table = odd.quoted(name), odd.quoted(name)
    asked = '"' + name.replace('"', '""') + '"'
    if isinstance(odd, OnPostgres):
        table, asked = f"{table}.{table}", f"{asked}.{asked}"
        odd.execute(f"create schema {column}")
    odd.execute(
        f"create table {table} ({column} int primary key, n int)",
        f"insert into {table} select i, 0 from {odd.series(1, 12)}",
    )
    stream = query(asked, url=odd.url, key=(name,), chunkRows=5)
    stream.open_window()
    odd.execute(f"update {table} set n = 1 where {column} = 3")
    stream.catch_up()
    stream.history.check_state(rows_of(odd, table))
    stream.stop()
