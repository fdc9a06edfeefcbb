"""LOAD DATA LOCAL stores the same values as INSERT, changes none in silence, and never sends a file."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dblog.core.event import DUMP_SEQ
from dblog.sinks.sql.mysql import MySQLTarget
from dblog.sinks.sql.mysql.load_data import load_rows
from dblog.sinks.sql.mysql.rows import insert_rows
from dblog.sinks.sql.mysql.target import MySQLSession
from dblog.sinks.sql.target import DuplicateKey, Session
from dblog.sinks.sql.text import Refused
from dblog.testing.mysql_server import MySQLServer
from tests.conftest import EVERY_MYSQL_SERVER, MySQLDatabase
from tests.sinks.sql_targets import fresh_name

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif("mariadb" not in EVERY_MYSQL_SERVER, reason="mariadb is not installed"),
]

COLUMNS: list[tuple[str, pa.DataType, list[Any]]] = [
    ("tinyint(1)", pa.bool_(), [True, False]),
    ("tinyint", pa.int8(), [-128, 127]),
    ("bigint", pa.int64(), [-(2**63), 2**63 - 1, 0]),
    ("decimal(20,0) unsigned", pa.decimal128(20, 0), [Decimal(2**64 - 1)]),
    ("decimal(12,10)", pa.decimal128(12, 10), [Decimal("1E-10"), Decimal("-99.9999999999")]),
    ("float", pa.float32(), [0.1, 3.4028234663852886e38, -0.0]),
    ("double", pa.float64(), [0.1, 1.7e308, 5e-324, -0.0]),
    ("longtext", pa.string(), ["", "\\N", "\\", "a\tb\nc\rd\0e'\"", "é😀", "\\t", "x" * 100_000]),
    ("varchar(9)", pa.string(), ["", " a ", "NULL"]),
    ("longblob", pa.binary(), [b"", bytes(range(256)), b"\\\t\n"]),
    ("varbinary(9)", pa.binary(), [b"", b"\0\xff"]),
    ("date", pa.date32(), [0, -719_162, 2_932_896, -(2**31)]),
    ("datetime(6)", pa.timestamp("us"), [0, -1, 253_402_300_799_999_999, -(2**63)]),
    ("enum('a','5','')", pa.string(), ["a", "5", ""]),
    ("set('a','b')", pa.string(), ["", "a,b"]),
    ("time(6)", pa.string(), ["-838:59:59.000000", "00:00:00.000001"]),
    ("longtext", pa.list_(pa.string()), [["a", None], []]),
]  # fmt: skip


@pytest.fixture(scope="module")
def session(mysql_servers: dict[str, MySQLServer]) -> Iterator[Session]:
    made = MySQLDatabase(mysql_servers["mariadb"].start(), fresh_name())
    made.create()
    found = MySQLTarget(made.server.url(made.name)).connect()
    found.run(f"use {made.name}")
    yield found
    found.close()
    made.drop()


def rows_of(arrow: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    column = pa.array([None, *values, None], arrow).slice(1)
    return pa.record_batch([pa.array(range(len(column)), pa.int32()), column], names=["n", "v"])


def created(session: Session, kind: str, extra: str = "") -> None:
    session.run(f"drop table if exists t; create table t (n int, v {kind} null{extra}) character set utf8mb4")


def stored(session: Session) -> list[tuple[Any, ...]]:
    return session.run("select n, hex(v), v from t order by n")


def test_the_server_allows_it(session: Session) -> None:
    assert isinstance(session, MySQLSession)
    assert session.local_files


@pytest.mark.parametrize(("kind", "arrow", "values"), COLUMNS, ids=lambda v: str(v)[:30])
def test_a_value_is_the_same_from_both(session: Session, kind: str, arrow: pa.DataType, values: list[Any]) -> None:
    rows = rows_of(arrow, values)
    created(session, kind)
    with session.transaction():
        assert load_rows(session, "t", rows, {"n": "int", "v": kind})
    loaded = stored(session)
    created(session, kind)
    insert_rows(session, "t", rows)
    assert loaded == stored(session)
    assert len(loaded) == len(values) + 1


@pytest.mark.parametrize("kind", ["bit(8)", "year", "json"])
def test_types_that_it_reads_in_another_way_are_inserted(session: Session, kind: str) -> None:
    assert not load_rows(session, "t", rows_of(pa.int32(), [1]), {"n": "int", "v": kind})


@pytest.mark.parametrize(
    ("kind", "arrow", "values"),
    [
        ("varchar(3)", pa.string(), ["abc", "abcd"]),
        ("tinyint", pa.int32(), [0, 300]),
        ("enum('a')", pa.string(), ["a", "b"]),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_named(
    session: Session, kind: str, arrow: pa.DataType, values: list[Any]
) -> None:
    created(session, kind)
    with pytest.raises(Refused) as refused, session.transaction():
        session.target.insert(session, "t", rows_of(arrow, values), {"n": "int", "v": kind})
    assert (refused.value.column, refused.value.row) == ("v", 1)
    assert stored(session) == []


def test_a_row_that_is_there_is_not_skipped(session: Session) -> None:
    created(session, "int", ", primary key (n)")
    session.run(f"insert into t values (1, {DUMP_SEQ})")
    with pytest.raises(DuplicateKey), session.transaction():
        session.target.insert(session, "t", rows_of(pa.int32(), [1, 2]), {"n": "int", "v": "int"})
    assert [n for n, *_ in stored(session)] == [1]


def test_no_file_is_sent_however_the_server_asks(session: Session) -> None:
    """The driver's own support for it is off: only `load_rows` answers, with rows from memory."""
    other = session.target.connect()
    try:
        created(session, "longtext")
        [(name,)] = session.run("select database()")
        with pytest.raises(RuntimeError, match="LOAD_LOCAL"):
            other.run(f"load data local infile '{__file__}' into table {name}.t (v)")
    finally:
        other.close()
    assert stored(session) == []
