"""Every check of the preflight on real servers: found, named, and cured by the fix it shows."""

from __future__ import annotations

import json
import re
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dblog.core.offset import Extent
from dblog.core.schema import TableName
from dblog.databases.mysql.connect import connect, identifier, parse, read_version
from dblog.errors import PreconditionFailed
from dblog.sources.mysql import preflight, preflight_checks
from dblog.sources.mysql.preflight import Problem, Setup, admin_sql, check, prepare
from dblog.sources.mysql.preflight_checks import Inspection
from dblog.sources.mysql.source import MySQL
from dblog.sources.problems import NO_KEY
from dblog.spark.options import read_options
from dblog.testing.mysql_server import MySQLServer
from tests.conftest import MYSQL_SERVERS, mysql_server_of
from tests.unit.test_cli import run as dblog

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif("mariadb" not in MYSQL_SERVERS, reason="mariadb is not installed: scripts/mariadb.sh"),
]

PAGE = Path(__file__).parents[3] / "docs/mysql.md"
ORDERS = TableName("shop", "orders")
ODD = TableName("my `odd` schéma", "it's a t.able %")
SETUP = Setup((ORDERS,), 4242)
RESTORED = (
    "binlog_format = ROW",
    "binlog_row_image = FULL",
    "binlog_row_metadata = FULL",
    "binlog_expire_logs_seconds = 0",
    "read_only = 0",
)


@pytest.fixture(scope="module")
def server() -> Iterator[MySQLServer]:
    """One whose settings nobody else minds."""
    with mysql_server_of("mariadb") as started:
        yield started


@pytest.fixture(scope="module")
def strange(server: MySQLServer) -> Iterator[MySQLServer]:
    """A replica that logs only some databases, and knows no capital letters."""
    settings = {"binlog_ignore_db": "dblog", "server_id": "2", "lower_case_table_names": "1"}
    with mysql_server_of("mariadb", **settings) as started:
        yield started


@pytest.fixture
def admin(server: MySQLServer) -> Iterator[Any]:
    """A session that may do everything. The tables, users and settings that a test makes are gone afterwards."""
    connection = connect(server.url())
    run(connection, "create database shop", "create table shop.orders (id int primary key, item text)")
    yield connection
    run(connection, *(f"set global {setting}" for setting in RESTORED))
    for schema in ("shop", "dblog", ODD.schema):
        run(connection, f"drop database if exists {identifier(schema)}")
    connection.close()


@pytest.fixture
def user(server: MySQLServer, admin: Any) -> Iterator[str]:
    """An account that may log in and nothing else."""
    run(admin, "create user `re``ader's`@`%` identified by 'let me in'")
    yield "re`ader's"
    run(admin, "drop user `re``ader's`@`%`")


@pytest.fixture
def as_user(server: MySQLServer, user: str) -> Iterator[Callable[[], Any]]:
    opened: list[Any] = []

    def open_one() -> Any:
        opened.append(connect(server.url("", user, "let me in")))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


def run(connection: Any, *statements: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def cure(connection: Any, problem: Problem) -> None:
    """Run the fix that is shown."""
    run(connection, *problem.fix.splitlines())


def the_problem(connection: Any, setup: Setup = SETUP) -> Problem:
    """The only problem besides what `prepare` would create by itself."""
    (problem,) = [p for p in check(connection, setup) if not p.creatable]
    return problem


def problems_of(connection: Any, setup: Setup = SETUP, **settings: str) -> list[Problem]:
    """What would be found if the server had these settings, which are another family's."""
    with connection.cursor() as cursor:
        seen = Inspection(cursor, setup, read_version(run(connection, "select version()")[0][0]))
        seen.settings |= settings
        return [p for p in seen.problems() if not p.creatable]


# --- the whole way --------------------------------------------------------------------------------------------------


def test_an_empty_server_has_no_fatal_problem_and_check_creates_nothing(admin: Any) -> None:
    found = check(admin, SETUP)
    assert [(p.what, p.creatable, p.fatal) for p in found] == [
        ("the watermark table 'dblog.watermark' does not exist", True, False)
    ]
    assert check(admin, SETUP) == found


def test_prepare_creates_what_is_missing_and_nothing_is_left_to_report(admin: Any) -> None:
    prepare(admin, SETUP)
    assert check(admin, SETUP) == []
    assert run(admin, "select * from dblog.watermark") == [(1, "")]
    run(admin, "update dblog.watermark set token = 'kept'")
    prepare(admin, SETUP)
    assert run(admin, "select * from dblog.watermark") == [(1, "kept")]


def test_a_stream_that_writes_nothing_needs_no_watermark_table(admin: Any) -> None:
    silent = replace(SETUP, writes=False)
    assert check(admin, silent) == []
    prepare(admin, silent)
    assert run(admin, "show databases like 'dblog'") == []


def test_pipelines_that_start_together_do_not_trip_over_each_other(server: MySQLServer, admin: Any) -> None:
    failures: list[Exception] = []

    def start(number: int) -> None:
        with closing(connect(server.url())) as connection:
            try:
                prepare(connection, replace(SETUP, server_id=5000 + number))
            except Exception as exc:
                failures.append(exc)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_every_problem_is_in_one_report_and_nothing_was_created(admin: Any) -> None:
    run(
        admin,
        "create table shop.keyless (x int)",
        "create view shop.look as select 1 as one",
        "create table shop.loose (id int primary key) engine = MyISAM",
        "set global binlog_format = MIXED",
    )
    names = ("keyless", "look", "loose", "nowhere")
    with pytest.raises(PreconditionFailed) as failure:
        prepare(admin, Setup((ORDERS, *(TableName("shop", n) for n in names)), 1))
    report = str(failure.value)
    assert "6 problems" in report
    for phrase in (
        "binlog_format is MIXED",
        "serverId 1 is the server's own server_id",
        "table 'shop.keyless' has no primary key",
        "'shop.look' is a view",
        "table 'shop.loose' has the engine MyISAM",
        "table 'shop.nowhere' does not exist",
    ):
        assert f"\n- {phrase}" in report
    assert report.count("\n  fix: ") == 6
    assert run(admin, "show databases like 'dblog'") == []


# --- the server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "fatal"),
    [
        ("binlog_format", "STATEMENT", True),
        ("binlog_format", "MIXED", True),
        ("binlog_row_image", "MINIMAL", True),
        ("binlog_row_image", "NOBLOB", True),
        ("binlog_row_metadata", "NO_LOG", False),
        ("binlog_row_metadata", "MINIMAL", False),
    ],
)
def test_a_setting_of_the_log_is_wrong_and_the_fix_cures_it(admin: Any, name: str, value: str, fatal: bool) -> None:
    run(admin, f"set global {name} = {value}")
    problem = the_problem(admin)
    assert problem.what.startswith(f"{name} is {value}: ")
    assert problem.fatal is fatal
    cure(admin, problem)
    prepare(admin, SETUP)
    assert check(admin, SETUP) == []


def test_prepare_leaves_alone_what_is_only_a_warning(admin: Any) -> None:
    run(admin, "set global binlog_row_metadata = MINIMAL")
    prepare(admin, SETUP)
    assert run(admin, "select @@global.binlog_row_metadata") == [("MINIMAL",)]


@pytest.mark.parametrize(
    ("settings", "what", "fatal"),
    [
        ({"binlog_order_commits": "OFF"}, "binlog_order_commits is OFF", True),
        ({"gtid_mode": "OFF_PERMISSIVE"}, "gtid_mode is OFF_PERMISSIVE", False),
        ({"server_id": "0"}, "server_id is 0", True),
    ],
)
def test_settings_of_mysql_are_looked_at(admin: Any, settings: dict[str, str], what: str, fatal: bool) -> None:
    (problem,) = problems_of(admin, **settings)
    assert problem.what.startswith(what)
    assert problem.fatal is fatal


def test_a_stream_that_writes_nothing_needs_the_gtids_of_mysql(admin: Any) -> None:
    (problem,) = problems_of(admin, replace(SETUP, writes=False), gtid_mode="OFF")
    assert problem.what.startswith("gtid_mode is OFF: only GTIDs show")
    assert problem.fatal


def test_partial_json_in_the_log_is_fine(admin: Any) -> None:
    assert problems_of(admin, binlog_row_value_options="PARTIAL_JSON") == []


def test_a_server_without_a_log_is_refused(server: MySQLServer) -> None:
    silent = mysql_server_of("mariadb", skip_log_bin="1")
    with silent, closing(connect(silent.url())) as connection:
        run(connection, "create database shop", "create table shop.orders (id int primary key)")
        problem = the_problem(connection)
    assert problem.what == "the server does not write a binary log (log_bin is OFF)"
    assert problem.fatal


def test_an_old_server_is_not_even_asked(admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "OLDEST", {"MariaDB": (99, 1, 0)})
    monkeypatch.setattr(preflight, "Inspection", None)
    (problem,) = check(admin, SETUP)
    assert re.fullmatch(r"the server is MariaDB 10\.\d+\.\d+", problem.what)
    assert problem.fix == "upgrade to MariaDB 99.1 or later"


def test_the_servers_own_id_is_refused(admin: Any) -> None:
    problem = the_problem(admin, replace(SETUP, server_id=1))
    assert (problem.what, problem.fatal) == ("serverId 1 is the server's own server_id", True)
    assert "serverId" in problem.fix


@pytest.mark.parametrize(("port", "fatal"), [(3306, True), (0, False)], ids=["a replica", "a reader like us"])
def test_an_id_that_is_taken_is_found(server: MySQLServer, admin: Any, port: int, fatal: bool) -> None:
    with closing(connect(server.url())) as other:
        registration = struct.pack("<IB4sBBHII", SETUP.server_id, 4, b"elle", 0, 0, port, 0, 0)
        other._execute_command(0x15, registration)
        other._read_ok_packet()
        problem = the_problem(admin)
    assert "has serverId 4242" in problem.what
    assert ("elle:3306" in problem.what) is fatal
    assert problem.fatal is fatal


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ("binlog_expire_logs_seconds = 7200", "the server keeps its log for only 2 h"),
        ("expire_logs_days = 0.5", "the server keeps its log for only 12 h"),
        ("expire_logs_days = 1", None),
        ("binlog_expire_logs_seconds = 0", None),
    ],
)
def test_a_log_that_is_soon_removed_is_a_warning(admin: Any, settings: str, what: str | None) -> None:
    prepare(admin, SETUP)
    run(admin, f"set global {settings}")
    found = check(admin, SETUP)
    assert [p.what.partition(":")[0] for p in found] == ([what] if what else [])
    for problem in found:
        assert not problem.fatal
        cure(admin, problem)
    assert check(admin, SETUP) == []


@pytest.mark.parametrize(
    ("hours", "what"),
    [("null", "the server keeps its log only as long as it needs it itself"), ("5", "for only 5 h"), ("72", None)],
)
def test_amazon_keeps_the_log_as_its_own_procedure_says(admin: Any, hours: str, what: str | None) -> None:
    prepare(admin, SETUP)
    told = f"select 'binlog retention hours' as name, {hours} as value, 'how long' as description"
    run(admin, f"create procedure mysql.rds_show_configuration() begin {told}; end")
    try:
        found = check(admin, SETUP)
    finally:
        run(admin, "drop procedure mysql.rds_show_configuration")
    assert [(p.fatal, p.fix) for p in found] == (
        [(False, "CALL mysql.rds_set_configuration('binlog retention hours', 72);")] if what else []
    )
    assert (what or "") in " ".join(p.what for p in found)


def test_a_database_that_is_not_logged_is_refused(strange: MySQLServer) -> None:
    with closing(connect(strange.url())) as connection:
        run(connection, "create or replace database shop", "create table shop.orders (id int primary key)")
        problem = the_problem(connection)
        assert (problem.what, problem.fatal) == ("changes of database 'dblog' are not logged (binlog_ignore_db)", True)
        assert check(connection, replace(SETUP, writes=False)) == []


def test_a_list_of_databases_that_are_logged_must_have_ours(admin: Any) -> None:
    with admin.cursor() as cursor:
        seen = Inspection(cursor, SETUP, read_version("10.11.1-MariaDB"))
        seen.log = [{"binlog_do_db": "shop, stock", "binlog_ignore_db": ""}]
        assert [p.what for p in seen.problems() if p.fatal] == [
            "changes of database 'dblog' are not logged (binlog_do_db)"
        ]
        seen.log = [{"binlog_do_db": "dblog,shop", "binlog_ignore_db": ""}]
        assert [p for p in seen.problems() if p.fatal] == []


def test_a_replica_must_log_what_it_replicates(server: MySQLServer, strange: MySQLServer, admin: Any) -> None:
    at, (file, place, *_) = parse(server.url()), run(admin, "show master status")[0]
    silent = replace(SETUP, writes=False)
    with closing(connect(strange.url())) as replica:
        run(replica, "create or replace database shop", "create table shop.orders (id int primary key)")
        run(replica, "create or replace user least identified by 'least'")
        run(replica, "grant replication slave, replication client, select on *.* to least")
        run(
            replica,
            f"change master to master_host = '127.0.0.1', master_port = {at.port}, master_user = '{at.user}', "
            f"master_password = '{at.password}', master_log_file = '{file}', master_log_pos = {place}",
            "start slave",
        )
        try:
            deadline = time.monotonic() + 20
            while run(replica, "show global status like 'slaves_running'")[0][1] == "0":
                assert time.monotonic() < deadline
                time.sleep(0.05)
            problem = the_problem(replica, silent)
            with closing(connect(strange.url("", "least", "least"))) as least:  # which may not see what is replicated
                assert check(least, silent) == [problem]
        finally:
            run(replica, "stop slave", "reset slave all")
        assert "does not log the replicated changes (log_slave_updates is OFF)" in problem.what
        assert problem.fatal
        assert check(replica, silent) == []


def test_a_replica_must_commit_in_the_order_of_its_source(admin: Any) -> None:
    prepare(admin, SETUP)
    run(admin, "change master to master_host = '127.0.0.1', master_user = 'nobody'")
    threads = {"log_replica_updates": "ON", "replica_preserve_commit_order": "OFF"}
    try:
        (problem,) = problems_of(admin, **threads, replica_parallel_workers="4")
        assert "another order than its source (replica_preserve_commit_order is OFF)" in problem.what
        assert problems_of(admin, **threads, replica_parallel_workers="1") == []
    finally:
        run(admin, "reset slave all")
    assert problems_of(admin, **threads, replica_parallel_workers="4") == []


# --- rights ---------------------------------------------------------------------------------------------------------


def test_an_account_without_rights_is_told_what_to_grant(admin: Any, as_user: Any) -> None:
    reader = as_user()
    found = check(reader, SETUP)
    name = '"re`ader\'s@%"'
    assert [p.what for p in found] == [
        f"user {name} may not read the log (no REPLICATION SLAVE, REPLICATION CLIENT)",
        f"table 'shop.orders' does not exist, or user {name} may not read it",
        f"the watermark table 'dblog.watermark' does not exist, or user {name} may not see it",
    ]
    assert all(p.fatal for p in found)
    for problem in found:
        cure(admin, problem)
    assert check(as_user(), SETUP) == []


@pytest.mark.parametrize("right", ["replication slave", "replication client"])
def test_each_right_on_the_log_is_needed(admin: Any, as_user: Any, user: str, right: str) -> None:
    run(admin, *admin_sql(SETUP, f"{user}@%").splitlines(), f"revoke {right} on *.* from {identifier(user)}")
    problem = the_problem(as_user())
    assert problem.what.endswith(f"may not read the log (no {right.upper()})")
    cure(admin, problem)
    assert check(as_user(), SETUP) == []


def test_rights_may_come_by_way_of_a_role(admin: Any, as_user: Any, user: str) -> None:
    run(admin, *preflight_checks.WATERMARK_SQL, "create role readers")
    try:
        run(
            admin,
            *(
                line.replace(f"{identifier(user)}@`%`", "readers")
                for line in admin_sql(SETUP, f"{user}@%").splitlines()
            ),
            f"grant readers to {identifier(user)}",
        )
        assert len(check(as_user(), SETUP)) == 3
        run(admin, f"set default role readers for {identifier(user)}")
        assert check(as_user(), SETUP) == []
    finally:
        run(admin, "drop role readers")


def test_a_right_to_some_columns_is_one_to_these(admin: Any, as_user: Any, user: str) -> None:
    run(admin, *admin_sql(SETUP, f"{user}@%").splitlines())
    run(admin, f"revoke select on shop.orders from {identifier(user)}")
    run(admin, f"grant select (id) on shop.orders to {identifier(user)}")
    problem = the_problem(as_user())
    assert problem.what.endswith("lacks SELECT on 'shop.orders'")
    assert check(as_user(), replace(SETUP, columns=("id",))) == []
    cure(admin, problem)
    assert check(as_user(), SETUP) == []


@pytest.mark.parametrize("right", ["select", "update"])
def test_each_right_on_the_watermarks_is_needed(admin: Any, as_user: Any, user: str, right: str) -> None:
    run(admin, *admin_sql(SETUP, f"{user}@%").splitlines())
    run(admin, f"revoke {right} on dblog.watermark from {identifier(user)}")
    problem = the_problem(as_user())
    assert problem.what.endswith("lacks SELECT, UPDATE on 'dblog.watermark'")
    cure(admin, problem)
    assert check(as_user(), SETUP) == []


@pytest.mark.parametrize("target", ["dblog.*", "`dblo_`.*", "*.*"])
def test_who_may_create_the_watermark_table_is_seen(admin: Any, as_user: Any, user: str, target: str) -> None:
    silent = replace(SETUP, writes=False)
    run(admin, *admin_sql(silent, f"{user}@%").splitlines())
    run(admin, f"grant create, insert, select, update on shop.* to {identifier(user)}")  # which is another database
    assert the_problem(as_user()).what.startswith("the watermark table 'dblog.watermark' does not exist, or user")
    run(admin, f"grant create, insert, select, update on {target} to {identifier(user)}")
    prepare(as_user(), SETUP)
    assert check(as_user(), SETUP) == []


def test_odd_names_are_quoted_everywhere(admin: Any, as_user: Any, user: str) -> None:
    odd = Setup((ODD, ORDERS), 4242)
    run(admin, f"create database {identifier(ODD.schema)}", f"create table {identifier(*ODD)} (`a b` int primary key)")
    run(admin, *admin_sql(odd, f"{user}@%").splitlines())
    assert check(as_user(), odd) == []
    run(admin, f"revoke select on {identifier(*ODD)} from {identifier(user)}")
    problem = the_problem(as_user(), odd)
    assert repr(str(ODD)) in problem.what
    cure(admin, problem)
    assert check(as_user(), odd) == []


def documented(user: str) -> list[str]:
    """The script of the page, with the names of the test."""
    (script,) = re.findall(r"```sql\n(CREATE USER.*?)```", PAGE.read_text(), re.DOTALL)
    script = re.sub(r"--.*", "", script).replace("'...'", "'let me in'").replace("cdc@'%'", f"{identifier(user)}@'%'")
    return [statement.strip() for statement in script.split(";") if statement.strip()]


@pytest.mark.parametrize("script", ["printed", "documented"])
def test_the_least_rights_are_enough_to_dump_and_follow(server: MySQLServer, admin: Any, script: str) -> None:
    name = f"least_{secrets.token_hex(4)}"
    if script == "printed":
        run(admin, f"create user {name}@'%' identified by 'let me in'", *admin_sql(SETUP, f"{name}@%").splitlines())
    else:
        run(admin, *documented(name))
    run(admin, "insert into shop.orders values (1, 'tea')")
    source = read_options({"url": server.url("shop", name, "let me in"), "table": "orders"}).source
    assert isinstance(source, MySQL)
    try:
        source.prepare(followed=None)
        origin = source.origin()
        log = source.stream(origin.position, origin.coordinate)
        run(admin, "insert into shop.orders values (2, 'milk')")
        source.write_watermark("end")
        rows: list[Any] = []
        while not rows or rows[-1] != "end":
            for seen in log.read(1):
                rows += [row["item"] for _, batch in seen.changes for row in batch.to_pylist()]
                rows += [seen.token] if seen.token else []
        log.close()
        assert rows == ["milk", "end"]
        dumped: list[Any] = []
        source.select(ORDERS, Extent(), source.key(ORDERS)).read(dumped.append)
        assert sum(batch.num_rows for batch in dumped) == 2
        assert source.health()["latest"] >= source.latest()
    finally:
        for role in ("control", "log", "chunks", "health"):
            source._forget(role)
        run(admin, f"drop user {name}@'%'")


# --- watermarks -----------------------------------------------------------------------------------------------------


def test_a_read_only_server_takes_no_watermarks(admin: Any, as_user: Any, user: str) -> None:
    silent = replace(SETUP, writes=False)
    run(admin, *admin_sql(silent, f"{user}@%").splitlines(), "set global read_only = 1")
    problem = the_problem(as_user())
    assert (problem.what, problem.fatal) == (
        "the server is read-only (read_only), so watermarks cannot be written",
        True,
    )
    assert "option watermark to none" in problem.fix
    assert check(as_user(), silent) == []
    assert [p.creatable for p in check(admin, SETUP)] == [True]  # who may write there
    run(admin, *admin_sql(SETUP, f"{user}@%").splitlines())
    assert check(as_user(), SETUP) == [problem]
    assert check(admin, SETUP) == []


@pytest.mark.parametrize(
    "create",
    [
        "create table dblog.watermark (id int primary key, token text, more int)",
        "create table dblog.watermark (id int, token varchar(64) primary key)",
        "create table dblog.watermark (id int primary key, token text) engine = MyISAM",
    ],
    ids=["columns", "key", "engine"],
)
def test_another_table_in_the_place_of_the_watermarks_is_refused(admin: Any, create: str) -> None:
    run(admin, "create database dblog", create)
    problem = the_problem(admin)
    assert (problem.what, problem.fatal) == ("'dblog.watermark' does not have the form of a watermark table", True)


def test_a_lost_row_of_the_watermarks_is_put_back(admin: Any, as_user: Any, user: str) -> None:
    run(admin, *admin_sql(SETUP, f"{user}@%").splitlines(), "delete from dblog.watermark")
    problem = the_problem(as_user())
    assert (problem.what, problem.fatal) == ("the watermark table 'dblog.watermark' has no row", True)
    prepare(admin, SETUP)
    assert check(as_user(), SETUP) == []


def test_the_watermark_table_cannot_be_captured(admin: Any) -> None:
    prepare(admin, SETUP)
    problem = the_problem(admin, replace(SETUP, tables=(ORDERS, preflight.WATERMARK)))
    assert problem.what == "the watermark table 'dblog.watermark' cannot be captured"


# --- tables ---------------------------------------------------------------------------------------------------------

TABLE_PROBLEMS = {
    "no primary key": (
        "alter table shop.orders drop primary key",
        f"table 'shop.orders' has {NO_KEY}",
        "alter table shop.orders add primary key (id)",
    ),
    "engine": (
        "alter table shop.orders engine = Aria",
        "table 'shop.orders' has the engine Aria, which has no transactions",
        None,
    ),
    "system versioned": (
        "alter table shop.orders add system versioning",
        "table 'shop.orders' is system-versioned: rows of its history would be captured as current rows",
        None,
    ),
    "cascade": (
        "alter table shop.orders add buyer int, add constraint bought foreign key (buyer) "
        "references shop.buyers (id) on delete cascade",
        "foreign keys change rows of 'shop.orders' without a record in the log: bought",
        "alter table shop.orders drop foreign key bought",
    ),
    "set null": (
        "alter table shop.orders add buyer int, add constraint bought foreign key (buyer) "
        "references shop.buyers (id) on update set null",
        "foreign keys change rows of 'shop.orders' without a record in the log: bought",
        "alter table shop.orders drop foreign key bought",
    ),
}


@pytest.mark.parametrize("case", TABLE_PROBLEMS)
def test_a_table_that_cannot_be_captured_is_named_and_the_fix_cures_it(admin: Any, case: str) -> None:
    spoil, what, cured_by = TABLE_PROBLEMS[case]
    run(admin, "create table shop.buyers (id int primary key)", spoil)
    problem = the_problem(admin)
    assert (problem.what, problem.fatal) == (what, True)
    run(admin, cured_by or problem.fix.partition("--")[0])
    prepare(admin, SETUP)
    assert check(admin, SETUP) == []


@pytest.mark.parametrize(
    "alter",
    [
        "modify id double",
        "modify id varchar(20) collate utf8mb4_general_ci",
        "partition by hash (id) partitions 3",
        "add n int invisible, add twice int as (id * 2)",
        "add buyer int, add foreign key (buyer) references shop.buyers (id) on delete restrict",
    ],
)
def test_a_table_that_can_be_captured_is_fine(admin: Any, alter: str) -> None:
    run(admin, "create table shop.buyers (id int primary key)", f"alter table shop.orders {alter}")
    prepare(admin, SETUP)
    assert check(admin, SETUP) == []


def test_mysql_logs_what_foreign_keys_do_since_the_engine_does_not_do_it(admin: Any) -> None:
    run(admin, "create table shop.buyers (id int primary key)", TABLE_PROBLEMS["cascade"][0])
    assert len(problems_of(admin)) == 1
    assert problems_of(admin, innodb_native_foreign_keys="OFF") == []
    assert len(problems_of(admin, innodb_native_foreign_keys="ON")) == 1


def test_a_hidden_key_of_mysqls_own_is_to_be_shown(admin: Any) -> None:
    run(admin, "alter table shop.orders drop primary key")
    (problem,) = problems_of(admin, show_gipk_in_create_table_and_information_schema="OFF")
    assert "show_gipk_in_create_table_and_information_schema = ON" in problem.fix
    assert "show_gipk" not in problems_of(admin)[0].fix


def test_a_key_of_beginnings_is_a_warning(admin: Any) -> None:
    run(admin, "alter table shop.orders drop primary key, add primary key (id, item(5))")
    problem = the_problem(admin)
    assert problem.what.startswith("the primary key of 'shop.orders' has only a prefix of column 'item'")
    assert not problem.fatal


@pytest.mark.parametrize(
    ("create", "what"),
    [
        ("create view shop.odd as select 1 as id", "'shop.odd' is a view"),
        ("create sequence shop.odd", "'shop.odd' is a sequence"),
    ],
)
def test_what_has_no_log_is_refused(admin: Any, create: str, what: str) -> None:
    run(admin, create)
    problem = the_problem(admin, replace(SETUP, tables=(ORDERS, TableName("shop", "odd"))))
    assert problem.what == f"{what}: the log has no changes of it"
    assert problem.fatal


def test_a_pattern_leaves_out_what_cannot_be_followed(server: MySQLServer, admin: Any) -> None:
    run(admin, "create table shop.old (id int primary key) with system versioning", "create view shop.v as select 1")
    source = read_options({"url": server.url(), "tables": "shop.*"}).source
    assert isinstance(source, MySQL)
    setup = source.setup()
    assert setup.tables == (ORDERS,)
    assert [p.table for p in setup.left_out] == [TableName("shop", "v"), TableName("shop", "old")]
    source.prepare(followed=None)
    with pytest.raises(PreconditionFailed, match=r"(?s)table 'shop\.old' is system-versioned.*'shop\.v' is a view"):
        replace(source, skips=False).prepare(followed=None)
    source._forget("control")


def test_a_name_in_another_letter_case_is_another_table(admin: Any) -> None:
    run(admin, "create table shop.ORDERS (id int)")
    assert [p for p in check(admin, SETUP) if p.fatal] == []
    problem = the_problem(admin, replace(SETUP, tables=(ORDERS, TableName("shop", "Orders"))))
    assert problem.what == "table 'shop.Orders' exists only in another letter case"
    assert problem.fix == "write it as the server does: shop.ORDERS, shop.orders"


def test_a_server_that_knows_no_capital_letters_has_none_in_its_log(strange: MySQLServer) -> None:
    with closing(connect(strange.url())) as connection:
        run(connection, "create or replace database shop", "create table shop.Orders (id int primary key)")
        problem = the_problem(connection, Setup((TableName("Shop", "Orders"),), 4242, writes=False))
    assert (problem.what, problem.fatal) == ("table 'Shop.Orders' exists only in another letter case", True)
    assert problem.fix == "write it as the server does: shop.orders"


def test_a_table_that_somebody_locks_is_not_waited_for(server: MySQLServer, admin: Any) -> None:
    prepare(admin, SETUP)
    run(admin, "set session lock_wait_timeout = 20")
    with closing(connect(server.url())) as other:
        run(other, "lock tables shop.orders write, dblog.watermark read")
        began = time.monotonic()
        assert check(admin, SETUP) == []
        assert time.monotonic() - began < 10


# --- dblog check ----------------------------------------------------------------------------------------------------


def test_the_command_line_shows_the_problems_and_the_way_out(server: MySQLServer, admin: Any, user: str) -> None:
    url = server.url("shop", user, "let me in")
    done = dblog("check", "--url", url.replace("/shop", ""), "--tables", "shop.orders")
    assert done.returncode == 1
    assert "✗ user" in done.stdout
    assert "    GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `re``ader's`@`%`;" in done.stdout
    assert "not ready: 3 to fix first" in done.stdout
    assert "let" not in done.stdout + done.stderr
    run(admin, "grant select on shop.* to `re``ader's`")  # to find the tables of a pattern
    script = dblog("check", "--tables", "shop.*", "--admin-sql", DBLOG_URL=url)
    assert (script.returncode, script.stderr) == (0, "")
    run(admin, *script.stdout.splitlines())
    done = dblog("check", "--url", url, "--tables", "shop.*", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["ready"], found["tables"], found["problems"]) == (True, ["shop.orders"], [])
    assert found["server_id"] > 0


def test_the_command_line_says_what_will_be_created(server: MySQLServer, admin: Any) -> None:
    run(admin, "set global binlog_row_metadata = NO_LOG")
    done = dblog("check", "--tables", "shop.orders", DBLOG_URL=server.url())
    assert done.returncode == 0
    assert "! binlog_row_metadata is NO_LOG" in done.stdout
    assert "+ the watermark table 'dblog.watermark' does not exist  (will be created)" in done.stdout
    assert done.stdout.endswith("ready: 1 table; 1 thing will be created at the start\n")
    assert run(admin, "show databases like 'dblog'") == []
