"""What is in the log and not ours is passed over, whatever it is: what lies before the start of a stream, what was
delivered already, and XA transactions that change other tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pymysql.err
import pytest

from dblog.errors import DecodeError, PositionLost
from tests.engine.conftest import MakeQuery, check, on_mysql, wait_for
from tests.engine.test_binlog import purge
from tests.families import OnMySQL

pytestmark = [pytest.mark.server, on_mysql]

UNREADABLE: dict[str, tuple[str, ...]] = {
    "an XA transaction": ("xa start 'x'", "update t set n = 3", "xa end 'x'", "xa prepare 'x'", "xa commit 'x'"),
    "an XA transaction that is rolled back": (
        "xa start 'x'",
        "update t set n = 3",
        "xa end 'x'",
        "xa prepare 'x'",
        "xa rollback 'x'",
    ),
    "a statement": ("set session binlog_format = statement", "update t set n = 3 where id < 9"),
    "a table without a key": (
        "alter table t drop primary key",
        "update t set n = 3",
        "alter table t add primary key (id)",
    ),
    "foreign keys that cascade": (
        "create table p (id int primary key)",
        "alter table t add constraint c foreign key (n) references p (id) on delete cascade",
        "alter table t drop foreign key c",
    ),
    "another engine": ("alter table t engine = MyISAM", "update t set n = 3", "alter table t engine = InnoDB"),
}
"""What stops a stream that follows `t`."""


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_lies_before_the_start_does_not_stop_a_stream_that_writes_nothing(
    table: OnMySQL, query: MakeQuery, what: str
) -> None:
    """On MySQL such a stream reads the last file of the log from its beginning."""
    table.execute("update t set n = null", "flush binary logs", *UNREADABLE[what])
    stream = query(watermark="none")
    check(stream, table)
    table.execute("update t set n = 4 where id = 5")
    check(stream, table)


@pytest.fixture
def session(table: OnMySQL) -> Iterator[Any]:
    """A session for XA transactions. One that a test leaves prepared is rolled back: it would keep its tables."""
    opened = table.connect()
    yield opened
    opened.close()

    def undone() -> bool:
        left = table.execute("xa recover")
        for _, size, _, data in left:
            name = data.decode() if isinstance(data, bytes) else data
            with suppress(pymysql.err.MySQLError):  # its session is not quite gone
                table.execute(f"xa rollback '{name[:size]}', '{name[size:]}'")
        return not left

    wait_for(undone)


def xa(session: Any, *statements: str) -> None:
    with session.cursor() as cursor:
        for sql in statements:
            cursor.execute(sql)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_xa_transaction_on_other_tables_does_not_stop_the_stream(
    table: OnMySQL, query: MakeQuery, session: Any, end: str
) -> None:
    table.execute("create table others (id int primary key)")
    stream = query()
    stream.catch_up()
    xa(session, "xa start 'x', 'branch'", "insert into others values (1)", "xa end 'x', 'branch'")
    xa(session, "xa prepare 'x', 'branch'")
    table.execute("update t set n = 1 where id = 5")
    check(stream, table)
    xa(session, f"xa {end} 'x', 'branch'")
    table.execute("update t set n = 2 where id = 5")
    check(stream, table)
    assert [e["n"] for e in stream.history.of(5)] == [0, 1, 2]


@pytest.mark.parametrize("rotated", [False, True])
def test_a_stream_may_start_between_the_parts_of_an_xa_transaction_on_other_tables(
    table: OnMySQL, query: MakeQuery, session: Any, rotated: bool
) -> None:
    table.execute("create table others (id int primary key)")
    xa(session, "xa start 'before'", "insert into others values (1)", "xa end 'before'", "xa prepare 'before'")
    if rotated:
        table.execute("flush binary logs")
    stream = query()
    stream.catch_up()
    xa(session, "xa commit 'before'")
    check(stream, table)
    xa(session, "xa start 'between'", "insert into others values (2)", "xa end 'between'", "xa prepare 'between'")
    check(stream, table)
    if rotated:
        table.execute("flush binary logs", "update t set n = 1 where id = 5")
        check(stream, table)
    stream.stop()
    xa(session, "xa commit 'between'")
    table.execute("update t set n = 2 where id = 5")
    check(stream, table)


def test_an_xa_transaction_of_one_phase_is_one_like_any_other(table: OnMySQL, query: MakeQuery) -> None:
    stream = query()
    stream.catch_up()
    table.execute("xa start 'x'", "update t set n = 1 where id = 5", "xa end 'x'", "xa commit 'x' one phase")
    table.execute("update t set n = 2 where id = 5")
    check(stream, table)
    assert [e["n"] for e in stream.history.of(5)] == [0, 1, 2]


def test_an_xa_transaction_on_a_captured_table_stops_the_stream(table: OnMySQL, query: MakeQuery, session: Any) -> None:
    stream = query()
    stream.catch_up()
    xa(session, "xa start 'x'", "update t set n = 1 where id = 5", "xa end 'x'", "xa prepare 'x'")
    with pytest.raises(DecodeError, match=rf"XA transaction .*{table.name}\.t") as caught:
        stream.until(lambda: False, seconds=10)
    assert "start with a new checkpoint" in str(caught.value)


@pytest.mark.parametrize("watermark", ["table", "none"])
@pytest.mark.parametrize("compressed", [False, True])
def test_an_xa_transaction_that_was_prepared_before_the_start_is_not_lost_in_silence(
    table: OnMySQL, query: MakeQuery, session: Any, watermark: str, compressed: bool
) -> None:
    if compressed:
        if table.server.family.name == "mariadb":
            pytest.skip("MariaDB compresses no table maps")
        xa(session, "set binlog_transaction_compression = on")
    xa(session, "xa start 'x'", "update t set n = 1 where id = 5", "xa end 'x'", "xa prepare 'x'")
    stream = query(watermark=watermark)
    stream.catch_up()
    xa(session, "xa commit 'x'")
    with pytest.raises(PositionLost, match=rf"{table.name}\.t and was prepared before") as caught:
        stream.until(lambda: False, seconds=10)
    assert "start with a new checkpoint" in str(caught.value)
    check(query(watermark=watermark), table)


def test_an_xa_transaction_whose_beginning_is_purged_stops_the_stream(
    table: OnMySQL, query: MakeQuery, session: Any
) -> None:
    table.execute("create table others (id int primary key)")
    xa(session, "xa start 'x'", "insert into others values (1)", "xa end 'x'", "xa prepare 'x'")
    table.execute("flush binary logs")
    purge(table)
    stream = query()
    stream.catch_up()
    xa(session, "xa commit 'x'")
    with pytest.raises(PositionLost, match="its tables are unknown") as caught:
        stream.until(lambda: False, seconds=10)
    assert "start with a new checkpoint" in str(caught.value)


def test_what_is_undone_in_other_tables_does_not_stop_the_stream(table: OnMySQL, query: MakeQuery) -> None:
    """A savepoint that cannot be undone in a table without transactions is noted as undone in the log."""
    if table.server.family.name != "mariadb":
        pytest.skip("MySQL with GTIDs has no such transactions")
    table.execute("create table others (id int primary key)", "create table plain (id int) engine = MyISAM")
    mixed = ("insert into plain values (1)", "insert into others values (2)", "rollback to s")
    stream = query()
    stream.catch_up()
    table.transact("savepoint s", *mixed)
    table.execute("update t set n = 1 where id = 5")
    check(stream, table)
    table.transact("update t set n = 2 where id = 5", "savepoint s", *mixed)
    with pytest.raises(DecodeError, match="rolled back"):
        stream.until(lambda: False, seconds=10)
