"""Foreign keys that act without a record in the log: the target of the sink `sql` ends as the source is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql.err
import pytest

from dblog.core.names import parse_patterns
from dblog.errors import ConfigError, PreconditionFailed
from dblog.sinks.route import Route
from dblog.sinks.sql.sink import SqlSink
from tests.conftest import SERVERS
from tests.engine.conftest import on
from tests.engine.sink_query import SinkQuery, sql_sink
from tests.families import AnyDatabase, OnMySQL, OnPostgres

pytestmark = pytest.mark.server

on_mariadb = on(["mariadb"])
on_both = on(["mariadb", "mysql"])


class Mirror:
    """A query whose sink writes to another database, and what both have."""

    def __init__(self, database: OnMySQL, target: Any, sink: SqlSink, spool: Path, **options: Any) -> None:
        self.database = database
        self.target = target
        options = {"tables": f"{database.name}.*", "cascades": "follow", **options}
        self.query = SinkQuery(database.url, str(spool), sink, **options)

    def agree(self) -> None:
        """Catch up, and compare all followed tables."""
        self.query.catch_up()
        for table in self.tables():
            assert self.target.rows_of(table) == self.target.as_target(self.database, table), table

    def tables(self) -> list[str]:
        found = self.query.reader._options.source.tables()
        return [name.name for name in found]


class InMySQL:
    """The target's tables, in another database of the source's server."""

    def __init__(self, database: OnMySQL) -> None:
        self.schema = f"{database.name}_copy"
        self._database = database

    def settings(self) -> dict[str, Any]:
        return {"url": self._database.url, "schema": self.schema, "records": f"{self._database.name}_records"}

    def drop(self) -> None:
        self._database.server_execute(f"drop database if exists {self.schema}")
        self._database.server_execute(f"drop database if exists {self._database.name}_records")

    def rows_of(self, table: str, where: str = "") -> list[tuple[Any, ...]]:
        names = ", ".join(_columns(self._database, table))
        return sorted(self._database.execute(f"select {names} from {self.schema}.{table} {where}"), key=repr)

    def as_target(self, database: OnMySQL, table: str) -> list[tuple[Any, ...]]:
        names = ", ".join(_columns(database, table))
        return sorted(database.execute(f"select {names} from {table}"), key=repr)


class InPostgres(InMySQL):
    """The target's tables, in a database of PostgreSQL."""

    def __init__(self, database: OnMySQL, home: OnPostgres) -> None:
        super().__init__(database)
        self.home = home

    def settings(self) -> dict[str, Any]:
        return {"url": self.home.url, "schema": self.schema}

    def drop(self) -> None:
        self.home.drop()

    def rows_of(self, table: str, where: str = "") -> list[tuple[Any, ...]]:
        names = ", ".join(_columns(self._database, table))
        rows = self.home.execute(f"select {names} from {self.schema}.{table} {where}")
        return sorted((tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in rows), key=repr)


def _columns(database: OnMySQL, table: str) -> list[str]:
    where = f"table_schema = '{database.name}' and table_name = '{table}'"
    rows = database.execute(f"select column_name from information_schema.columns where {where} order by 1")
    return [name for (name,) in rows]


@pytest.fixture(params=["same", "postgres"])
def target(request: pytest.FixtureRequest, database: OnMySQL) -> Iterator[InMySQL]:
    if request.param == "same":
        made = InMySQL(database)
    else:
        home = OnPostgres(request.getfixturevalue("servers")[SERVERS[0]].start(), database.name)
        home.create()
        made = InPostgres(database, home)
    yield made
    made.drop()  # before the source: its children may refer to it


in_mysql = pytest.mark.parametrize("target", ["same"], indirect=True)

MakeMirror = Callable[..., Mirror]


@pytest.fixture
def mirror(database: OnMySQL, target: InMySQL, tmp_path: Path) -> Iterator[MakeMirror]:
    made: list[Mirror] = []

    def make(*, deletes: str = "hard", **options: Any) -> Mirror:
        sink = sql_sink(tmp_path, **target.settings(), deletes=deletes)
        options = {"serverId": 7001 + len(made), **options}
        made.append(Mirror(database, target, sink, tmp_path / f"spool{len(made)}", **options))
        return made[-1]

    yield make
    for one in made:
        one.query.stop()


def tables(database: AnyDatabase) -> None:
    """A parent, a child of each rule, children of a child, and what all of them have at first."""
    database.execute(
        "create table p (id int primary key, code int unique, n int)",
        "create table c (id int primary key, p_id int, n int, key (p_id),"
        " foreign key (p_id) references p (id) on delete cascade on update cascade)",
        "create table sn (id int primary key, p_id int, n int,"
        " foreign key (p_id) references p (id) on delete set null on update set null)",
        "create table g (id int primary key, c_id int, n int,"
        " foreign key (c_id) references c (id) on delete cascade on update cascade)",
        "create table gs (id int primary key, c_id int, foreign key (c_id) references c (id) on delete set null)",
        "insert into p select i, i + 1000, 0 from " + database.series(1, 20),
        "insert into c select i, i % 20 + 1, 0 from " + database.series(1, 60),
        "insert into sn select i, i % 20 + 1, 0 from " + database.series(1, 40),
        "insert into g select i, i % 60 + 1, 0 from " + database.series(1, 120),
        "insert into gs select i, i % 60 + 1 from " + database.series(1, 120),
    )


@on_both
def test_the_children_of_a_changed_parent_change_in_the_target(database: OnMySQL, mirror: MakeMirror) -> None:
    tables(database)
    copy = mirror()
    copy.agree()
    database.execute("delete from p where id = 3")
    copy.agree()
    database.execute("update p set id = 100 where id = 4")
    copy.agree()
    database.execute("delete from p where id > 10", "update p set id = id + 200 where id < 3")
    copy.agree()


CHAIN = [f"create table t{n} (id int primary key, up int, foreign key (up) references t{n - 1} (id) on delete cascade)"
         for n in range(1, 15)]  # fmt: skip

HISTORIES: dict[str, tuple[list[str], list[list[str]]]] = {
    "composite keys": (
        [
            "create table p (a int, b smallint unsigned, n int, primary key (a, b))",
            "create table c (id int primary key, x smallint unsigned, y int, foreign key (y, x) references p (a, b)"
            " on delete cascade on update cascade)",
            "insert into p select i % 5, i, 0 from {series}",
            "insert into c select i, i, i % 5 from {series}",
            "insert into c values (100, null, 1), (101, 7, null)",
        ],
        [
            ["delete from p where b = 3", "update p set a = a + 10 where b > 7", "update p set n = 1"],
            ["update p set b = 60000 where b = 1", "delete from p where a = 14"],
        ],
    ),
    "a foreign key in the child's key": (
        [
            "create table p (id int primary key)",
            "create table c (p_id int, line int, n int, primary key (p_id, line),"
            " foreign key (p_id) references p (id) on delete cascade on update cascade)",
            "create table g (id int primary key, p_id int, line int,"
            " foreign key (p_id, line) references c (p_id, line) on delete set null on update cascade)",
            "insert into p select i from {series}",
            "insert into c select i, 1, 0 from {series}",
            "insert into c select i, 2, 0 from {series}",
            "insert into g select i, i, i % 2 + 1 from {series}",
        ],
        [
            ["update p set id = 51 where id = 1", "delete from p where id = 2"],
            [
                "begin",
                "update p set id = 53 where id = 3",
                "delete from c where p_id = 53 and line = 1",
                "update c set n = 9 where p_id = 53 and line = 2",
                "insert into c values (53, 3, 1)",
                "update p set id = 3 where id = 53",
                "update c set n = 10 where p_id = 3 and line = 2",
                "commit",
            ],
            ["update p set id = id + 1 order by id desc", "update p set id = id - 1 order by id"],
            [
                "begin",
                "update p set id = 60 where id = 5",
                "insert into p values (5)",
                "insert into c values (5, 1, 7)",
                "update p set id = 61 where id = 5",
                "delete from p where id = 60",
                "commit",
            ],
        ],
    ),
    "several foreign keys to one parent": (
        [
            "create table p (id int primary key, code int not null unique)",
            "create table c (id int primary key, one int, two int, three int,"
            " foreign key (one) references p (id) on delete set null on update cascade,"
            " foreign key (two) references p (id) on delete set null on update set null,"
            " foreign key (three) references p (code) on delete cascade on update cascade)",
            "insert into p select i, i + 1000 from {series}",
            "insert into c select i, i % 7 + 1, i % 11 + 1, null from {series}",
            "insert into c select i + 100, i, i, i + 1000 from {series}",
        ],
        [
            ["delete from p where id in (1, 2, 3)"],
            ["update p set id = id + 100, code = code + 100 where id in (5, 6)", "delete from p where id in (7, 105)"],
            [
                "begin",
                "update c set one = 8 where id < 5",
                "delete from p where id = 8",
                "update c set one = 9",
                "commit",
            ],
        ],
    ),
    "a table that refers to itself": (
        [
            "create table c (id int primary key, up int, n int, foreign key (up) references c (id) on delete cascade)",
            "insert into c values (0, null, 0)",
            "insert into c select i, i div 2, 0 from {series}",
        ],
        [
            ["delete from c where id = 3"],
            [
                "begin",
                "delete from c where id = 4",
                "insert into c values (4, 2, 1), (8, 4, 1), (30, 8, 1)",
                "delete from c where id = 8",
                "insert into c values (8, 1, 2)",
                "commit",
            ],
            ["update c set up = 8 where id = 5", "delete from c where id = 8"],
            ["delete from c where id = 0"],
        ],
    ),
    "fourteen levels, one less than the server allows": (
        ["create table t0 (id int primary key, up int)", *CHAIN]
        + [f"insert into t{n} select i, i from {{series}}" for n in range(15)],
        [
            ["delete from t0 where id = 1"],
            [
                "begin",
                "delete from t5 where id = 2",
                "delete from t1 where id = 2",
                "delete from t0 where id > 15",
                "commit",
            ],
        ],
    ),
    "parents and children of one transaction": (
        [
            "create table p (id int primary key, n int)",
            "create table c (id int primary key, p_id int, n int, foreign key (p_id) references p (id)"
            " on delete cascade on update cascade)",
            "create table g (id int primary key, c_id int, n int,"
            " foreign key (c_id) references c (id) on delete cascade)",
            "insert into p select i, 0 from {series}",
            "insert into c select i, i, 0 from {series}",
            "insert into g select i, i, 0 from {series}",
        ],
        [
            [
                "begin",
                "insert into c values (101, 1, 1)",
                "insert into g values (101, 101, 1), (102, 1, 1)",
                "delete from p where id = 1",
                "insert into p values (1, 2)",
                "insert into c values (1, 1, 2), (101, 1, 2)",
                "insert into g values (102, 1, 2)",
                "commit",
            ],
            [
                "begin",
                "update c set p_id = 3 where id = 2",
                "delete from p where id = 2",
                "delete from p where id = 3",
                "insert into p values (3, 3)",
                "insert into c values (2, 3, 3)",
                "commit",
            ],
            [
                "begin",
                "delete from p where id = 4",
                "insert into p values (4, 1)",
                "insert into c values (4, 4, 5)",
                "insert into g values (4, 4, 5)",
                "delete from p where id = 4",
                "insert into p values (4, 2)",
                "insert into c values (4, 4, 6)",
                "commit",
            ],
            ["replace into p values (5, 5), (6, 6)", "replace into c values (7, 7, 7)"],
            ["delete p, c from p join c on c.p_id = p.id where p.id in (8, 9)"],
            ["delete from p where id = 10", "insert into p values (10, 1)", "insert into c values (10, 10, 1)"],
            [
                "update p set id = 200 where id = 11",
                "update c set n = 7 where p_id = 200",
                "delete from p where id = 200",
            ],
        ],
    ),
    "without checks": (
        [
            "create table p (id int primary key)",
            "create table c (id int primary key, p_id int, foreign key (p_id) references p (id) on delete cascade)",
            "insert into p select i from {series}",
            "insert into c select i, i from {series}",
        ],
        [
            ["set foreign_key_checks = 0", "delete from p where id < 5", "update p set id = 100 where id = 5"],
            ["insert into p values (1), (2)", "delete from p where id = 1"],
            ["set foreign_key_checks = 0", "truncate p"],
            ["insert into p values (7)", "delete from p where id = 7"],
        ],
    ),
    "tables that refer to each other": (
        [
            "create table a (id int primary key, b int)",
            "create table b (id int primary key, a int, foreign key (a) references a (id) on delete cascade)",
            "insert into a select i, null from {series}",
            "insert into b select i, i from {series}",
            "update a set b = id - 1 where id > 1",
            "alter table a add foreign key (b) references b (id) on delete cascade",
        ],
        [["delete from a where id = 15"], ["delete from b where id = 10"], ["delete from a where id = 5"]],
    ),
    "types": (
        [
            "create table p (id bigint unsigned primary key, d decimal(20,4) unique, b varbinary(8) unique,"
            " t datetime(3) unique, y date unique)",
            "create table c (id int primary key, p bigint unsigned, d decimal(20,4), b varbinary(8), t datetime(3),"
            " y date, foreign key (p) references p (id) on delete set null on update cascade,"
            " foreign key (d) references p (d) on delete set null on update cascade,"
            " foreign key (b) references p (b) on delete set null on update cascade,"
            " foreign key (t) references p (t) on delete cascade,"
            " foreign key (y) references p (y) on delete set null on update cascade)",
            "insert into p select 18446744073709551615 - i, i / 3, concat('k', char(i)),"
            " '2020-01-01' + interval i second, '2020-01-01' + interval i day from {series}",
            "insert into c select i, 18446744073709551615 - i, null, null, null, null from {series}",
            "insert into c select i + 100, null, i / 3, null, null, null from {series}",
            "insert into c select i + 200, null, null, concat('k', char(i)), null, null from {series}",
            "insert into c select i + 300, null, null, null, '2020-01-01' + interval i second, null from {series}",
            "insert into c select i + 400, null, null, null, null, '2020-01-01' + interval i day from {series}",
        ],
        [
            ["delete from p where d < 2"],
            ["update p set id = id - 100, d = d + 1000, b = concat('m', b), y = y + interval 1 year where d > 5"],
        ],
    ),
}


def run(database: OnMySQL, statements: list[str]) -> None:
    database.execute(*(s.replace("{series}", database.series(1, 20)) for s in statements))


@on_mariadb
@pytest.mark.parametrize("history", HISTORIES)
def test_a_history_with_cascades_ends_alike(database: OnMySQL, mirror: MakeMirror, history: str) -> None:
    definitions, steps = HISTORIES[history]
    run(database, definitions)
    copy = mirror()
    copy.agree()
    for step in steps:
        run(database, step)
        copy.agree()


@on_mariadb
@in_mysql
@pytest.mark.parametrize("history", HISTORIES)
def test_a_history_in_one_batch_ends_alike(database: OnMySQL, mirror: MakeMirror, history: str) -> None:
    definitions, steps = HISTORIES[history]
    run(database, definitions)
    copy = mirror()
    copy.agree()
    for step in steps:
        run(database, step)
    copy.query.wait_captured()
    copy.agree()


# -- random histories ------------------------------------------------------------------------------------------------

WORLD = [
    "create table p (id int primary key, n int)",
    "create table c (id int primary key, p_id int, n int,"
    " foreign key (p_id) references p (id) on delete cascade on update cascade)",
    "create table l (p_id int, line int, n int, primary key (p_id, line),"
    " foreign key (p_id) references p (id) on delete cascade on update cascade)",
    "create table g (id int primary key, c_id int, p_id int, n int,"
    " foreign key (c_id) references c (id) on delete cascade,"
    " foreign key (p_id) references p (id) on delete set null on update cascade)",
    "create table gl (id int primary key, p_id int, line int,"
    " foreign key (p_id, line) references l (p_id, line) on delete cascade on update cascade)",
    "create table t (id int primary key, up int, c_id int, foreign key (up) references t (id) on delete cascade,"
    " foreign key (c_id) references c (id) on delete set null)",
]
KEYS = 12
SEEDS = (302, 305, 306, 311)
"""Histories that end differently without one of the rules of `planning.cascades` and `sinks.sql.cascade_plan`."""


def statement(dice: random.Random) -> str:
    """A random change. The server refuses some of them."""
    a, b, n = dice.randint(1, KEYS), dice.randint(1, KEYS), dice.randint(0, 99)
    return dice.choice(
        [
            f"insert into p values ({a}, {n})",
            f"insert into p values ({a}, {n})",
            f"insert into c values ({a}, {b}, {n})",
            f"insert into c values ({a}, {b}, {n})",
            f"insert into l values ({a}, {dice.randint(1, 3)}, {n})",
            f"insert into g values ({dice.randint(1, 30)}, {a}, {b}, {n})",
            f"insert into gl values ({dice.randint(1, 30)}, {a}, {dice.randint(1, 3)})",
            f"insert into t values ({a}, {dice.choice(['null', b])}, {dice.randint(1, KEYS)})",
            f"delete from p where id = {a}",
            f"delete from c where id = {a}",
            f"delete from l where p_id = {a}",
            f"delete from t where id = {a}",
            f"replace into p values ({a}, {n})",
            f"update p set id = {b} where id = {a}",
            f"update p set id = id + 1 where id >= {a} order by id desc",
            f"update p set id = id - 1 where id > {a} order by id",
            f"update p set n = {n}",
            f"update c set p_id = {b}, n = {n} where id = {a}",
            f"update g set c_id = {a}, p_id = {b} where id < {n}",
            f"update t set up = {b} where id = {a}",
            f"update l set n = {n} where p_id = {a}",
        ]
    )


def change(session: Any, dice: random.Random) -> None:
    """A random transaction."""
    with session.cursor() as cursor:
        cursor.execute("begin")
        cursor.execute(f"set foreign_key_checks = {int(dice.random() > 0.05)}")
        for _ in range(dice.randint(1, 6)):
            with suppress(pymysql.err.MySQLError):
                cursor.execute(statement(dice))
        cursor.execute(dice.choice(["commit", "commit", "commit", "rollback"]))


def follow_random(database: OnMySQL, mirror: MakeMirror, seed: int) -> None:
    dice = random.Random(seed)
    database.execute(*WORLD)
    session = database.connect()
    for _ in range(60):
        change(session, dice)

    def between() -> None:
        for _ in range(dice.choice([0, 0, 1, 2])):
            change(session, dice)

    copy = mirror(chunkRows=dice.choice([2, 5, 10]), parallelism=dice.choice([1, 3]))
    copy.query.between = between
    for _ in range(25):
        between()
        copy.query.step()
    copy.query.between = lambda: None
    copy.agree()


@on_mariadb
@in_mysql
@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories_beside_dumps_end_alike(database: OnMySQL, mirror: MakeMirror, seed: int) -> None:
    follow_random(database, mirror, seed)


# -- tables that are set aside -----------------------------------------------------------------------------------------

ANY_DATE = "set sql_mode = 'ALLOW_INVALID_DATES'"


def set_aside(copy: Mirror, table: str) -> None:
    """Go on until a table is set aside."""
    name = f"{copy.database.name}.{table}"
    copy.query.until(lambda: name in copy.query.engine._planner.status()["failed_tables"])


def agree_about(copy: Mirror, *names: str) -> None:
    copy.query.catch_up()
    for table in names:
        assert copy.target.rows_of(table) == copy.target.as_target(copy.database, table), table


@on_mariadb
@in_mysql
def test_a_parent_that_is_set_aside_still_changes_its_children(database: OnMySQL, mirror: MakeMirror) -> None:
    tables(database)
    database.execute("alter table p add column day date")
    copy = mirror(onTableError="set-aside", values="stop")
    copy.agree()
    database.execute(ANY_DATE, "insert into p values (50, 50, 0, '2024-02-31')", "delete from p where id = 3")
    set_aside(copy, "p")
    agree_about(copy, "c", "sn", "g", "gs")
    database.execute("delete from p where id in (4, 50)", "update p set id = 100 where id = 5")
    agree_about(copy, "c", "sn", "g", "gs")
    copy.query.restart()
    database.execute("delete from p where id = 6")
    agree_about(copy, "c", "sn", "g", "gs")


@on_mariadb
@in_mysql
def test_rows_below_a_table_that_is_set_aside_are_read_again(database: OnMySQL, mirror: MakeMirror) -> None:
    tables(database)
    database.execute("alter table c add column day date")
    copy = mirror(onTableError="set-aside", values="stop")
    copy.agree()
    # the target does not get to know which rows have another parent now, in the batch with the value and later
    database.execute(ANY_DATE, "update c set day = '2024-02-31' where id = 30", "update c set p_id = 9 where p_id = 2")
    database.execute("delete from p where id = 2")
    set_aside(copy, "c")
    agree_about(copy, "p", "sn", "g", "gs")
    database.execute("update c set p_id = 9 where p_id = 3", "update c set p_id = 3 where p_id = 8")
    database.execute("delete from p where id = 3", "update g set n = 7 where id % 3 = 0")
    agree_about(copy, "p", "sn", "g", "gs")


@on_both
def test_a_table_may_have_the_name_of_an_alias(database: OnMySQL, mirror: MakeMirror) -> None:
    for name in ("s", "t", "d"):
        database.execute(
            f"create table {name} (id int primary key, n int)", f"insert into {name} values (1, 1), (2, 2)"
        )
    copy = mirror()
    copy.agree()
    for name in ("s", "t", "d"):
        database.execute(f"update {name} set n = 5 where id = 1", f"delete from {name} where id = 2")
        database.execute(f"insert into {name} values (3, 3)")
    copy.agree()


# -- what is followed ------------------------------------------------------------------------------------------------


def left_out(copy: Mirror) -> dict[str, str]:
    """The tables that are not followed, and why."""
    copy.query.catch_up()
    found = copy.query.engine._planner.status()["left_out"]
    return {name.partition(".")[2]: why for name, why in found.items()}


@on_mariadb
@in_mysql
def test_a_parent_that_is_not_followed_and_a_child_in_another_database(
    database: OnMySQL, target: InMySQL, mirror: MakeMirror
) -> None:
    tables(database)
    other = database.sibling()
    database.execute(
        f"create table {other}.far (id int primary key, p_id int, foreign key (p_id) references {database.name}.p (id)"
        " on delete cascade)",
        f"insert into {other}.far select i, i % 20 + 1 from {database.series(1, 40)}",
    )
    copy = mirror(tables=f"{database.name}.c, {database.name}.g, {other}.*")
    copy.query.catch_up()
    database.execute("delete from p where id = 2", "update p set n = 5", "delete from p where id = 6")
    database.execute("set foreign_key_checks = 0", "delete from p where id = 7")
    copy.query.catch_up()
    assert {"c", "g", "far"} == set(copy.tables())
    for table in (f"{database.name}.c", f"{database.name}.g", f"{other}.far"):
        name = table.partition(".")[2]
        columns = "id, p_id" if name != "g" else "id, c_id"
        rows = f"select {columns} from {{}}.{name} order by id"
        assert database.execute(rows.format(table.partition(".")[0])) == database.execute(rows.format(target.schema))
    database.execute(f"drop table {other}.far")  # or the parent's database cannot be dropped


@on_mariadb
@in_mysql
def test_a_table_is_left_out_if_its_cascades_cannot_be_found_in_the_target(
    database: OnMySQL, mirror: MakeMirror
) -> None:
    tables(database)
    database.execute(
        "create table names (name varchar(9) primary key)",
        "create table named (id int primary key, name varchar(9),"
        " foreign key (name) references names (name) on delete cascade)",
    )
    found = left_out(copy := mirror(tables=f"{database.name}.*, !{database.name}.c"))
    assert "has texts, which the server and a target may compare differently" in found["named"]
    assert "refers to" in found["g"]
    assert "which is not followed" in found["g"]
    assert {"g", "gs", "named"} == found.keys()
    assert {"p", "sn", "names"} == set(copy.tables())


@on_mariadb
@in_mysql
def test_cascades_can_be_left_out_ignored_or_stop_the_stream(database: OnMySQL, mirror: MakeMirror) -> None:
    tables(database)
    assert {"c", "sn", "g", "gs"} == left_out(mirror(cascades="skip")).keys()
    ignoring, stopping = mirror(cascades="ignore"), mirror(cascades="stop")
    for copy in (ignoring, stopping):
        copy.query.catch_up()
    database.execute("update p set n = 7", "set foreign_key_checks = 0", "delete from p where id = 1")
    stopping.query.catch_up()
    database.execute("delete from p where id = 2")
    ignoring.query.catch_up()
    assert ignoring.query.engine._source.health()["cascades_ignored"] == 2
    with pytest.raises(PreconditionFailed, match=r"has changed rows of .* without a record in the log"):
        stopping.query.catch_up()


@on_mariadb
def test_a_soft_delete_marks_the_rows_that_a_cascade_deletes(
    database: OnMySQL, target: InMySQL, mirror: MakeMirror
) -> None:
    tables(database)
    copy = mirror(deletes="soft")
    copy.query.catch_up()
    database.execute(
        "delete from p where id in (2, 3)", "insert into p values (2, 1, 1)", "insert into c values (1, 2, 9)"
    )
    copy.query.catch_up()
    source = target.as_target(database, "c")
    assert target.rows_of("c", "where not _deleted") == source
    assert len(target.rows_of("c")) == 60
    assert target.rows_of("g", "where not _deleted") == target.as_target(database, "g")


@on_mariadb
@in_mysql
def test_foreign_keys_that_come_and_go_count_from_their_statement_on(database: OnMySQL, mirror: MakeMirror) -> None:
    tables(database)
    database.execute("create table later (id int primary key, p_id int)", "insert into later select id, id from p")
    copy = mirror()
    copy.agree()
    database.execute(
        "delete from p where id = 1",
        "delete from later where id = 1",
        "alter table later add constraint f foreign key (p_id) references p (id) on delete cascade",
        "delete from p where id = 2",
        "alter table later drop foreign key f",
        "delete from p where id = 3",
        "update later set p_id = null where id = 3",
    )
    copy.agree()
    copy.query.stop()
    database.execute(
        "delete from p where id = 4",
        "update later set p_id = null where id = 4",
        "alter table later add constraint f foreign key (p_id) references p (id) on delete cascade",
        "delete from p where id = 5",
        "alter table later drop foreign key f, add n int",
        "delete from p where id = 6",
    )
    copy.agree()


@on_mariadb
@in_mysql
def test_a_batch_with_cascades_that_comes_again_changes_nothing(database: OnMySQL, mirror: MakeMirror) -> None:
    tables(database)
    copy = mirror()
    copy.agree()
    database.execute(
        "delete from p where id = 3", "update p set id = 70 where id = 4", "insert into p values (3, 3, 3)"
    )
    copy.query.wait_captured()
    assert copy.query.plan()
    copy.query.finish()
    copy.query.done -= 1
    copy.query.restart()
    database.execute("insert into c values (2, 3, 3)", "delete from p where id = 70")
    copy.agree()


@on_mariadb
@in_mysql
def test_a_route_must_keep_what_a_cascade_needs(database: OnMySQL, mirror: MakeMirror) -> None:
    tables(database)
    [pattern] = parse_patterns(f"{database.name}.c")
    for route in (Route(pattern, exclude=("p_id",)), Route(pattern, rename={"p_id": "x"})):
        copy = mirror(routes=(route,))
        copy.query.catch_up()
        database.execute("insert into p values (50, 50, 0)", "delete from p where id = 50")
        with pytest.raises(ConfigError, match="the sink cannot follow this with the route"):
            copy.query.catch_up()
