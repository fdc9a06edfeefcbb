"""Least privilege: the role of docs/postgres.md, and nothing more, dumps and follows a table."""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

import pytest

from dblog.sources.postgres.preflight import admin_sql
from dblog.spark.options import read_options
from tests.conftest import Database
from tests.engine.conftest import MakeQuery, rows_of

pytestmark = pytest.mark.server


def test_a_role_with_the_documented_rights_alone_dumps_and_follows(database: Database, query: MakeQuery) -> None:
    database.execute("create table t (id int primary key, n int)")
    database.execute("insert into t select g, 0 from generate_series(1, 50) g")
    role, password = f"cdc_{secrets.token_hex(4)}", secrets.token_hex(8)
    database.execute(f"create role {role} login password '{password}'")
    setup = read_options({"url": database.url, "table": "public.t"}).source.setup()
    connection = database.connect()
    try:
        connection.cursor().execute(admin_sql(setup, role))
        place = urlsplit(database.url)
        url = f"postgresql://{role}:{password}@{place.hostname}:{place.port}{place.path}"
        stream = query(url=url)
        stream.open_window()
        database.execute("update t set n = 1 where id in (3, 44)")
        database.execute("delete from t where id = 7")
        stream.catch_up()
        stream.history.check_state(rows_of(database))
        stream.history.check_order()
    finally:
        connection.close()
        stream.stop()
        database.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots "
            "where not active and database = current_database()"
        )
        database.execute(f"drop owned by {role}")
        database.execute(f"drop role {role}")
