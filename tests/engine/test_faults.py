"""Networks that break, servers that restart, readers that get in each other's way, and watermarks that are touched."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import pytest

from dblog.capture.capture import Capture
from dblog.errors import ConnectionLost, DBLogError, PreconditionFailed, SourceError, TableLocked, WatermarkError
from dblog.planning.planner import Planner
from dblog.sources.base import Source
from tests.engine.conftest import POSTGRES, MakeQuery, check, on, on_every, on_families, on_mysql, rows_of, wait_for
from tests.engine.control import Control
from tests.engine.query import Query
from tests.families import AnyDatabase, OnMySQL, OnPostgres
from tests.proxy import Proxy

pytestmark = pytest.mark.server

PART = 10 << 20
"""So many bytes of a transaction, and some of it is on the spool."""


# -- the network and the server ------------------------------------------------------------------------------


def cut_at(monkeypatch: pytest.MonkeyPatch, proxy: Proxy, table: AnyDatabase, method: str) -> list[str]:
    """Cut every connection once, just before the source's method is called the next time. Where the stream
    has begun, the log is being read by then: capture, on its way there, could be the one that notices instead."""
    real = getattr(table.source, method)
    cuts: list[str] = []

    def cut(self: Source, *args: object, **options: object) -> object:
        if not cuts:
            cuts.append(method)
            if method not in ("origin", "prepare", "admit"):
                wait_for(lambda: table.reading)
            proxy.cut()
        return real(self, *args, **options)

    monkeypatch.setattr(table.source, method, cut)
    return cuts


@pytest.mark.parametrize(
    "method",
    ["select", "write_watermark", "invisible", "latest", "last_key", "cuts", "origin", "prepare", "survey", "admit"],
)
def test_a_connection_that_is_cut_is_made_again(
    table: AnyDatabase, query: MakeQuery, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    stream = query(url=proxy.through(table.url), parallelism=2, heartbeatSeconds=1)
    if method == "latest":
        stream.step()  # the beginning has its own way to ask
    elif method not in ("origin", "prepare", "last_key", "admit"):
        stream.open_window()
    cuts = cut_at(monkeypatch, proxy, table, method)
    table.execute("update t set n = 1 where id in (5, 55)")
    stream.until(lambda: bool(cuts))
    check(stream, table)


def lost_once(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, *, after: bool = False) -> list[str]:
    """The next call of the method loses its connection, before or after it has done its work; the calls that did."""
    real = getattr(owner, method)
    lost: list[str] = []

    def call(self: object, *args: object, **options: object) -> object:
        if lost:
            return real(self, *args, **options)
        lost.append(method)
        if after:
            real(self, *args, **options)
        raise ConnectionLost("the connection broke")

    monkeypatch.setattr(owner, method, call)
    return lost


@on_families
@pytest.mark.parametrize(
    ("owner", "method", "after"),
    [(None, "write_watermark", True), (Capture, "wait_token", True), (None, "invisible", False), (None, "cuts", False)],
)
def test_a_round_is_charged_and_told_once_when_its_watermark_is_written_again(
    table: AnyDatabase,
    query: MakeQuery,
    monkeypatch: pytest.MonkeyPatch,
    owner: type | None,
    method: str,
    after: bool,
) -> None:
    stream = query(parallelism=2)
    stream.open_window()
    control = Control(stream)
    table.execute("update t set n = 1 where id = 5")  # a transaction to ask about
    lost = lost_once(monkeypatch, owner or table.source, method, after=after)
    chunks = [chunk["id"] for chunk in stream.committed["read"]]
    stream.step()
    assert lost
    control.noticed()
    told = [e["chunk"] for _, e in control.pipeline.events() if e["kind"] == "chunk_selected"]
    assert told == chunks
    assert stream.engine._planner.status()["selects"] == len(chunks)
    check(stream, table)


@on_families
def test_a_table_that_fails_once_is_not_taken_for_one_that_fails_twice_when_the_connection_breaks(
    table: AnyDatabase, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = query(parallelism=1)
    while not (stream.plan() and stream.offsets[-1].get("read")):
        stream.finish()
    failing = stream.offsets[-1]["read"][0]["id"]
    stream.engine._spool.stage_failed(failing, "it could not be read")
    lost = lost_once(monkeypatch, Planner, "_changed")  # a failed table has been looked at when this is called
    stream.finish(selects=False)
    check(stream, table)
    assert lost


def test_a_connection_that_is_cut_when_a_stream_is_asked_to_drain_is_made_again(
    table: AnyDatabase, query: MakeQuery, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = query(url=proxy.through(table.url))
    stream.catch_up()
    table.execute("update t set n = 1 where id = 5")
    cuts = cut_at(monkeypatch, proxy, table, "latest")
    stream.reader.prepareForTriggerAvailableNow()
    while stream.step():
        pass
    assert cuts
    assert stream.history.ops(5) == ["read", "update"]


@on_every
def test_a_log_that_is_cut_again_and_again_is_delivered_whole(
    table: AnyDatabase, query: MakeQuery, proxy: Proxy
) -> None:
    stream = query(url=proxy.through(table.url))
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
    table: AnyDatabase, query: MakeQuery, proxy: Proxy
) -> None:
    stream = query(url=proxy.through(table.url), parallelism=1)
    stream.open_window()
    proxy.refuse()
    proxy.cut()
    threading.Timer(2, proxy.accept).start()
    table.execute("update t set n = 1 where id = 5")
    check(stream, table)


def test_a_server_that_stays_away_ends_the_stream_with_the_reason(
    table: AnyDatabase, query: MakeQuery, proxy: Proxy
) -> None:
    stream = query(url=proxy.through(table.url), parallelism=1, patienceSeconds=2)
    stream.open_window()
    proxy.refuse()
    proxy.cut()
    with pytest.raises(SourceError, match="refused"):
        stream.catch_up()


def test_a_network_that_pauses_loses_nothing(table: AnyDatabase, query: MakeQuery, proxy: Proxy) -> None:
    stream = query(url=proxy.through(table.url), parallelism=1)
    stream.open_window()
    proxy.pause()
    table.execute("update t set n = 1 where id = 5")
    threading.Timer(2, proxy.resume).start()
    check(stream, table)


@on_every
def test_a_server_that_crashes_and_comes_back_is_followed_on(table: AnyDatabase, query: MakeQuery) -> None:
    table.durable()
    stream = query(parallelism=1)
    stream.open_window()
    table.execute("update t set n = 1 where id = 5")
    port = table.server.port
    table.server.kill()
    table.server.start()
    assert table.server.port == port
    table.execute("update t set n = 2 where id = 55")
    check(stream, table)
    table.server.kill()  # now nothing is read but the log
    table.server.start()
    table.execute("update t set n = 3 where id = 55")
    check(stream, table)


def test_a_new_life_does_not_mind_that_the_server_was_restarted(table: AnyDatabase, query: MakeQuery) -> None:
    """The sessions that the process still has from the last life are of no use."""
    table.durable()
    stream = query()
    stream.catch_up()
    stream.stop()
    table.server.kill()
    table.server.start()
    table.execute("update t set n = 1 where id = 5")
    check(stream, table)


@on_every
def test_a_server_that_shuts_down_does_not_wait_for_us(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query()
    stream.catch_up()
    table.execute("create table others (n int)", f"insert into others select i from {table.series(1, 1000)}")
    began = time.monotonic()
    table.server._end(table.shutdown)
    assert time.monotonic() - began < 14, "after 15 it would have been killed"
    table.server.start()
    table.execute("update t set n = 7 where id = 1")
    check(stream, table)


@on_every
def test_sessions_that_an_operator_ends_are_made_again(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    wait_for(lambda: table.reading)
    assert table.end_sessions() > 1
    table.execute("update t set n = 1 where id = 5")
    check(stream, table)
    assert table.end_sessions() > 1
    table.execute("update t set n = 2 where id = 5")
    check(stream, table)
    assert stream.history.ops(5) == ["update", "update"]


def cut(database: AnyDatabase, stream: Query, proxy: Proxy) -> None:
    proxy.cut()


def die(database: AnyDatabase, stream: Query, proxy: Proxy) -> None:
    stream.stop()


def crash(database: AnyDatabase, stream: Query, proxy: Proxy) -> None:
    database.server.kill()
    database.server.start()


@on_every
@pytest.mark.parametrize("interrupt", [cut, die, crash])
def test_a_large_transaction_that_is_interrupted_in_the_middle_comes_once_and_whole(
    database: AnyDatabase, query: MakeQuery, proxy: Proxy, interrupt: Callable[[AnyDatabase, Query, Proxy], None]
) -> None:
    """A part of it has been written to the spool by then."""
    database.durable()
    database.execute("create table t (id int primary key, n int, note text)")
    stream = query(url=proxy.through(database.url))
    stream.catch_up()
    before = proxy.forwarded
    database.execute(f"insert into t select i, 0, repeat({database.noise('i')}, 200) from {database.series(1, 5000)}")
    wait_for(lambda: proxy.forwarded > before + PART)
    assert not stream.history.events
    interrupt(database, stream, proxy)
    database.execute("update t set n = 1 where id = 7")
    stream.until(lambda: len(stream.history.events) > 5000)
    stream.history.check_order()
    assert stream.history.count("create") == 5000
    assert stream.history.ops(7) == ["create", "update"]
    stream.history.check_state(rows_of(database))


# -- a second reader -----------------------------------------------------------------------------------------


@on(POSTGRES[:1])
def test_a_second_reader_of_a_slot_is_told_who_holds_it(table: OnPostgres, query: MakeQuery) -> None:
    first = query()
    first.catch_up()
    ((holder,),) = table.execute("select active_pid from pg_replication_slots where database = current_database()")
    second = query(patienceSeconds=1)
    second.offsets, second.done = list(first.offsets), first.done
    with pytest.raises(DBLogError, match=str(holder)):
        second.catch_up()
    table.execute("update t set n = 1 where id = 5")
    check(first, table)


@on_mysql
def test_a_second_reader_with_our_id_ends_the_first_with_the_reason(table: OnMySQL, query: MakeQuery) -> None:
    """The server takes the newcomer for us. If both came back again and again, neither would get anywhere."""
    first, second = query(), query()
    first.catch_up()
    second.offsets, second.done = list(first.offsets), first.done
    table.execute("update t set n = 1 where id = 5")
    check_log(second, 5, ["update"])
    with pytest.raises(PreconditionFailed, match="server id") as caught:
        first.until(lambda: False, seconds=10)
    assert "set another serverId here" in str(caught.value)
    table.execute("update t set n = 2 where id = 5")
    check_log(second, 5, ["update", "update"])
    first.restart(serverId=4711)
    check(first, table)


def check_log(stream: Query, key: int, ops: list[str]) -> None:
    """The log brings these changes of a key, which was dumped before the stream took over."""
    stream.catch_up()
    assert stream.history.ops(key) == ops


# -- watermarks ----------------------------------------------------------------------------------------------


def test_a_watermark_row_that_was_deleted_is_an_error(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    table.execute("delete from dblog.watermark")
    with pytest.raises(WatermarkError, match="no row"):
        stream.catch_up()
    table.execute("insert into dblog.watermark (id, token) values (1, '')")
    stream.restart()
    check(stream, table)


@on_every
def test_a_watermark_row_that_somebody_has_locked_is_waited_for(table: AnyDatabase, query: MakeQuery) -> None:
    """In short turns: the server's own limit is long, or there is none."""
    stream = query(parallelism=1)
    stream.open_window()
    other = table.connect(autocommit=False)
    other.cursor().execute("update dblog.watermark set token = 'theirs'")
    began = time.monotonic()
    with pytest.raises(TableLocked):
        stream.engine._source.write_watermark("ours")
    assert time.monotonic() - began < 10
    threading.Timer(2, other.rollback).start()
    table.execute("update t set n = 1 where id = 5")
    check(stream, table)
    assert stream.history.ops(5) == ["update"]


def test_a_watermark_table_that_was_dropped_is_an_error(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    table.execute("drop table dblog.watermark")
    with pytest.raises(WatermarkError):
        stream.catch_up()


def test_the_watermarks_of_another_pipeline_are_ignored(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stop = threading.Event()

    def disturb() -> None:
        session = table.connect()
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


def test_two_pipelines_dump_one_table_at_the_same_time(table: AnyDatabase, query: MakeQuery) -> None:
    streams = [query(slot=f"pipeline_{n}", parallelism=1) for n in range(2)]
    for n in range(6):
        for stream in streams:
            stream.step()
        table.execute(f"update t set n = {n + 1} where id = {n * 9 + 1}")
    for stream in streams:
        check(stream, table)
