"""Tables without a primary key, whose key is a unique index: which index it is, and what happens when it changes."""

from __future__ import annotations

from typing import Any

import pytest

from dblog.core.schema import TableName
from dblog.errors import PreconditionFailed
from tests.cli.program import dblog, document
from tests.engine.conftest import MYSQL, POSTGRES, MakeQuery, check, on, on_mysql
from tests.engine.query import Query
from tests.families import AnyDatabase, OnMySQL, OnPostgres

pytestmark = pytest.mark.server

on_newest = on(POSTGRES[-1:])
on_postgres_and_mysql = on([*POSTGRES[-1:], *MYSQL])

# Columns and indexes of a table without a primary key, and its key.
POSTGRES_CHOICE: dict[str, tuple[str, list[str]]] = {
    "one": ("unique (a)", ["a"]),
    "of the columns that come first": ("unique (b), unique (a, c), unique (a, b)", ["a", "b"]),
    "the replica identity": ("unique (a), constraint identity unique (c, b)", ["c", "b"]),
    "not of nullable columns": ("unique (x), unique (b, x)", []),
    "not a partial one": ("; create unique index on {t} (a) where b > 0; create unique index on {t} (b)", ["b"]),
    "not of expressions": ("; create unique index on {t} ((a + 1)); create unique index on {t} (b, (c + 1))", []),
    "not a deferrable one": ("unique (a) deferrable, unique (b)", ["b"]),
    "only the columns of the key itself": ("unique (b) include (a)", ["b"]),
    "not with another comparison": (
        '; create unique index on {t} (d collate "POSIX"); create unique index on {t} (d text_pattern_ops)',
        [],
    ),
    "not of generated columns": ("g int generated always as (a + 1) stored not null, unique (g)", []),
    "not an exclusion": ("exclude using btree (a with =), unique (c)", ["c"]),
    "not a plain index": ("; create index on {t} (a)", []),
}
MYSQL_CHOICE: dict[str, tuple[str, list[str]]] = {
    "one": ("unique (a)", ["a"]),
    "the first that is defined": ("unique (b), unique (a, c), unique (a)", ["b"]),
    "not of nullable columns": ("unique (x), unique (b, x), unique (b)", ["b"]),
    "not of prefixes": ("unique (d(5)), unique (b)", ["b"]),
    "only prefixes": ("unique (d(5), a)", []),
    "in the order of the index": ("unique (c, a)", ["c", "a"]),
    "descending": ("unique (a desc)", ["a"]),
    "not of virtual columns": ("g int as (a + 1) virtual, unique (g), unique (c)", ["c"]),
    "not a plain index": ("index (a)", []),
}


def create(database: AnyDatabase, indexes: str, name: str = "t") -> None:
    columns, _, after = indexes.partition(";")
    kinds = "a int not null, b int not null, c int not null, d varchar(20) not null, x int"
    inside = ", ".join(part for part in (kinds, columns) if part)
    database.execute(f"create table {name} ({inside})", *filter(None, after.format(t=name).split(";")))


def key_of(database: AnyDatabase, name: str = "t") -> list[str]:
    """The key that a stream of the database would use."""
    source = Query(database.url, "/nowhere", tables=f"{database.schema}.*").reader._options.source
    return list(source.describe([TableName(database.schema, name)])[TableName(database.schema, name)].key)


@on_newest
@pytest.mark.parametrize("case", POSTGRES_CHOICE)
def test_the_key_is_a_unique_index_that_holds_at_every_moment(
    database: OnPostgres, query: MakeQuery, case: str
) -> None:
    indexes, key = POSTGRES_CHOICE[case]
    create(database, indexes)
    identity = "using index identity" if "identity" in indexes else "full"
    database.execute(f"alter table t replica identity {identity}")
    database.execute("create table fit (id int primary key)", "insert into t (a, b, c, d, x) values (1, 2, 3, 'd', 4)")
    assert key_of(database) == key
    found = document("check", "--url", database.url, "--tables", "public.*")
    assert found["tables"] == (["public.fit", "public.t"] if key else ["public.fit"])
    if key:
        stream = query("t", key=tuple(key))
        stream.open_window()
        database.execute("update t set x = 5", "insert into t (a, b, c, d) values (7, 7, 7, 'e')")
        database.execute("update t set a = 8, b = 8, c = 8 where a = 7")
        check(stream, database)
        database.execute("delete from t where a = 8")
        check(stream, database)


@on_mysql
def test_the_key_is_the_one_that_the_server_takes(database: OnMySQL, query: MakeQuery) -> None:
    """The log names it, and the catalog must agree: one stream of all tables."""
    mariadb = database.server.family.name == "mariadb"
    cases = {f"t{n}": case for n, case in enumerate(MYSQL_CHOICE.items())}
    if mariadb:
        cases["hashed"] = ("not a hash of long columns", ("e text not null, unique (e), unique (c)", ["c"]))
    else:
        cases["made"] = ("not of expressions", ("unique ((a + 1)), unique (c)", ["c"]))
        virtual = "g int as (a + 1) virtual not null, unique (g)"
        cases["virtual_one"] = ("not of virtual columns", (virtual, []))
        cases["stored_one"] = ("stored", ("g int as (a + 1) stored not null, unique (g)", ["g"]))
    for name, (_, (indexes, _)) in cases.items():
        create(database, indexes, name)
        extra = ", e" if "e text" in indexes else ""
        value = ", 'e'" if extra else ""
        database.execute(f"insert into {name} (a, b, c, d, x{extra}) values (1, 2, 3, 'd', 4{value})")
    fit = {name: key for name, (_, (_, key)) in cases.items() if key}
    for name, (case, (_, key)) in cases.items():
        assert key_of(database, name) == key, case
    stream = query(tables=f"{database.schema}.*", key=("_table", "a"))
    stream.catch_up()
    left_out = stream.engine._planner.status()["left_out"]
    assert sorted(left_out) == sorted(f"{database.schema}.{name}" for name in cases if name not in fit)
    for name in fit:
        database.execute(f"update {name} set x = 5", f"update {name} set a = 8, b = 8, c = 8")
    stream.catch_up()
    for name, key in fit.items():
        mine = [e for e in stream.history.events if e["_table"] == name]
        assert [e["_op"] for e in mine][:2] == ["read", "update"], name
        moved = [e["_op"] for e in mine][2:]
        assert moved == (["update"] if key == ["d"] else ["delete", "create"]), name
        assert (mine[-1]["a"], mine[-1]["x"]) == (8, 5), name


@on_mysql
def test_a_log_without_names_has_the_same_key(database: OnMySQL, query: MakeQuery) -> None:
    create(database, "unique (c, b), unique (a)")
    database.execute("set global binlog_row_metadata = MINIMAL")
    try:
        stream = query("t", key=("c", "b"))
        stream.catch_up()
        database.execute("insert into t (a, b, c, d) values (1, 2, 3, 'd')", "update t set b = 5")
        check(stream, database)
        assert stream.history.ops((3, 2)) == ["create", "delete"] or stream.history.count("delete") == 1
    finally:
        database.execute("set global binlog_row_metadata = FULL")


@on_newest
def test_the_statement_that_makes_an_index_the_replica_identity_is_printed(
    database: OnPostgres, query: MakeQuery
) -> None:
    database.execute('create table t (id int not null, n int); create unique index "odd name" on t (id)')
    database.execute("create table fit (id int primary key)")
    shown = dblog("check", "--url", database.url, "--tables", "public.*").stdout
    assert "left out: the replica identity of 'public.t' does not contain its unique key" in shown
    statement = 'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "odd name";'
    assert statement in shown
    named = ("check", "--url", database.url, "--tables", "t")
    assert statement in dblog(*named, "--admin-sql").stdout
    assert "not ready: 1 to fix first" in dblog(*named, code=1).stdout
    with pytest.raises(PreconditionFailed, match="does not contain its unique key"):
        query("t").catch_up()
    database.execute(statement)
    assert document(*named)["ready"]
    stream = query("t", slot="again")
    stream.catch_up()
    database.execute("insert into t values (1, 1)", "update t set id = 2", "insert into t values (1, 3)")
    check(stream, database)


# What changes the key of a table with the columns id, m and n, and the new key; it was the unique index u (id, m). All
# keys have the column id, by which the test knows rows.
CHANGES: dict[str, tuple[str, ...]] = {
    "a primary key is added": ("alter table t add primary key (id)", "id"),
    "the index is dropped": ("alter table t drop {index} u, add unique (id)", "id"),
}


def followed(database: AnyDatabase, query: MakeQuery) -> Query:
    database.execute("create table t (id int not null, m int not null, n int, constraint u unique (id, m))")
    if isinstance(database, OnPostgres):
        database.execute("alter table t replica identity full")
    database.execute(f"insert into t select i, 100 - i, 0 from {database.series(1, 60)}")
    return query(tables=f"{database.schema}.t", key=("id",), heartbeatSeconds=1)


def agree(stream: Query, database: AnyDatabase) -> None:
    stream.catch_up()

    def equal() -> bool:
        rows = sorted((r["id"], r["m"], r["n"]) for r in database.rows("t"))
        return sorted((r["id"], r["m"], r["n"]) for r in stream.history.state().values()) == rows

    stream.until(equal, seconds=12)


def rewrite(database: AnyDatabase, n: int) -> None:
    database.execute(
        f"update t set n = {n} where id < 20",
        "delete from t where id = 25",
        f"insert into t values ({1000 + n}, {n}, 1)",
    )
    database.execute(f"update t set id = {2000 + n}, m = {3000 + n} where id = {30 + n}")


@on_postgres_and_mysql
@pytest.mark.parametrize("moment", ["followed", "window", "stopped"])
@pytest.mark.parametrize("what", CHANGES)
def test_another_key_is_a_change_of_the_definition(
    database: AnyDatabase, query: MakeQuery, what: str, moment: str
) -> None:
    sql, key = CHANGES[what]
    stream = followed(database, query)
    stream.open_window() if moment == "window" else stream.catch_up()
    rewrite(database, 1)
    if moment == "stopped":
        stream.catch_up()
        stream.stop()
    database.execute(sql.format(index="constraint" if isinstance(database, OnPostgres) else "index"))
    rewrite(database, 2)
    agree(stream, database)
    rewrite(database, 3)
    agree(stream, database)
    assert key_of(database) == [key]
    if isinstance(database, OnPostgres):  # as when a primary key is another one
        assert stream.history.count("truncate") == 1


@on_postgres_and_mysql
def test_a_primary_key_may_give_way_to_a_unique_key(database: AnyDatabase, query: MakeQuery) -> None:
    database.execute(
        "create table t (id int not null, m int not null, n int, constraint p primary key (id), unique (id, m))"
    )
    postgres = isinstance(database, OnPostgres)
    if postgres:
        database.execute("alter table t replica identity full")
    database.execute(f"insert into t select i, 100 - i, 0 from {database.series(1, 60)}")
    stream = query(tables=f"{database.schema}.t", key=("id",), heartbeatSeconds=1)
    stream.catch_up()
    database.execute(f"alter table t drop {'constraint p' if postgres else 'primary key'}")
    rewrite(database, 1)
    agree(stream, database)
    assert key_of(database) == ["id", "m"]


@on_postgres_and_mysql
def test_a_table_that_loses_its_only_key_stops_the_stream(database: AnyDatabase, query: MakeQuery) -> None:
    stream = followed(database, query)
    stream.catch_up()
    database.execute(f"alter table t drop {'constraint' if isinstance(database, OnPostgres) else 'index'} u")
    database.execute("update t set n = 5 where id = 5")
    with pytest.raises(PreconditionFailed, match="no primary key"):
        stream.until(lambda: False, seconds=20)


@on_newest
def test_a_primary_key_outside_the_replica_identity_stops_the_stream(database: OnPostgres, query: MakeQuery) -> None:
    stream = followed(database, query)
    database.execute("alter table t replica identity using index u")
    stream.catch_up()
    database.execute("alter table t add more serial primary key", "update t set n = 5 where id = 5")
    with pytest.raises(PreconditionFailed, match="does not contain its primary key") as caught:
        stream.until(lambda: False, seconds=20)
    assert "REPLICA IDENTITY DEFAULT" in str(caught.value)


@on([*POSTGRES[-1:], *MYSQL[:1]])
def test_people_ask_for_rows_by_a_unique_key(database: AnyDatabase, query: MakeQuery) -> None:
    stream = followed(database, query)
    stream.catch_up()
    source: Any = stream.engine._source
    name = TableName(database.schema, "t")
    assert source.missing(name, [("50", "50"), ("50", "51")]) == [("50", "51")]
    assert source.last_key(name) == ("60", "40")
    assert source.key(name).startswith("id ")
