"""Dumps over keys of many types, one row a chunk: only the database knows how they are ordered and which are equal."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pymysql
import pytest

from tests.engine.conftest import MYSQL, POSTGRES, MakeQuery, check, on, on_mysql, rows_of
from tests.engine.control import Control
from tests.engine.writers import DEADLOCK
from tests.families import AnyDatabase, OnMySQL, OnPostgres

pytestmark = pytest.mark.server

INSENSITIVE = "create collation insensitive (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
ENUM = "create type mood as enum ('sad', 'ok', 'glad', 'a b', 'é');"
CITEXT, HSTORE = (f"create schema ext; create extension {name} schema ext;" for name in ("citext", "hstore"))
DOMAIN = "create domain percent as numeric(5, 2) check (value >= 0);"
# What is created first, the key's type, and keys in any order.
POSTGRES_KEYS = {
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
    "citext": (CITEXT, 'ext.citext collate "C"', ["'b'", "'A'", "'C'", "'d'", "'B2'", "'E'"]),
    "hstore": (HSTORE, "ext.hstore", ["'a=>1'", "''", "'b=>NULL'", "'a=>2'"]),
    "domain of an extension": (CITEXT + "create domain label as ext.citext;", "label", ["'b'", "'A'", "'C'", "'d'"]),
    "jsonb": ("", "jsonb", ["'1'", "'\"a\"'", "'{\"a\": 1}'", "'[]'"]),
}
# The same for MySQL and MariaDB.
CI, AI, BIN = (f"collate utf8mb4_{name}" for name in ("general_ci", "unicode_ci", "bin"))
MYSQL_KEYS = {
    "negative": ("int", ["-5", "0", "3", "-1", "7"]),
    "tinyint": ("tinyint", ["-128", "127", "0", "1"]),
    "bigint": ("bigint", ["-9223372036854775808", "9223372036854775807", "0", "-1", "1"]),
    "unsigned": ("bigint unsigned", ["18446744073709551615", "9223372036854775808", "9223372036854775807", "0", "1"]),
    "zerofill": ("int(6) unsigned zerofill", ["42", "4294967295", "0"]),
    "decimal(10,2)": ("decimal(10, 2)", ["1.10", "-1.10", "0", "99999999.99"]),
    "decimal(65,30)": ("decimal(65, 30)", ["1.1", f"-{'9' * 35}.{'9' * 30}", "0.000000000000000000000000000001", "3"]),
    "double": ("double", ["0.1", "1e-300", "-1e300", "0.30000000000000004", "0.3", "1e16", "-3"]),
    "float": ("float", ["0.1", "0.3", "16777216", "1e-30", "-3.3", "123456.7"]),
    "insensitive": (f"varchar(20) {CI}", ["'b'", "'A'", "'C'", "'d'", "'B2'", "'aa'"]),
    "accents": (f"varchar(20) {AI}", ["'Zebra'", "'Äpfel'", "'-a'", "'ß'", "'z'", "'É'", "'日本'"]),
    "bytes": (f"varchar(20) {BIN}", ["'b'", "'A'", "'a'", "'B'", "'é'", "'日本'", "'😀'", "''"]),
    "latin1": ("varchar(20) character set latin1", ["'é'", "'z'", "'å'", "'A'"]),
    "ucs2": ("varchar(20) character set ucs2", ["'é'", "'z'", "'日'", "'A'"]),
    "padded": (f"varchar(20) {CI}", ["'a'", "'b  '", "'a\\t'", "'a b'", "''", "'c\\0'"]),
    "char": (f"char(5) {AI}", ["'a'", "'b  '", "'ab'", "''"]),
    "quote": ("varchar(20)", ["'it''s'", "'a\"b'", "'%s'", "'{}'", "'{0}'", "'; drop table t'", "'\\\\'", "'`'"]),
    "varbinary": ("varbinary(9)", ["x'00'", "x'ff'", "''", "x'0001'", "x'5c27'"]),
    "binary": ("binary(4)", ["x'00'", "x'ff'", "x'61'", "x'00000001'"]),
    "blob": ("tinyblob", ["x'00'", "x'ff'", "''", "x'0001'"]),
    "date": ("date", ["'2024-01-01'", "'1000-01-01'", "'9999-12-31'"]),
    "datetime": (
        "datetime(6)",
        ["'2024-03-31 02:30:00.000001'", "'1800-01-01'", "'2024-10-27'", "'9999-12-31 23:59:59'"],
    ),
    "timestamp": ("timestamp(3)", ["'2024-03-31 01:30:00.001'", "'1970-01-02'", "'2024-10-27 02:30'"]),
    "time": ("time(6)", ["'00:00'", "'-838:59:59'", "'838:59:59'", "'12:30:00.000001'", "'-00:00:01'"]),
    "year": ("year", ["2024", "1901", "2155"]),
    "enum": (f"enum('sad', 'ok', 'glad', 'a b', 'é') {AI}", ["'glad'", "'sad'", "'ok'", "'a b'", "'é'"]),
    "set": ("set('x', 'a', 'b')", ["'a,b'", "'x'", "''", "'b'"]),
    "bit": ("bit(9)", ["b'1'", "b'111111111'", "b'0'", "b'100000000'"]),
    "prefix": (f"tinytext {CI}", ["'abcde'", "'abcdf'", "'b'", "'ABCDG'"]),
}
# Debian's is the one that has ICU.
on_icu = on(POSTGRES[-1:])


KEYS = {"primary": "primary key", "unique": "unique"}


def create_table(database: AnyDatabase, kind: str, name: str = "t", key: str = "primary") -> int:
    """A table whose primary or unique key is of a kind, with one row for each of its keys, numbered by `id`; how many
    there are."""
    if isinstance(database, OnPostgres):
        before, type_name, keys = POSTGRES_KEYS[kind]
    else:
        before, (type_name, keys) = "", MYSQL_KEYS[kind]
    prefix = "(5)" if kind in ("prefix", "blob") else ""
    create(
        database,
        f"{before} create table {name} (k {type_name} not null, id int unique, n int, {KEYS[key]} (k{prefix}))",
        f"insert into {name} values " + ", ".join(f"({key}, {number}, 0)" for number, key in enumerate(keys)),
    )
    if key == "unique" and isinstance(database, OnPostgres):
        database.execute(f"alter table {name} replica identity using index {name}_k_key")
    return len(keys)


def create(database: AnyDatabase, *statements: str) -> None:
    """Run the statements; a server that was built without ICU leaves the test out."""
    if any("icu" in s for s in statements) and not database.execute(
        "select 1 from pg_collation where collname = 'de-x-icu'"
    ):
        pytest.skip("this server was built without ICU")
    database.execute(*statements)


@on_icu
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", POSTGRES_KEYS)
def test_every_key_is_dumped_and_matched(database: OnPostgres, query: MakeQuery, kind: str, key: str) -> None:
    count = create_table(database, kind, key=key)
    stream = query(chunkRows=1, parallelism=count)
    stream.open_window()  # all of the table has been selected
    database.execute("update t set n = 1 where id = 0")
    database.execute(f"delete from t where id = {count - 1}")
    stream.catch_up()
    stream.history.check_order()
    mine = sorted((row["id"], row["n"]) for row in stream.history.state().values() if row["id"] is not None)
    assert mine == sorted((row["id"], row["n"]) for row in rows_of(database))
    assert [stream.history.count(op) for op in ("read", "update", "delete")] == [count - 2, 1, 1]


def create_tables(database: OnMySQL) -> tuple[dict[str, str], dict[str, int]]:
    """A table for each kind of key, and one more with a unique key: a prefix is no such key."""
    tables = {f"t{number}": kind for number, kind in enumerate(MYSQL_KEYS)}
    unique = {f"u{number}": kind for number, kind in enumerate(MYSQL_KEYS) if kind not in ("prefix", "blob")}
    counts = {name: create_table(database, kind, name) for name, kind in tables.items()}
    counts |= {name: create_table(database, kind, name, "unique") for name, kind in unique.items()}
    return {**tables, **unique}, counts


@on_mysql
def test_every_key_of_mysql_is_dumped_and_matched(database: OnMySQL, query: MakeQuery) -> None:
    tables, counts = create_tables(database)
    stream = query(tables=f"{database.schema}.*", key=("_table", "k"), chunkRows=1, parallelism=sum(counts.values()))
    stream.open_window()  # all of the tables have been selected
    for name, count in counts.items():
        database.execute(f"update {name} set n = 1 where id = 0", f"delete from {name} where id = {count - 1}")
    stream.catch_up()
    stream.history.check_order()
    for name, kind in tables.items():
        mine = sorted((row["id"], row["n"]) for key, row in stream.history.state().items() if key[0] == name)
        assert mine == sorted((row["id"], row["n"]) for row in rows_of(database, name)), kind
        ops = [e["_op"] for e in stream.history.events if e["_table"] == name]
        assert sorted(ops) == ["delete", *["read"] * (counts[name] - 2), "update"], kind


@on_mysql
def test_every_key_is_cut_and_matched_under_concurrent_writers(database: OnMySQL, query: MakeQuery) -> None:
    tables, counts = create_tables(database)
    stream = query(tables=f"{database.schema}.*", key=("_table", "k"), chunkRows=1, parallelism=8)
    with rewriting(database, counts):
        stream.dump()
    stream.catch_up()
    stream.history.check_order()
    mine = sorted((key[0], row["id"], row["n"]) for key, row in stream.history.state().items())
    assert mine == sorted((name, row["id"], row["n"]) for name in tables for row in rows_of(database, name))
    assert all(stream.history.count(op) for op in ("read", "create", "update", "delete"))


@contextmanager
def suppress_deadlock() -> Iterator[None]:
    try:
        yield
    except pymysql.err.OperationalError as error:
        if error.args[0] != DEADLOCK:
            raise


@contextmanager
def rewriting(database: OnMySQL, counts: dict[str, int]) -> Iterator[None]:
    """Rows of tables are updated, deleted and inserted again until the block ends."""
    stop = threading.Event()
    copies = database.sibling()
    database.execute(*(f"create table {copies}.{name} as select * from {name}" for name in counts))

    def write(seed: int) -> None:
        dice = random.Random(seed)
        session = database.connect()
        cursor = session.cursor()
        while not stop.wait(0.02):
            name = dice.choice(list(counts))
            one, n = dice.randrange(counts[name]), dice.randrange(1000)
            with suppress_deadlock():
                match dice.randrange(4):
                    case 0:
                        cursor.execute(f"delete from {name} where id = {one}")
                    case 1:
                        cursor.execute(
                            f"insert ignore into {name} select k, id, {n} from {copies}.{name} where id = {one}"
                        )
                    case _:
                        cursor.execute(f"update {name} set n = {n} where id = {one}")
        session.close()

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
        assert all(thread.is_alive() for thread in threads), "the writers stopped"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# How a key can be written, and how it can be written as well.
EQUAL = {
    "numeric": (POSTGRES[-1:], "", "numeric", "1.0", "1.00"),
    "float": (POSTGRES[-1:], "", "float8", "'0'", "'-0'"),
    "interval": (POSTGRES[-1:], "", "interval", "'1 day'", "'24 hours'"),
    "text": (POSTGRES[-1:], INSENSITIVE, "text collate insensitive", "'abc'", "'ABC'"),
    "case": (MYSQL, "", f"varchar(20) {CI}", "'abc'", "'ABC'"),
    "accent": (MYSQL, "", f"varchar(20) {AI}", "'Résumé'", "'resume'"),
    "padding": (MYSQL, "", f"varchar(20) {BIN}", "'a'", "'a  '"),
    "zero": (MYSQL, "", "double", "0e0", "-0e0"),
}
REWRITE = {
    "updated": ["update t set k = {k}, n = {n}"],
    "replaced": ["delete from t", "insert into t values ({k}, 1, {n})"],
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("rewrite", REWRITE)
@pytest.mark.parametrize(
    ("database", "how"), [(s, how) for how, (servers, *_) in EQUAL.items() for s in servers], indirect=["database"]
)
def test_a_key_rewritten_as_an_equal_one_leaves_one_row(
    database: AnyDatabase, query: MakeQuery, how: str, rewrite: str, key: str
) -> None:
    _, before, type_name, old, new = EQUAL[how]
    create(database, f"{before} create table t (k {type_name} not null, id int, n int, {KEYS[key]} (k))")
    if key == "unique" and isinstance(database, OnPostgres):
        database.execute("alter table t replica identity full")
    database.execute(f"insert into t values ({old}, 1, 0)")
    stream = query(key=("k",))
    stream.open_window()
    for n, spelled in enumerate((new, old), 1):  # inside the window, and when the dump is over
        database.execute(*(statement.format(k=spelled, n=n) for statement in REWRITE[rewrite]))
        stream.catch_up()
        assert [(row["id"], row["n"]) for row in stream.history.state().values()] == [(1, n)]
    assert stream.history.count("read") == 0


COMPOSITE = {
    "postgres": 'b text collate "de-x-icu" not null, a int not null, n int, c bool not null default true',
    "mysql": f"b varchar(20) {AI} not null, a bigint unsigned not null, n int, "
    "c enum('no', 'yes') not null default 'yes'",
}


@pytest.mark.parametrize("key", KEYS)
@on([*POSTGRES[-1:], *MYSQL])
def test_composite_keys_are_cut_between_any_two_rows(database: AnyDatabase, query: MakeQuery, key: str) -> None:
    postgres = isinstance(database, OnPostgres)
    columns = COMPOSITE["postgres" if postgres else "mysql"]
    create(database, f"create table t ({columns}, constraint u {KEYS[key]} (a, b, c))")
    if key == "unique" and postgres:
        database.execute("alter table t replica identity using index u")
    high = 3 if postgres else 2**64 - 1
    for a in (1, 2, high):
        for b in ("x", "Ä", "a" if postgres else "ab", "", "É''"):
            database.execute(f"insert into t (b, a, n) values ('{b}', {a}, 0)")
    stream = query(key=("a", "b", "c"), chunkRows=2, parallelism=3)
    stream.open_window()
    database.execute("update t set n = 1 where (a, b) = (1, 'x')", "delete from t where (a, b) = (1, '')")
    database.execute("update t set a = 9 where (a, b) = (2, 'x')", f"update t set n = 2 where (a, b) = ({high}, 'x')")
    check(stream, database)


@on(POSTGRES[:1])
def test_a_composite_key_with_an_extension_s_type_is_cut_in_its_own_order(
    database: OnPostgres, query: MakeQuery
) -> None:
    database.execute(CITEXT)
    database.execute(
        "create table t (n int, a ext.citext{0}, b int, c ext.citext{0}, primary key (b, a, c))".format(' collate "C"')
    )
    values = [(b, a, c) for b in (1, 2) for a in ("X", "a", "B", "c") for c in ("d", "e", "F")]
    for b, a, c in values:
        database.execute(f"insert into t values (0, '{a}', {b}, '{c}')")
    stream = query(key=("b", "a", "c"), chunkRows=2, parallelism=3)
    stream.open_window()
    database.execute(
        "update t set n = 1 where (b, a, c) = (1, 'X', 'd')", "update t set c = 'f' where c = 'F' and b = 2"
    )
    check(stream, database)


SPELLED = {
    "citext": (POSTGRES[:1], "ext.citext", ["Anna", "Bob"], ["ANNA", "bob", "eve"], ["eve"]),
    "loose": (POSTGRES[-1:], "text collate loose", ["Anna", "Bob"], ["ANNA", "bob", "eve"], ["eve"]),
    "case": (MYSQL[:1], f"varchar(20) {CI}", ["Anna", "Bob"], ["ANNA", "bob", "eve"], ["eve"]),
    "accent": (MYSQL, f"varchar(20) {AI}", ["Ännå", "Bøb"], ["anna", "bøb ", "eve"], ["eve"]),
    "exact": (MYSQL[:1], f"varchar(20) {BIN}", ["Anna", "Bob"], ["ANNA", "Bob", "eve"], ["ANNA", "eve"]),
}


@pytest.mark.parametrize(
    ("database", "how"), [(s, how) for how, (servers, *_) in SPELLED.items() for s in servers], indirect=["database"]
)
def test_a_key_in_another_spelling_is_found_where_the_collation_says_so(
    database: AnyDatabase, query: MakeQuery, how: str
) -> None:
    _, type_name, stored, asked, missing = SPELLED[how]
    if isinstance(database, OnPostgres):
        loose = "create collation loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        database.execute(CITEXT if how == "citext" else loose)
    database.execute(f"create table t (id {type_name} primary key, n int)")
    for name in stored:
        database.execute(f"insert into t values ('{name}', 1)")
    stream = query()
    stream.catch_up()
    control = Control(stream)
    dump = control.ask("t", keys=asked)
    done = control.finish(dump)
    found = [e["id"] for e in stream.history.events if e["_dump"] == dump]
    assert found == ([n for n in stored if n in asked] if how == "exact" else stored)
    assert done.progress.tables[f"{database.schema}.t"].missing == tuple((key,) for key in missing)
