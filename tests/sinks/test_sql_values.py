"""Values at the edges of their types, as the sink `sql` writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog.core.schema import Column, TableName, TableSchema
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
