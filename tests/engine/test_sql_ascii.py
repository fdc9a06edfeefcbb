"""Text that is not valid, in a real database whose encoding is SQL_ASCII: null and its bytes, from the log and from a
dump."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblog.testing.postgres_server import PostgresServer
from tests.conftest import SERVERS, Database
from tests.engine.query import Query
from tests.families import OnPostgres

pytestmark = pytest.mark.server


@pytest.fixture
def plain(servers: dict[str, PostgresServer]) -> Iterator[OnPostgres]:
    fresh = OnPostgres(servers[SERVERS[-1]].start(), f"ascii_{uuid.uuid4().hex[:8]}")
    encoding = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    Database(fresh.server, "postgres").execute(f"CREATE DATABASE {fresh.name} TEMPLATE template0 {encoding}")
    yield fresh
    fresh.drop()


def insert(first: int) -> str:
    """Rows of valid text, of Latin-1, of cut UTF-8, and of arrays with such text."""
    rows = [
        (r"E'plain'", r"'{a,b}'"),
        (r"E'caf\xc3\xa9'", "null"),
        (r"E'caf\xe9'", "null"),
        (r"E'\xc3'", r"array[E'ok', E'\xff']"),
        ("null", "'{}'"),
    ]
    return "insert into t values " + ", ".join(f"({first + n}, {a}, {b})" for n, (a, b) in enumerate(rows))


def test_invalid_text_is_null_and_its_bytes_are_kept(plain: OnPostgres, tmp_path: Path) -> None:
    plain.execute("create table t (id int primary key, a text, b text[])", insert(0))
    stream = Query(plain.url, str(tmp_path / "spool"), table="t")
    try:
        stream.catch_up()
        plain.execute(insert(100), r"update t set a = E'\xfe\xff' where id = 0")
        stream.catch_up()
        stream.history.check_order()
        found = {row["id"]: row for row in stream.history.events}  # the last event of each key
    finally:
        stream.stop()
    for first in (0, 100):
        assert found[first + 1]["a"] == "café"
        assert found[first + 2]["a"] is None
        assert json.loads(found[first + 2]["_raw_values"]) == {"a": r"\x636166e9"}
        assert found[first + 3]["a"] is None
        assert found[first + 3]["b"] is None
        assert json.loads(found[first + 3]["_raw_values"])["a"] == r"\xc3"
        assert found[first + 4]["_raw_values"] is None
    assert (found[100]["a"], found[100]["b"]) == ("plain", ["a", "b"])
    assert json.loads(found[0]["_raw_values"]) == {"a": r"\xfeff"}


@pytest.mark.parametrize("where", ["dump", "log"])
def test_an_invalid_key_sets_its_table_aside(plain: OnPostgres, tmp_path: Path, where: str) -> None:
    plain.execute("create table t (id int primary key, n int)", "insert into t values (1, 1)")
    plain.execute("create table u (id text primary key, n int)", "insert into u values ('a', 1)")
    invalid = r"insert into u values (E'z\xff', 2)"
    if where == "dump":
        plain.execute(invalid)
    stream = Query(
        plain.url, str(tmp_path / "spool"), tables="public.*", key=("_table", "id"), onTableError="set-aside"
    )
    try:
        stream.catch_up()
        if where == "log":
            plain.execute(invalid)
        stream.until(lambda: "public.u" in stream.engine._planner.status()["failed_tables"], seconds=30)
        plain.execute("update t set n = 2")
        stream.catch_up()
        assert [e["n"] for e in stream.history.events if e["_table"] == "t"][-1] == 2
    finally:
        stream.stop()
