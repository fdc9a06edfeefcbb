"""The log of MySQL and MariaDB is the server's, not ours: it is rotated, purged and reset without asking us."""

from __future__ import annotations

import secrets

import pytest

from dblog.errors import PositionLost
from dblog.sources.mysql.preflight import admin_sql
from dblog.sources.mysql.source import MySQL
from dblog.spark.options import read_options
from tests.engine.conftest import MakeQuery, check, on_mysql, wait_for
from tests.families import OnMySQL

pytestmark = [pytest.mark.server, on_mysql]


def test_a_log_that_goes_on_in_another_file_is_followed(table: OnMySQL, query: MakeQuery) -> None:
    stream = query(parallelism=1)
    stream.open_window()
    for n in range(1, 4):  # in the window, in later windows, and when nothing but the log is read
        table.execute(f"update t set n = {n} where id in (5, 55)", "flush binary logs", "flush binary logs")
        table.execute(f"update t set n = n + 10 where id = {n}")
        stream.step()
    check(stream, table)
    table.execute("flush binary logs", "update t set n = 7 where id = 5")
    check(stream, table)
    assert stream.history.ops(5) == ["update"] * 4


def test_rows_before_and_after_a_truncate_that_are_read_together_stay_in_order(
    table: OnMySQL, query: MakeQuery
) -> None:
    stream = query(tables="t", key=("_table", "id"))
    stream.catch_up()
    before = len(stream.history.events)
    stream.stop()
    table.execute("update t set n = 1 where id = 7", "truncate table t", "insert into t values (5, 5)")
    stream.catch_up()
    assert [e["_op"] for e in stream.history.events[before:]] == ["update", "truncate", "create"]


def test_what_the_server_notes_for_itself_is_not_waited_for_in_vain(table: OnMySQL, query: MakeQuery) -> None:
    """MariaDB notes in a new file, up to a second later and behind whatever was committed meanwhile, how far back a
    recovery would have to go."""
    stream = query()
    stream.catch_up()
    table.execute("update t set n = 1 where id = 5", "flush binary logs", "update t set n = 2 where id = 5")
    file = table.log_end[0]
    if table.server.family.name == "mariadb":
        wait_for(lambda: file in [event[5] for event in table.execute(f"show binlog events in '{file}'")])
    stream.wait_captured(seconds=5)
    check(stream, table)


def test_files_that_come_and_go_while_nobody_reads_are_not_missed(table: OnMySQL, query: MakeQuery) -> None:
    stream = query()
    stream.catch_up()
    stream.stop()
    table.execute("update t set n = 1 where id = 5", "flush binary logs", "flush binary logs")
    table.execute("update t set n = 2 where id = 5")
    check(stream, table)
    assert [e["n"] for e in stream.history.of(5)] == [0, 1, 2]


def test_an_idle_stream_follows_a_log_that_is_rotated_and_purged(table: OnMySQL, query: MakeQuery) -> None:
    """Its place moves on with the log of others, so that it is not lost with a file in which it had nothing to read."""
    stream = query(heartbeatSeconds=1)
    stream.catch_up()
    table.execute("create table others (n int)")
    for _ in range(2):
        table.execute("insert into others values (1)", "flush binary logs")
        done = stream.done
        stream.until(lambda: stream.done > done)  # noqa: B023
    stream.stop()
    purge(table)
    table.execute("update t set n = 1 where id = 5")
    check(stream, table)


def purge(table: OnMySQL) -> None:
    """Remove every file of the log but the last, which must wait until the server needs none of them any more."""

    def purged() -> bool:
        table.execute(f"purge binary logs to '{table.log_end[0]}'")
        return len(table.execute("show binary logs")) == 1

    wait_for(purged)


def test_a_log_that_was_purged_is_a_lost_position(table: OnMySQL, query: MakeQuery) -> None:
    stream = query()
    stream.catch_up()
    stream.stop()
    table.execute("update t set n = 1 where id = 5", "flush binary logs")
    stream.check_position()
    purge(table)
    with pytest.raises(PositionLost, match="no longer reaches back"):
        stream.check_position()
    with pytest.raises(PositionLost, match=r"no longer reaches back|log index file") as caught:
        stream.catch_up()
    assert "start with a new checkpoint" in str(caught.value)
    assert "binlog_expire_logs_seconds" in str(caught.value)


def test_a_user_that_may_only_read_dumps_and_follows_without_writing(table: OnMySQL, query: MakeQuery) -> None:
    name = f"reader_{secrets.token_hex(4)}"
    source = read_options({"url": table.url, "table": "t", "watermark": "none"}).source
    assert isinstance(source, MySQL)
    script = admin_sql(source.setup(), f"{name}@%")
    assert "watermark" not in script
    table.execute(f"create user {name}@'%' identified by 'let me in'", *script.splitlines())
    try:
        stream = query(url=table.server.url(table.name, name, "let me in"), watermark="none", parallelism=1)
        stream.open_window()
        table.execute("update t set n = 1 where id in (3, 44)", "delete from t where id = 7")
        check(stream, table)
        stream.restart()
        table.execute("update t set n = 2 where id = 3")
        check(stream, table)
    finally:
        table.execute(f"drop user {name}@'%'")
