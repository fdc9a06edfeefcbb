"""The checks that only a real MySQL can show; all others are tried on MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from dblog.core.schema import TableName
from dblog.databases.mysql.connect import connect
from dblog.errors import PreconditionFailed
from dblog.sources.mysql.preflight import Problem, Setup, admin_sql, check, prepare
from dblog.testing.mysql_server import MySQLServer
from tests.conftest import MYSQL_SERVERS, mysql_server_of
from tests.server.mysql.test_preflight import cure, run, the_problem

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif("mysql" not in MYSQL_SERVERS, reason="mysql is not installed: scripts/mysql.sh"),
]

ORDERS = TableName("shop", "orders")
SETUP = Setup((ORDERS,), 4242)


@pytest.fixture(scope="module")
def server() -> Iterator[MySQLServer]:
    """One whose settings nobody else minds."""
    with mysql_server_of("mysql") as started:
        yield started


@pytest.fixture
def admin(server: MySQLServer) -> Iterator[Any]:
    connection = connect(server.url())
    run(connection, "create database shop", "create table shop.orders (id int primary key, item text)")
    yield connection
    run(connection, "set global super_read_only = 0", "set global read_only = 0", "drop user if exists least")
    for schema in ("shop", "dblog"):
        run(connection, f"drop database if exists {schema}")
    connection.close()


def as_least(server: MySQLServer) -> list[Problem]:
    """What the user `least` finds."""
    with closing(connect(server.url("", "least", "let me in"))) as connection:
        return check(connection, SETUP)


def test_a_server_as_it_comes_is_ready(admin: Any) -> None:
    prepare(admin, SETUP)
    assert check(admin, SETUP) == []


@pytest.mark.parametrize(
    ("name", "value", "fatal"),
    [
        ("binlog_format", "STATEMENT", True),
        ("binlog_row_image", "MINIMAL", True),
        ("binlog_row_metadata", "MINIMAL", False),
        ("binlog_order_commits", "OFF", True),
        ("server_id", "0", True),
    ],
)
def test_a_setting_is_wrong_and_the_fix_cures_it(admin: Any, name: str, value: str, fatal: bool) -> None:
    run(admin, f"set global {name} = {value}")
    problem = the_problem(admin)
    assert problem.what.startswith(f"{name} is {value}: ")
    assert problem.fatal is fatal
    cure(admin, problem)
    prepare(admin, SETUP)
    assert check(admin, SETUP) == []


def test_without_gtids_a_stream_must_write(admin: Any) -> None:
    run(admin, "set global gtid_mode = ON_PERMISSIVE")
    try:
        assert [p.fatal for p in check(admin, SETUP) if p.what.startswith("gtid_mode is ON_PERMISSIVE")] == [False]
        assert the_problem(admin, replace(SETUP, writes=False)).fatal
    finally:
        run(admin, "set global gtid_mode = ON")


def test_the_least_rights_are_seen_with_and_without_a_role(server: MySQLServer, admin: Any) -> None:
    run(admin, "create user least identified by 'let me in'")
    found = as_least(server)
    assert len(found) == 3
    assert all(p.fatal for p in found)
    run(admin, *admin_sql(SETUP, "least@%").splitlines())
    assert as_least(server) == []
    run(admin, "revoke replication slave on *.* from least", "create role readers")
    try:
        run(admin, "grant replication slave on *.* to readers", "grant readers to least")
        (problem,) = as_least(server)
        assert problem.what == "user 'least@%' may not read the log (no REPLICATION SLAVE)"
        run(admin, "set default role readers to least")
        assert as_least(server) == []
    finally:
        run(admin, "drop role readers")


def test_a_server_that_is_read_only_for_everybody_takes_no_watermarks(admin: Any) -> None:
    prepare(admin, SETUP)
    run(admin, "set global super_read_only = 1")
    problem = the_problem(admin)
    assert problem.what == "the server is read-only (read_only, super_read_only), so watermarks cannot be written"
    assert check(admin, replace(SETUP, writes=False)) == []


def test_what_foreign_keys_do_is_refused_unless_the_log_has_it(admin: Any) -> None:
    run(
        admin,
        "create table shop.buyers (id int primary key)",
        "alter table shop.orders add b int, add foreign key (b) references shop.buyers (id) on delete cascade",
        "insert into shop.buyers values (1)",
        "insert into shop.orders values (1, 'tea', 1)",
        "flush binary logs",
        "delete from shop.buyers",
    )
    file = run(admin, "show binary log status")[0][0]
    deletes = [kind for _, _, kind, *_ in run(admin, f"show binlog events in '{file}'") if kind == "Delete_rows"]
    assert len([p for p in check(admin, SETUP) if p.fatal]) == 2 - len(deletes)


def test_a_key_of_the_servers_own_is_fine_while_it_is_shown(admin: Any) -> None:
    run(admin, "set sql_generate_invisible_primary_key = 1", "create table shop.keyless (x int)")
    keyless = Setup((TableName("shop", "keyless"),), 4242)
    prepare(admin, keyless)
    assert check(admin, keyless) == []
    run(admin, "set show_gipk_in_create_table_and_information_schema = 0")
    assert "has no primary key" in the_problem(admin, keyless).what


def test_a_replica_must_commit_in_the_order_of_its_source(admin: Any) -> None:
    prepare(admin, SETUP)
    run(admin, "change replication source to source_host = '127.0.0.1', source_user = 'nobody'")
    try:
        run(admin, "set global replica_parallel_workers = 4", "set global replica_preserve_commit_order = 0")
        problem = the_problem(admin)
        assert problem.what.endswith("another order than its source (replica_preserve_commit_order is OFF)")
        cure(admin, problem)
        assert check(admin, SETUP) == []
    finally:
        run(admin, "reset replica all")


def test_a_server_that_wants_tls_of_everybody_says_so(server: MySQLServer, admin: Any) -> None:
    run(admin, "set global require_secure_transport = ON")
    try:
        with pytest.raises(PreconditionFailed, match="insecure transport") as caught:
            connect(server.url() + "?ssl_mode=DISABLED")
        connect(server.url()).close()
    finally:
        run(admin, "set global require_secure_transport = OFF")
    assert "ssl_mode" in (caught.value.hint or "")
