"""What every sink does. A sink passes it with a class that says what its target is:

class TestSql(SinkSuite, AwaySuite):
    @pytest.fixture
    def target(self, ...) -> Target: ...

`AwaySuite` is for targets that may be out of reach.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog.core.names import parse_patterns
from dblog.core.schema import Column, TableName
from dblog.core.settings import read_settings
from dblog.errors import ConfigError, SinkUnreachable
from dblog.sinks.base import Batch
from dblog.sinks.route import Route
from tests.engine.writers import create_hot, writers
from tests.families import AnyDatabase, OnPostgres
from tests.server.postgres.test_types import MADE_TYPES, TYPES, spelled
from tests.sinks.app import Life
from tests.sinks.cases import ODD, cases, twenty
from tests.sinks.conftest import FAMILIES, on_families
from tests.sinks.pipeline import Pipeline, Written, differences, stream_options
from tests.sinks.target import Target, sink_class

MakePipeline = Callable[..., Pipeline]
HOT = 300


class PipelineSuite:
    """A pipeline for each test."""

    @pytest.fixture
    def target(self) -> Target:
        raise NotImplementedError

    @pytest.fixture
    def pipeline(
        self, spark: SparkSession, target: Target, database: AnyDatabase, tmp_path: Path
    ) -> Iterator[MakePipeline]:
        """Makes the test's pipeline; `pipeline(settings={"schema_changes": "fail"})`."""
        made: list[Pipeline] = []

        def make(**given: Any) -> Pipeline:
            made.append(Pipeline(spark, target, database, tmp_path, **given))
            return made[-1]

        yield make
        for one in made:
            one.stop()

    @pytest.fixture
    def table(self, database: AnyDatabase) -> AnyDatabase:
        """The source with a table `t` of the keys 1 to 20."""
        database.execute(*twenty(database, "t"))
        return database


@pytest.mark.server
@pytest.mark.spark
class SinkSuite(PipelineSuite):
    # -- what reaches the target ------------------------------------------------------------------------------

    @on_families
    def test_the_full_state_comes_first_and_then_the_log(self, table: AnyDatabase, pipeline: MakePipeline) -> None:
        table.execute(
            "create table u (a int, b varchar(10), n int, primary key (a, b))", "insert into u values (1, 'x', 5)"
        )
        with pipeline(chunkRows=5) as running:
            running.follows("t")
            running.follows("u", key=("a", "b"))
            ranges = running.folder / "spool" / "range"
            assert len(list(ranges.iterdir())) <= 3, "only the batch that runs has work, its tables' part and selects"
            table.execute(
                "update t set n = n + 1 where id <= 3",
                "update t set n = n + 1, note = null where id = 3",
                "delete from t where id = 4",
                "insert into t values (21, 7, 'new')",
                "insert into u values (1, 'y', null)",
                "update u set n = 6 where b = 'x'",
            )
            running.follows("t")
            running.follows("u", key=("a", "b"))

    def test_whatever_is_done_to_rows_and_tables_is_followed(
        self, database: AnyDatabase, target: Target, pipeline: MakePipeline
    ) -> None:
        given = [*cases(database), *([ODD] if target.odd_names else [])]
        for case in given:
            database.execute(*case.create)
        with pipeline() as running:
            for number in range(1 + max(len(case.done) for case in given)):
                going_on = [case for case in given if number <= len(case.done)]
                for case in going_on if number else ():
                    database.transact(*case.done[number - 1])
                for case in going_on:
                    running.follows(case.table, key=case.key)

    def test_every_type_arrives_as_it_was_delivered(
        self, database: OnPostgres, target: Target, pipeline: MakePipeline
    ) -> None:
        cases = {f"c{n}": (kind, _ordinary(values)) for n, (kind, _, values, _) in enumerate(TYPES)}
        columns = ", ".join(f"{name} {spelled(kind)}" for name, (kind, _) in cases.items())
        database.execute(MADE_TYPES, f"create table t (id int primary key, {columns})")
        size = max(len(values) for _, values in cases.values())

        def insert(number: int) -> None:
            cells = ", ".join(f"%s::{spelled(kind)}" for kind, _ in cases.values())
            values = [v[number % size] if number % size < len(v) else None for _, v in cases.values()]
            database.execute(f"insert into t values ({number}, {cells})", parameters=values)

        delivered: dict[tuple[Any, ...], dict[str, Any]] = {}
        described: dict[str, Column] = {}

        def note(batch: Batch, write: Written) -> None:
            for table in batch.tables:
                described.update({c.name: c for c in table.schema.columns})
                for frame in filter(None, (table.changes, table.rows)):
                    for row in frame.select(*table.schema.names).collect():
                        delivered[(row.id,)] = row.asDict(recursive=True)
            write(batch)

        for number in range(size):
            insert(number)
        with pipeline(around=note) as running:
            running.until(lambda: len(delivered) == size and len(running.rows()) == size)
            for number in range(size, 2 * size):
                insert(number)
            running.until(lambda: len(delivered) == 2 * size and len(running.rows()) == 2 * size)
            found = running.rows()
        expected = {
            key: {name: target.shown(described[name], value) for name, value in row.items()}
            for key, row in delivered.items()
        }
        kinds = {name: kind for name, (kind, _) in cases.items()}
        assert [f"{kinds.get(d.split(chr(39))[1])}: {d}" for d in differences(found, expected)] == []

    def test_a_route_names_the_table_and_its_columns(
        self, table: AnyDatabase, target: Target, pipeline: MakePipeline
    ) -> None:
        (pattern,) = parse_patterns("public.t")
        route = Route(pattern, target="{schema}.{table}_copy", rename={"id": "key", "note": "words"}, where="n < 5")
        with pipeline(routes=[route]) as running:
            wanted = {(i,): {"key": i, "n": 0, "words": f"row {i}"} for i in range(1, 21)}
            copy = TableName("public", "t_copy")
            running.until(lambda: not differences(target.rows(copy), wanted))
            table.execute("update t set n = 9 where id = 1", "update t set n = 4 where id = 2")
            del wanted[(1,)]
            wanted[(2,)]["n"] = 4
            running.until(lambda: not differences(target.rows(copy), wanted))
            table.execute("update t set n = 3 where id = 1")
            wanted[(1,)] = {"key": 1, "n": 3, "words": "row 1"}
            running.until(lambda: not differences(target.rows(copy), wanted))

    # -- whatever happens -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("database", FAMILIES[-1:], indirect=True)
    def test_it_converges_while_others_write(
        self, database: AnyDatabase, target: Target, pipeline: MakePipeline
    ) -> None:
        create_hot(database, HOT)
        with pipeline(tables=f"{database.schema}.t", chunkRows=20) as running:
            with writers(database, 3, HOT, rate=150):
                running.until(lambda: running.sink.done >= 4)
                time.sleep(2)
            running.follows()
        if target.history:
            self.check_history(target, TableName(database.schema, "t"))

    @pytest.mark.slow
    def test_it_converges_when_it_is_killed_in_mid_batch(
        self, database: AnyDatabase, target: Target, pipeline: MakePipeline, tmp_path: Path
    ) -> None:
        create_hot(database, HOT)
        tables = f"{database.schema}.t"
        options = stream_options(database, tmp_path, target.make(tmp_path), tables, chunkRows=60)
        life = Life(tmp_path, target, options, die=0.3, batches=1)
        try:
            with writers(database, 3, HOT, rate=50):
                life.live()
        finally:
            life.end()
        with pipeline(tables=tables, chunkRows=60) as running:
            running.follows()
        if target.history:
            self.check_history(target, TableName(database.schema, "t"))

    def check_history(self, target: Target, table: TableName) -> None:
        """Every key's events are in order, and each can follow the one before it."""
        last: dict[Any, dict[str, Any]] = {}
        seen = set()
        for event in target.events(table):
            place = (event["key"], event["lsn"], event["seq"])
            if place in seen:
                assert not target.exactly_once, f"{event} came twice"
                continue
            seen.add(place)
            before = last.get(event["key"])
            if before is not None:
                assert (before["lsn"], before["seq"]) < place[1:], f"{event} came after {before}"
                follows = {"delete": ("create", "read")}.get(before["op"], ("read", "update", "delete"))
                assert event["op"] in follows, f"{event} came after {before}"
            last[event["key"]] = event
        assert {event["op"] for event in last.values()} >= {"update", "delete"}

    def test_a_batch_that_is_given_twice_changes_nothing(
        self, table: AnyDatabase, target: Target, pipeline: MakePipeline, spark: SparkSession, tmp_path: Path
    ) -> None:
        if not target.exactly_once:
            pytest.skip("it is not exact")
        name = TableName(table.schema, "t")
        taken: list[int] = []

        def state() -> tuple[Any, ...]:
            return target.rows(name), target.events(name) if target.history else None

        def twice(batch: Batch, write: Written) -> None:
            write(batch)
            once = state()
            again = target.make(tmp_path)  # as after a crash, by another process
            again.open(spark)
            again.write(batch)
            again.close()
            assert state() == once
            taken.append(batch.id)

        with pipeline(around=twice, chunkRows=10) as running:
            running.follows()
            table.transact(
                "update t set n = n + 1", "update t set id = -1 where id = 1", "delete from t where id = 2",
                "insert into t values (50, 1, 'x')",
            )  # fmt: skip
            running.follows()
            table.transact("truncate t", "insert into t values (1, 1, 'last')")
            running.follows()
            table.execute("update t set n = 2")
            running.follows()
            deadline = time.monotonic() + 30
            while len(taken) < 4:  # the last batch is being given again
                assert time.monotonic() < deadline
                time.sleep(0.1)
        if target.history:
            places = [(e["key"], e["lsn"], e["seq"]) for e in target.events(name)]
            assert len(places) == len(set(places))

    def test_a_pipeline_goes_on_where_it_stopped(
        self, table: AnyDatabase, target: Target, pipeline: MakePipeline
    ) -> None:
        running = pipeline()
        with running:
            running.follows()
        table.execute(
            "update t set n = 1 where id = 1", "delete from t where id = 2", "insert into t values (40, 1, '')"
        )
        with running:
            running.follows()
        if target.history:
            events = target.events(TableName(table.schema, "t"))
            assert len(events) == 23 or not target.exactly_once
            ops = [op for op, *_ in {(e["op"], e["key"], e["lsn"], e["seq"]) for e in events}]
            assert ops.count("read") == 20
            assert sorted(op for op in ops if op != "read") == ["create", "delete", "update"]

    # -- columns that come and go -----------------------------------------------------------------------------

    def test_a_new_column_reaches_the_target(self, table: AnyDatabase, pipeline: MakePipeline) -> None:
        with pipeline(settings=self._mode("evolve")) as running:
            running.follows()
            table.transact(
                "update t set n = 1 where id = 1",
                "alter table t add column extra int",
                "update t set extra = 6, n = 2 where id in (1, 2)",
                "insert into t values (30, 3, 'new', 7)",
            )
            source = running.source()
            known = {key: row for key, row in source.items() if row["extra"] is not None}
            rest = {key: {n: v for n, v in row.items() if n != "extra"} for key, row in source.items()}
            running.until(
                lambda: not differences({k: v for k, v in running.rows().items() if k in known}, known),
                lambda: str(running.rows()),
            )
            assert not differences(running.rows(), rest)
            table.execute("update t set extra = 8", "update t set n = 5 where id = 3")
            running.follows()

    def test_a_new_column_may_be_left_out(self, table: AnyDatabase, target: Target, pipeline: MakePipeline) -> None:
        if "schema_changes" not in _names(target):
            pytest.skip("it takes every column")
        with pipeline(settings=self._mode("ignore")) as running:
            running.follows()
            table.execute("alter table t add column extra int", "update t set extra = 6, n = 2 where id = 1")
            rest = {key: {n: v for n, v in row.items() if n != "extra"} for key, row in running.source().items()}
            running.until(lambda: not differences(running.rows(), rest))
            assert {row.get("extra") for row in running.rows().values()} == {None}

    def test_a_new_column_may_end_the_pipeline(
        self, table: AnyDatabase, target: Target, pipeline: MakePipeline
    ) -> None:
        if "schema_changes" not in _names(target):
            pytest.skip("it takes every column")
        with pipeline(settings=self._mode("fail")) as running:
            running.follows()
            before = running.rows()
            table.execute("alter table t add column extra int", "update t set extra = 6, n = 2 where id = 1")
            said = running.failure()
            assert "extra" in said
            assert "hint: " in said
            assert running.rows() == before

    def _mode(self, mode: str) -> dict[str, Any]:
        return {"schema_changes": mode} if "schema_changes" in self._known else {}

    @pytest.fixture(autouse=True)
    def _settings_of(self, target: Target) -> None:
        self._known = _names(target)

    # -- errors -----------------------------------------------------------------------------------------------

    def test_wrong_settings_are_named(self, target: Target) -> None:
        kind, given = sink_class(target.sink), target.settings()
        with pytest.raises(ConfigError, match="no_such_setting"):
            read_settings("sink", {**given, "no_such_setting": 1}, kind.settings)
        for setting in kind.settings:
            with pytest.raises(ConfigError, match=setting.name) as wrong:
                read_settings("sink", {**given, setting.name: datetime.date(2024, 1, 1)}, kind.settings)
            assert "allowed: " in str(wrong.value)
            assert ("2024" in str(wrong.value)) != setting.secret
            if setting.required:
                with pytest.raises(ConfigError, match=setting.name):
                    read_settings("sink", {n: v for n, v in given.items() if n != setting.name}, kind.settings)


@pytest.mark.server
@pytest.mark.spark
class AwaySuite(PipelineSuite):
    """For a target that may be out of reach: `Target.away`."""

    def test_a_target_that_is_away_is_waited_for(
        self, table: OnPostgres, target: Target, pipeline: MakePipeline
    ) -> None:
        with pipeline(heartbeatSeconds=1) as running:
            running.follows()
            with target.away():
                ((before,),) = table.execute("select pg_current_wal_insert_lsn() - '0/0'")
                table.execute("update t set n = 1 where id <= 10", "delete from t where id = 20")
                deadline = time.monotonic() + 30
                while not running.said and time.monotonic() < deadline:
                    time.sleep(0.1)
                table.execute("insert into t values (70, 1, 'meanwhile')")
                time.sleep(4)
                assert running.active
                assert len(running.said) >= 2
                assert _acknowledged(table) <= before, "the source forgets what the target does not have"
            running.follows()
            running.until(lambda: _acknowledged(table) > before)

    def test_a_target_that_is_away_at_first_is_said_to_be(self, target: Target, tmp_path: Path) -> None:
        sink = target.make(tmp_path)
        with target.away(), pytest.raises(SinkUnreachable):
            sink.check()
        sink.check()


def _names(target: Target) -> set[str]:
    return {setting.name for setting in sink_class(target.sink).settings}


def _ordinary(values: list[str]) -> list[str]:
    """Without the moments that Python has no value for."""
    odd = ("infinity", " BC", "5874897-", "294246-", "10000-")
    return [v for v in values if not any(mark in v for mark in odd)]


def _acknowledged(database: OnPostgres) -> int:
    """How far the source may forget its log."""
    found = database.execute(
        "select confirmed_flush_lsn - '0/0' from pg_replication_slots where database = current_database()"
    )
    return int(found[0][0])
