"""Every statement that the preflight prints can be run, in the order printed, and makes the server ready.

Each state is one in which a server, a role or a table is not prepared. The statements come from the problems of
`dblog check`, from those alone that a stream refuses to start with, or from `dblog check --admin-sql`.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from dblog.core.schema import TableName
from dblog.databases.postgres.connect import connect, identifier
from dblog.sources.postgres.preflight import Problem, Setup, check, prepare
from dblog.testing.postgres_server import PostgresServer
from tests.cli.program import dblog
from tests.server.postgres import test_preflight
from tests.server.postgres.test_preflight import replace, run

pytestmark = pytest.mark.server

admin, role, as_role, setup = (getattr(test_preflight, name) for name in ("admin", "role", "as_role", "setup"))

ORDERS, MORE = TableName("public", "orders"), TableName("public", "more")

RIGHTS = (
    "ALTER ROLE {role} REPLICATION; GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON orders, more TO {role};"
)
CREATES = "GRANT CREATE ON DATABASE {database} TO {role};"
OWNS = "ALTER TABLE orders OWNER TO {role}; ALTER TABLE more OWNER TO {role};"
WATERMARK = (
    "CREATE SCHEMA dblog; CREATE TABLE dblog.watermark (id smallint PRIMARY KEY, token text NOT NULL);"
    "INSERT INTO dblog.watermark VALUES (1, '');"
)
WRITES = "GRANT USAGE ON SCHEMA dblog TO {role}; GRANT SELECT, UPDATE ON dblog.watermark TO {role};"
ALL = "WITH (publish_via_partition_root = true);"
DEFERRABLE = "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id) DEFERRABLE;"
LEAF = (
    "CREATE TABLE leaf (id int PRIMARY KEY DEFERRABLE, n int);"
    "ALTER TABLE mid ATTACH PARTITION leaf FOR VALUES FROM (5) TO (9);"
)

STATES = {
    "no rights at all": "",
    "rights on the tables only": "GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON orders, more TO {role};",
    "a right on some columns only": "GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT (id) ON orders TO {role};",
    "replication only": "ALTER ROLE {role} REPLICATION;",
    "may create, does not own": RIGHTS + CREATES,
    "may create, does not own one": RIGHTS + CREATES + "ALTER TABLE orders OWNER TO {role};",
    "owns, may not create": RIGHTS + OWNS,
    "owns and may create": RIGHTS + OWNS + CREATES,
    "owns and may create, no replication": OWNS + CREATES,
    "a schema dblog of somebody else": RIGHTS + OWNS + CREATES + "CREATE SCHEMA dblog;",
    "a schema dblog to create in": RIGHTS
    + OWNS
    + CREATES
    + "CREATE SCHEMA dblog; GRANT ALL ON SCHEMA dblog TO {role};",
    "a schema dblog to create in, does not own": RIGHTS
    + CREATES
    + "CREATE SCHEMA dblog; GRANT USAGE, CREATE ON SCHEMA dblog TO {role};",
    "a watermark table without rights": RIGHTS + WATERMARK,
    "a watermark table without its row": RIGHTS + WATERMARK + WRITES + "DELETE FROM dblog.watermark;",
    "an empty watermark table without rights": RIGHTS + WATERMARK + "DELETE FROM dblog.watermark;",
    "publication missing": RIGHTS + WATERMARK + WRITES,
    "publication without one table": RIGHTS
    + WATERMARK
    + WRITES
    + "CREATE PUBLICATION feed FOR TABLE orders, dblog.watermark "
    + ALL,
    "publication without watermarks": RIGHTS + CREATES + "CREATE PUBLICATION feed FOR TABLE orders, more " + ALL,
    "publication of nothing": RIGHTS + CREATES + "CREATE PUBLICATION feed;",
    "publication of inserts": RIGHTS + "CREATE PUBLICATION feed FOR TABLE orders, more WITH (publish = 'insert');",
    "publication with a filter, without a table": RIGHTS
    + "CREATE PUBLICATION feed FOR TABLE orders WHERE (id > 5) "
    + ALL,
    "publication of somebody's tables too": RIGHTS + "CREATE TABLE other (id int PRIMARY KEY);"
    "CREATE PUBLICATION feed FOR TABLE orders, more, other " + ALL,
    "publication of all tables": RIGHTS
    + "CREATE TABLE other (id int PRIMARY KEY); CREATE PUBLICATION feed FOR ALL TABLES;",
    "own publication, tables of somebody else": RIGHTS
    + CREATES
    + "CREATE PUBLICATION feed; ALTER PUBLICATION feed OWNER TO {role};",
    "partitions published by their names": RIGHTS + "CREATE PUBLICATION feed FOR TABLE orders, more;",
    "partitioned table not published": RIGHTS + "CREATE PUBLICATION feed FOR TABLE orders;",
    "slot without publication": RIGHTS + "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput');",
    "replica identity nothing": RIGHTS + "ALTER TABLE orders REPLICA IDENTITY NOTHING;",
    "replica identity nothing in a partition": RIGHTS + "ALTER TABLE low REPLICA IDENTITY NOTHING;",
    "deferrable key": RIGHTS + DEFERRABLE,
    "deferrable key, replica identity full": RIGHTS + DEFERRABLE + "ALTER TABLE orders REPLICA IDENTITY FULL;",
    "deferrable key, replica identity nothing": DEFERRABLE + "ALTER TABLE orders REPLICA IDENTITY NOTHING;",
    "deferrable key in a partition": RIGHTS + LEAF,
    "unlogged": RIGHTS + "ALTER TABLE orders SET UNLOGGED;",
    "unlogged partition": RIGHTS + "ALTER TABLE deep SET UNLOGGED;",
    "row level security": RIGHTS + "ALTER TABLE orders ENABLE ROW LEVEL SECURITY;",
    "read-only role": RIGHTS + "ALTER ROLE {role} SET default_transaction_read_only = on;",
    "read-only in the database": RIGHTS
    + "ALTER ROLE {role} IN DATABASE {database} SET default_transaction_read_only = on;",
    "everything at once": DEFERRABLE + LEAF + "ALTER TABLE orders REPLICA IDENTITY NOTHING, ENABLE ROW LEVEL SECURITY;"
    "ALTER TABLE low SET UNLOGGED; CREATE PUBLICATION feed FOR TABLE orders WHERE (id > 5) WITH (publish = 'insert');"
    "ALTER ROLE {role} SET default_transaction_read_only = on;",
}


@pytest.mark.parametrize("printed", ["refused", "checked", "script"])
@pytest.mark.parametrize("state", STATES)
def test_all_that_is_printed_can_be_run_and_makes_the_server_ready(
    database: Any,
    admin: Any,
    setup: Setup,
    as_role: Any,
    role: str,
    state: str,
    printed: str,
) -> None:
    run(admin, "SET search_path = public")
    run(admin, "CREATE TABLE more (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
    run(admin, "CREATE TABLE low PARTITION OF more FOR VALUES FROM (0) TO (1)")
    run(admin, "CREATE TABLE mid PARTITION OF more FOR VALUES FROM (1) TO (9) PARTITION BY RANGE (id)")
    run(admin, "CREATE TABLE deep PARTITION OF mid FOR VALUES FROM (1) TO (5)")
    names = {"role": identifier(role), "database": identifier(database.name), "slot": setup.slot}
    for statement in STATES[state].format(**names).split(";"):
        if statement.strip():
            run(admin, statement)
    setup = replace(setup, tables=(ORDERS, MORE))
    run(admin, "SET search_path = ''")
    if printed == "script":
        url = database.server.url(database.name, role, "let me in")
        tables = ",".join(map(str, setup.tables))
        given = ["--url", url, "--tables", tables, "--slot", setup.slot, "--publication", setup.publication]
        statements = dblog("check", *given, "--admin-sql").stdout.splitlines()
    else:
        problems = [p for p in check(as_role(), setup) if p.fatal or printed == "checked"]
        statements = [statement for problem in problems for statement in problem.statements]
    for statement in statements:
        run(admin, statement)
    assert [p for p in check(as_role(), setup) if p.fatal] == []
    prepare(as_role(), setup)
    assert [p for p in check(as_role(), setup) if p.fatal or p.creatable] == []


def test_what_needs_a_restart_is_all_that_is_left_after_the_statements(postgres: PostgresServer, setup: Setup) -> None:
    with PostgresServer(postgres.bin.parent, settings={"wal_level": "replica", "fsync": "off"}) as server:
        with closing(connect(server.url())) as connection:
            run(connection, "CREATE TABLE public.orders (id int PRIMARY KEY DEFERRABLE)")
            run(connection, "CREATE ROLE reader LOGIN PASSWORD 'let me in'")
            for problem in _found(server, setup):
                for statement in problem.statements:
                    if "pg_create_logical_replication_slot" not in statement:
                        run(connection, statement)
        (left,) = (p for p in _found(server, setup) if p.fatal)
        assert left.what == "wal_level is 'replica', so the log cannot be decoded"
        assert "restart" in left.fix


def _found(server: PostgresServer, setup: Setup) -> list[Problem]:
    with closing(connect(server.url("postgres", "reader", "let me in"))) as reader:
        return check(reader, setup)
