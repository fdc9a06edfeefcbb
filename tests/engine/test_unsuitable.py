"""Tables that a pattern brings and that cannot be followed: they are left out, and keep out nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dblog.core.schema import TableName
from dblog.errors import PreconditionFailed
from dblog.sources.problems import NO_KEY
from tests.cli.program import dblog, document
from tests.engine.conftest import MakeQuery, on_families, on_postgres, rows_of
from tests.engine.query import Query
from tests.engine.test_new_tables import agree, follow, state_of, status
from tests.families import AnyDatabase, OnPostgres

pytestmark = pytest.mark.server

UNFIT = {
    "postgres": {
        "bare": ("create table bare (n int)", "has no primary key"),
        "dim": ("create unlogged table dim (id int primary key)", "is unlogged"),
        "parent": (
            "create table parent (id int primary key)",
            "has children by inheritance",
        ),
        "later": ("create table later (id int primary key deferrable)", "is deferrable"),
        "nothing": (
            "create table nothing (id int primary key); alter table nothing replica identity nothing",
            "the replica identity of",
        ),
        "far": (
            "create foreign data wrapper none; create server far foreign data wrapper none; "
            "create foreign table far (id int) server far",
            "is a foreign table",
        ),
        "seen": ("create view seen as select 1 as id", "is a view"),
        "kept": ("create materialized view kept as select 1 as id", "is a materialized view"),
        "taken": ("create table taken (id int primary key, _lsn int)", "has columns named _lsn"),
    },
    "mysql": {
        "bare": ("create table bare (n int)", "has no primary key"),
        "isam": ("create table isam (id int primary key) engine = MyISAM", "has the engine MyISAM"),
        "child": (
            "create table child (id int primary key, foreign key (id) references t (id) on delete cascade)",
            "foreign keys change rows of",
        ),
        "seen": ("create view seen as select 1 as id", "is a view"),
        "past": ("create table past (id int primary key) with system versioning", "is system-versioned"),
        "taken": ("create table taken (id int primary key, _lsn int)", "has columns named _lsn"),
    },
}


@pytest.fixture
def unfit(table: AnyDatabase) -> dict[str, str]:
    """The tables of the database that cannot be followed, and what is said of each."""
    cases = UNFIT["postgres" if isinstance(table, OnPostgres) else "mysql"]
    for create, _ in cases.values():
        table.execute(*create.split("; "))
    if "parent" in cases:
        table.execute("create table heir (id int primary key) inherits (parent)")
    return {f"{table.schema}.{name}": said for name, (_, said) in cases.items()}


def followed(table: AnyDatabase) -> list[str]:
    return [f"{table.schema}.{name}" for name in (("heir", "t") if isinstance(table, OnPostgres) else ("t",))]


def check(table: AnyDatabase, *arguments: str, tables: str = "", code: int = 0) -> Any:
    tables = tables or f"{table.schema}.*"
    return document("check", "--url", table.url, "--tables", tables, *arguments, code=code)


@on_families
def test_what_cannot_be_followed_does_not_keep_out_what_can(
    table: AnyDatabase, query: MakeQuery, unfit: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    found = check(table)
    assert found["ready"]
    assert (found["tables"], found["left_out"]) == (followed(table), sorted(unfit))
    for name, said in unfit.items():
        (problem,) = [p for p in found["problems"] if p["table"] == name]
        assert said in problem["what"]
        assert (problem["fatal"], problem["left_out"]) == (False, True)
    shown = dblog("check", "--url", table.url, "--tables", f"{table.schema}.*").stdout
    assert f"; {len(unfit)} left out" in shown.splitlines()[-1]
    assert shown.splitlines()[-1].startswith(f"ready: {len(followed(table))} table")

    stream = follow(table, query)
    stream.catch_up()
    assert status(stream)["left_out"].keys() == unfit.keys()
    assert all(said in status(stream)["left_out"][name] for name, said in unfit.items())
    assert sorted(status(stream)["tables"]) == followed(table)
    assert sum("not followed" in message for message in caplog.messages) == 1  # once, for all of them
    table.execute("update t set n = 7 where id = 7")
    agree(stream, table, "t")
    stream.restart()
    table.execute("update t set n = 8 where id = 8")
    agree(stream, table, "t")
    assert status(stream)["left_out"].keys() == unfit.keys()


@on_families
def test_a_table_that_was_left_out_at_the_start_joins_when_it_can(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute("create table u (id int not null, n int)", "insert into u values (1, 1)")
    stream = follow(table, query)
    stream.catch_up()
    assert list(status(stream)["left_out"]) == [f"{table.schema}.u"]
    assert not state_of(stream)
    table.execute("update u set n = 2", "alter table u add primary key (id)")
    agree(stream, table)
    assert not status(stream)["left_out"]


@on_families
def test_a_table_that_is_named_outright_is_refused(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute("create table bare (n int)")
    found = check(table, tables=f"{table.schema}.t, {table.schema}.bare", code=1)
    assert (found["ready"], found["left_out"]) == (False, [])
    with pytest.raises(PreconditionFailed, match=r"'.*bare' has no primary key"):
        query(tables=f"{table.schema}.*, {table.schema}.bare").catch_up()


@on_families
def test_the_start_can_be_refused_instead(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute("create table bare (n int)", "create table bare2 (n int)")
    assert not check(table, "--option", "unsuitable=refuse", code=1)["ready"]
    with pytest.raises(PreconditionFailed, match="2 problems") as caught:
        query(tables=f"{table.schema}.*", unsuitable="refuse").catch_up()
    assert f"2 tables: {NO_KEY}\n  {table.schema}.bare, " in str(caught.value)
    stream = query(tables=f"{table.schema}.*", unsuitable="refuse", key=("_table", "id"), heartbeatSeconds=1)
    table.execute("drop table bare", "drop table bare2")
    stream.catch_up()
    table.execute("create table bare (n int)")  # a running stream is not stopped by it
    stream.until(lambda: f"{table.schema}.bare" in status(stream)["left_out"])


@on_families
def test_a_pattern_that_brings_nothing_that_can_be_followed_is_refused(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute("create table bare (n int)", "create view seen as select 1 as id")
    with pytest.raises(PreconditionFailed, match="2 problems") as caught:
        query(tables=f"{table.schema}.bare*, {table.schema}.see?").catch_up()
    assert "has no primary key" in str(caught.value)
    assert "is a view" in str(caught.value)


@on_postgres
def test_nothing_is_asked_for_what_is_left_out(table: OnPostgres, query: MakeQuery, unfit: dict[str, str]) -> None:
    """The publication has only what is followed, and an administrator's script grants nothing on the rest."""
    sql = dblog("check", "--url", table.url, "--tables", "public.*", "--admin-sql").stdout.splitlines()
    needed = [line for line in sql if not line.startswith("-- ")]
    assert not re.search('"(bare|dim|parent|later|nothing|far|seen|kept|taken)"', "".join(needed))
    assert '-- ALTER TABLE "public"."dim" SET LOGGED;' in sql
    stream = follow(table, query)
    stream.catch_up()
    members = table.execute("select tablename from pg_publication_tables where schemaname = 'public' order by 1")
    assert [name for (name,) in members] == ["heir", "t"]


@on_families
def test_a_followed_table_that_becomes_unfit_still_ends_the_stream(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute("create table u (id int primary key, n int)")
    stream = follow(table, query)
    stream.catch_up()
    stream.stop()
    drop = "constraint u_pkey" if isinstance(table, OnPostgres) else "primary key"
    table.execute(f"alter table u drop {drop}")
    with pytest.raises(PreconditionFailed, match=r"'.*u' has no primary key"):
        stream.until(lambda: False, seconds=10)


@on_families
def test_the_check_of_a_pipeline_that_goes_on_names_what_is_left_out(
    table: AnyDatabase, tmp_path: Path, query: MakeQuery
) -> None:
    stream = follow(table, query)
    stream.catch_up()
    stream.stop()
    table.execute("create table bare (n int)")
    options = stream.reader._options
    known = [TableName(table.schema, "t")]
    with options.family.preflight(options.of_source, followed=known) as there:
        assert list(there.tables) == known
        assert [str(p.table) for p in there.problems() if p.left_out] == [f"{table.schema}.bare"]
        assert not [p for p in there.problems() if p.fatal]
    stream.restart()
    assert isinstance(stream, Query)
    assert rows_of(table)
