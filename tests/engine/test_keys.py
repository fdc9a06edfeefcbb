"""Dumps over keys of many types, one row a chunk: only the database knows how they are ordered and which are equal."""

from __future__ import annotations

import pytest

from tests.conftest import SERVERS, Database
from tests.engine.conftest import MakeQuery, check, rows_of
from tests.engine.control import Control

# The last of the servers, Debian's where it is installed, is the one that has ICU.
pytestmark = [pytest.mark.server, pytest.mark.parametrize("postgres", SERVERS[-1:], indirect=True)]

INSENSITIVE = "create collation insensitive (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
ENUM = "create type mood as enum ('sad', 'ok', 'glad', 'a b', 'é');"
DOMAIN = "create domain percent as numeric(5, 2) check (value >= 0);"
# What is created first, the key's type, and keys in any order.
KEYS = {
    "negative": ("", "int", ["-5", "0", "3", "-1", "7"]),
    "smallint": ("", "smallint", ["-32768", "32767", "0", "1"]),
    "bigint": ("", "bigint", ["-9223372036854775808", "9223372036854775807", "0", "-1", "1"]),
    "numeric": ("", "numeric", ["1.0", "-1e20", "1e-20", "0", "12345678901234567890123456789012345678901234567890.5"]),
    "numeric special": ("", "numeric", ["'NaN'", "'Infinity'", "'-Infinity'", "0", "1"]),
    "numeric(10,2)": ("", "numeric(10, 2)", ["1.10", "-1.10", "0", "99999999.99"]),
    "domain": (DOMAIN, "percent", ["1.10", "100", "0", "99.99"]),
    "float": ("", "float8", ["0.1", "'NaN'", "'-0.0'", "'Infinity'", "'-Infinity'", "1e-300", "3"]),
    "real": ("", "float4", ["0.1", "'NaN'", "'-0.0'", "'Infinity'", "1e-30", "3"]),
    "text": ("", "text", ["'a'", "'B'", "''", "' '", "'é'", "'aa'", "'a b'", "E'a\\tb\\n'", "'日本'", "E'\\\\'"]),
    "german": ("", 'text collate "de-x-icu"', ["'Zebra'", "'Äpfel'", "'apfel'", "'Apfel'", "'-a'", "'a'", "'ß'"]),
    "insensitive": (INSENSITIVE, "text collate insensitive", ["'b'", "'A'", "'C'", "'d'", "'B2'"]),
    "posix": ("", 'text collate "C"', ["'b'", "'A'", "'a'", "'B'", "'é'"]),
    "char": ("", "char(5)", ["'a'", "'b  '", "'ab'", "''"]),
    "quote": ("", "varchar(20)", ["'it''s'", "'a\"b'", "'%s'", "'{}'", "'{0}'", "'; drop table t'"]),
    "uuid": ("", "uuid", [f"'{i:08x}-0000-4000-8000-00000000000{i}'" for i in (5, 1, 9, 0)]),
    "timestamptz": ("", "timestamptz", ["'2024-03-31 02:30+01'", "'1969-12-31 23:59:59.999999Z'", "'2024-10-27'"]),
    "timestamp": ("", "timestamp", ["'2024-03-31 02:30:00.000001'", "'1800-01-01'", "'2024-10-27'"]),
    "infinite": ("", "date", ["'2024-01-01'", "'1500-01-01'", "'9999-12-31'"]),
    "time": ("", "time", ["'00:00'", "'23:59:59.999999'", "'12:30'"]),
    "enum": (ENUM, "mood", ["'glad'", "'sad'", "'ok'", "'a b'", "'é'"]),
    "bool": ("", "bool", ["true", "false"]),
    "bytea": ("", "bytea", ["'\\x00'", "'\\xff'", "''", "'\\x0001'", "'\\x5c'"]),
    "inet": ("", "inet", ["'10.0.0.1'", "'10.0.0.0/8'", "'::1'", "'192.168.1.1/24'"]),
    "interval": ("", "interval", ["'1 day'", "'1 month'", "'-3 hours'", "'0'"]),
    "array": ("", "int[]", ["'{1,2}'", "'{}'", "'{NULL,1}'", "'{9}'"]),
    "jsonb": ("", "jsonb", ["'1'", "'\"a\"'", "'{\"a\": 1}'", "'[]'"]),
}


def create(database: Database, *statements: str) -> None:
    """Run the statements; a server that was built without ICU leaves the test out."""
    if any("icu" in s for s in statements) and not database.execute(
        "select 1 from pg_collation where collname = 'de-x-icu'"
    ):
        pytest.skip("this server was built without ICU")
    for statement in statements:
        database.execute(statement)


@pytest.mark.parametrize("kind", KEYS)
def test_every_key_is_dumped_and_matched(database: Database, query: MakeQuery, kind: str) -> None:
    before, type_name, keys = KEYS[kind]
    create(database, f"{before} create table t (k {type_name} primary key, id text unique, n int)")
    for key in keys:
        database.execute(f"insert into t values ({key}, '{key.replace(chr(39), chr(39) * 2)}', 0)")
    stream = query(chunkRows=1, parallelism=len(keys))
    stream.open_window()  # all of the table has been selected
    database.execute("update t set n = 1 where id in (select min(id) from t)")
    database.execute("delete from t where id in (select max(id) from t)")
    stream.catch_up()
    stream.history.check_order()
    mine = sorted((row["id"], row["n"]) for row in stream.history.state().values() if row["id"] is not None)
    assert mine == sorted((row["id"], row["n"]) for row in rows_of(database))
    assert sorted(stream.history.count(op) for op in ("read", "update", "delete")) == sorted([len(keys) - 2, 1, 1])


@pytest.mark.parametrize(
    ("before", "type_name", "old", "new"),
    [
        ("", "numeric", "1.0", "1.00"),
        ("", "float8", "'0'", "'-0'"),
        ("", "interval", "'1 day'", "'24 hours'"),
        (INSENSITIVE, "text collate insensitive", "'abc'", "'ABC'"),
    ],
    ids=["numeric", "float", "interval", "text"],
)
def test_a_key_rewritten_as_an_equal_one_inside_the_window_leaves_one_row(
    database: Database, query: MakeQuery, before: str, type_name: str, old: str, new: str
) -> None:
    create(database, f"{before} create table t (k {type_name} primary key, id int, n int)")
    database.execute(f"insert into t values ({old}, 1, 0)")
    stream = query(key=("k",))
    stream.open_window()
    database.execute(f"update t set k = {new}, n = 1")
    stream.catch_up()
    assert [(row["id"], row["n"]) for row in stream.history.state().values()] == [(1, 1)]
    assert stream.history.count("read") == 0


def test_composite_keys_are_cut_between_any_two_rows(database: Database, query: MakeQuery) -> None:
    create(
        database,
        'create table t (b text collate "de-x-icu", a int, n int, c bool default true, primary key (a, b, c));'
        "insert into t select s, i, 0 from generate_series(1, 3) i, unnest(array['x', 'Ä', 'a', '', 'É''']) s",
    )
    stream = query(key=("a", "b", "c"), chunkRows=2, parallelism=3)
    stream.open_window()
    database.execute("update t set n = 1 where (a, b) = (1, 'x'); delete from t where (a, b) = (1, 'a')")
    database.execute("update t set a = 9 where (a, b) = (2, 'x')")
    check(stream, database)


def test_a_key_in_another_spelling_is_found_where_the_collation_says_so(database: Database, query: MakeQuery) -> None:
    database.execute("create collation loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    database.execute("create table t (id text collate loose primary key, n int)")
    database.execute("insert into t values ('Anna', 1), ('Bob', 2)")
    stream = query()
    stream.catch_up()
    control = Control(stream)
    dump = control.ask("t", keys=["ANNA", "bob", "eve"])
    done = control.finish(dump)
    assert [e["id"] for e in stream.history.events if e["_dump"] == dump] == ["Anna", "Bob"]
    assert done.progress.tables["public.t"].missing == (("eve",),)
