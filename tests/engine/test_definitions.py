"""MySQL and MariaDB: statements that take away the rows of a table or give it others, without a row in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql.cursors
import pytest

from tests.conftest import MySQLDatabase
from tests.engine.query import Query

pytestmark = pytest.mark.server


@pytest.fixture
def database(mysql_database: MySQLDatabase) -> MySQLDatabase:
    mysql_database.execute(
        "create table t (id int primary key, n int)",
        "insert into t with recursive k (i) as (select 1 union all select i + 1 from k where i < 60) "
        "select i, 0 from k",
    )
    return mysql_database


@pytest.fixture
def stream(database: MySQLDatabase, tmp_path: Path) -> Iterator[Query]:
    query = Query(url=database.url, spool=str(tmp_path / "spool"), key=("_table", "id"), tables="t", parallelism=1)
    yield query
    query.stop()


def rows_of(database: MySQLDatabase) -> list[dict[str, Any]]:
    connection = database.connect(cursorclass=pymysql.cursors.DictCursor)
    with connection.cursor() as cursor:
        cursor.execute("select * from t")
        return list(cursor.fetchall())


def state_of(stream: Query) -> dict[int, dict[str, Any]]:
    return {key: row for (_, key), row in stream.history.state().items()}


def check(stream: Query, database: MySQLDatabase) -> None:
    stream.catch_up()
    stream.history.check_order()
    assert state_of(stream) == {row["id"]: row for row in rows_of(database)}


PARTITIONED = """
alter table t partition by range (id) (partition a values less than (30), partition b values less than maxvalue)
"""
REPLACED: dict[str, tuple[str, ...]] = {
    "truncate": ("truncate table t", "insert into t values (5, 5)"),
    "drop and create": ("drop table t", "create table t (id int primary key, n int)", "insert into t values (5, 5)"),
    "another structure": (
        "drop table t",
        "create table t (id int primary key, m text)",
        "insert into t values (5, 'x')",
    ),
    "rename and create": ("rename table t to u", "create table t (id int primary key, n int)"),
    "rename and back": ("rename table t to u", "update u set n = 7 where id < 9", "rename table u to t"),
    "alter rename and back": ("alter table t rename to u", "delete from u where id > 50", "alter table u rename t"),
    "swap with other rows": (
        "create table t_new (id int primary key, n int)",
        "insert into t_new values (5, 50), (1000, 1)",
        "rename table t to t_old, t_new to t",
        "update t set n = 2 where id = 1000",
    ),
    "drop the database": (
        "drop database {name}",
        "create database {name}",
        "create table {name}.t (id int primary key, n int)",
        "insert into {name}.t values (5, 5)",
    ),
    "partition": (
        PARTITIONED,
        "update t set n = 3 where id in (10, 50)",
        "alter table t drop partition a",
    ),
    "exchange": (
        "create table u (id int primary key, n int)",
        "insert into u values (7, 70)",
        PARTITIONED,
        "alter table t exchange partition a with table u",
    ),
}


@pytest.mark.parametrize(
    ("what", "moment"),
    [
        *((what, moment) for what in REPLACED for moment in ("followed", "window")),
        *((what, "stopped") for what in ("drop and create", "rename and back", "swap with other rows")),
    ],
)
def test_a_stream_has_the_rows_of_the_table_that_has_the_name_now(
    database: MySQLDatabase, stream: Query, what: str, moment: str
) -> None:
    stream.open_window() if moment == "window" else stream.catch_up()
    if moment == "stopped":
        stream.stop()
    database.execute(*(sql.format(name=database.name) for sql in REPLACED[what]))
    check(stream, database)


@pytest.mark.parametrize("moment", ["followed", "window"])
@pytest.mark.parametrize(("copy", "old"), [("_t_gho", "_t_del"), ("_t_new", "_t_old")], ids=["gh-ost", "pt-osc"])
def test_an_altered_copy_takes_the_place_of_a_table_without_a_gap(
    database: MySQLDatabase, stream: Query, copy: str, old: str, moment: str
) -> None:
    """The rows stay, so nothing is emptied and nothing is dumped again; new rows have the new column."""
    stream.open_window() if moment == "window" else stream.catch_up()
    database.execute(
        f"create table {copy} like t",
        f"alter table {copy} add c int",
        f"insert into {copy} (id, n) select id, n from t",
        "update t set n = 1 where id = 5",
        f"update {copy} set n = 1 where id = 5",
        f"rename /* swap */ table t to {old}, {copy} to t",
        f"drop table {old}",
        "update t set c = id, n = 9 where id in (5, 50)",
        "insert into t values (1000, 1, 2)",
    )
    stream.catch_up()
    stream.history.check_order()
    assert stream.history.count("truncate") == 0
    mine = state_of(stream)
    assert {key: row["n"] for key, row in mine.items()} == {row["id"]: row["n"] for row in rows_of(database)}
    assert (mine[5]["c"], mine[50]["c"], mine[1000]["c"]) == (5, 50, 2)
    assert stream.history.count("read") <= 60


def test_a_dump_that_was_under_way_ends_with_the_table(database: MySQLDatabase, stream: Query) -> None:
    stream.open_window()
    database.execute("drop table t")
    stream.dump()
    stream.catch_up()
    assert stream.history.state() == {}


OTHERS: list[Callable[[str], str]] = [
    lambda name: f"create database {name}_other",
    lambda name: f"create table {name}_other.t (id int primary key)",
    lambda name: f"insert into {name}_other.t values (1)",
    lambda name: f"truncate table {name}_other.t",
    lambda name: f"rename table {name}_other.t to {name}_other.u",
    lambda name: f"drop database {name}_other",
    lambda name: "create table other (id int)",
    lambda name: "alter table other add c int",
    lambda name: "create index i on other (id)",
    lambda name: "drop table other",
    lambda name: "create view v as select * from t",
    lambda name: "drop view v",
    lambda name: "create procedure p() insert into t values (1, 1)",
    lambda name: "drop procedure p",
    lambda name: "create trigger g before insert on t for each row set new.n = new.n",
    lambda name: "drop trigger g",
    lambda name: "analyze table t",
    lambda name: "create temporary table t2 select * from t",
    lambda name: "create user someone_x identified by 'y'",
    lambda name: "drop user someone_x",
]


def test_definitions_of_anything_else_do_not_stop_the_stream(database: MySQLDatabase, stream: Query) -> None:
    stream.open_window()
    for n, sql in enumerate(OTHERS):
        database.execute(sql(database.name), f"update t set n = {n} where id = 5")
    check(stream, database)
    assert stream.history.count("truncate") == 0
