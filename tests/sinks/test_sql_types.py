"""Types that only some databases have, from one to another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog.testing.mysql_server import MySQLServer
from dblog.testing.postgres_server import PostgresServer
from tests.conftest import EVERY_MYSQL_SERVER, Database, MySQLDatabase
from tests.families import OnMySQL, OnPostgres
from tests.proxy import Proxy
from tests.server.mysql.test_types import OWN_TYPES, TYPES
from tests.sinks.pipeline import Pipeline
from tests.sinks.sql_targets import MySQLTarget, PostgresTarget, fresh_name

pytestmark = [pytest.mark.server, pytest.mark.spark]


@pytest.fixture
def postgres_target(servers: dict[str, PostgresServer]) -> Iterator[PostgresTarget]:
    made = Database(servers["pg18"].start(), fresh_name())
    made.create()
    with Proxy(made.server) as proxy:
        yield PostgresTarget(made, proxy)
    made.drop()


FAMILIES = [name for name in EVERY_MYSQL_SERVER if name in OWN_TYPES]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_type_of_mysql_comes_back_from_mysql(
    family: str, mysql_servers: dict[str, MySQLServer], spark: SparkSession, tmp_path: Path
) -> None:
    server = mysql_servers[family].start()
    source, copy = OnMySQL(server, fresh_name()), MySQLDatabase(server, fresh_name())
    source.create()
    copy.create()
    shaped = ("geometry", "point", "multi", "vector")
    cases = [(kind, values) for kind, _, values in [*TYPES, *OWN_TYPES[family]] if not kind.startswith(shaped)]
    tables = []
    for number, group in enumerate(cases[n : n + 12] for n in range(0, len(cases), 12)):
        tables.append(f"t{number}")
        columns = ", ".join(f"c{n} {kind}" for n, (kind, _) in enumerate(group))
        rows = zip_longest(*(values for _, values in group))
        statements = [
            f"insert into t{number} values ({i}, {', '.join(v or 'null' for v in r)})" for i, r in enumerate(rows)
        ]
        source.execute(
            "set sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'",
            f"create table t{number} (id int primary key, {columns})",
            *statements,
        )
    try:
        with Proxy(server) as proxy:
            target = MySQLTarget(copy, proxy)
            with Pipeline(spark, target, source, tmp_path) as running:
                running.until(
                    lambda: all(_rows(copy, t) == _rows(source, t) for t in tables),
                    lambda: _apart(source, copy, tables),
                    150.0,
                )
                for table in tables:  # and from the log
                    source.execute(
                        "set sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'",
                        f"update {table} set id = id + 1000",
                    )
                running.until(
                    lambda: all(_rows(copy, t) == _rows(source, t) for t in tables),
                    lambda: _apart(source, copy, tables),
                    150.0,
                )
    finally:
        target.drop()
        source.drop()


def _rows(database: MySQLDatabase, table: str) -> list[tuple[Any, ...]]:
    """All but the columns that the sink adds."""
    where = f"table_schema = '{database.name}' and table_name = '{table}'"
    names = database.execute(
        f"select column_name, data_type from information_schema.columns where {where} order by ordinal_position"
    )
    # A float is shown with few digits, unless one calculates with it.
    listed = ", ".join(f"`{n}`" + " + 0e0" * (kind == "float") for n, kind in names if not n.startswith("_"))
    return database.execute("set time_zone = '+00:00'", f"select {listed} from {table} order by id") if names else []


def _apart(source: MySQLDatabase, copy: MySQLDatabase, tables: list[str]) -> str:
    for table in tables:
        for mine, theirs in zip(_rows(copy, table), _rows(source, table), strict=False):
            for n, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                if a != b:
                    return f"{table}, column {n - 1}: {str(a)[:100]!r}, not {str(b)[:100]!r}"
    return "rows are missing"


def test_moments_that_only_postgresql_has_come_back(
    servers: dict[str, PostgresServer], postgres_target: PostgresTarget, spark: SparkSession, tmp_path: Path
) -> None:
    moments = ["infinity", "-infinity", "0044-03-15 12:00:00.000001 BC", "294246-12-31 23:59:59.999999", "1000-01-01"]
    source = OnPostgres(servers["pg18"].start(), fresh_name())
    source.create()
    try:
        source.execute("create table t (id int primary key, d date, n timestamp, z timestamptz, a date[])")
        for number, moment in enumerate(moments):
            source.execute(
                f"insert into t values ({number}, '{moment}', '{moment}', '{moment}', array['{moment}'::date, null])"
            )
        sql = "select id, d::text, n::text, z::text, a::text from t order by id"
        with Pipeline(spark, postgres_target, source, tmp_path) as running:
            running.until(lambda: running.sink.done > 0)
        assert postgres_target.execute(sql) == source.execute(sql)
    finally:
        source.drop()
