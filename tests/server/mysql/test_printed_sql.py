"""Every statement that the preflight prints can be run, in the order printed, and makes the server ready.

Each state is one in which a server, a user or a table is not prepared. The statements come from the problems of
`dblog check`, from those alone that a stream refuses to start with, or from `dblog check --admin-sql`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from dblog.core.schema import TableName
from dblog.databases.mysql.connect import connect, identifier
from dblog.sources.mysql.preflight import Problem, Setup, check, prepare
from dblog.testing.mysql_server import MySQLServer
from tests.cli.program import dblog
from tests.conftest import MYSQL_SERVERS, mysql_server_of
from tests.server.mysql.test_preflight import run

pytestmark = pytest.mark.server

USER, PASSWORD = "re`ader's", "let me in"
WHO = f"{identifier(USER)}@`%`"
SETUP = Setup((TableName("shop", "orders"), TableName("shop", "it's more")), 4242)
SETTINGS = {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}

LOG = f"grant replication slave, replication client on *.* to {WHO}"
TABLES = f"grant select on shop.* to {WHO}"
WATERMARK = (
    "create database dblog",
    "create table dblog.watermark (id int primary key, token varchar(64) not null) engine = InnoDB",
    "insert into dblog.watermark values (1, '')",
)
CREATES = f"grant create, insert, select, update on dblog.* to {WHO}"

STATES: dict[str, tuple[str, ...]] = {
    "no rights at all": (),
    "rights on the tables only": (TABLES,),
    "rights on the log only": (LOG,),
    "one right on the log": (f"grant replication client on *.* to {WHO}", TABLES),
    "the other right on the log": (f"grant replication slave on *.* to {WHO}", TABLES),
    "a right on some columns only": (LOG, f"grant select (id) on shop.orders to {WHO}"),
    "may create": (LOG, TABLES, CREATES),
    "may create, no rights else": (CREATES,),
    "may create, not insert": (LOG, TABLES, f"grant create, select, update on dblog.* to {WHO}"),
    "a database dblog of somebody else": (LOG, TABLES, "create database dblog"),
    "a watermark table without rights": (LOG, TABLES, *WATERMARK),
    "a watermark table without its row": (LOG, TABLES, *WATERMARK, CREATES, "delete from dblog.watermark"),
    "a watermark table without row and right": (
        LOG,
        TABLES,
        *WATERMARK,
        f"grant select, update on dblog.watermark to {WHO}",
        "delete from dblog.watermark",
    ),
    "an empty watermark table without rights": (LOG, TABLES, *WATERMARK, "delete from dblog.watermark"),
    "an empty watermark table that is seen": (
        LOG,
        TABLES,
        *WATERMARK,
        f"grant select on dblog.watermark to {WHO}",
        "delete from dblog.watermark",
    ),
    "a log of statements": (LOG, TABLES, "set global binlog_format = STATEMENT"),
    "a log of parts": (LOG, TABLES, "set global binlog_row_image = MINIMAL"),
    "a log without names": (LOG, TABLES, "set global binlog_row_metadata = MINIMAL"),
    "a table without transactions": (LOG, TABLES, "alter table shop.orders engine = MyISAM"),
    "everything at once": (
        TABLES,
        *WATERMARK,
        "delete from dblog.watermark",
        "alter table shop.orders engine = MyISAM",
        *(f"set global {name} = {value}" for name, value in zip(SETTINGS, ("MIXED", "NOBLOB", "MINIMAL"), strict=True)),
    ),
}


@pytest.fixture(scope="module", params=[name for name in MYSQL_SERVERS if name != "given"])
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    """One whose settings nobody else minds."""
    with mysql_server_of(request.param) as started:
        yield started


@pytest.fixture
def admin(server: MySQLServer) -> Iterator[Any]:
    connection = connect(server.url())
    run(connection, "create database shop", "create table shop.orders (id int primary key, item text)")
    run(connection, "create table shop.`it's more` (id int primary key)")
    run(connection, f"create user {WHO} identified by '{PASSWORD}'")
    yield connection
    run(connection, f"drop user {WHO}", *(f"set global {name} = {value}" for name, value in SETTINGS.items()))
    run(connection, "drop database if exists shop", "drop database if exists dblog")
    connection.close()


@pytest.mark.parametrize("printed", ["refused", "checked", "script"])
@pytest.mark.parametrize("state", STATES)
def test_all_that_is_printed_can_be_run_and_makes_the_server_ready(
    server: MySQLServer, admin: Any, state: str, printed: str
) -> None:
    run(admin, "select 1", *STATES[state])
    url = server.url("", USER, PASSWORD)
    if printed == "script":
        given = ["--url", url, "--tables", 'shop.orders, shop."it\'s more"']
        statements = dblog("check", *given, "--admin-sql").stdout.splitlines()
    else:
        problems = [p for p in found(url) if p.fatal or printed == "checked"]
        statements = [statement for problem in problems for statement in problem.statements]
    run(admin, "select 1", *statements)
    assert [p for p in found(url) if p.fatal] == []
    with closing(connect(url)) as connection:
        prepare(connection, SETUP)
    assert [p for p in found(url) if p.fatal or p.creatable] == []


def found(url: str) -> list[Problem]:
    """What the user finds, in a session of its own, which has the rights as they are now."""
    with closing(connect(url)) as connection:
        return check(connection, SETUP)
