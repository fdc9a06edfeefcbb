"""Small tables of PostgreSQL, whose boundaries are read together."""

from __future__ import annotations

import pytest

from dblog.core.schema import TableName
from dblog.errors import TableLocked
from tests.engine.conftest import MakeQuery, on_postgres
from tests.engine.test_catch_up import source_of
from tests.families import OnPostgres

pytestmark = [pytest.mark.server, on_postgres]


def name(table: str) -> TableName:
    return TableName("public", table)


def test_the_boundaries_are_those_of_each_table_alone(database: OnPostgres) -> None:
    database.execute(
        "create table empty (id int primary key)",
        "create table few (id int primary key); insert into few select generate_series(1, 10)",
        "create table many (id int primary key); insert into many select generate_series(1, 11)",
        """create table "Odd ""name" (b text collate "C", a date, primary key (b, a));
           insert into "Odd ""name" values ('x''y', '2020-01-01'), ('z', '-infinity'), ('z', '2021-02-03')""",
        "create table parts (id int primary key) partition by range (id)",
        "create table low partition of parts for values from (0) to (5)",
        "create table high partition of parts for values from (5) to (100)",
        "insert into parts select generate_series(1, 8)",
        "create table base (id int primary key); insert into base values (1)",
        "create table child (primary key (id)) inherits (base); insert into child values (50)",
        "create table bare (id int)",
    )
    source = source_of(database)
    names = ["empty", "few", "many", 'Odd "name', "parts", "base", "bare", "absent"]
    found = source.small([name(n) for n in names], 10)
    assert set(found) == {name(n) for n in ("empty", "few", 'Odd "name', "parts", "base")}
    assert found == {table: (source.key(table), source.last_key(table)) for table in found}
    assert found[name("base")][1] == ("1",), "without the rows of tables that inherit from it"
    assert found[name("parts")][1] == ("8",)


def test_a_locked_table_is_told(database: OnPostgres) -> None:
    database.execute("create table a (id int primary key); create table b (id int primary key)")
    source = source_of(database)
    locking = database.connect(autocommit=False)
    locking.cursor().execute("lock table b in access exclusive mode")
    with pytest.raises(TableLocked):
        source.small([name("a"), name("b")], 10)
    locking.close()
    assert len(source.small([name("a"), name("b")], 10)) == 2


def test_a_table_that_is_dropped_in_between_is_looked_at_alone(
    database: OnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table a (id int primary key); create table b (id int primary key)")
    source = source_of(database)
    real = source._read_tables

    def dropped(session: object, names: object) -> object:
        found = real(session, names)  # type: ignore[arg-type]
        database.execute("drop table b")
        return found

    monkeypatch.setattr(type(source), "_read_tables", lambda self, *given: dropped(*given))
    assert source.small([name("a"), name("b")], 10) == {}


def test_many_small_tables_are_dumped_whole(database: OnPostgres, query: MakeQuery) -> None:
    for n in range(120):
        database.execute(
            f"create table t{n} (id int primary key, n int)",
            f"insert into t{n} select i, {n} from generate_series(1, {n % 4}) i",
        )
    stream = query(tables="public.*", key=("_table", "id"))
    stream.dump()
    assert stream.history.state() == {(f"t{n}", i): {"id": i, "n": n} for n in range(120) for i in range(1, n % 4 + 1)}
