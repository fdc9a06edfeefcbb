"""Everything that somebody else can do to the slot and the publication of PostgreSQL, and what we do to its log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise

import pytest

from dblog.core.offset import Followed
from dblog.core.schema import TableName
from dblog.databases.postgres.connect import parse
from dblog.errors import PositionLost, WatermarkError
from dblog.sources.base import Survey
from dblog.sources.postgres.pgoutput import Decoder
from dblog.sources.postgres.source import Postgres
from dblog.sources.postgres.stream import PostgresLog
from dblog.sources.relational import WATERMARK
from tests.engine.conftest import MakeQuery, check, on_postgres, wait_for
from tests.engine.query import Query
from tests.families import OnPostgres

pytestmark = [pytest.mark.server, on_postgres]


def slot_of(stream: Query) -> str:
    return stream.engine._source.slot  # type: ignore[attr-defined,no-any-return]


def confirmed(database: OnPostgres) -> int:
    ((lsn,),) = database.execute(
        "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where database = current_database()"
    )
    return int(lsn)


def test_a_log_that_cannot_be_opened_leaves_no_session_open(table: OnPostgres) -> None:
    """The error holds the frames in which the session was opened, and may be kept: only an explicit close ends it."""
    with pytest.raises(PositionLost, match="does not exist") as failure:
        PostgresLog(parse(table.url), "gone", "p", 0, Decoder(lambda _: None, watermark=WATERMARK))
    wait_for(lambda: not table.execute("select 1 from pg_stat_activity where application_name = 'dblog gone'"))
    assert failure.value.__traceback__ is not None


def test_an_idle_stream_lets_the_server_forget_the_log_of_others(table: OnPostgres, query: MakeQuery) -> None:
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


def test_the_log_of_others_is_not_confirmed_beyond_the_checkpoint(table: OnPostgres, query: MakeQuery) -> None:
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


def test_nothing_is_acknowledged_before_it_is_committed(table: OnPostgres, query: MakeQuery) -> None:
    stream = query()
    stream.catch_up()
    table.execute("update t set n = 1 where id = 5")
    stream.wait_captured()
    assert stream.plan()
    time.sleep(1)
    assert confirmed(table) <= stream.committed["pos"]
    stream.stop()  # the batch was never run
    stream.restart()
    check(stream, table)


def test_a_slot_that_is_dropped_is_a_lost_position(table: OnPostgres, query: MakeQuery) -> None:
    stream = query()
    stream.catch_up()
    slot = slot_of(stream)
    stream.stop()
    table.execute(f"select pg_drop_replication_slot('{slot}')")
    with pytest.raises(PositionLost, match="slot"):
        stream.step()


def test_a_slot_that_somebody_else_has_advanced_is_a_lost_position(table: OnPostgres, query: MakeQuery) -> None:
    stream = query()
    stream.catch_up()
    slot = slot_of(stream)
    stream.stop()
    table.execute("update t set n = 1 where id = 5")
    table.execute(f"select pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    with pytest.raises(PositionLost, match="but the checkpoint is only at"):
        stream.catch_up()


LEAVE = {
    "taken out": "alter publication {publication} drop table {table}",
    "made again": "drop table {table}; create table {table} (id int primary key, n int)",
}


@pytest.mark.parametrize("how", LEAVE)
def test_a_table_that_left_the_publication_is_not_followed_in_silence(
    table: OnPostgres, query: MakeQuery, how: str
) -> None:
    stream = query()
    stream.catch_up()
    publication = slot_of(stream)
    stream.stop()
    table.execute(LEAVE[how].format(publication=publication, table="t"), "delete from t", "insert into t values (5, 5)")
    stream.reader.prepareForTriggerAvailableNow()  # which does not end before the table is dumped
    while stream.step():
        pass
    stream.history.check_order()
    stream.history.check_state(table.rows("t"))
    assert stream.history.count("truncate") == 1


@pytest.mark.parametrize(
    ("how", "which"),
    [("taken out", "other.t"), ("taken out", "public.parted"), ("taken out", "public.t"), ("made again", "public.t")],
)
def test_a_table_that_leaves_the_publication_in_mid_stream_is_published_and_dumped_again(
    table: OnPostgres, query: MakeQuery, how: str, which: str
) -> None:
    table.execute(
        "create schema other; create table other.t (id int primary key, n int);"
        "create table parted (id int primary key, n int) partition by range (id);"
        "create table part partition of parted for values from (0) to (9);"
        "create publication of_somebody_else for all tables with (publish_via_partition_root = true)"
    )
    stream = query(tables="other.*, public.*", key=("_table", "id"), heartbeatSeconds=1)
    stream.catch_up()
    publication = slot_of(stream)
    table.execute(
        LEAVE[how].format(publication=publication, table=which),
        f"insert into {which} values (7, 70)" + (" on conflict (id) do update set n = 70"),
    )
    stream.until(lambda: stream.history.count("truncate") == 1, seconds=15)
    stream.catch_up()
    assert [e["n"] for e in stream.history.of(which.partition(".")[2], 7)][-1] == 70
    held = table.execute(f"select schemaname, tablename from pg_publication_tables where pubname = '{publication}'")
    assert tuple(which.split(".")) in held


def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the tables have been looked at, from now on."""
    real = Postgres.survey
    times: list[float] = []

    def look(self: Postgres, followed: Mapping[TableName, Followed]) -> Survey:
        times.append(time.monotonic())
        return real(self, followed)

    monkeypatch.setattr(Postgres, "survey", look)
    return times


def test_the_tables_are_looked_at_once_in_a_heartbeat_however_busy_the_stream_is(
    table: OnPostgres, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = query(heartbeatSeconds=2)
    stream.catch_up()
    times = looks(monkeypatch)
    deadline = time.monotonic() + 15
    while len(times) < 3:
        assert time.monotonic() < deadline
        table.execute("update t set n = n + 1 where id = 5")
        end = stream.engine._source.latest()
        wait_for(lambda: stream.engine.report()["captured"] >= end)  # noqa: B023
        assert stream.step()
    assert all(later - earlier > 2 for earlier, later in pairwise(times))


def test_a_table_that_is_dropped_for_good_does_not_stop_the_others(
    table: OnPostgres, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
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


def test_a_watermark_table_that_left_the_publication_is_an_error_and_not_a_wait(
    table: OnPostgres, query: MakeQuery
) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    table.execute(f"alter publication {slot_of(stream)} drop table dblog.watermark")
    began = time.monotonic()
    with pytest.raises(WatermarkError, match="the log does not show it"):
        stream.catch_up()
    assert time.monotonic() - began < 15
