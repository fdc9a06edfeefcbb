"""Keys that the user promises for tables without one: followed like others, set aside when the promise is broken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dblog.core.schema import TableName
from dblog.errors import ConfigError, KeyRefused, PreconditionFailed
from dblog.spark.options import read_options
from tests.cli.program import dblog, document
from tests.engine.conftest import MYSQL, POSTGRES, MakeQuery, check, on, on_mysql
from tests.engine.control import Control
from tests.engine.query import Query
from tests.engine.test_new_tables import agree, follow, state_of, status
from tests.engine.test_set_aside import retry, set_aside
from tests.families import AnyDatabase, OnPostgres

pytestmark = pytest.mark.server

on_newest = on(POSTGRES[-1:])
on_both = on([*POSTGRES[-1:], *MYSQL[:1]])
on_each = on([*POSTGRES[-1:], *MYSQL])


def promise(*key: str) -> str:
    return json.dumps({"u": key})


def keyless(database: AnyDatabase, columns: str = "id int, n int, note varchar(20)") -> None:
    database.execute(f"create table u ({columns})")
    if isinstance(database, OnPostgres):
        database.execute("alter table u replica identity full")


def followed(database: AnyDatabase, query: MakeQuery, *key: str, **options: Any) -> Query:
    return follow(database, query, onTableError="set-aside", keys=promise(*(key or ("id",))), **options)


@on_each
def test_a_promised_key_is_a_key(database: AnyDatabase, query: MakeQuery) -> None:
    """Of several nullable columns with texts, one row a chunk, with changes in every window and keys that move."""
    keyless(database, "a varchar(10), id int, n int, big text")
    names = ["b", "A", "", " x", "é", "a b"]
    for n, name in enumerate(names * 3):
        database.execute(f"insert into u values ('{name}', {n}, {n}, 'x')")
    stream = query("u", key=("a", "id"), keys=promise("a", "id"), chunkRows=1, parallelism=2)
    stream.open_window()
    database.execute(
        "update u set n = 100 where id = 3", "update u set id = 50 where id = 4", "delete from u where id = 5"
    )
    database.execute("insert into u values ('new', 60, 1, 'y')", "update u set a = 'moved' where id = 6")
    check(stream, database, "u")
    stream.restart()
    database.execute("update u set a = 'again', id = 70 where id = 60", "delete from u where id < 3")
    check(stream, database, "u")
    assert stream.engine._source.key(TableName(database.schema, "u")).startswith("promised a ")


@on_both
def test_two_rows_of_a_chunk_with_one_key_set_the_table_aside(table: AnyDatabase, query: MakeQuery) -> None:
    keyless(table)
    table.execute("insert into u values (1, 1, 'x'), (2, 2, 'first'), (2, 3, 'second'), (4, 4, 'x')")
    stream = followed(table, query)
    found = set_aside(stream, table)
    assert found["reason"] == "key"
    assert found["key"] == {"id": "2"}
    assert "first" in found["message"]
    assert "second" in found["message"]
    agree(stream, table, "t")
    assert state_of(stream) == {}, "no row of the chunk is delivered"
    table.execute("delete from u where n = 3")
    retry(stream, table)
    table.execute("update u set n = 7 where id = 2")
    agree(stream, table)


@on_both
def test_keys_that_the_database_finds_equal_are_one_key(table: AnyDatabase, query: MakeQuery) -> None:
    """They are two texts, but a target may compare like the source."""
    postgres = isinstance(table, OnPostgres)
    keyless(table, f"name {'numeric' if postgres else 'varchar(10) collate utf8mb4_general_ci'}, id int, n int")
    table.execute(
        "insert into u values (1.0, 1, 1), (1.00, 2, 2)"
        if postgres
        else "insert into u values ('a', 1, 1), ('A', 2, 2)"
    )
    found = set_aside(followed(table, query, "name"), table)
    assert found["reason"] == "key"


@on_both
@pytest.mark.parametrize("where", ["dump", "insert", "update", "before"])
def test_a_null_in_the_key_sets_the_table_aside(table: AnyDatabase, query: MakeQuery, where: str) -> None:
    keyless(table, "a int, id int, n int")
    table.execute("insert into u values (1, 1, 1), (2, 2, 2), (9, 9, 9)")
    if where in ("dump", "before"):
        table.execute("insert into u values (3, null, 3), (null, 4, 4)")
    stream = followed(table, query, "a", "id")
    if where == "before":  # the row gets its key while the dump runs
        while not stream.offsets:
            stream.step()
        table.execute("update u set id = 3 where n = 3", "update u set a = 4 where n = 4")
    elif where != "dump":
        agree(stream, table)
        table.execute("update u set n = 5 where id = 1")
        table.execute(
            "insert into u values (null, 7, 7)" if where == "insert" else "update u set a = null where id = 2"
        )
    found = set_aside(stream, table)
    assert found["reason"] == "key"
    assert "NULL in column" in found["message"]
    if where in ("insert", "update"):
        assert state_of(stream) == {1: 5, 2: 2, 9: 9}, "up to the transaction that has it"
    agree(stream, table, "t")
    table.execute("delete from u where a is null or id is null")
    retry(stream, table)


@on_both
def test_a_dump_on_request_finds_what_the_log_cannot_show(table: AnyDatabase, query: MakeQuery) -> None:
    """The limit of the check: two inserts of one key look like one row that was written again."""
    keyless(table)
    stream = followed(table, query)
    agree(stream, table)
    table.execute("insert into u values (1, 1, 'first')", "insert into u values (1, 2, 'second')")
    stream.until(lambda: state_of(stream) == {1: 2})
    assert not status(stream)["failed_tables"]
    Control(stream).ask("u")
    assert set_aside(stream, table)["reason"] == "key"


@on_both
def test_without_setting_aside_the_stream_stops(table: AnyDatabase, query: MakeQuery) -> None:
    keyless(table)
    table.execute("insert into u values (2, 2, 'first'), (2, 3, 'second')")
    stream = query("u", keys=promise("id"))
    with pytest.raises(KeyRefused, match=r"first.* and .*second"):
        stream.until(lambda: False, seconds=20)


@on_both
@pytest.mark.parametrize(
    ("change", "moment"),
    [
        ("a primary key is added", "running"),
        ("a primary key is added", "stopped"),
        ("the primary key is dropped", "running"),
        ("the primary key is dropped", "stopped"),
        ("another key is promised", "stopped"),
    ],
)
def test_another_kind_of_key_is_a_change_of_definition(
    table: AnyDatabase, query: MakeQuery, change: str, moment: str
) -> None:
    postgres = isinstance(table, OnPostgres)
    keyless(table, "a int not null, id int not null, n int")
    if change == "the primary key is dropped":
        table.execute("alter table u add constraint p primary key (id)")
    table.execute(f"insert into u select i, i, i from {table.series(1, 30)}")
    stream = followed(table, query)
    agree(stream, table)
    if moment == "stopped":
        stream.stop()
    if change == "a primary key is added":
        table.execute("alter table u add primary key (id)")
    elif change == "the primary key is dropped":
        table.execute(f"alter table u drop {'constraint p' if postgres else 'primary key'}")
    else:
        stream.given["keys"] = promise("id", "a")
    table.execute(
        "update u set n = 7 where id < 9", "update u set id = 99 where id = 20", "delete from u where id = 11"
    )
    agree(stream, table)
    table.execute("update u set n = 8 where id < 9")
    agree(stream, table)
    assert not status(stream)["failed_tables"]
    if postgres or change == "another key is promised":
        assert stream.history.count("truncate") == 1, "it is dumped again"


@on_mysql
def test_long_texts_are_ordered_beyond_what_the_server_sorts_by(database: AnyDatabase, query: MakeQuery) -> None:
    """Without an index the server sorts by the first kilobyte."""
    database.execute("create table u (id text, n int)")
    for n in (5, 1, 9, 3, 7, 2):
        database.execute(f"insert into u values (concat(repeat('x', 3000), {n}), {n})")
    stream = query("u", keys=promise("id"), chunkRows=2)
    check(stream, database, "u")


@on_newest
def test_the_statement_for_the_replica_identity_is_printed(database: OnPostgres, query: MakeQuery) -> None:
    database.execute("create table u (id int, n int)", "create table fit (id int primary key)")
    given = ("check", "--url", database.url, "--option", f"keys={promise('id')}")
    statement = 'ALTER TABLE "public"."u" REPLICA IDENTITY FULL;'
    assert statement in dblog(*given, "--tables", "public.*").stdout
    assert statement in dblog(*given, "--tables", "u", code=1).stdout
    with pytest.raises(PreconditionFailed, match="does not contain its promised key"):
        query("u", keys=promise("id")).catch_up()
    database.execute(statement)
    assert document(*given, "--tables", "public.*")["tables"] == ["public.fit", "public.u"]


@on_both
def test_a_promise_that_cannot_hold_is_refused(database: AnyDatabase) -> None:
    postgres = isinstance(database, OnPostgres)
    generated = "stored" if postgres else "virtual"
    keyless(database, f"id int, made int generated always as (id + 1) {generated}, odd point")
    database.execute("create table fit (id int primary key)")

    def problems(keys: str) -> str:
        found = document("check", "--url", database.url, "--tables", f"{database.schema}.*", "--option", f"keys={keys}")
        return "; ".join(problem["what"] for problem in found["problems"])

    assert "names the columns x, y, which it does not have" in problems(promise("id", "x", "y"))
    assert "'odd': its type has no order" in problems(promise("id", "odd"))
    assert "'made': it is " in problems(promise("made"))
    assert "(id) of " in (found := problems(json.dumps({"fit": ["id"], "u": ["id"]})))
    assert "is not used: it has the key (id)" in found
    assert "u' has no primary key" not in found
    for wrong in ('{"u": []}', '{"u": ["id", "id"]}', '{"u": "id"}', "id", '["id"]'):
        with pytest.raises(ConfigError, match="keys"):
            read_options({"url": database.url, "tables": "u", "keys": wrong})
