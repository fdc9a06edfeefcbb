"""A zoo of tables for each family: everything that real schemas have, into every kind of target."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dblog.core.schema import TableName
from dblog.sinks.base import Sink, SinkContext
from dblog.sinks.lake.delta import DeltaSink
from dblog.spark.options import read_options
from tests.conftest import MYSQL_SERVERS, SERVERS
from tests.engine.sink_query import SinkQuery, sql_sink
from tests.families import OnMySQL, OnPostgres
from tests.zoo import my_zoo, pg_zoo
from tests.zoo.compare import differences, differences_of_dump_and_log
from tests.zoo.outputs import Key, Output, Outputs
from tests.zoo.sides import (
    OnMySQLSide,
    OnPostgresSide,
    Side,
    in_delta,
    of_another_family,
    of_the_same_family,
    truth,
)
from tests.zoo.tables import Zoo
from tests.zoo.writer import Writer

pytestmark = pytest.mark.server

EACH = 6
"""Random changes per table, before and after the restart."""


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver writes all rows itself."""
    monkeypatch.setattr("dblog.sinks.task_job.DRIVER_BYTES", 1 << 40)
    monkeypatch.setattr("dblog.planning.planner.POLL_SECONDS", 0.05)


def delta(folder: Path) -> Sink:
    given: dict[str, Any] = {s.name: s.default for s in DeltaSink.settings}
    sink = DeltaSink(given | {"path": str(folder), "maintain": "off"}, SinkContext("zoo", folder))
    sink.open(None)  # type: ignore[arg-type]
    return sink


def sql(folder: Path, url: str, **settings: Any) -> Sink:
    """The sink `sql`. Tables with many rows are staged, as by tasks, in threads of the driver."""
    sink = sql_sink(folder, url, **settings)
    sink.open(object())  # type: ignore[arg-type]
    return sink


class Keepers:
    """A zoo, its stream and its targets."""

    def __init__(self, zoo: Zoo, side: Side, url: str, sinks: Sequence[Output], folder: Path, seed: int) -> None:
        self.zoo = zoo
        self.side = side
        self.outputs = Outputs(sinks, SinkContext("zoo", folder))
        options = {"tables": zoo.patterns, "values": json.dumps({**zoo.values, "*.*": "null"})}
        options |= {"chunkRows": "1000", "parallelism": "8"} | ({"cascades": "follow"} if side.limited else {})
        self.query = SinkQuery(url, str(folder / "spool"), self.outputs, **options)
        self.writer = Writer(side.run, side.quote, limited=side.limited, seed=seed)

    def make(self) -> None:
        for statement in (
            *self.zoo.prepare,
            *(sql for table in self.zoo.tables for sql in table.create),
            *self.zoo.finish,
        ):
            assert self.side.run(statement), statement
        self.writer.fill(self.zoo.tables)

    def check(self) -> None:
        """The preflight leaves out what the zoo says, for the reason that it says, and nothing else."""
        options = read_options(self.query.given)
        with options.family.preflight(options.of_source) as found:
            problems = found.problems()
            followed = set(found.tables)
        assert not [p for p in problems if p.fatal]
        left_out = {tuple(p.table): p.what for p in problems if p.left_out and p.table}
        assert left_out.keys() == self.zoo.left_out.keys()
        for place, words in self.zoo.left_out.items():
            assert words in left_out[place], (place, left_out[place])
        assert followed == {TableName(*table.place) for table in self.zoo.tables}

    def live(self) -> None:
        """The first dump, changes of every kind, and a restart in the middle of them."""
        tables = self.zoo.tables
        self.query.catch_up(200)
        self.writer.touch(tables)
        self.query.catch_up(200)
        self.agree_dump_and_log()
        self.writer.change(tables, EACH)
        self.query.step()
        self.query.plan()
        self.query.restart()
        self.writer.change(tables, EACH)
        self.query.catch_up(200)

    def agree_dump_and_log(self) -> None:
        events = self.outputs.record.events()
        counters = {TableName(*t.place): t.counter for t in self.zoo.tables}
        wrong = [
            line
            for table, rows in events.items()
            if counters[table] is not None
            for line in differences_of_dump_and_log(table, rows, counters[table])
        ]
        assert not wrong, "\n".join(wrong)

    def raw(self, table: TableName) -> dict[Key, dict[str, str]]:
        """By key, the raw values of the row's present state."""
        found: dict[Key, dict[str, str]] = {}
        for key, history in self.outputs.record.events().get(table, {}).items():
            now: dict[str, str] = {}
            for event in history:
                now = {name: text for name, text in now.items() if name in event.unchanged} | event.raw
            found[key] = now
        return found


def report(wrong: list[str]) -> None:
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(sorted(wrong)[:80])


@pytest.mark.parametrize("server", SERVERS)
def test_the_zoo_of_postgres(
    servers: dict[str, Any], mysql_servers: dict[str, Any], tmp_path: Path, server: str
) -> None:
    with ExitStack() as stack:
        name = f"zoo_{uuid.uuid4().hex[:8]}"
        source, copy = (OnPostgres(servers[server].start(), f"{name}{end}") for end in ("", "_copy"))
        mysql = OnMySQL(mysql_servers[MYSQL_SERVERS[0]].start(), name)
        for database in (source, copy, mysql):
            database.create()
            stack.callback(database.drop)
        pg_zoo.prepare(source)
        zoo = pg_zoo.zoo(source)
        of = {TableName(*t.place): t for t in zoo.tables}
        sinks = [
            Output("same", sql(tmp_path, copy.url), lambda _: True),
            Output("other", sql(tmp_path, mysql.url, schema=name, records=name), lambda t: of[t].other),
            Output("lake", delta(tmp_path / "lake"), lambda t: of[t].lake),
        ]
        keepers = Keepers(zoo, OnPostgresSide(source), source.url, sinks, tmp_path, seed=1)
        stack.callback(keepers.query.stop)
        keepers.make()
        keepers.check()
        keepers.live()
        compare(
            keepers, OnPostgresSide(copy), lambda t: t, OnMySQLSide(mysql), lambda t: (name, t.name), tmp_path / "lake"
        )


@pytest.mark.parametrize("server", MYSQL_SERVERS)
def test_the_zoo_of_mysql(servers: dict[str, Any], mysql_servers: dict[str, Any], tmp_path: Path, server: str) -> None:
    """Only with `--thorough` so far: its last comparison has not passed as a whole yet."""
    with ExitStack() as stack:
        name = f"zoo_{uuid.uuid4().hex[:8]}"
        source, copy = (OnMySQL(mysql_servers[server].start(), f"{name}{end}") for end in ("", "_copy"))
        postgres = OnPostgres(servers[SERVERS[0]].start(), name)
        for database in (source, copy, postgres):
            database.create()
            stack.callback(database.drop)
        zoo = my_zoo.zoo(source)
        of = {TableName(*t.place): t for t in zoo.tables}
        sinks = [
            Output("same", sql(tmp_path, copy.url, schema=copy.name, records=copy.name), lambda _: True, cascades=True),
            Output("other", sql(tmp_path, postgres.url), lambda t: of[t].other, cascades=True),
            Output("lake", delta(tmp_path / "lake"), lambda t: of[t].lake),
        ]
        keepers = Keepers(zoo, OnMySQLSide(source), source.url, sinks, tmp_path, seed=1)
        stack.callback(keepers.query.stop)
        keepers.make()
        keepers.check()
        keepers.live()
        compare(
            keepers,
            OnMySQLSide(copy),
            lambda t: (copy.name, t.name),
            OnPostgresSide(postgres),
            lambda t: t,
            tmp_path / "lake",
        )


Named = Callable[[TableName], tuple[str, ...]]


def compare(keepers: Keepers, same: Side, same_name: Named, other: Side, other_name: Named, lake: Path) -> None:
    """Every value of every table, in every target."""
    wrong: list[str] = []
    for table in keepers.zoo.tables:
        name = TableName(*table.place)
        schema = keepers.outputs.record.schemas[name]
        rows, raw = truth(keepers.side, schema), keepers.raw(name)
        exact = {tuple(row.copied[k] for k in schema.key): row.exact for row in rows.values()}
        copied = of_the_same_family(same, schema, same_name(name))
        wrong += [f"same: {line}" for line in differences(name, exact, copied, {})]
        if table.other:
            plain = {tuple(row.unsigned.shown[k] for k in schema.key): row.unsigned for row in rows.values()}
            found = of_another_family(other, schema, other_name(name))
            wrong += [f"other: {line}" for line in differences(name, plain, found, raw)]
        if table.lake:
            wrong += [f"lake: {line}" for line in differences(name, rows, in_delta(lake, schema, name), raw)]
    report(wrong)
