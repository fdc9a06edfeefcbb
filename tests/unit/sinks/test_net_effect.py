"""The net effect of a batch: applied at once, it does what its events do one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from dblog.core.schema import Column, TableName, TableSchema
from dblog.sinks.net_effect import net
from tests.unit.sinks.frames import Row, collected, event, table_batch

pytestmark = pytest.mark.spark

KEY = ("k", "odd.key")
REST = ("a", "b c", "d.e")
COLUMNS = (
    Column("a", "int", pa.int32()),
    Column("k", "int", pa.int32()),
    Column("b c", "text", pa.string()),
    Column("odd.key", "text", pa.string()),
    Column("d.e", "int[]", pa.list_(pa.int32())),
)
T = TableSchema(TableName("public", "t"), COLUMNS, KEY)
KEYS = [{"k": k, "odd.key": o} for k in (1, 2, 3) for o in ("x", "y", "z")]
State = dict[tuple[Any, ...], Row]

numbers = st.none() | st.integers(0, 99)
values = st.fixed_dictionaries(
    {"a": numbers, "b c": st.none() | st.text("xyz", max_size=2), "d.e": st.none() | st.lists(numbers, max_size=2)}
)
unchanged = st.lists(st.sampled_from(REST), unique=True).map(lambda names: names or None)


@st.composite
def histories(draw: st.DrawFn) -> tuple[State, list[Row], list[Row]]:
    """What a target has, a batch's changes, and its dump rows."""
    state = {key_of(key): {**key, **draw(values)} for key in KEYS if draw(st.booleans())}
    here = dict.fromkeys(state, True)
    changes: list[Row] = []
    for n in range(draw(st.integers(0, 40))):
        place = (10 + n // 3, n % 3)
        key = draw(st.sampled_from(KEYS))
        kind = draw(st.sampled_from(["change"] * 40 + ["delete"] * 15 + ["truncate"]))
        if kind == "truncate":
            changes.append(event("truncate", place))
            here.clear()
        elif kind == "delete" and here.pop(key_of(key), False):
            changes.append(event("delete", place, **key, **draw(st.just({}) | values)))
        else:
            op = "update" if key_of(key) in here else "create"
            left = draw(unchanged)
            given = {n: v for n, v in draw(values).items() if n not in (left or ())}
            changes.append(event(op, place, left, **key, **given))
            here[key_of(key)] = True
    touched = {key_of(e) for e in changes}
    emptied = any(e["_op"] == "truncate" for e in changes)
    rows = []
    for key in KEYS:
        if key_of(key) not in touched and not emptied and draw(st.booleans()):
            left = draw(unchanged)
            given = {n: v for n, v in draw(values).items() if n not in (left or ())}
            rows.append(event("read", (99, 2**31 - 1), left, **key, **given))
    return state, changes, rows


def key_of(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(k) for k in KEY)


def one_by_one(state: State, events: Sequence[Row]) -> State:
    state = dict(state)
    for e in events:
        if e["_op"] == "truncate":
            state.clear()
        elif e["_op"] == "delete":
            state.pop(key_of(e), None)
        else:
            old = state.get(key_of(e), {}) if e["_op"] != "create" else {}
            state[key_of(e)] = {
                **{k: e[k] for k in KEY},
                **{n: old.get(n) if n in (e["_unchanged"] or ()) else e.get(n) for n in REST},
            }
    return state


def at_once(state: State, truncated: bool, found: Sequence[Row]) -> State:
    state = {} if truncated else dict(state)
    for e in found:
        old = {} if e["_whole"] else state.get(key_of(e), {})
        state.pop(key_of(e), None)
        if e["_op"] != "delete":
            left = e["_unchanged"] or ()
            state[key_of(e)] = {n: old.get(n) if n in left else e[n] for n in (*KEY, *REST)}
    return state


# An example takes Spark a second: a failure is not made smaller.
@settings(
    max_examples=15,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(histories())
def test_the_net_effect_is_that_of_the_events_one_by_one(
    spark: SparkSession, history: tuple[State, list[Row], list[Row]]
) -> None:
    state, changes, rows = history
    batch = table_batch(spark, T, changes, rows)
    frame = net(batch)
    found = [] if frame is None else collected(frame)
    keys = [key_of(row) for row in found]
    assert len(keys) == len(set(keys)), "one row for each key"
    assert at_once(state, batch.truncated is not None, found) == one_by_one(state, [*changes, *rows])
    last = {key_of(e): (e["_op"], e["_lsn"], e["_seq"]) for e in [*changes, *rows]}
    assert all((row["_op"], row["_lsn"], row["_seq"]) == last[key_of(row)] for row in found)
    if frame is not None:
        assert frame.columns == [*T.names, "_op", "_lsn", "_seq", "_unchanged", "_raw_values", "_whole"]
    assert all(row["_unchanged"] != [] for row in found), "nothing is null, as everywhere"


def test_there_may_be_nothing(spark: SparkSession) -> None:
    assert net(table_batch(spark, T)) is None
    frame = net(table_batch(spark, T, [event("truncate", (1, 1))]))
    assert frame is not None
    assert collected(frame) == []


def test_a_table_may_have_nothing_but_its_key(spark: SparkSession) -> None:
    bare = TableSchema(T.table, (Column("k", "int", pa.int32()),), ("k",))
    batch = table_batch(spark, bare, [event("create", (1, 1), k=1), event("delete", (1, 2), k=2)])
    frame = net(batch)
    assert frame is not None
    assert {(row["k"], row["_op"]) for row in collected(frame)} == {(1, "create"), (2, "delete")}


def test_a_batch_that_is_complete_does_not_look_for_values(spark: SparkSession) -> None:
    """Each column costs an aggregation where something may be missing."""
    complete = table_batch(spark, T, [event("update", (1, 1), **KEYS[0])])
    missing = table_batch(spark, T, [event("update", (1, 1), ["a"], **KEYS[0])])
    plans = [frame._jdf.queryExecution().toString() for frame in map(net, (complete, missing)) if frame is not None]
    assert ["_known" in plan for plan in plans] == [False, True]


def test_a_zero_of_a_key_keeps_its_sign(spark: SparkSession) -> None:
    """Spark groups 0 and -0 as one key, and gives it as 0."""
    key = (Column("k", "real", pa.float32()), Column("ks", "double precision[]", pa.list_(pa.float64())))
    schema = TableSchema(TableName("public", "t"), (*key, Column("v", "int", pa.int32())), ("k", "ks"))
    changes = [
        event("delete", (1, 0), k=0.0, ks=[0.0]),
        event("create", (1, 1), k=-0.0, ks=[-0.0], v=1),
        event("delete", (2, 0), k=-1.0, ks=[0.0]),
    ]
    found = net(table_batch(spark, schema, changes))
    assert found is not None
    rows = {row["v"]: (row["_op"], str(row["k"]), str(row["ks"])) for row in collected(found)}
    assert rows == {1: ("create", "-0.0", "[-0.0]"), None: ("delete", "-1.0", "[0.0]")}


def test_a_raw_value_goes_with_the_value_that_an_earlier_change_has(spark: SparkSession) -> None:
    first, second = KEYS[:2]
    changes = [
        event("create", (1, 0), **first, a=1, _raw_values='{"d.e":"{{1}}","a":"x","_before.a":"y"}'),
        event("update", (1, 1), ["d.e"], **first, a=2, _raw_values='{"b c":"z"}'),
        event("create", (1, 2), **second, _raw_values='{"a":"NaN"}'),
        event("update", (1, 3), **second, a=1),
    ]
    found = net(table_batch(spark, T, changes))
    assert found is not None
    raw = {key_of(row): json.loads(row["_raw_values"] or "{}") for row in collected(found)}
    assert raw == {key_of(first): {"d.e": "{{1}}", "b c": "z"}, key_of(second): {}}
