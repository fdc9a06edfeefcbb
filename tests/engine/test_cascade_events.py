"""Cascades into targets that keep events and not rows: who applies the events in their order has the source's rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dblog.core.names import parse_patterns
from dblog.errors import ConfigError
from dblog.sinks.base import DELIVERED, Batch, Sink, SinkContext
from dblog.sinks.formats import envelope, events_of
from dblog.sinks.route import Route
from dblog.sinks.table_parts import parts_of
from tests.engine.sink_query import SinkQuery
from tests.engine.test_cascades import HISTORIES, SEEDS, WORLD, change, on_mariadb, run
from tests.families import OnMySQL

pytestmark = pytest.mark.server

Row = dict[str, Any]


class Reader(Sink):
    """Reads the events of all tables in their order, and keeps the rows that they come to."""

    def __init__(self) -> None:
        super().__init__({}, SinkContext("test", Path()))
        self.rows: dict[str, dict[str, Row]] = {}
        self.cascades_seen: list[Row] = []

    @property
    def cascades(self) -> str:
        return DELIVERED

    def write(self, batch: Batch) -> None:
        events = []
        for table in batch.tables:
            mine = [
                json.loads(value)
                for part in parts_of([table])
                for made in events_of(part.batches(), part.schema, envelope)
                for value in made.column("value").to_pylist()
            ]
            assert mine == sorted(mine, key=_order), "the events of a table come in their order, rows of dumps too"
            events += mine
        for event in sorted(events, key=_order):  # stable: a table's events stay as they came
            self._apply(event)

    def _apply(self, event: Row) -> None:
        rows = self.rows.setdefault(event["table"], {})
        match event["op"]:
            case "truncate":
                rows.clear()
            case "delete":
                rows.pop(json.dumps(event["key"]), None)
            case "cascade":
                self.cascades_seen.append(event)
                self._cascade(event["table"], event["cascade"]["old"], event["cascade"]["new"], event)
            case _:
                rows[json.dumps(event["key"])] = {"_key": list(event["key"]), **event["after"]}

    def _cascade(self, table: str, old: Row, new: Row | None, event: Row) -> None:
        rows = self.rows.setdefault(table, {})
        found = {k: row for k, row in rows.items() if all(row[c] == v for c, v in old.items())}
        for key, row in found.items():
            del rows[key]
            if new is not None:
                after = {**row, **new}
                rows.setdefault(json.dumps({name: after[name] for name in row["_key"]}), after)
            for rule in event["cascade"]["then"]:
                if rule["parent"].partition(".")[2] == table:
                    self._set_off(rule, row, new, event)

    def _set_off(self, rule: Row, row: Row, new: Row | None, event: Row) -> None:
        action = rule["on_delete" if new is None else "on_update"]
        was = [row[name] for name in rule["referenced"]]
        now = [{**row, **(new or {})}[name] for name in rule["referenced"]]
        if action is None or None in was or (new is not None and was == now):
            return
        child = rule["table"].partition(".")[2]
        old = dict(zip(rule["columns"], was, strict=True))
        if action == "set null":
            self._cascade(child, old, dict.fromkeys(rule["columns"]), event)
        else:
            self._cascade(child, old, None if new is None else dict(zip(rule["columns"], now, strict=True)), event)


def _order(event: Row) -> tuple[int, int, bool]:
    return event["lsn"], event["seq"], event["op"] == "cascade"


class Follower:
    """A query whose events a reader applies."""

    def __init__(self, database: OnMySQL, spool: Path, **options: Any) -> None:
        self.database = database
        self.reader = Reader()
        given = {"tables": f"{database.name}.*", "cascades": "follow", "serverId": 7101, **options}
        self.query = SinkQuery(database.url, str(spool), self.reader, **given)

    def agree(self) -> None:
        self.query.catch_up()
        for name in self.query.reader._options.source.tables():
            cursor = self.database.connect().cursor()
            cursor.execute(f"select * from {name.name}")
            columns = [column[0] for column in cursor.description]
            source = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
            rows = [{k: v for k, v in row.items() if k != "_key"} for row in self._rows(name.name).values()]
            assert sorted(rows, key=_text) == sorted(source, key=_text), name

    def _rows(self, table: str) -> Mapping[str, Row]:
        return self.reader.rows.get(table, {})


def _text(row: Row) -> str:
    return json.dumps(row, sort_keys=True)


@pytest.fixture
def followers() -> Iterator[list[Follower]]:
    made: list[Follower] = []
    yield made
    for one in made:
        one.query.stop()


@on_mariadb
@pytest.mark.parametrize("history", [name for name in HISTORIES if name != "types"])
def test_who_applies_the_events_has_the_rows_of_the_source(
    database: OnMySQL, tmp_path: Path, followers: list[Follower], history: str
) -> None:
    definitions, steps = HISTORIES[history]
    run(database, definitions)
    followers.append(copy := Follower(database, tmp_path))
    copy.agree()
    for step in steps:
        run(database, step)
    copy.query.wait_captured()
    copy.agree()
    assert bool(copy.reader.cascades_seen)


@on_mariadb
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_rows_of_dumps_come_before_the_events_that_change_them(
    database: OnMySQL, tmp_path: Path, followers: list[Follower], seed: int
) -> None:
    import random

    dice = random.Random(seed)
    database.execute(*WORLD)
    session = database.connect()
    for _ in range(60):
        change(session, dice)
    followers.append(copy := Follower(database, tmp_path, chunkRows=3, parallelism=2))

    def between() -> None:
        for _ in range(dice.choice([0, 0, 1, 2])):
            change(session, dice)

    copy.query.between = between
    for _ in range(25):
        between()
        copy.query.step()
    copy.query.between = lambda: None
    copy.agree()


@on_mariadb
def test_an_event_says_what_the_foreign_key_did(database: OnMySQL, tmp_path: Path, followers: list[Follower]) -> None:
    database.execute(
        "create table p (id int primary key)",
        "create table c (id int primary key, p_id int, constraint f foreign key (p_id) references p (id)"
        " on delete set null on update cascade)",
        "create table g (id int primary key, p_id int, constraint g foreign key (p_id) references c (p_id)"
        " on update cascade)",
        "insert into p values (1), (2)",
        "insert into c values (1, 1), (2, 2)",
    )
    followers.append(copy := Follower(database, tmp_path))
    copy.agree()
    database.execute("update p set id = 3 where id = 1", "delete from p where id = 2")
    copy.agree()
    moved, deleted = copy.reader.cascades_seen
    then = {
        "foreign_key": "g",
        "table": f"{database.name}.g",
        "columns": ["p_id"],
        "parent": f"{database.name}.c",
        "referenced": ["p_id"],
        "on_delete": None,
        "on_update": "cascade",
    }
    assert moved["cascade"] == {
        "foreign_key": "f",
        "rule": "on update cascade",
        "parent": f"{database.name}.p",
        "referenced": ["id"],
        "old": {"p_id": 1},
        "new": {"p_id": 3},
        "then": [then],
    }
    assert (moved["table"], moved["key"], moved["before"], moved["after"]) == ("c", None, None, None)
    assert deleted["cascade"]["rule"] == "on delete set null"
    assert (deleted["cascade"]["old"], deleted["cascade"]["new"]) == ({"p_id": 2}, {"p_id": None})


@on_mariadb
def test_an_event_never_shows_a_column_that_a_route_changes(
    database: OnMySQL, tmp_path: Path, followers: list[Follower]
) -> None:
    database.execute(
        "create table p (id int primary key)",
        "create table c (id int primary key, p_id int, foreign key (p_id) references p (id) on delete cascade)",
        "insert into p values (1)",
    )
    patterns = [parse_patterns(f"{database.name}.{name}")[0] for name in ("c", "p")]
    routes = [Route(patterns[0], mask={"p_id": "null"}), Route(patterns[1], rename={"id": "hidden"})]
    for number, route in enumerate(routes):
        followers.append(copy := Follower(database, tmp_path / str(number), routes=(route,), serverId=7110 + number))
        copy.query.catch_up()
        database.execute(f"insert into p values ({10 + number})", f"delete from p where id = {10 + number}")
        with pytest.raises(ConfigError, match="the event would show the columns"):
            copy.query.catch_up()
