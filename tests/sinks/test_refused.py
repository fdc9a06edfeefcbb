"""A target that refuses the rows of one table: the table is set aside, and the others are written exactly once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog.core.schema import TableName
from dblog.sinks.base import Batch
from dblog.state import open_store
from dblog.state.pipeline import Pipeline as State
from dblog.testing.mysql_server import MySQLServer
from dblog.testing.postgres_server import PostgresServer
from tests.conftest import MYSQL_SERVERS, SERVERS, Database, MySQLDatabase
from tests.families import AnyDatabase
from tests.proxy import Proxy
from tests.sinks.pipeline import Pipeline, Written
from tests.sinks.sql_targets import MySQLTarget, PostgresTarget, fresh_name

pytestmark = [pytest.mark.server, pytest.mark.spark]

AnyTarget = PostgresTarget | MySQLTarget
on_postgres = pytest.mark.parametrize("target", SERVERS[:1], indirect=True)


@pytest.fixture(params=[SERVERS[0], MYSQL_SERVERS[0]])
def target(
    request: pytest.FixtureRequest, servers: dict[str, PostgresServer], mysql_servers: dict[str, MySQLServer]
) -> Iterator[AnyTarget]:
    made: Any
    if request.param in SERVERS:
        made, kind = Database(servers[request.param].start(), fresh_name()), PostgresTarget
    else:
        made, kind = MySQLDatabase(mysql_servers[request.param].start(), fresh_name()), MySQLTarget
    made.create()
    with Proxy(made.server) as proxy:
        found: Any = kind(made, proxy)
        yield found
    found.drop() if kind is MySQLTarget else made.drop()


@pytest.fixture
def source(database: AnyDatabase) -> AnyDatabase:
    for name in ("t", "u"):
        database.execute(f"create table {name} (id int primary key, n int)", f"insert into {name} values (1, 1)")
    return database


Make = Callable[..., Pipeline]


@pytest.fixture
def make(spark: SparkSession, target: AnyTarget, source: AnyDatabase, tmp_path: Path) -> Make:
    def make(**options: Any) -> Pipeline:
        given = {"onTableError": "set-aside", "heartbeatSeconds": 1, "pipeline": "refused", **options}
        return Pipeline(spark, target, source, tmp_path, refuses=True, state=tmp_path / "state.db", **given)

    return make


def aside(folder: Path) -> dict[str, Any]:
    """What the newest offset of the checkpoint says of table u; empty if it is not set aside."""
    offsets = sorted(int(p.name) for p in (folder / "checkpoint/offsets").iterdir() if p.name.isdecimal())
    line = (folder / f"checkpoint/offsets/{offsets[-1]}").read_text().splitlines()[2] if offsets else "{}"
    found = json.loads(line).get("aside", {})
    return dict(next(iter(found.values()), {})) if isinstance(found, dict) else {"found": found}


def constrain(target: AnyTarget, source: AnyDatabase) -> None:
    target.execute(f"alter table {target.name(TableName(source.schema, 'u'))} add constraint small check (n < 100)")


def release(target: AnyTarget, source: AnyDatabase) -> None:
    target.execute(f"alter table {target.name(TableName(source.schema, 'u'))} drop constraint small")


def test_a_table_that_is_refused_is_set_aside(
    make: Make, target: AnyTarget, source: AnyDatabase, tmp_path: Path
) -> None:
    with make() as pipeline:
        pipeline.follows("t", "u")
        constrain(target, source)
        source.transact("insert into u values (2, 2)", "insert into t values (2, 2)", "insert into u values (3, 300)")
        pipeline.follows("t")
        pipeline.until(lambda: bool(aside(tmp_path)))
        assert pipeline.rows("u").keys() == {(1,)}, "no row of the batch"
        source.execute("update u set n = 5 where id = 1", "update t set n = 6")
        pipeline.follows("t")
        assert pipeline.rows("u")[(1,)]["n"] == 1
        with closing(open_store(str(tmp_path / "state.db"))) as store:
            state = State(store, "refused")
            pipeline.until(lambda: "failed_tables" in state.status() and bool(state.status()["failed_tables"]))
            (found,) = state.status()["failed_tables"].values()
            assert found["reason"] == "target"
            assert "small" in found["message"]
            release(target, source)
            state.retry("u")
            pipeline.follows("t", "u")
        source.execute("update u set n = 7 where id = 3", "delete from u where id = 2")
        pipeline.follows("t", "u")
        assert not aside(tmp_path)


@on_postgres
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_does_not_forget_what_was_refused(
    make: Make, target: AnyTarget, source: AnyDatabase, tmp_path: Path, moment: str
) -> None:
    """The pipeline dies before or after the batch is written without the table. Then the target would take the rows."""
    with make() as pipeline:
        pipeline.follows("t", "u")
    constrain(target, source)
    source.transact("insert into u values (2, 200)", "insert into t values (2, 2)")
    met: list[Batch] = []

    def die(batch: Batch, write: Written) -> None:
        known = {table.source.name for table in batch.tables}
        if "u" not in known and "t" in known:
            met.append(batch)
            if moment == "after":
                write(batch)
            raise RuntimeError("the pipeline dies here")
        write(batch)

    pipeline = make()
    pipeline._around = die
    with pipeline:
        assert "dies here" in pipeline.failure()
    assert met
    assert not aside(tmp_path), "the next offset is not planned yet"
    release(target, source)
    source.execute("insert into u values (3, 3)")
    for lost in (tmp_path / "spool").glob("*.json"):
        lost.unlink()  # the spool may be lost at any time
    with make() as pipeline:
        pipeline.follows("t")
        pipeline.until(lambda: bool(aside(tmp_path)))
        source.execute("update t set n = 9")
        pipeline.follows("t")
        assert pipeline.rows("u").keys() == {(1,)}, "a later row is not written while an earlier one is missing"


@on_postgres
def test_a_table_that_cannot_be_made_is_set_aside(
    make: Make, target: AnyTarget, source: AnyDatabase, tmp_path: Path
) -> None:
    name = target.name(TableName(source.schema, "u"))
    target.execute(f"create table {name} (id int primary key, n int)")
    with make() as pipeline:
        pipeline.follows("t")
        pipeline.until(lambda: bool(aside(tmp_path)))
        assert pipeline.rows("u") == {}


@on_postgres
def test_what_concerns_all_tables_still_stops(
    make: Make, target: AnyTarget, source: AnyDatabase, tmp_path: Path
) -> None:
    with make() as pipeline:
        pipeline.follows("t", "u")
        target.execute("drop schema dblog cascade")
        source.execute("insert into t values (2, 2)", "insert into u values (2, 2)")
        pipeline.failure()
        assert not aside(tmp_path)


@on_postgres
def test_stop_still_stops(
    spark: SparkSession, make: Make, target: AnyTarget, source: AnyDatabase, tmp_path: Path
) -> None:
    with Pipeline(spark, target, source, tmp_path) as pipeline:
        pipeline.follows("t", "u")
        constrain(target, source)
        source.execute("insert into u values (2, 200)")
        assert "TargetRefused" in pipeline.failure()
