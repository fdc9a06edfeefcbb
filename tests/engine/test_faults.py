"""Networks that break, servers that restart, and everything somebody else can do to the slot and the watermarks."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from itertools import pairwise

import psycopg2
import pytest

from dblog.core.schema import TableName
from dblog.errors import DBLogError, PositionLost, SourceError, WatermarkError
from dblog.sources.postgres.source import Postgres
from tests.conftest import Database
from tests.engine.conftest import MakeQuery, check
from tests.engine.query import Query
from tests.proxy import Proxy

pytestmark = pytest.mark.server


def wait_for(ready: object, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- the visibility barrier ----------------------------------------------------------------------------------


@pytest.fixture
def stuck(table: Database) -> Iterator[Database]:
    """Commits that wait for a standby that is not there, in sessions that ask for it."""
    admin = Database(table.server, "postgres")
    table.execute(f'alter database "{table.name}" set synchronous_commit = local')
    admin.execute("alter system set synchronous_standby_names = 'absent'")
    admin.execute("select pg_reload_conf()")
    wait_for(lambda: admin.execute("show synchronous_standby_names") == [("absent",)])
    yield table
    admin.execute("alter system reset synchronous_standby_names")
    admin.execute("select pg_reload_conf()")


def commit_and_hang(database: Database) -> threading.Thread:
    """An update of the row 5 that is in the log and that nobody sees."""
    session = database.connect()
    session.cursor().execute("set synchronous_commit = on")

    def update() -> None:
        session.cursor().execute("update t set n = 1 where id = 5")

    thread = threading.Thread(target=update)
    thread.start()
    waiting = "select 1 from pg_stat_activity where wait_event = 'SyncRep' and datname = current_database()"
    wait_for(lambda: database.execute(waiting))
    return thread


def release(database: Database, thread: threading.Thread) -> None:
    admin = Database(database.server, "postgres")
    admin.execute("alter system reset synchronous_standby_names")
    admin.execute("select pg_reload_conf()")
    thread.join(15)
    assert not thread.is_alive()


def test_a_commit_that_the_log_shows_and_no_select_sees_holds_the_dump_and_not_the_log(
    stuck: Database, query: MakeQuery
) -> None:
    stream = query(parallelism=1)
    stream.step()  # the stream begins here
    thread = commit_and_hang(stuck)
    stream.until(lambda: stream.history.ops(5) == ["update"])
    stuck.execute("update t set n = 2 where id = 6")
    stream.until(lambda: stream.history.ops(6) == ["update"])
    assert "read" not in {e["_op"] for e in stream.history.events}
    stream.restart()  # a new life has not forgotten whom it waits for
    for _ in range(3):
        stream.step()
    assert stream.history.count("read") == 0
    release(stuck, thread)
    check(stream, stuck)
    assert stream.history.of(5)[-1]["n"] == 1


def test_a_commit_that_hangs_in_the_middle_of_a_dump_stops_it_until_it_is_seen(
    stuck: Database, query: MakeQuery
) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    thread = commit_and_hang(stuck)
    for _ in range(4):
        stream.step()
    assert stream.history.ops(5) == ["update"]
    assert stream.history.count("read") == 9  # the round that was open, and no other
    release(stuck, thread)
    check(stream, stuck)
    assert stream.history.of(5)[-1]["n"] == 1


def test_without_the_barrier_the_stale_row_is_delivered(
    stuck: Database, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the two tests above can fail."""
    monkeypatch.setattr(Postgres, "invisible", lambda self, xids: ())
    stream = query(parallelism=1)
    stream.step()
    thread = commit_and_hang(stuck)
    stream.catch_up()
    release(stuck, thread)
    assert [(e["_op"], e["n"]) for e in stream.history.of(5)] in ([("update", 1), ("read", 0)], [("read", 0)])
    assert stream.history.of(5)[-1]["n"] == 0, "the stale row came last"


# -- the network and the server ------------------------------------------------------------------------------


def cut_at(monkeypatch: pytest.MonkeyPatch, proxy: Proxy, table: Database, method: str) -> list[str]:
    """Cut every connection once, just before the source's method is called the next time. Where the stream
    has begun, the log is being read by then: capture, on its way there, could be the one that notices instead."""
    real = getattr(Postgres, method)
    reading = "select 1 from pg_replication_slots where active and database = current_database()"
    cuts: list[str] = []

    def cut(self: Postgres, *args: object, **options: object) -> object:
        if not cuts:
            cuts.append(method)
            if method not in ("origin", "prepare"):
                wait_for(lambda: table.execute(reading))
            proxy.cut()
        return real(self, *args, **options)

    monkeypatch.setattr(Postgres, method, cut)
    return cuts


@pytest.mark.parametrize(
    "method",
    ["select", "write_watermark", "invisible", "latest", "last_key", "cuts", "origin", "prepare", "check_followed"],
)
def test_a_connection_that_is_cut_is_made_again(
    table: Database, query: MakeQuery, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    stream = query(url=proxy.url(table.name), parallelism=2, heartbeatSeconds=1)
    if method not in ("origin", "prepare", "last_key", "latest"):
        stream.open_window()
    cuts = cut_at(monkeypatch, proxy, table, method)
    table.execute("update t set n = 1 where id in (5, 55)")
    stream.until(lambda: bool(cuts))
    check(stream, table)


def test_a_connection_that_is_cut_when_a_stream_is_asked_to_drain_is_made_again(
    table: Database, query: MakeQuery, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = query(url=proxy.url(table.name))
    stream.catch_up()
    table.execute("update t set n = 1 where id = 5")
    cuts = cut_at(monkeypatch, proxy, table, "latest")
    stream.reader.prepareForTriggerAvailableNow()
    assert cuts
    while stream.step():
        pass
    assert stream.history.ops(5) == ["read", "update"]


def test_a_log_that_is_cut_again_and_again_is_delivered_whole(table: Database, query: MakeQuery, proxy: Proxy) -> None:
    stream = query(url=proxy.url(table.name))
    stream.catch_up()
    session = table.connect()
    for n in range(40):
        session.cursor().execute("update t set n = %s where id = %s", (n + 1, n % 7 + 1))
        if n % 8 == 0:
            proxy.cut()
        if n % 10 == 0:
            stream.step()
    check(stream, table)
    assert stream.history.count("update") == 40


def test_a_server_that_cannot_be_reached_for_a_while_is_waited_for(
    table: Database, query: MakeQuery, proxy: Proxy
) -> None:
    stream = query(url=proxy.url(table.name), parallelism=1)
    stream.open_window()
    proxy.refuse()
    proxy.cut()
    threading.Timer(2, proxy.accept).start()
    table.execute("update t set n = 1 where id = 5")
    check(stream, table)


def test_a_server_that_stays_away_ends_the_stream_with_the_reason(
    table: Database, query: MakeQuery, proxy: Proxy
) -> None:
    stream = query(url=proxy.url(table.name), parallelism=1, patienceSeconds=2)
    stream.open_window()
    proxy.refuse()
    proxy.cut()
    with pytest.raises(SourceError, match="refused"):
        stream.catch_up()


def test_a_network_that_pauses_loses_nothing(table: Database, query: MakeQuery, proxy: Proxy) -> None:
    stream = query(url=proxy.url(table.name), parallelism=1)
    stream.open_window()
    proxy.pause()
    table.execute("update t set n = 1 where id = 5")
    threading.Timer(2, proxy.resume).start()
    check(stream, table)


def test_a_server_that_crashes_and_comes_back_is_followed_on(table: Database, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    table.execute("update t set n = 1 where id = 5")
    port = table.server.port
    table.server.kill()
    table.server.start()
    assert table.server.port == port
    table.execute("update t set n = 2 where id = 55")
    check(stream, table)


def test_a_server_that_shuts_down_does_not_wait_for_us(table: Database, query: MakeQuery) -> None:
    stream = query(table="public.t")
    stream.catch_up()
    table.execute("create table others (n int); insert into others select generate_series(1, 1000)")
    began = time.monotonic()
    table.server._end(signal.SIGINT)
    assert time.monotonic() - began < 8
    table.server.start()
    table.execute("update t set n = 7 where id = 1")
    check(stream, table)


# -- the slot ------------------------------------------------------------------------------------------------


def slot_of(stream: Query) -> str:
    return stream.engine._source.slot  # type: ignore[attr-defined,no-any-return]


def confirmed(database: Database) -> int:
    ((lsn,),) = database.execute(
        "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where database = current_database()"
    )
    return int(lsn)


def test_an_idle_stream_lets_the_server_forget_the_log_of_others(table: Database, query: MakeQuery) -> None:
    stream = query(heartbeatSeconds=1)
    stream.catch_up()
    table.execute("create table other (id int)")
    before = confirmed(table)
    for _ in range(3):
        table.execute("insert into other select i from generate_series(1, 1000) i")
        done = stream.done
        stream.until(lambda: stream.done > done)  # noqa: B023
    wait_for(lambda: confirmed(table) > before + 100_000)
    assert len(stream.history.events) == 60


def test_the_log_of_others_is_not_confirmed_beyond_the_checkpoint(table: Database, query: MakeQuery) -> None:
    """A driver that confirms what is of no interest to us moves the slot to where the checkpoint cannot follow."""
    stream = query(table="public.t")
    stream.catch_up()
    table.execute("create table others (n int)")
    for _ in range(20):
        table.execute("insert into others select generate_series(1, 100)")
        stream.engine._capture.wait_position(stream.engine._source.latest())  # type: ignore[union-attr]
        time.sleep(0.05)
    assert confirmed(table) <= stream.committed["pos"]
    stream.restart()
    table.execute("update t set n = 7 where id = 1")
    check(stream, table)


def test_nothing_is_acknowledged_before_it_is_committed(table: Database, query: MakeQuery) -> None:
    stream = query()
    stream.catch_up()
    table.execute("update t set n = 1 where id = 5")
    assert stream.plan()
    time.sleep(1)
    assert confirmed(table) <= stream.committed["pos"]
    stream.stop()  # the batch was never run
    stream.restart()
    check(stream, table)


def test_a_slot_that_is_dropped_is_a_lost_position(table: Database, query: MakeQuery) -> None:
    stream = query()
    stream.catch_up()
    slot = slot_of(stream)
    stream.stop()
    table.execute("select pg_drop_replication_slot(%s)", [slot])
    with pytest.raises(PositionLost, match="slot"):
        stream.step()


def test_a_slot_that_somebody_else_has_advanced_is_a_lost_position(table: Database, query: MakeQuery) -> None:
    stream = query()
    stream.catch_up()
    slot = slot_of(stream)
    stream.stop()
    table.execute("update t set n = 1 where id = 5")
    table.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", [slot])
    with pytest.raises(PositionLost, match="beyond the checkpoint"):
        stream.catch_up()


@pytest.mark.parametrize("postgres", ["pg18"], indirect=True)
def test_a_second_reader_of_a_slot_is_told_who_holds_it(table: Database, query: MakeQuery) -> None:
    first = query()
    first.catch_up()
    ((holder,),) = table.execute("select active_pid from pg_replication_slots where database = current_database()")
    second = query(patienceSeconds=1)
    second.offsets, second.done = list(first.offsets), first.done
    with pytest.raises(DBLogError, match=str(holder)):
        second.catch_up()
    table.execute("update t set n = 1 where id = 5")
    check(first, table)


LEAVE = {
    "taken out": "alter publication {publication} drop table {table}",
    "made again": "drop table {table}; create table {table} (id int primary key, n int)",
}


@pytest.mark.parametrize("how", LEAVE)
def test_a_table_that_left_the_publication_is_not_followed_in_silence(
    table: Database, query: MakeQuery, how: str
) -> None:
    stream = query()
    stream.catch_up()
    publication = slot_of(stream)
    stream.stop()
    table.execute(LEAVE[how].format(publication=publication, table="t"))
    with pytest.raises(PositionLost, match=f"publication '{publication}' does not hold 'public.t' any more"):
        stream.catch_up()


@pytest.mark.parametrize(
    ("how", "which"),
    [("taken out", "other.t"), ("taken out", "public.parted"), ("taken out", "public.t"), ("made again", "public.t")],
)
def test_a_table_that_leaves_the_publication_in_mid_stream_is_noticed(
    table: Database, query: MakeQuery, how: str, which: str
) -> None:
    table.execute(
        "create schema other; create table other.t (id int primary key);"
        "create table parted (id int primary key) partition by range (id);"
        "create table part partition of parted for values from (0) to (9);"
        "create publication of_somebody_else for all tables with (publish_via_partition_root = true)"
    )
    stream = query(tables="other.*, public.*", key=("_table", "id"), heartbeatSeconds=1)
    stream.catch_up()
    publication = slot_of(stream)
    table.execute(LEAVE[how].format(publication=publication, table=which))
    with pytest.raises(PositionLost, match=f"table {which} has left publication '{publication}'"):
        stream.until(lambda: False, seconds=10)


def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the publication has been looked at, from now on."""
    real = Postgres.check_followed
    times: list[float] = []

    def look(self: Postgres, tables: Collection[TableName]) -> None:
        times.append(time.monotonic())
        real(self, tables)

    monkeypatch.setattr(Postgres, "check_followed", look)
    return times


def test_the_publication_is_looked_at_once_in_a_heartbeat_however_busy_the_stream_is(
    table: Database, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = query(heartbeatSeconds=1)
    stream.catch_up()
    times = looks(monkeypatch)
    deadline = time.monotonic() + 9
    while len(times) < 3:
        assert time.monotonic() < deadline
        table.execute("update t set n = n + 1 where id = 5")
        end = stream.engine._source.latest()
        wait_for(lambda: stream.engine.report()["captured"] >= end)  # noqa: B023
        assert stream.step()
    assert all(later - earlier > 1 for earlier, later in pairwise(times))


def test_a_table_that_is_dropped_for_good_does_not_stop_the_others(
    table: Database, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.execute("create table u (id int primary key)")
    stream = query(tables="public.*", key=("_table", "id"), heartbeatSeconds=1)
    stream.catch_up()
    table.execute("drop table u")
    times = looks(monkeypatch)
    stream.until(lambda: bool(times))
    stream.restart()
    table.execute("update t set n = 1 where id = 5")
    stream.catch_up()
    assert stream.history.ops("t", 5) == ["read", "update"]


# -- watermarks ----------------------------------------------------------------------------------------------


def test_a_watermark_row_that_was_deleted_is_an_error(table: Database, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    table.execute("delete from dblog.watermark")
    with pytest.raises(WatermarkError, match="no row"):
        stream.catch_up()
    table.execute("insert into dblog.watermark (id, token) values (1, '')")
    stream.restart()
    check(stream, table)


def test_a_watermark_table_that_left_the_publication_is_an_error_and_not_a_wait(
    table: Database, query: MakeQuery
) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    table.execute(f"alter publication {slot_of(stream)} drop table dblog.watermark")
    began = time.monotonic()
    with pytest.raises(WatermarkError, match="without showing it"):
        stream.catch_up()
    assert time.monotonic() - began < 15


def test_a_watermark_table_that_was_dropped_is_an_error(table: Database, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    table.execute("drop table dblog.watermark")
    with pytest.raises(WatermarkError):
        stream.catch_up()


def test_the_watermarks_of_another_pipeline_are_ignored(table: Database, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stop = threading.Event()

    def disturb() -> None:
        session = psycopg2.connect(table.url)
        session.autocommit = True
        while not stop.is_set():
            session.cursor().execute("update dblog.watermark set token = %s", (uuid.uuid4().hex,))
            time.sleep(0.001)
        session.close()

    stream.step()
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        stream.open_window()
        table.execute("update t set n = 1 where id = 5")
        stream.dump()
    finally:
        stop.set()
        thread.join()
    check(stream, table)
    assert stream.history.ops(5) == ["update"]


def test_two_pipelines_dump_one_table_at_the_same_time(table: Database, query: MakeQuery) -> None:
    streams = [query(slot=f"pipeline_{n}", parallelism=1) for n in range(2)]
    for n in range(6):
        for stream in streams:
            stream.step()
        table.execute("update t set n = %s where id = %s", (n + 1, n * 9 + 1))
    for stream in streams:
        check(stream, table)
