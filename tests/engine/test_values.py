"""Values that the delivered type of their column cannot hold: one rule for the log and for dumps, and nothing stops."""

from __future__ import annotations

import json
import pickle
import random

import pytest

from dblog.core.value_rules import RULES
from dblog.errors import ValueRefused
from dblog.spark.options import read_options
from tests.engine.conftest import MakeQuery
from tests.engine.query import Query
from tests.families import AnyDatabase, OnPostgres
from tests.history import Row

pytestmark = pytest.mark.server

POSTGRES = {
    "price numeric(5,2)": ["1.50", "-999.99", "NaN", None],
    "large numeric(38,10)": ["1.5", "NaN", "-1234567890123456789012345678.0123456789"],
    "free numeric": ["NaN", "Infinity", "-Infinity", "1e100"],
    "small smallint[]": ["{1,NULL,3}", "[4:4]={NULL}", "{}", "{{1,2},{3,4}}", "[-2:-1]={5,6}", None],
    "tags text[]": ['{"a,b",NULL}', '{{a,"}"},{"\\\\",d}}', '[0:0]={"\u00e4\u2028"}'],
    "sums numeric(4,1)[]": ["{1.5}", "{1.5,NaN}", "{NULL,NaN,-1.0}", "[2:2]={NaN}"],
    "moments timestamp[]": ['{"2024-01-01 00:00:00"}', '{"294276-12-31 23:59:59.9",NULL}', "{infinity}"],
    "day date": ["2024-02-29", "infinity", "-infinity", "4713-01-01 BC", "5874897-12-31"],
    "at timestamptz": ["2024-02-29 12:00+00", "294276-12-31 23:59:59.999999+00", "-infinity", "4713-01-01 00:00+00 BC"],
    "local timestamp": ["2024-02-29 12:00", "294276-01-01", "294276-12-31 01:00", "294246-12-31", "infinity"],
}
"""Columns, and values that PostgreSQL stores in them."""
MYSQL = {
    "day date": ["2024-02-29", "2024-02-31", "2024-00-00", "2024-05-00", "0000-00-00", "0000-05-01", None],
    "at datetime": ["2024-02-29 12:00:00", "2024-02-31 23:59:59", "2024-00-10 01:02:03", "0000-00-00 00:00:00"],
    "exact datetime(3)": ["2024-02-31 23:59:59.125", "0000-00-00 10:00:00.000", "2024-01-01 00:00:00.001"],
    "moment timestamp(6) null": ["2024-02-29 12:00:00.000001", "0000-00-00 00:00:00", None],
    "label text": ["a", "\u00e4\U0001f600", ""],
}
LIVELY = "set session sql_mode = 'ALLOW_INVALID_DATES'"
"""Lets MySQL and MariaDB store dates that do not exist."""


def values_of(database: AnyDatabase) -> dict[str, list[str | None]]:
    return POSTGRES if isinstance(database, OnPostgres) else MYSQL


def prepare(database: AnyDatabase, rows: int = 120, seed: int = 7) -> None:
    """A table `t` with random rows of such values."""
    columns, chance = values_of(database), random.Random(seed)
    database.execute(f"create table t (id int primary key, n int, {', '.join(columns)})")
    literals = [
        ", ".join([str(i), "0", *(_literal(chance.choice(pool)) for pool in columns.values())])
        for i in range(1, rows + 1)
    ]
    lively = () if isinstance(database, OnPostgres) else (LIVELY,)
    database.execute(*lively, f"insert into t values ({'), ('.join(literals)})")


def _literal(value: str | None) -> str:
    return "null" if value is None else "'" + value.replace("\\", "\\\\" if "\\\\" not in value else "\\") + "'"


def touch(database: AnyDatabase, where: str = "true") -> None:
    """Change every row, and none of its odd values."""
    lively = () if isinstance(database, OnPostgres) else (LIVELY,)
    database.execute(*lively, f"update t set n = n + 1 where {where}")


def own_texts(database: AnyDatabase) -> dict[int, Row]:
    """The server's own text of every value, by key."""
    names = [column.split()[0] for column in values_of(database)]
    if isinstance(database, OnPostgres):
        zone, shown = ["set timezone = 'UTC'"], [f"{name}::text" for name in names]
    else:
        zone, shown = ["set time_zone = '+00:00'"], [f"cast({name} as char)" for name in names]
    found = database.execute(*zone, f"select id, {', '.join(shown)} from t")
    return {key: dict(zip(names, texts, strict=True)) for key, *texts in found}


def delivered(stream: Query, op: str) -> dict[int, Row]:
    return {event["id"]: event for event in stream.history.events if event["_op"] == op}


@pytest.fixture
def odd(database: AnyDatabase) -> AnyDatabase:
    prepare(database)
    return database


on_all = pytest.mark.parametrize("database", ["pg18", "pg15", "mariadb", "mysql"], indirect=True)


@on_all
def test_dump_and_log_deliver_the_same_and_the_raw_values_are_the_servers_texts(
    odd: AnyDatabase, query: MakeQuery
) -> None:
    stream = query(tables=f"{odd.schema}.*", before=True)  # envelopes: Python has no type for all dates
    stream.catch_up()
    touch(odd)
    stream.catch_up()
    dumped, changed, truth = delivered(stream, "read"), delivered(stream, "update"), own_texts(odd)
    assert dumped.keys() == changed.keys() == truth.keys()
    names = [column.split()[0] for column in values_of(odd)]
    seen = set()
    for key, row in dumped.items():
        raw = json.loads(row["_raw_values"] or "{}")
        now = json.loads(changed[key]["_raw_values"] or "{}")
        assert raw == {name: text for name, text in now.items() if not name.startswith("_before.")}
        for name in names:
            assert repr(row[name]) == repr(changed[key][name]), (key, name)
            if name in raw:
                assert row[name] is None
                assert raw[name] == truth[key][name]
                seen.add(name)
            elif truth[key][name] is not None:
                assert row[name] is not None, "a null without its text is a lost value"
    expected = {"price", "large", "small", "tags", "sums", "moments", "at", "local"}
    assert seen == (expected if isinstance(odd, OnPostgres) else {"day", "at", "exact"})
    assert stream.engine.status()["raw_values"] > 0


@on_all
def test_as_text_every_value_is_the_servers_text(odd: AnyDatabase, query: MakeQuery) -> None:
    stream = query(values="text")
    stream.catch_up()
    touch(odd)
    stream.catch_up()
    truth = own_texts(odd)
    for op in ("read", "update"):
        for key, row in delivered(stream, op).items():
            assert row["_raw_values"] is None
            assert {name: row[name] for name in truth[key]} == truth[key]


@on_all
def test_stop_names_the_value_in_dump_and_log(database: AnyDatabase, query: MakeQuery) -> None:
    kind, value = ("numeric(3,0)", "NaN") if isinstance(database, OnPostgres) else ("date", "2024-02-31")
    lively = () if isinstance(database, OnPostgres) else (LIVELY,)
    database.execute(f"create table t (id int primary key, v {kind}, w {kind})", "insert into t (id) values (1)")
    where = f"{database.schema}.t"
    stream = query(values=json.dumps({where: {"v": "stop"}}))
    stream.catch_up()
    database.execute(*lively, f"insert into t values (2, null, '{value}')")
    stream.catch_up()
    assert stream.history.of(2)[0]["_raw_values"] == json.dumps({"w": value}, separators=(",", ":"))
    database.execute(*lively, f"insert into t values (3, '{value}', null)")
    with pytest.raises(ValueRefused, match="column 'v'") as caught:
        stream.catch_up()
    found = pickle.loads(pickle.dumps(caught.value))
    assert (found.table, found.column, found.value, found.key) == (where, "v", value, {"id": "3"})
    assert found.position is not None
    assert found.hint is not None
    assert '.option("values", \'{' in found.hint
    again = query(values="stop", slot="other")
    with pytest.raises(ValueRefused) as caught:
        again.catch_up()
    assert caught.value.value == value


@pytest.mark.parametrize("database", ["pg18", "mariadb"], indirect=True)
def test_a_value_of_the_key_that_does_not_fit_stops_unless_it_is_text(database: AnyDatabase, query: MakeQuery) -> None:
    if isinstance(database, OnPostgres):
        database.execute("create table t (id numeric(3,0) primary key)", "insert into t values (1), ('NaN')")
    else:
        database.execute(LIVELY, "create table t (id date primary key)", "insert into t values ('2024-02-31')")
    with pytest.raises(ValueRefused, match="a column of the key is never null"):
        query().catch_up()
    as_text = query(values="text", slot="other")
    as_text.catch_up()
    assert {"NaN" if isinstance(database, OnPostgres) else "2024-02-31"} <= {e["id"] for e in as_text.history.events}


@pytest.mark.parametrize("database", ["pg18"], indirect=True)
def test_a_large_array_that_the_log_leaves_out_is_taken_with_its_raw_value(
    database: OnPostgres, query: MakeQuery
) -> None:
    database.execute(
        "create table t (id int primary key, n int, big int[])",
        "alter table t alter big set storage external",
        "insert into t select i, 0, array_fill(i, array[2, 4000]) from generate_series(1, 60) i",
    )
    stream = query(parallelism=2)
    stream.open_window()
    touch(database, "id = 5")
    stream.catch_up()
    (event,) = stream.history.of(5)
    assert (event["_op"], event["_unchanged"], event["big"]) == ("update", None, None)
    assert json.loads(event["_raw_values"]) == {"big": database.execute("select big::text from t where id = 5")[0][0]}
    touch(database, "id = 5")
    stream.catch_up()
    assert stream.history.of(5)[-1]["_unchanged"] == ["big"]
    assert stream.history.of(5)[-1]["_raw_values"] is None


@pytest.mark.parametrize("database", ["pg18"], indirect=True)
def test_another_rule_is_another_schema(database: OnPostgres, query: MakeQuery) -> None:
    database.execute("create table t (id int primary key, v numeric(3,0))", "insert into t values (1, 'NaN')")
    given = {"url": database.url, "table": "t"}
    schemas = {rule: read_options({**given, "values": rule}).source.tables() for rule in RULES}
    (null,), (text,), (stop,) = (schemas[rule].values() for rule in RULES)
    assert len({null.version, text.version, stop.version}) == 3
    assert null.column("v").arrow != text.column("v").arrow
    assert "the rule for values of column 'v' changed from null to stop" in null.differences(stop)
