"""Values at the edges of their types, as the sink `sql` writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import SinkError
from dblog.sinks.sql import SqlSink
from tests.conftest import MYSQL_SERVERS, SERVERS, Database, MySQLDatabase
from tests.families import AnyDatabase, OnPostgres
from tests.proxy import Proxy
from tests.sinks.batches import batch, change, frame, read
from tests.sinks.pipeline import Pipeline
from tests.sinks.sql_targets import MySQLTarget, PostgresTarget, fresh_name
from tests.sinks.test_sql_guard import AnyTarget, make, target  # noqa: F401

pytestmark = [pytest.mark.server, pytest.mark.spark]

Make = Callable[..., SqlSink]
T = TableName("public", "t")


@pytest.fixture
def copy(database: AnyDatabase) -> Iterator[AnyTarget]:
    """A target on the server of the source."""
    made = Database(database.server, fresh_name()) if isinstance(database, OnPostgres) else None
    other = None if made is not None else MySQLDatabase(database.server, fresh_name())  # type: ignore[arg-type]
    with Proxy(database.server) as proxy:
        if made is not None:
            made.create()
            yield PostgresTarget(made, proxy)
            made.drop()
        else:
            assert other is not None
            other.create()
            found = MySQLTarget(other, proxy)
            yield found
            found.drop()


def signs(target: AnyTarget) -> dict[str, float]:  # noqa: F811
    """For each note of the table, the sign of its key."""
    return {note: math.copysign(1.0, key) for note, key in target.execute(f"select note, id from {target.name(T)}")}


def minus(target: AnyTarget) -> float:  # noqa: F811
    """The sign that -0 has in the target: MariaDB stores 0."""
    mariadb = isinstance(target, MySQLTarget) and "Maria" in str(target.execute("select version()"))
    return 1.0 if mariadb else -1.0


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=["real", "double"])
def test_a_key_that_changes_its_sign_only_is_the_sources(
    target: AnyTarget,  # noqa: F811
    make: Make,  # noqa: F811
    spark: SparkSession,
    kind: pa.DataType,
) -> None:
    name = "real" if kind == pa.float32() else "double precision"
    schema = TableSchema(T, (Column("id", name, kind), Column("note", "text", pa.string())), ("id",))
    sink = make()
    sink.write(batch(0, None, frame(spark, [read(9, 0.0, "a"), read(9, 5.0, "b")], schema), schema))  # type: ignore[arg-type]
    assert signs(target) == {"a": 1.0, "b": 1.0}
    moved = [change("delete", 1001, 0.0), change("create", 1001, -0.0, "c", seq=1)]  # type: ignore[arg-type]
    sink.write(batch(1, frame(spark, moved, schema), None, schema))
    assert signs(target) == {"b": 1.0, "c": minus(target)}
    back = [change("delete", 2001, -0.0), change("create", 2001, 0.0, "d", seq=1)]  # type: ignore[arg-type]
    sink.write(batch(2, frame(spark, back, schema), None, schema))
    assert signs(target) == {"b": 1.0, "d": 1.0}


@pytest.mark.parametrize("database", [SERVERS[0], *MYSQL_SERVERS], indirect=True)
def test_a_key_of_zero_follows_the_sign_of_the_source(
    database: AnyDatabase, copy: AnyTarget, spark: SparkSession, tmp_path: Path
) -> None:
    database.execute("create table t (id double precision primary key, note varchar(9))")
    database.execute("insert into t values (0, 'a'), (5, 'b')")

    def keys(where: Database | MySQLDatabase) -> list[tuple[str, str]]:
        return [(note, repr(key)) for note, key in where.execute("select note, id from t order by note")]

    with Pipeline(spark, copy, database, tmp_path, tables=f"{database.schema}.t") as running:
        running.follows("t")
        database.execute("update t set id = id * -1e0, note = 'c' where id = 0")
        running.until(lambda: keys(copy.database) == keys(database), lambda: str(keys(copy.database)))
        assert keys(database) == [("b", "5.0"), ("c", "-0.0" if minus(copy) < 0 else "0.0")]


@pytest.mark.parametrize("database", [SERVERS[0], *MYSQL_SERVERS], indirect=True)
def test_a_table_without_rows_is_created(
    database: AnyDatabase, copy: AnyTarget, spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("none", "t", "void"):
        database.execute(f"create table {name} (id int primary key, note varchar(9), kind char(3))")
    database.execute("insert into t values (1, 'a', 'abc')")
    with Pipeline(spark, copy, database, tmp_path) as running:
        running.follows("t")
        running.until(lambda: all(copy.types(TableName(database.schema, name)) for name in ("none", "void")))
        assert copy.types(TableName(database.schema, "none")) == copy.types(TableName(database.schema, "t"))
        database.execute("insert into void values (2, 'b', 'xyz')")
        running.follows("void")


ENUM = "enum('a','it''s')"


def enumerated(kind: str, *key: str) -> TableSchema:
    columns = (Column("id", "int", pa.int32()), Column("note", kind, pa.string()), Column("n", "mediumint", pa.int32()))
    return TableSchema(T, columns, key or ("id",))


@pytest.mark.parametrize("target", MYSQL_SERVERS, indirect=True)
def test_the_error_value_of_an_enum_is_written_and_replaced(
    target: AnyTarget,  # noqa: F811
    make: Make,  # noqa: F811
    spark: SparkSession,
) -> None:
    def found() -> list[tuple[object, ...]]:
        return target.execute(f"select id, note, note + 0 from {target.name(T)} order by id")

    schema, sink = enumerated(ENUM), make()
    rows = [read(9, 1, ""), read(9, 2, "a"), read(9, 3, None), read(9, 4, "it's")]
    sink.write(batch(0, None, frame(spark, rows, schema), schema))
    assert found() == [(1, "", 0), (2, "a", 1), (3, None, None), (4, "it's", 2)]
    changes = [change("update", 1001 + n, key, note) for n, (key, note) in enumerate([(1, "a"), (2, ""), (3, "")])]
    sink.write(batch(1, frame(spark, changes, schema), None, schema))
    assert found() == [(1, "a", 1), (2, "", 0), (3, "", 0), (4, "it's", 2)]
    sink.write(batch(0, None, frame(spark, rows, schema), schema))  # which is older
    assert found() == [(1, "a", 1), (2, "", 0), (3, "", 0), (4, "it's", 2)]


@pytest.mark.parametrize("target", MYSQL_SERVERS, indirect=True)
def test_an_enum_with_an_empty_member_keeps_it(
    target: AnyTarget,  # noqa: F811
    make: Make,  # noqa: F811
    spark: SparkSession,
) -> None:
    schema = enumerated("enum('a','')")
    make().write(batch(0, None, frame(spark, [read(9, 1, "")], schema), schema))
    assert target.execute(f"select id, note, note + 0 from {target.name(T)}") == [(1, "", 2)]


@pytest.mark.parametrize("target", MYSQL_SERVERS, indirect=True)
@pytest.mark.parametrize(
    ("key", "note", "said"),
    [
        (
            ("note",),
            "",
            r"table \w+\.t cannot store \"\" in column 'note' of the row with the key \(\"\"\): Data truncated",
        ),
        (
            ("id",),
            "zz",
            r"table \w+\.t cannot store \"zz\" in column 'note' of the row with the key \(7\): Data truncated",
        ),
    ],
)
def test_a_value_that_an_enum_cannot_hold_is_named(
    target: AnyTarget,  # noqa: F811
    make: Make,  # noqa: F811
    spark: SparkSession,
    key: tuple[str, ...],
    note: str,
    said: str,
) -> None:
    schema = enumerated(ENUM, *key)
    with pytest.raises(SinkError, match=said) as refused:
        make().write(batch(0, None, frame(spark, [read(9, 1, "a"), read(9, 7, note)], schema), schema))
    assert refused.value.hint


def test_a_value_that_a_column_of_somebody_elses_cannot_hold_is_named(
    target: AnyTarget,  # noqa: F811
    make: Make,  # noqa: F811
    spark: SparkSession,
) -> None:
    target.execute(
        f"create table {target.name(T)} (id int primary key, note varchar(3), "
        "_lsn bigint not null default 0, _seq int not null default 0)"
    )
    schema = TableSchema(T, (Column("id", "integer", pa.int32()), Column("note", "text", pa.string())), ("id",))
    rows = [read(9, 1, "abc"), read(9, 2, "a\tb\nc" * 50), read(9, 3, None)]
    said = r"table \w+\.t cannot store \"a\\tb\\nca.*\.\.\. in column 'note' of the row with the key \(2\): .*too long"
    with pytest.raises(SinkError, match=said):
        make().write(batch(0, None, frame(spark, rows, schema), schema))
