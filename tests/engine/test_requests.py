"""Dumps on demand, against a real server: what is asked for is delivered, in the presence of writers, crashes, pauses
and mistakes, and nothing else suffers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from dblog.state.events import EventKind
from dblog.state.requests import State, Wish, read_request
from tests.engine.conftest import MakeQuery, on_families, rows_of
from tests.engine.control import Control
from tests.engine.query import Query
from tests.engine.writers import create_hot, versions_of, writers
from tests.families import AnyDatabase, OnPostgres

pytestmark = [pytest.mark.server, on_families]


@pytest.fixture
def shop(database: AnyDatabase) -> AnyDatabase:
    database.execute("create table t (id int primary key, n int)")
    database.execute(f"insert into t select i, 0 from {database.series(1, 40)}")
    database.execute("create table pair (a varchar(9), b int, n int, primary key (a, b))")
    letter = "substr('eabcd', 1 + i % 5, 1)"
    database.execute(f"insert into pair select {letter}, i, 0 from {database.series(1, 20)}")
    return database


@pytest.fixture
def stream(shop: AnyDatabase, query: MakeQuery) -> Query:
    """A stream of both tables whose first dump is over."""
    made = query(tables=f"{shop.schema}.*", key=("_table", "id", "a", "b"), parallelism=1)
    made.catch_up()
    return made


@pytest.fixture
def control(stream: Query) -> Control:
    return Control(stream)


def delivered(query: Query, dump: str, table: str = "t") -> list[Any]:
    """Which rows of a table a dump has delivered, in their order."""
    rows = [e for e in query.history.events if (e["_dump"], e["_table"]) == (dump, table)]
    return [row["id"] if table == "t" else (row["a"], row["b"]) for row in rows]


def check(query: Query, database: AnyDatabase) -> None:
    query.catch_up()
    query.history.check_order()
    rows = query.history.state().items()
    for table, columns in (("t", ("id", "n")), ("pair", ("a", "b", "n"))):
        found = sorted(tuple(row[c] for c in columns) for key, row in rows if key[0] == table)
        assert found == sorted(tuple(r[c] for c in columns) for r in rows_of(database, table))


# -- what can be asked for -----------------------------------------------------------------------------------


def test_all_tables_are_those_that_are_there(stream: Query, control: Control, shop: AnyDatabase) -> None:
    shop.execute("drop table pair")
    dump = control.ask()
    stream.until(lambda: control.dump(dump).state.ended)
    assert control.dump(dump).state is State.completed
    assert delivered(stream, dump) == list(range(1, 41))


def test_a_table_is_delivered_again_and_its_progress_is_seen(
    stream: Query, control: Control, shop: AnyDatabase
) -> None:
    shop.analyze("t")
    dump = control.ask(f"{shop.schema}.t")
    assert control.dump(dump).state is State.queued
    stream.until(lambda: control.dump(dump).read > 0)
    half = control.dump(dump)
    assert half.state is State.running
    assert 0 < half.read < 40
    assert half.total == 40
    assert half.seconds_left is not None
    done = control.finish(dump)
    assert (done.state, done.read, done.emitted, done.dropped) == (State.completed, 40, 40, 0)
    assert done.progress.tables[f"{shop.schema}.t"].state is State.completed
    assert delivered(stream, dump) == list(range(1, 41))
    assert done.created_at <= done.progress.started_at <= done.progress.finished_at  # type: ignore[operator]
    check(stream, shop)


@pytest.mark.parametrize("tables", [None, "{schema}.*", "t, pair"])
def test_several_tables_are_one_request(stream: Query, control: Control, shop: AnyDatabase, tables: str | None) -> None:
    dump = control.ask(tables and tables.format(schema=shop.schema))
    done = control.finish(dump)
    read = {name: t.read for name, t in done.progress.tables.items()}
    assert read == {f"{shop.schema}.t": 40, f"{shop.schema}.pair": 20}
    assert len(delivered(stream, dump)) == 40
    assert len(delivered(stream, dump, "pair")) == 20


def test_requests_for_different_tables_share_a_window(stream: Query, control: Control) -> None:
    control.set(chunks=2)
    first, second = control.ask("t"), control.ask("pair")
    control.finish(first)
    control.finish(second)
    shared = [o for o in stream.offsets if {c["dump"] for c in o.get("read", ())} == {first, second}]
    assert shared


def test_requests_for_the_same_table_share_a_pass(stream: Query, control: Control, shop: AnyDatabase) -> None:
    first, second = control.ask("t"), control.ask("t")
    done = [control.finish(dump) for dump in (first, second)]
    assert [(d.state, d.emitted) for d in done] == [(State.completed, 40)] * 2
    assert delivered(stream, first) == list(range(1, 41))
    assert delivered(stream, second) == []  # a row has the name of one dump
    check(stream, shop)


def test_a_request_joins_a_dump_that_is_under_way_and_reads_the_rest_by_itself(
    stream: Query, control: Control, shop: AnyDatabase
) -> None:
    first = control.ask("t")
    stream.until(lambda: len(delivered(stream, first)) >= 10)
    shop.execute("insert into t values (50, 1)", "insert into t values (51, 1)")
    stream.wait_captured()
    joined = len(stream.offsets)
    second = control.ask("t")
    done = [control.finish(dump) for dump in (first, second)]
    assert [d.state for d in done] == [State.completed] * 2
    assert sorted(delivered(stream, first)) == list(range(1, 41))
    assert {50, 51} <= set(delivered(stream, second))
    rows = [e["id"] for n, batch in stream.history.batches.items() if n > joined for e in batch if e["_table"] == "t"]
    assert set(rows) >= {*range(1, 41), 50, 51}
    assert len(rows) < 60  # of two passes it would be 70
    assert done[1].emitted + done[1].dropped == 42
    check(stream, shop)


def test_a_dump_that_is_cancelled_or_paused_leaves_its_pass_to_the_other(
    stream: Query, control: Control, shop: AnyDatabase
) -> None:
    first, second = control.ask("t"), control.ask("t")
    stream.until(lambda: len(delivered(stream, first)) >= 10)
    control.wish(first, Wish.pause)
    third = control.ask("t")
    stream.until(lambda: len(delivered(stream, first)) >= 20)
    control.wish(first, Wish.cancel)
    done = [control.finish(dump) for dump in (first, second, third)]
    assert [d.state for d in done] == [State.cancelled, State.completed, State.completed]
    assert sorted(set(delivered(stream, first) + delivered(stream, second))) == list(range(1, 41))
    assert done[1].emitted == 40
    check(stream, shop)


def test_given_keys_are_read_and_those_that_no_row_has_are_named(
    stream: Query, control: Control, shop: AnyDatabase
) -> None:
    dump = control.ask("t", keys=[3, "5", "007", 99, -1])
    done = control.finish(dump)
    assert done.state is State.completed
    assert sorted(delivered(stream, dump)) == [3, 5, 7]
    progress = done.progress.tables[f"{shop.schema}.t"]
    assert (progress.missing, progress.missed, progress.total) == ((("99",), ("-1",)), 2, 5)


def test_keys_of_several_columns(stream: Query, control: Control, shop: AnyDatabase) -> None:
    dump = control.ask("pair", keys=[["a", 1], ["b", "2"], ["b", 1]])
    done = control.finish(dump)
    assert sorted(delivered(stream, dump, "pair")) == [("a", 1), ("b", 2)]
    assert done.progress.tables[f"{shop.schema}.pair"].missing == (("b", "1"),)


def test_more_keys_than_fit_into_a_chunk(stream: Query, control: Control, shop: AnyDatabase) -> None:
    shop.execute(f"insert into t select i, 1 from {shop.series(1001, 3500)}")
    dump = control.ask("t", keys=list(range(1001, 3501)))
    done = control.finish(dump)
    assert done.read == 2500
    assert sorted(delivered(stream, dump)) == list(range(1001, 3501))


def test_rows_under_a_condition(stream: Query, control: Control, shop: AnyDatabase) -> None:
    shop.execute("update t set n = id % 3 where id > 20")
    dump = control.ask("t", where="n = 1 AND id < 38")
    done = control.finish(dump)
    assert done.state is State.completed
    assert delivered(stream, dump) == [i for i in range(21, 38) if i % 3 == 1]
    check(stream, shop)


# -- what goes wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "request_", "reason"),
    [
        ("nowhere", {}, "does not exist"),
        ("{sibling}.t", {}, "is not captured"),
        ("odd.*", {}, "no captured table"),
        ("keyless", {}, "has no primary key"),
        ("t", {"keys": ["one"]}, "invalid input syntax|'one' is not a value of column 'id'"),
        ("t", {"keys": [[1, 2]]}, r"has 2 values; the key of \w+\.t has 1 columns: id"),
        ("t", {"where": "nothing > 1"}, "nothing"),
        ("t", {"where": "n >"}, "syntax"),
        ("t", {"where": "(select n from pair where pair.n <= t.n) = 1"}, "more than (1|one) row"),
    ],
)
def test_a_request_that_cannot_be_served_fails_alone(
    stream: Query, control: Control, shop: AnyDatabase, tables: str, request_: dict[str, Any], reason: str
) -> None:
    sibling = shop.sibling()
    shop.execute(f"create table {sibling}.t (id int primary key)", "create table keyless (n int)")
    good = control.ask("pair")
    bad = control.ask(tables.format(sibling=sibling), **request_)
    failed, done = control.finish(bad), control.finish(good)
    assert failed.state is State.failed
    assert re.search(reason, failed.progress.reason or "")
    assert (done.state, done.read) == (State.completed, 20)
    shop.execute("update t set n = n + 1")
    check(stream, shop)


def test_a_condition_that_fails_at_one_row_fails_its_request_while_rows_change(
    stream: Query, control: Control, shop: AnyDatabase
) -> None:
    bad = control.ask("t", where="(select n from pair where pair.n <= t.n - 5) = 1")

    def changed() -> bool:
        shop.execute("update t set n = n + 5 where id = 20")  # only for this row there is more than one
        return control.dump(bad).state.ended

    stream.until(changed)
    failed = control.dump(bad)
    assert failed.state is State.failed
    assert re.search("more than (1|one) row", failed.progress.reason or "")
    check(stream, shop)


def test_a_table_that_is_dropped_in_mid_dump_fails_its_part_of_the_request(
    stream: Query, control: Control, shop: AnyDatabase
) -> None:
    dump = control.ask(f"{shop.schema}.*")
    stream.until(lambda: "t" in {c["table"][1] for c in stream.committed.get("dumps", ()) if c.get("after")})
    shop.execute("drop table t")
    done = control.finish(dump)
    assert done.state is State.failed
    assert f"{shop.schema}.t does not exist" in (done.progress.reason or "")
    assert done.progress.tables[f"{shop.schema}.pair"].state is State.completed
    assert len(delivered(stream, dump, "pair")) == 20
    shop.execute("update pair set n = 1")
    stream.catch_up()
    assert stream.history.events[-1]["_table"] == "pair"


def test_a_table_that_gets_another_key_in_mid_dump_is_dumped_from_its_beginning(
    shop: AnyDatabase, query: MakeQuery
) -> None:
    stream = query(tables=f"{shop.schema}.*", key=("_table", "id", "a", "b"), parallelism=1, chunkRows=4)
    stream.catch_up()
    control = Control(stream)
    dump = control.ask("t")
    stream.until(lambda: len(delivered(stream, dump)) >= 8)
    shop.execute("alter table t add column k varchar(9)", "update t set k = concat('k', 100 - id)")
    shop.rekey("t", "k")
    done = control.finish(dump)
    assert done.state is State.completed
    assert set(delivered(stream, dump)[-40:]) == set(range(1, 41))


def test_a_column_that_is_added_in_mid_dump_is_in_the_rest(stream: Query, control: Control, shop: AnyDatabase) -> None:
    dump = control.ask("t")
    stream.until(lambda: len(delivered(stream, dump)) >= 10)
    shop.execute("alter table t add column extra varchar(9) default 'x'")
    assert control.finish(dump).state is State.completed
    assert sorted(set(delivered(stream, dump))) == list(range(1, 41))
    assert [e for e in stream.history.events if e["_dump"] == dump][-1]["extra"] == "x"


# -- pause, resume, cancel -----------------------------------------------------------------------------------


@pytest.mark.parametrize("everything", [True, False], ids=["all dumps", "one dump"])
def test_a_paused_dump_reads_nothing_the_log_flows_and_it_goes_on_where_it_stopped(
    stream: Query, control: Control, shop: AnyDatabase, everything: bool
) -> None:
    dump = control.ask("t")
    stream.until(lambda: len(delivered(stream, dump)) >= 10)
    control.set(paused=True) if everything else control.wish(dump, Wish.pause)
    while stream.step():  # the round that was being read is delivered
        pass
    stopped = len(delivered(stream, dump))
    assert 10 <= stopped < 40
    shop.execute("update t set n = 5 where id = 40")
    stream.until(lambda: stream.history.events[-1]["_op"] == "update")
    assert not stream.step()
    assert len(delivered(stream, dump)) == stopped
    if not everything:
        assert control.dump(dump).state is State.paused
    control.set(paused=False) if everything else control.wish(dump, Wish.run)
    assert control.finish(dump).state is State.completed
    assert delivered(stream, dump) == list(range(1, 41))
    check(stream, shop)


def test_a_cancelled_dump_stops(stream: Query, control: Control, shop: AnyDatabase) -> None:
    dump = control.ask("t")
    stream.until(lambda: len(delivered(stream, dump)) >= 10)
    control.wish(dump, Wish.cancel)
    done = control.finish(dump)
    assert done.state is State.cancelled
    assert len(delivered(stream, dump)) < 40
    assert "dumps" not in stream.committed
    check(stream, shop)


def test_a_dump_that_is_cancelled_before_it_begins_never_does(stream: Query, control: Control) -> None:
    dump = control.pipeline.submit(read_request("t")).id
    control.pipeline.wish(dump, Wish.cancel)
    control.noticed()
    assert not stream.step()
    assert control.dump(dump).state is State.cancelled


def test_the_first_dump_is_seen_and_can_be_paused(shop: AnyDatabase, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    control = Control(stream)
    stream.until(lambda: control.dump("initial").read >= 10 if stream.done > 2 else False)
    control.wish("initial", Wish.pause)
    while stream.step():
        pass
    assert len(stream.history.events) < 40
    assert control.dump("initial").state is State.paused
    control.wish("initial", Wish.run)
    stream.dump()
    stream.step()
    done = control.dump("initial")
    assert (done.state, done.emitted) == (State.completed, 40)


# -- crashes -------------------------------------------------------------------------------------------------


def test_after_a_crash_at_any_moment_a_dump_goes_on_after_its_last_completed_round(
    stream: Query, shop: AnyDatabase
) -> None:
    dump = Control(stream).ask("t")
    while not Control(stream).dump(dump).state.ended:
        if stream.plan():
            list(stream.rows(stream.work(), object))  # type: ignore[arg-type]
            stream.restart()  # and the batch is run again
        stream.step()
        stream.restart()
    assert delivered(stream, dump) == list(range(1, 41)), "each row once, for a sink that takes a batch once"
    done = Control(stream).dump(dump)
    assert (done.read, done.emitted) == (40, 40), "nothing is counted twice"
    check(stream, shop)


def test_a_request_whose_batch_was_not_written_down_is_taken_again(stream: Query, control: Control) -> None:
    dump = control.ask("t")
    assert stream.plan()
    stream.offsets.pop()  # the driver dies before Spark has written the offset
    stream.restart()
    control = Control(stream)
    assert control.finish(dump).state is State.completed
    assert delivered(stream, dump) == list(range(1, 41))


def test_a_request_is_not_served_twice_when_its_progress_is_lost(stream: Query, control: Control) -> None:
    dump = control.ask("t")
    control.finish(dump)
    batches = stream.done
    stream.stop()
    control.pipeline.store.delete(control.pipeline.at("progress", dump))  # the mirror was late
    stream.restart()
    assert not stream.step()
    assert stream.done == batches
    assert Control(stream).dump(dump).state is State.completed


def test_a_new_store_takes_new_requests(stream: Query, control: Control) -> None:
    for _ in range(3):
        control.finish(control.ask("pair"))
    stream.stop()
    stream.given["state"] += ".new"
    stream.restart()
    control = Control(stream)
    dump = control.ask("t")
    assert dump.startswith("1-")
    assert control.finish(dump).emitted == 40


# -- the throttle --------------------------------------------------------------------------------------------


def test_the_size_of_chunks_and_rounds_changes_while_a_dump_runs(stream: Query, control: Control) -> None:
    dump = control.ask("t")
    stream.until(lambda: len(delivered(stream, dump)) >= 10)
    control.set(chunk_rows=3, chunks=2)
    stream.step()
    stream.step()
    assert len(stream.committed["read"]) == 2
    control.finish(dump)
    sizes = [len(rows) for n, rows in stream.history.batches.items() if rows and rows[0]["_dump"] == dump]
    assert sizes[0] == 10
    assert sizes[-2] == 6


def test_rows_per_second_are_kept(stream: Query, control: Control) -> None:
    control.set(rows_per_second=40)
    began = time.monotonic()
    control.finish(control.ask("t"))
    assert time.monotonic() - began > 0.7


def test_a_delay_stands_between_two_rounds(stream: Query, control: Control) -> None:
    control.set(delay_seconds=0.3)
    began = time.monotonic()
    control.finish(control.ask("t"))
    assert time.monotonic() - began > 0.9


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"probe": "select count(*) from busy", "probe_max": 0}, "probe returns 1, over 0"),
        ({"probe": "select nonsense", "probe_max": 0}, "the probe failed"),
        ({"probe": "delete from busy", "probe_max": 0}, "the probe failed"),
        ({"max_lag_seconds": 0.001}, "lag of"),
        ({"max_select_seconds": 0.001, "chunk_rows": 10}, "a select took"),
    ],
)
def test_a_dump_backs_off_while_the_source_is_busy_and_says_why(
    stream: Query,
    control: Control,
    shop: AnyDatabase,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    why: str,
) -> None:
    shop.execute("create table busy (n int)", "insert into busy values (1)")
    monkeypatch.setattr("dblog.capture.capture.Capture.lag", 7.5)
    if "max_select_seconds" in settings:
        monkeypatch.setattr("dblog.core.throttle.PENALTY_SECONDS", 60.0)
    control.set(**settings)
    dump = control.ask("t", where=shop.slow)
    wait_until(lambda: [stream.step(), why in (stream.engine.status()["waiting"] or "")][1])
    assert len(delivered(stream, dump)) <= 10
    shop.execute("update pair set n = 9")
    stream.until(lambda: stream.history.events[-1]["_table"] == "pair")
    control.set(probe=None, max_lag_seconds=None, max_select_seconds=None)
    assert control.finish(dump).state is State.completed


# -- what people see -----------------------------------------------------------------------------------------


def test_the_status_says_what_the_stream_does(stream: Query, control: Control, shop: AnyDatabase) -> None:
    shop.execute("update t set n = n + 1")
    stream.catch_up()
    wait_until(lambda: control.pipeline.status().get("events") == 40)
    wait_until(lambda: control.pipeline.status().get("lag_bytes", 1 << 30) < 1 << 20)
    status = control.pipeline.status()
    assert status["state"] == "running"
    assert status["rows"] == 60
    assert status["tables"][f"{shop.schema}.t"]["key"] == ["id"]
    assert set(status["tables"][f"{shop.schema}.pair"]) == {"table", "version", "rows", "key", "columns"}
    assert status["slot_health"]["active"] is True
    if isinstance(shop, OnPostgres):
        assert status["slot_health"]["wal_status"] == "reserved"
    assert status["selects"] >= 6
    assert status["captured"] >= status["position"] > 0
    assert set(control.pipeline.schemas()) == {t["version"] for t in status["tables"].values()}
    assert status["source"].startswith(shop.url.rsplit(":", 2)[0] + ":***@")
    stream.stop()
    assert control.pipeline.status()["state"] == "stopped"


def test_every_schema_that_the_log_shows_is_known(stream: Query, control: Control, shop: AnyDatabase) -> None:
    shop.execute("alter table t add column extra text", "update t set n = 1 where id = 5")
    stream.catch_up()
    control.noticed()
    columns = [s["columns"] for s in control.pipeline.schemas().values() if s["table"] == f"{shop.schema}.t"]
    assert sorted(map(len, columns)) == [2, 3]
    known = set(control.pipeline.schemas())
    assert {e["_schema"] for e in stream.history.events} <= known


def test_a_stream_that_fails_says_why(stream: Query, control: Control, shop: AnyDatabase) -> None:
    shop.execute("drop table dblog.watermark")
    control.ask("t")
    with pytest.raises(Exception, match="watermark"):
        stream.catch_up()
    status = control.pipeline.status()
    assert status["state"] == "failed"
    assert "watermark" in status["error"]


def test_the_events_tell_what_the_algorithm_does(stream: Query, control: Control, shop: AnyDatabase) -> None:
    before = control.pipeline.events()[-1][0]
    dump = control.ask("t")
    stream.open_window()
    shop.execute("update t set n = 77 where id = 4")
    control.finish(dump)
    events = [e for _, e in control.pipeline.events(after=before) if e.get("dump") != "initial"]
    kinds = [e["kind"] for e in events]
    assert set(kinds) <= set(EventKind)
    first = {kind: kinds.index(kind) for kind in kinds}
    order = ["watermark_written", "watermark_seen", "round_opened", "chunk_selected", "chunk_emitted"]
    assert sorted(order, key=first.__getitem__) == order
    (dropped,) = (e for e in events if e["kind"] == "row_dropped")
    update = next(e for e in stream.history.events if e["_op"] == "update" and e["id"] == 4)
    assert dropped["key"] == ["4"]
    assert dropped["by"] == {"op": "update", "lsn": update["_lsn"], "seq": update["_seq"]}
    assert (dropped["dump"], dropped["table"]) == (dump, f"{shop.schema}.t")
    assert [e["dump"] for e in events if e["kind"] == "dump_ended"] == [dump]
    assert events[kinds.index("dump_ended")]["state"] == "completed"


def test_every_batch_is_planned_and_then_committed(stream: Query, control: Control, shop: AnyDatabase) -> None:
    before = control.pipeline.events()[-1][0]
    batches = stream.engine.status()["batches"]
    dump = control.ask("t")
    stream.open_window()
    shop.execute("update t set n = 77 where id = 4")
    control.finish(dump)
    events = [e for _, e in control.pipeline.events(after=before)]
    batch_events = [e for e in events if e["kind"] in ("batch_planned", "offset_committed")]
    while batch_events[0]["kind"] != "batch_planned":
        batch_events.pop(0)
    pairs = list(zip(batch_events[::2], batch_events[1::2], strict=False))
    assert pairs
    for planned, committed in pairs:
        assert (planned["kind"], committed["kind"]) == ("batch_planned", "offset_committed")
        assert planned["position"] == committed["position"]
    assert sum(planned["events"] for planned, _ in pairs) == 1
    opened = [e for e in events if e["kind"] == "round_opened"]
    selected = {e["chunk"] for e in events if e["kind"] == "chunk_selected" and e["dump"] == dump}
    assert selected
    assert selected <= {chunk for e in opened for chunk, _, _ in e["selects"]}
    assert stream.engine.status()["batches"] > batches
    assert stream.engine.status()["last_batch_seconds"] > 0


def test_changes_are_counted_by_table_and_operation(stream: Query, shop: AnyDatabase) -> None:
    shop.execute("insert into t (id, n) values (901, 1), (902, 1)")
    shop.execute("update t set n = 2 where id >= 901")
    shop.execute("delete from t where id = 902")
    stream.catch_up()
    counted = stream.engine.status()["tables"][f"{shop.schema}.t"]["operations"]
    assert counted == {"create": 2, "update": 2, "delete": 1, "truncate": 0}


# -- all of it at once ---------------------------------------------------------------------------------------


def test_requests_under_concurrent_writers_converge_without_going_back(database: AnyDatabase, query: MakeQuery) -> None:
    create_hot(database, 200)
    stream = query(chunkRows=3, parallelism=2)
    stream.dump()
    control = Control(stream)
    asked = []
    with writers(database, 3, 200, rate=150):
        asked.append(control.ask("t"))
        asked.append(control.ask("t", keys=list(range(1, 60))))
        for n in range(60):
            stream.step()
            if n == 10:
                asked.append(control.ask(None))
            if n == 20:
                control.wish(asked[0], Wish.pause)
                stream.restart()
                control = Control(stream)
            if n == 35:
                if not control.dump(asked[0]).state.ended:  # the third has shared its pass, and gone on with it
                    control.wish(asked[0], Wish.run)
                asked.append(control.ask("t", where="id % 2 = 0"))
        for dump in asked:
            control.finish(dump)
    stream.catch_up()
    stream.history.check_order()
    stream.history.check_versions(versions_of(database))
    stream.history.check_state(rows_of(database))
    assert all(control.dump(dump).state is State.completed for dump in asked)
