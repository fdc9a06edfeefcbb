"""Routes: what they refuse, what becomes of a table, of its rows, and of rows that come and go by a filter."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dblog.core.names import parse_patterns
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import ConfigError
from dblog.sinks.base import TableBatch
from dblog.sinks.net_effect import net
from dblog.sinks.route import Route
from dblog.sinks.routed import routed
from tests.unit.sinks.frames import Row, collected, event, table_batch

COLUMNS = (
    Column("id", "int", pa.int32()),
    Column("n", "int", pa.int32()),
    Column("name", "text", pa.string()),
    Column("card.no", "text", pa.string()),
)
T = TableSchema(TableName("public", "t"), COLUMNS, ("id",))
(ALL,) = parse_patterns("public.*")


def route(**given: Any) -> Route:
    return Route(ALL, **given)


# -- what it says of a table ----------------------------------------------------------------------------------------


def test_a_table_has_its_name_columns_and_key_as_told() -> None:
    made = route(
        target="lake.{schema}_{table}",
        include=("name", "card.no"),
        exclude=("card.no",),
        rename={"id": "t id", "name": "id"},
    ).schema(T)
    assert made.table == TableName("lake", "public_t")
    assert made.names == ("t id", "id")
    assert made.key == ("t id",)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (None, TableName("public", "t")),
        ("all", TableName("", "all")),
        ("{table}", TableName("", "t")),
        ("{schema}.x_{table}", TableName("public", "x_t")),
        ("a.{table}.b", TableName("a", "t.b")),
    ],
)
def test_the_name_in_the_target_follows_a_pattern(target: str | None, name: TableName) -> None:
    assert route(target=target).schema(T).table == name


def test_a_mask_changes_the_type_where_it_changes_the_value() -> None:
    made = route(mask={"id": "sha256", "n": "redact", "name": "null"}).schema(T)
    assert [(c.type, c.arrow) for c in made.columns[:3]] == [("text", pa.string())] * 3
    assert route(mask={"n": "null"}).schema(T).column("n") == COLUMNS[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"include": ("nam",)}, "names the columns ['nam'], which public.t does not have"),
        ({"exclude": ("x",), "rename": {"y": "z"}, "mask": {"a": "null"}}, "['a', 'x', 'y']"),
        ({"exclude": ("id",)}, "['id'] of public.t are excluded"),
        ({"mask": {"id": "redact"}}, "['id'] of public.t cannot have this mask"),
        ({"mask": {"id": "null"}}, "['id'] of public.t cannot have this mask"),
        ({"rename": {"n": "name"}}, "would have the name ['name']"),
        ({"rename": {"n": "_lsn"}}, "['_lsn']"),
    ],
)
def test_what_cannot_be_done_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        route(**given).check(T)
    assert message in wrong.value.message
    assert wrong.value.hint


@pytest.mark.parametrize("given", [{"rename": {"n": "name", "name": "n"}}, {"mask": {"id": "sha256"}}, {}])
def test_what_can_be_done_is_not_refused(given: dict[str, Any]) -> None:
    route(**given).check(T)


def test_the_first_route_that_matches_counts() -> None:
    table = TableBatch(T.table, T, None, None, None, False)
    (other,), (mine,) = parse_patterns("other.*"), parse_patterns("public.t")
    routes = [Route(other, target="no"), Route(mine, target="yes"), Route(ALL, target="late")]
    assert routed(table, routes).schema.table == TableName("", "yes")
    assert routed(table, routes).source == T.table
    assert routed(table, routes[:1]) is table


# -- what it does to rows -------------------------------------------------------------------------------------------


def through(spark: SparkSession, made: Route, *changes: Row, before: bool = False) -> list[Row]:
    found = routed(table_batch(spark, T, changes, before=before), [made])
    assert found.changes is not None
    return collected(found.changes)


@pytest.mark.spark
def test_columns_are_renamed_left_out_and_masked(spark: SparkSession) -> None:
    made = route(
        exclude=("n",), rename={"name": "who", "card.no": "card"}, mask={"name": "sha256", "card.no": "redact"}
    )
    rows = through(
        spark,
        made,
        event("create", (1, 0), id=1, n=1, name="Ada", **{"card.no": "12"}),
        event("update", (1, 1), id=1, n=1, name=None),
        event("truncate", (1, 2)),
    )
    assert [(r["id"], r["who"], r["card"]) for r in rows] == [
        (1, hashlib.sha256(b"Ada").hexdigest(), "***"),
        (1, None, None),
        (None, None, None),
    ]
    assert set(rows[0]) == {
        *(
            "id",
            "who",
            "card",
            "_op",
            "_lsn",
            "_seq",
            "_txid",
            "_committed_at",
            "_dump",
            "_schema",
            "_unchanged",
            "_raw_values",
        )
    }
    assert [(r["_op"], r["_lsn"], r["_seq"]) for r in rows] == [
        ("create", 1, 0), ("update", 1, 1), ("truncate", 1, 2)
    ]  # fmt: skip


@pytest.mark.spark
def test_raw_values_are_renamed_and_those_of_masked_columns_are_left_out(spark: SparkSession) -> None:
    made = route(exclude=("n",), rename={"name": "who"}, mask={"card.no": "redact"})
    raw = '{"name":"\\\\xff","card.no":"secret","n":"NaN","_before.name":"old","_before.card.no":"secret"}'
    rows = through(spark, made, event("create", (1, 0), id=1, _raw_values=raw), event("create", (1, 1), id=2))
    assert [r["_raw_values"] for r in rows] == ['{"who":"\\\\xff","_before.who":"old"}', None]


@pytest.mark.spark
def test_a_masked_key_is_the_same_wherever_it_comes_from(spark: SparkSession) -> None:
    batch = table_batch(
        spark,
        T,
        [event("create", (1, 0), id=7, n=1), event("update", (1, 1), id=7, n=2), event("delete", (1, 2), id=8)],
        [event("read", (9, 9), id=9)],
    )
    found = net(routed(batch, [route(mask={"id": "sha256"})]))
    assert found is not None
    keys = {hashlib.sha256(str(i).encode()).hexdigest(): i for i in (7, 8, 9)}
    assert {keys[r["id"]]: r["_op"] for r in collected(found)} == {7: "update", 8: "delete", 9: "read"}


@pytest.mark.spark
def test_what_is_unchanged_is_named_as_the_target_names_it(spark: SparkSession) -> None:
    made = route(exclude=("n",), rename={"name": "card.no", "card.no": "name"})
    rows = through(
        spark,
        made,
        event("update", (1, 0), ["n", "name"], id=1),
        event("update", (1, 1), ["n"], id=1),
        event("update", (1, 2), ["card.no", "name"], id=1),
        event("update", (1, 3), None, id=1),
    )
    assert [r["_unchanged"] for r in rows] == [["card.no"], None, ["name", "card.no"], None]


@pytest.mark.spark
def test_old_rows_are_masked_and_renamed_too(spark: SparkSession) -> None:
    made = route(exclude=("n",), rename={"name": "who"}, mask={"name": "redact", "card.no": "null"}, where="id > 0")
    old = {"id": 1, "n": 1, "name": "Ada", "card.no": "12"}
    rows = through(
        spark,
        made,
        event("update", (1, 0), id=1, _before=old),
        event("create", (1, 1), id=2, _before=None),
        before=True,
    )
    assert [r["_before"] for r in rows] == [{"id": 1, "who": "***", "card.no": None}, None]


@pytest.mark.spark
def test_a_filter_lets_rows_in_and_takes_them_out(spark: SparkSession) -> None:
    rows = through(
        spark,
        route(where="n > 5 AND `card.no` is null", rename={"n": "m"}, mask={"name": "null"}),
        event("create", (1, 0), id=1, n=6, name="in"),
        event("create", (1, 1), id=2, n=5, name="out"),
        event("update", (1, 2), id=1, n=1, name="leaves"),
        event("update", (1, 3), id=2, n=9, name="enters"),
        event("update", (1, 4), id=3, n=None, name="unknown is not true"),
        event("delete", (1, 5), id=4),
        event("truncate", (1, 6)),
        event("update", (1, 7), ["name"], id=5, n=7),
        event("update", (1, 8), ["name"], id=6, n=1),
    )
    assert [(r["_op"], r["id"], r["m"], r["_unchanged"]) for r in rows] == [
        ("create", 1, 6, None),
        ("delete", 2, None, None),
        ("delete", 1, None, None),
        ("update", 2, 9, None),
        ("delete", 3, None, None),
        ("delete", 4, None, None),
        ("truncate", None, None, None),
        ("update", 5, 7, ["name"]),
        ("delete", 6, None, None),
    ]
    assert [r["_seq"] for r in rows] == list(range(9))


@pytest.mark.spark
def test_a_row_that_leaves_does_not_show_what_it_has_become(spark: SparkSession) -> None:
    (row,) = through(spark, route(where="n > 5"), event("update", (1, 0), id=1, n=1, name="x", **{"card.no": "12"}))
    assert (row["_op"], row["name"], row["card.no"]) == ("delete", None, None)


@pytest.mark.spark
def test_a_filter_keeps_dump_rows_out(spark: SparkSession) -> None:
    rows = [event("read", (9, 9), id=i, n=i) for i in range(4)]
    found = routed(table_batch(spark, T, rows=rows), [route(where="n > 1")])
    assert found.changes is None
    assert found.rows is not None
    assert sorted(r["id"] for r in collected(found.rows)) == [2, 3]


@pytest.mark.spark
@pytest.mark.parametrize("where", ["name <> 'x'", "upper(NAME) = 'A'", "id = 1 and `card.no` = '1'"])
def test_a_filter_over_what_the_log_left_out_fails(spark: SparkSession, where: str) -> None:
    left = event("update", (1, 0), ["name", "card.no"], id=1, n=1)
    with pytest.raises(PySparkException, match=r"the filter of public\.t needs"):
        through(spark, route(where=where), left)
    assert through(spark, route(where="n = 1 and 'name card' <> 'x'"), left | {"_unchanged": ["card.no"]})


@pytest.mark.spark
def test_a_key_that_is_filtered_out_and_in_comes_to_its_last_state(spark: SparkSession) -> None:
    changes = [
        event("update", (1, 0), id=1, n=1, name="out"),
        event("update", (1, 1), id=1, n=9, name="in"),
        event("create", (1, 2), id=2, n=9, name="in"),
        event("update", (1, 3), id=2, n=1, name="out"),
    ]
    found = net(routed(table_batch(spark, T, changes), [route(where="n > 5")]))
    assert found is not None
    assert {(r["id"], r["_op"], r["name"]) for r in collected(found)} == {(1, "update", "in"), (2, "delete", None)}


@pytest.mark.spark
def test_a_route_that_does_not_fit_any_more_stops_the_batch(spark: SparkSession) -> None:
    batch = table_batch(spark, T, [event("create", (1, 0), id=1)])
    narrower = TableSchema(T.table, COLUMNS[:2], ("id",))
    without = TableBatch(batch.source, narrower, batch.changes, None, None, incomplete=False)
    with pytest.raises(ConfigError, match="name"):
        routed(without, [route(exclude=("name",))])
