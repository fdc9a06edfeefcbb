"""The visibility barrier: commits that the log shows and that no select sees yet."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dblog.core.offset import Offset
from dblog.sources.mysql.events import position
from dblog.sources.mysql.source import MySQL
from dblog.sources.postgres.source import Postgres
from tests.engine.conftest import MYSQL, MakeQuery, check, on, on_postgres, rows_of, wait_for
from tests.engine.query import Query
from tests.families import OnMySQL, OnPostgres

pytestmark = pytest.mark.server
either = pytest.mark.parametrize("watermark", ["table", "none"])


@pytest.fixture
def stuck(table: OnPostgres) -> Iterator[OnPostgres]:
    """Commits that wait for a standby that is not there, in sessions that ask for it."""
    admin = OnPostgres(table.server, "postgres")
    table.execute(f'alter database "{table.name}" set synchronous_commit = local')
    admin.execute("alter system set synchronous_standby_names = 'absent'")
    admin.execute("select pg_reload_conf()")
    wait_for(lambda: admin.execute("show synchronous_standby_names") == [("absent",)])
    yield table
    admin.execute("alter system reset synchronous_standby_names")
    admin.execute("select pg_reload_conf()")


def commit_and_hang(database: OnPostgres) -> threading.Thread:
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


def release(database: OnPostgres, thread: threading.Thread) -> None:
    admin = OnPostgres(database.server, "postgres")
    admin.execute("alter system reset synchronous_standby_names")
    admin.execute("select pg_reload_conf()")
    thread.join(15)
    assert not thread.is_alive()


@on_postgres
@either
def test_a_commit_that_the_log_shows_and_no_select_sees_holds_the_dump_and_not_the_log(
    stuck: OnPostgres, query: MakeQuery, watermark: str
) -> None:
    stream = query(parallelism=1, watermark=watermark)
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


@on_postgres
@either
def test_a_commit_that_hangs_in_the_middle_of_a_dump_stops_it_until_it_is_seen(
    stuck: OnPostgres, query: MakeQuery, watermark: str
) -> None:
    stream = query(parallelism=1, watermark=watermark)
    stream.open_window()
    thread = commit_and_hang(stuck)
    for _ in range(4):
        stream.step()
    assert stream.history.ops(5) == ["update"]
    assert stream.history.count("read") == 9  # the round that was open, and no other
    release(stuck, thread)
    check(stream, stuck)
    assert stream.history.of(5)[-1]["n"] == 1


@on_postgres
def test_without_the_barrier_the_stale_row_is_delivered(
    stuck: OnPostgres, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the two tests above can fail."""
    monkeypatch.setattr(Postgres, "invisible", lambda self, xids, place: ())
    stream = query(parallelism=1)
    stream.step()
    thread = commit_and_hang(stuck)
    stream.catch_up()
    release(stuck, thread)
    assert [(e["_op"], e["n"]) for e in stream.history.of(5)] in ([("update", 1), ("read", 0)], [("read", 0)])
    assert stream.history.of(5)[-1]["n"] == 0, "the stale row came last"


# -- MariaDB: a commit that waits for a replica is in the log before it is visible ---------------------------------


@pytest.fixture
def waiting(table: OnMySQL) -> Iterator[OnMySQL]:
    """Commits wait for a replica that is not there."""
    names = ("timeout = 600000", "wait_point = AFTER_SYNC", "wait_no_slave = ON")
    table.execute(*(f"set global rpl_semi_sync_master_{name}" for name in names))
    yield table
    table.execute("set global rpl_semi_sync_master_enabled = OFF")


def commit_and_wait(database: OnMySQL) -> threading.Thread:
    """An update of the row 5 that is in the log and that nobody sees."""
    database.execute("set global rpl_semi_sync_master_enabled = ON")
    thread = threading.Thread(target=database.execute, args=("update t set n = 1 where id = 5",))
    thread.start()
    wait_for(lambda: database.execute("show status like 'rpl_semi_sync_master_wait_sessions'")[0][1] == "1")
    assert database.execute("select n from t where id = 5") == [(0,)]
    return thread


def capture_all(stream: Query, database: OnMySQL) -> None:
    """Have the log captured to its end before anything is planned."""
    start = Offset.from_json(stream.committed)
    capture = stream.engine._started(start)
    file, place = database.log_end
    wait_for(lambda: capture.position >= position(int(file.rpartition(".")[2]), place))


def answer(database: OnMySQL, thread: threading.Thread) -> None:
    database.execute("set global rpl_semi_sync_master_enabled = OFF")
    thread.join(15)
    assert not thread.is_alive()


@on([name for name in MYSQL if name == "mariadb"])
def test_without_writing_a_dump_waits_for_what_the_log_shows_too_early(waiting: OnMySQL, query: MakeQuery) -> None:
    stream = query(parallelism=1, watermark="none")
    stream.step()  # the stream begins here
    thread = commit_and_wait(waiting)
    capture_all(stream, waiting)
    stream.until(lambda: stream.history.ops(5) == ["update"])
    stream.restart()
    for _ in range(4):
        stream.step()
    assert stream.history.count("read") == 0
    answer(waiting, thread)
    check(stream, waiting)
    assert stream.history.of(5)[-1]["n"] == 1


@on([name for name in MYSQL if name == "mariadb"])
def test_without_the_barrier_a_row_goes_back(
    waiting: OnMySQL, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the test above can fail."""
    monkeypatch.setattr(MySQL, "invisible", lambda self, xids, place: ())
    stream = query(parallelism=1, watermark="none")
    stream.step()
    thread = commit_and_wait(waiting)
    capture_all(stream, waiting)
    stream.catch_up()
    answer(waiting, thread)
    assert [(e["_op"], e["n"]) for e in stream.history.of(5)] == [("update", 1), ("read", 0)]
    assert rows_of(waiting)[4]["n"] == 1
