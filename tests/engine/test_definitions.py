"""MySQL and MariaDB: statements that take away the rows of a table or give it others, without a row in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql.cursors
import pytest

from dblog.errors import PositionLost, PreconditionFailed
from tests.conftest import MYSQL_SERVERS, MySQLDatabase, mysql_server_of
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


PARTITIONS = "partition by range (id) (partition a values less than (30), partition b values less than maxvalue)"
PARTITIONED = f"alter table t {PARTITIONS}"
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
    "half a copy under the name of a tool": (
        "create table _t_gho like t",
        "insert into _t_gho select * from t where id <= 30",
        "rename /* gh-ost */ table t to _t_del, _t_gho to t",
    ),
    "half a copy, one rename after the other": (
        "create table copy like t",
        "insert into copy select id, 8 from t where id > 30",
        "rename table t to old",
        "rename table copy to t",
        "drop table old",
    ),
    "a chain of renames": (
        "create table c (id int primary key, n int)",
        "insert into c values (7, 7), (70, 70)",
        "rename table t to b, c to t",
    ),
    "rename among other changes": (
        "create table c (id int primary key, n int)",
        "insert into c values (7, 7), (70, 70)",
        "drop table t",
        "alter table c add m int default 5, rename to t, add index i (n)",
    ),
    "rename in odd spelling": (
        "create table `c` (id int primary key, n int)",
        "insert into c values (7, 7), (70, 70)",
        "/* a */ rename/**/table`t`to`b`,/*!50000 `c` */to -- t\n`t`",
    ),
    "rename from another database": (
        "create database {name}_other",
        "create table {name}_other.t (id int primary key, n int)",
        "insert into {name}_other.t values (7, 7), (70, 70)",
        "rename table t to {name}_other.b, {name}_other.t to t",
        "drop database {name}_other",
    ),
    "exchange with a partition of another table": (
        "create table u (id int primary key, n int) " + PARTITIONS,
        "insert into u values (7, 70), (80, 80)",
        "delete from t where id > 29",
        "alter table u exchange partition a with table t",
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


ON_MARIADB: dict[str, tuple[str, ...]] = {
    "rename if exists": (
        "create table c (id int primary key, n int)",
        "insert into c values (7, 7), (70, 70)",
        "rename table if exists t wait 30 to b, nothing to nowhere, c to t",
    ),
    "duplicates that an ALTER removes": (
        "update t set n = id div 2",
        "alter ignore table t add unique (n)",
    ),
    "a table that had foreign keys": (
        "create table p (id int primary key)",
        "insert into p values (0), (1)",
        "create table c (id int primary key, n int, constraint c foreign key (n) references p (id) on delete cascade)",
        "insert into c values (5, 1), (6, 0)",
        "rename table t to b, c to t",
        "update t set n = 1 where id = 6",
        "delete from p where id = 1",
        "alter table t drop foreign key c",
        "insert into t values (7, 7)",
    ),
    "a table that had a history": (
        "create table c (id int primary key, n int) with system versioning",
        "insert into c values (5, 5), (6, 6)",
        "rename table t to b, c to t",
        "delete from t where id = 5",
        "alter table t drop system versioning",
    ),
}


@pytest.mark.parametrize("what", ON_MARIADB)
@pytest.mark.parametrize("mysql_server", ["mariadb"], indirect=True)
def test_a_stream_has_the_rows_of_the_table_after_what_only_mariadb_can_do(
    database: MySQLDatabase, stream: Query, what: str
) -> None:
    stream.catch_up()
    stream.stop()
    database.execute(*ON_MARIADB[what])
    check(stream, database)


def test_names_in_statements_may_have_capital_letters_where_the_server_has_none(tmp_path: Path) -> None:
    if "mariadb" not in MYSQL_SERVERS:
        pytest.skip("mariadb is not installed")
    with mysql_server_of("mariadb", lower_case_table_names="1") as server:
        database = MySQLDatabase(server, "shop")
        database.create()
        database.execute("create table T (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
        stream = Query(url=database.url, spool=str(tmp_path / "spool"), key=("_table", "id"), tables="t")
        try:
            stream.catch_up()
            database.execute("create table C like t", "insert into c values (3, 3)", "rename table T to Old, C to T")
            check(stream, database)
        finally:
            stream.stop()


UNFIT: dict[str, tuple[str, str, str]] = {
    "cascade": (
        "alter table t add constraint c foreign key (n) references p (id) on delete cascade",
        "alter table t drop foreign key c",
        "foreign keys",
    ),
    "set null": (
        "alter table t add constraint c foreign key (n) references p (id) on update set null",
        "alter table t drop foreign key c",
        "foreign keys",
    ),
    "history": ("alter table t add system versioning", "alter table t drop system versioning", "system-versioned"),
    "engine": ("alter table t engine = MyISAM", "alter table t engine = InnoDB", "the engine MyISAM"),
    "renamed engine": (
        "rename table m to t",
        "alter table t engine = InnoDB",
        "the engine MyISAM",
    ),
}
"""What makes a table one that cannot be followed, what undoes it, and what is said."""


def logs_cascades(database: MySQLDatabase) -> bool:
    """MySQL does, since version 9.6."""
    return ("innodb_native_foreign_keys", "OFF") in database.execute("show variables like 'innodb_native_foreign_keys'")


def unfit(database: MySQLDatabase, what: str) -> tuple[str, str, str]:
    mariadb = database.server.family.name == "mariadb"
    if what == "history" and not mariadb:
        pytest.skip("MySQL has no system-versioned tables")
    if what in ("cascade", "set null") and logs_cascades(database):
        pytest.skip("MySQL 9.6 logs what foreign keys do")
    database.execute(
        "create table p (id int primary key)", "insert into p values (0), (1)", "update t set n = 1 where id = 5"
    )
    if what == "renamed engine":
        database.execute("create table m (id int primary key, n int) engine = MyISAM")
    return UNFIT[what]


@pytest.mark.parametrize("moment", ["followed", "window", "stopped"])
@pytest.mark.parametrize("what", UNFIT)
def test_a_table_that_is_altered_so_that_it_cannot_be_followed_stops_the_stream(
    database: MySQLDatabase, stream: Query, what: str, moment: str
) -> None:
    breaks, _, said = unfit(database, what)
    stream.open_window() if moment == "window" else stream.catch_up()
    if moment == "stopped":
        stream.stop()
    if breaks.startswith("rename"):
        database.execute("drop table t")
    database.execute(breaks, "delete from t where id = 6")
    with pytest.raises(PreconditionFailed, match=said) as caught:
        stream.until(lambda: False, seconds=10)
    told = str(caught.value)
    assert f"{database.name}.t" in told
    if moment != "stopped":  # then it is the preflight that says so
        assert "changes since then may be missing" in told
        assert "start with a new checkpoint" in told


@pytest.mark.parametrize("what", ["cascade", "history", "engine"])
def test_a_table_that_could_not_be_followed_for_a_time_is_dumped_again(
    database: MySQLDatabase, stream: Query, tmp_path: Path, what: str
) -> None:
    breaks, undoes, _ = unfit(database, what)
    stream.catch_up()
    stream.stop()
    database.execute(breaks, "delete from p where id = 1", "delete from t where id = 6", undoes)
    with pytest.raises(PositionLost, match="changes in between may be missing") as caught:
        stream.until(lambda: False, seconds=10)
    assert f"{database.name}.t" in str(caught.value)
    assert "start with a new checkpoint" in str(caught.value)
    again = Query(url=database.url, spool=str(tmp_path / "again"), key=("_table", "id"), tables="t")
    try:
        check(again, database)
    finally:
        again.stop()


@pytest.mark.parametrize("what", ["cascade", "engine"])
def test_a_table_that_is_altered_without_a_word_in_the_log_is_noticed_at_the_heartbeat(
    database: MySQLDatabase, tmp_path: Path, what: str
) -> None:
    breaks, _, said = unfit(database, what)
    stream = Query(
        url=database.url, spool=str(tmp_path / "spool"), key=("_table", "id"), tables="t", heartbeatSeconds=1
    )
    try:
        stream.catch_up()
        database.execute("set session sql_log_bin = 0", breaks)
        with pytest.raises(PreconditionFailed, match=said):
            stream.until(lambda: False, seconds=20)
    finally:
        stream.stop()


FIT = [
    "alter table t add constraint c foreign key (n) references p (id)",
    "alter table t drop foreign key c",
    "alter table t add index i (n), engine = InnoDB",
    "alter table p add constraint d foreign key (other) references t (id) on delete cascade",
    "create table if not exists t (id int primary key) engine = MyISAM",
    "alter table t comment 'on delete cascade, engine=MyISAM'",
]


def test_a_table_that_is_altered_otherwise_is_followed_on(database: MySQLDatabase, stream: Query) -> None:
    database.execute("create table p (id int primary key, other int)", "insert into p values (0, null)")
    stream.catch_up()
    for n, sql in enumerate(FIT):
        database.execute(sql, f"delete from t where id = {n + 1}")
    check(stream, database)
    assert stream.history.count("truncate") == 0


@pytest.mark.parametrize("moment", ["followed", "window"])
@pytest.mark.parametrize(("copy", "old"), [("_t_gho", "_t_del"), ("_t_new", "_t_old")], ids=["gh-ost", "pt-osc"])
def test_an_altered_copy_that_takes_the_place_of_a_table_is_dumped(
    database: MySQLDatabase, stream: Query, copy: str, old: str, moment: str
) -> None:
    """That its rows are those of the other table, no name proves. What existing rows have in a new column comes too."""
    stream.open_window() if moment == "window" else stream.catch_up()
    database.execute(
        f"create table {copy} like t",
        f"alter table {copy} add c int default 7",
        f"insert into {copy} (id, n) select id, n from t",
        "update t set n = 1 where id = 5",
        f"update {copy} set n = 1 where id = 5",
        f"rename /* swap */ table t to {old}, {copy} to t",
        f"drop table {old}",
        "update t set c = id, n = 9 where id in (5, 50)",
        "insert into t values (1000, 1, 2)",
    )
    check(stream, database)
    assert stream.history.count("truncate") == 1


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


def test_what_foreign_keys_change_is_followed_where_the_log_has_it(database: MySQLDatabase, stream: Query) -> None:
    if not logs_cascades(database):
        pytest.skip("the log of this server does not have it")
    database.execute("create table p (id int primary key)", "insert into p values (0), (1)")
    database.execute("update t set n = 1 where id > 50")
    stream.catch_up()
    database.execute(UNFIT["cascade"][0], "delete from p where id = 1")
    check(stream, database)
    assert len(state_of(stream)) == 50
