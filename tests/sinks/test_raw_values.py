"""Values that their column's type cannot hold, end to end: exact in a target of the same family, null in others, and
always in the quarantine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog.core.names import parse_patterns
from dblog.core.schema import TableName
from dblog.pipelines.quarantine import FOLDER, Quarantine
from dblog.pipelines.stream_folder import StreamFolder
from dblog.sinks.route import Route
from dblog.storage.object_storage import NO_SETTINGS
from dblog.testing.mysql_server import MySQLServer
from dblog.testing.postgres_server import PostgresServer
from tests.conftest import MYSQL_SERVERS, SERVERS, Database, MySQLDatabase
from tests.families import AnyDatabase, OnMySQL, OnPostgres
from tests.proxy import Proxy
from tests.sinks.pipeline import Pipeline
from tests.sinks.sql_targets import MySQLTarget, PostgresTarget, fresh_name

pytestmark = [pytest.mark.server, pytest.mark.spark]

Servers = dict[str, PostgresServer]
MySQLServers = dict[str, MySQLServer]

POSTGRES = (
    "create table t (id int primary key, price numeric(5,2), list smallint[], grid text[], at timestamptz, big int[])",
    "alter table t alter big set storage external",
    "insert into t values (1, 1.5, '{1,NULL}', '{a}', '2024-01-01', null), "
    "(2, 'NaN', '[4:4]={NULL}', '{{\"a,\\\"\",b},{c,\"\t\"}}', '294276-12-31 23:59:59.5+00', "
    "array_fill(7, array[2, 3000])), (3, null, '{{1,2},{3,4}}', '{}', null, '{1}')",
)
MYSQL = (
    "set sql_mode = 'ALLOW_INVALID_DATES'",
    "create table t (id int primary key, price tinyint, d date, at datetime(3))",
    "insert into t values (1, 1, '2024-02-29', '2024-01-01'), (2, 2, '2024-02-31', '2024-00-10 01:02:03.125'), "
    "(3, 3, '2024-00-00', '0000-00-00 10:00:00'), (4, 4, '0000-00-00', null)",
)


@pytest.fixture
def source(database: AnyDatabase) -> AnyDatabase:
    database.execute(*(POSTGRES if isinstance(database, OnPostgres) else MYSQL))
    return database


@pytest.fixture
def target(
    request: pytest.FixtureRequest, servers: Servers, mysql_servers: MySQLServers
) -> Iterator[PostgresTarget | MySQLTarget]:
    made: Any
    if request.param in SERVERS:
        made, kind = Database(servers[request.param].start(), fresh_name()), PostgresTarget
    else:
        made, kind = MySQLDatabase(mysql_servers[request.param].start(), fresh_name()), MySQLTarget  # type: ignore[assignment]
    made.create()
    with Proxy(made.server) as proxy:
        found = kind(made, proxy)
        yield found
    if isinstance(found, MySQLTarget):
        found.drop()
    else:
        made.drop()


def texts(database: Any, table: str, *names: str) -> list[tuple[Any, ...]]:
    postgres = isinstance(database, Database)
    database = (OnPostgres if postgres else OnMySQL)(database.server, database.name)
    shown = ", ".join(f"{n}::text" if postgres else f"cast({n} as char)" for n in names)
    zone = "set timezone = 'UTC'" if postgres else "set time_zone = '+00:00'"
    return [tuple(row) for row in database.execute(zone, f"select id, {shown} from {table} order by id")]


def quarantined(folder: Path) -> dict[tuple[int, str], str]:
    """The texts, by key and column."""
    lines = [line for file in folder.glob(f"**/{FOLDER}/*.ndjson") for line in file.read_text().splitlines()]
    told = [json.loads(line) for line in lines]
    assert all(set(t) == {"table", "key", "column", "text", "op", "lsn", "seq"} for t in told)
    return {(t["key"]["id"], t["column"]): t["text"] for t in told}


def keeping(folder: Path) -> Quarantine:
    return Quarantine(StreamFolder(folder, "sink", NO_SETTINGS))


def there(target: PostgresTarget | MySQLTarget) -> bool:
    return bool(target.types(TableName("public", "t")))


def settings(target: PostgresTarget | MySQLTarget) -> dict[str, str]:
    return {"schema": "public"} if isinstance(target, PostgresTarget) else {}


SAME = [(SERVERS[0], SERVERS[-1]), *((name, name) for name in MYSQL_SERVERS)]


@pytest.mark.parametrize(("database", "target"), SAME, indirect=True, ids=[one for one, _ in SAME])
def test_a_target_of_the_same_family_has_the_very_values(
    source: AnyDatabase, target: PostgresTarget | MySQLTarget, spark: SparkSession, tmp_path: Path
) -> None:
    postgres = isinstance(source, OnPostgres)
    names = ("price", "list", "grid", "at", "big") if postgres else ("price", "d", "at")

    def same() -> bool:
        return there(target) and texts(target.database, "t", *names) == texts(source, "t", *names)

    def shown() -> str:
        return str(texts(target.database, "t", *names)) if there(target) else "no table"

    routes = [Route(parse_patterns(f"{source.schema}.t")[0])]
    kept = keeping(tmp_path)
    with Pipeline(
        spark, target, source, tmp_path, routes=routes, settings=settings(target), quarantine=kept
    ) as running:
        running.until(same, shown)
        lively = () if postgres else (MYSQL[0],)
        odd = "price = 'NaN'" if postgres else "d = '2023-02-30'"
        source.execute(*lively, f"update t set {odd} where id = 1", "delete from t where id = 3")
        source.execute(*lively, "insert into t (id, price) values (9, 9)", "update t set id = 12 where id = 2")
        running.until(same, shown)
        if postgres:  # an earlier change of the batch has the array, and the last one leaves it out
            source.transact(
                "update t set big = array_fill(8, array[3, 3000]) where id = 9", "update t set price = 7 where id = 9"
            )
            running.until(same, shown)
        running.until(lambda: (1, "price" if postgres else "d") in quarantined(tmp_path))  # it is written last
    found = quarantined(tmp_path)
    assert found[2, "at"] == ("294276-12-31 23:59:59.5+00" if postgres else "2024-00-10 01:02:03.125")
    assert found[1, "price" if postgres else "d"] == ("NaN" if postgres else "2023-02-30")


OTHER = [(SERVERS[0], MYSQL_SERVERS[0]), (MYSQL_SERVERS[0], SERVERS[0])]


@pytest.mark.parametrize(("database", "target"), OTHER, indirect=True, ids=[one for one, _ in OTHER])
def test_a_target_of_another_family_has_null_and_the_quarantine_has_the_text(
    source: AnyDatabase, target: PostgresTarget | MySQLTarget, spark: SparkSession, tmp_path: Path
) -> None:
    postgres = isinstance(source, OnPostgres)
    name = "price" if postgres else "d"

    def nulls() -> list[int]:
        found = target.execute(f"select id from t where {name} is null order by id") if there(target) else []
        return [key for (key,) in found]

    with Pipeline(spark, target, source, tmp_path, settings=settings(target), quarantine=keeping(tmp_path)) as running:
        running.until(lambda: nulls() == [2, 3])
        odd = "NaN" if postgres else "2023-02-30"
        source.execute(*(() if postgres else (MYSQL[0],)), f"update t set {name} = '{odd}' where id = 1")
        running.until(lambda: nulls() == [1, 2, 3] and (1, name) in quarantined(tmp_path))
    found = quarantined(tmp_path)
    if postgres:
        assert found[2, "list"] == "[4:4]={NULL}"
        assert found[1, "price"] == found[2, "price"] == "NaN"
        assert (3, "price") not in found, "a null is a null"
    else:
        assert (found[1, "d"], found[2, "d"], found[3, "d"]) == ("2023-02-30", "2024-02-31", "2024-00-00")
        assert found[3, "at"] == "0000-00-00 10:00:00.000"


FAR = ["infinity", "0044-03-15 BC", "0001-12-31 BC", "10000-01-01", "292000-02-29"]
NEAR = ["0001-01-01", "9999-12-31", "2024-02-29"]


@pytest.mark.parametrize(("database", "target"), OTHER[:1], indirect=True)
def test_a_date_that_the_target_cannot_store_is_null_and_in_the_quarantine(
    database: AnyDatabase, target: MySQLTarget, spark: SparkSession, tmp_path: Path
) -> None:
    """From a dump, which reads numbers, and from the log, which has texts: the same text as PostgreSQL's own."""
    database.execute("create table t (id int primary key, d date, at timestamp, tz timestamptz)")
    days = [*FAR, *NEAR, "-infinity"]

    def moment(day: str) -> str:
        date, _, era = day.partition(" ")
        return day if "infinity" in day else f"{date} 23:59:59.50{' BC' if era else ''}"

    def insert(first: int) -> str:
        rows = [f"({first + n}, '{d}', '{moment(d)}', '{moment(d)}Z')" for n, d in enumerate(days)]
        return "insert into t values " + ", ".join(r.replace("infinityZ", "infinity") for r in rows).replace(
            " BCZ", "Z BC"
        )

    database.execute(insert(0))
    with Pipeline(spark, target, database, tmp_path, quarantine=keeping(tmp_path)) as running:
        running.until(lambda: there(target) and len(target.execute("select id from t")) == len(days))
        database.execute(insert(100))
        running.until(lambda: len(target.execute("select id from t")) == 2 * len(days))
        running.until(lambda: (100, "d") in quarantined(tmp_path))
    names = ("d", "at", "tz")
    rows = texts(database, "t", *names)
    told = {(key, name): text for key, *row in rows for name, text in zip(names, row, strict=True)}
    far = {first + n for first in (0, 100) for n in range(len(FAR))}
    assert quarantined(tmp_path) == {at: text for at, text in told.items() if at[0] in far}
    for name in names:
        nulls = {key for (key,) in target.execute(f"select id from t where {name} is null")}
        assert nulls == far, name
    stored = dict(target.execute("select id, cast(d as char) from t where d is not null"))
    assert [stored[len(FAR) + n] for n in range(4)] == [*NEAR, "0000-00-00"]
    assert [stored[100 + len(FAR) + n] for n in range(4)] == [*NEAR, "0000-00-00"]
