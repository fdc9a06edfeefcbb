"""Events as text: the envelope, Debezium's, and a user's own."""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dblog.core.event import Op, change_schema, op_names
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import ConfigError, SinkError
from dblog.sinks.base import SinkContext
from dblog.sinks.debezium import Debezium
from dblog.sinks.formats import Formatter, _events, envelope, event_columns, formatter
from dblog.work import envelope as streaming
from dblog.work.rows import Typed

UTC = pa.timestamp("us", tz="UTC")
COLUMNS = {
    "id": ("integer", pa.int32()),
    "note": ("text", pa.string()),
    "price": ("numeric(8,2)", pa.decimal128(8, 2)),
    "day": ("date", pa.date32()),
    "plain": ("timestamp without time zone", pa.timestamp("us")),
    "coarse": ("timestamp(3) without time zone", pa.timestamp("us")),
    "datetime": ("datetime", pa.timestamp("us")),
    "fine": ("datetime(6)", pa.timestamp("us")),
    "zoned": ("timestamp with time zone", UTC),
    "raw": ("bytea", pa.binary()),
    "tags": ("text[]", pa.list_(pa.string())),
}
SCHEMA = TableSchema(
    TableName("public", "t"), tuple(Column(name, *kind) for name, kind in COLUMNS.items()), key=("id",)
)
AT = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456)
ROW = {
    "id": 1, "note": 'a "b"\n', "price": Decimal("1.50"), "day": AT.date(), "plain": AT, "coarse": AT, "datetime": AT,
    "fine": AT, "zoned": AT, "raw": b"xy", "tags": ["a", None],
}  # fmt: skip


def changes(*given: dict[str, Any], before: bool = False) -> pa.RecordBatch:
    """A change batch; `op` and so on are the metadata, the rest are columns."""
    told = ("op", "lsn", "seq", "txid", "committed_at", "unchanged", "before")
    rows = []
    for n, row in enumerate(given):
        row = {"lsn": 10 + n, "seq": n, "txid": 7, "committed_at": AT, **row, "op": Op[row["op"]].value}
        rows.append({f"_{name}" if name in told else name: value for name, value in row.items()})
    return pa.RecordBatch.from_pylist(rows, schema=change_schema(SCHEMA.arrow, before=before))


def typed(batch: pa.RecordBatch, dump: str | None = None) -> pa.RecordBatch:
    """The same as a sink is given it, through Spark, which has names of its own for the time zone and lists' items."""
    rows = Typed(SCHEMA, before="_before" in batch.schema.names).project(SCHEMA, batch, dump)
    fields = [
        f.with_type(pa.timestamp("us", tz="Europe/Berlin")) if f.name == "_committed_at"
        else f.with_type(pa.list_(pa.field("element", pa.string()))) if f.name == "_unchanged"
        else f
        for f in rows.schema
    ]  # fmt: skip
    return rows.cast(pa.schema(fields))


def given(form: Formatter, *batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """What a task makes of batches, which Spark hands over under plain names."""
    plain = [batch.rename_columns([f"c{n}" for n in range(batch.num_columns)]) for batch in batches]
    return _events(SCHEMA, batches[0].schema.names, form, iter(plain))


def values(made: pa.RecordBatch) -> list[Any]:
    return [json.loads(text, parse_float=Decimal) for text in made.column("value").to_pylist()]


ALL = [
    {"op": "create", **ROW},
    {"op": "update", **ROW, "note": None, "raw": None, "unchanged": ["note", "raw", "tags"]},
    {"op": "update", **ROW, "price": None},
    {"op": "delete", "id": 1},
    {"op": "delete", **ROW},
    {"op": "truncate"},
]


# The envelope


@pytest.mark.parametrize("before", [False, True])
def test_an_envelope_has_the_texts_of_the_streaming_one(before: bool) -> None:
    given = [{**row, "before": {**ROW, "note": "old"} if row["op"] == "update" else None} for row in ALL]
    batch = changes(*(given if before else ALL), before=before)
    told = streaming.envelope(batch, SCHEMA)
    made = envelope(typed(batch), SCHEMA)
    assert made.column("key") == told.column("key")
    for text, row in zip(made.column("value").to_pylist(), told.to_pylist(), strict=True):
        for image in ("key", "before", "after"):
            assert f'"{image}":{row[image] or "null"},' in text
        value = json.loads(text)
        assert [value[name] for name in ("schema", "table", "op")] == [row[name] for name in ("schema", "table", "op")]
        assert [value[name] for name in ("lsn", "seq", "txid", "dump")] == [
            row[f"_{name}"] for name in ("lsn", "seq", "txid", "dump")
        ]
        assert value["unchanged"] == row["_unchanged"]
        assert value["schema_version"] == SCHEMA.version
        assert value["committed_at"] == "2024-05-06T07:08:09.123456Z"


def test_an_envelope_names_the_dump_and_the_version_its_row_was_captured_under() -> None:
    rows = typed(changes({"op": "read", **ROW, "txid": None, "committed_at": None}), dump="initial")
    renamed = TableSchema(TableName("", "copy"), SCHEMA.columns, SCHEMA.key)
    (value,) = values(envelope(rows, renamed))
    assert (value["schema"], value["table"], value["op"]) == ("", "copy", "read")
    assert (value["dump"], value["schema_version"], value["committed_at"]) == ("initial", SCHEMA.version, None)
    assert renamed.version != SCHEMA.version


# Debezium


def test_debezium_has_its_words_and_letters() -> None:
    batch = changes(*ALL)
    made = Debezium("shop")(typed(batch), SCHEMA)
    found = values(made)
    assert [v["op"] for v in found] == ["c", "u", "u", "d", "d", "t"]
    assert made.column("key").to_pylist() == ['{"id":1}'] * 5 + [None]
    for value in found:
        assert list(value) == ["before", "after", "source", "transaction", "op", "ts_ms"]
        assert value["ts_ms"] == value["source"]["ts_ms"] == 1714979289123
        assert (value["source"]["name"], value["source"]["snapshot"]) == ("shop", "false")
        assert (value["source"]["schema"], value["source"]["table"]) == ("public", "t")
    assert [v["source"]["lsn"] for v in found] == [10, 11, 12, 13, 14, 15]
    assert [v["before"] is not None for v in found] == [False, False, False, True, True, False]
    assert [v["after"] is not None for v in found] == [True, True, True, False, False, False]
    assert found[3]["before"] == {"id": 1}
    assert found[4]["before"] == found[0]["after"]


def test_debezium_spells_values_as_its_converter_does() -> None:
    (value,) = values(Debezium("shop")(typed(changes({"op": "create", **ROW})), SCHEMA))
    assert value["after"] == {
        "id": 1,
        "note": 'a "b"\n',
        "price": "1.50",
        "day": 19849,
        "plain": 1714979289123456,
        "coarse": 1714979289123,
        "datetime": 1714979289123,
        "fine": 1714979289123456,
        "zoned": "2024-05-06T07:08:09.123456Z",
        "raw": "eHk=",
        "tags": ["a", None],
    }


def test_debezium_rounds_moments_before_1970_down() -> None:
    moment = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)
    (value,) = values(Debezium("shop")(typed(changes({"op": "create", "id": 1, "coarse": moment})), SCHEMA))
    assert value["after"]["coarse"] == -1
    whole = moment.replace(microsecond=0)
    (value,) = values(Debezium("shop")(typed(changes({"op": "create", "id": 1, "coarse": whole})), SCHEMA))
    assert value["after"]["coarse"] == -1000


def test_debezium_marks_what_the_log_did_not_carry() -> None:
    given = [{**row, "lsn": 1} for row in ALL[:3]] + [{"op": "update", **ROW, "tags": None, "unchanged": ["tags"]}]
    whole, marked, null, left = values(Debezium("shop")(typed(changes(*given)), SCHEMA))
    assert marked["after"]["note"] == "__debezium_unavailable_value"
    assert marked["after"]["raw"] == "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
    assert "tags" not in marked["after"]
    assert {**marked["after"], **{n: whole["after"][n] for n in ("note", "raw", "tags")}} == whole["after"]
    assert null["after"] == {**whole["after"], "price": None}
    assert left["after"] == {name: value for name, value in whole["after"].items() if name != "tags"}


def test_debezium_has_the_old_row_spelled_like_the_new_one() -> None:
    batch = changes({"op": "update", **ROW, "note": "new", "before": ROW}, before=True)
    (value,) = values(Debezium("shop")(typed(batch), SCHEMA))
    assert value["before"] == {**value["after"], "note": ROW["note"]}


def test_debezium_tells_a_row_of_a_dump() -> None:
    rows = typed(changes({"op": "read", **ROW, "txid": None, "committed_at": None}), dump="initial")
    (value,) = values(Debezium("shop")(rows, SCHEMA))
    assert (value["op"], value["before"], value["source"]["snapshot"]) == ("r", None, "incremental")
    assert value["ts_ms"] is None


# What is named


def test_formatters_are_found_by_name(tmp_path: Path) -> None:
    context = SinkContext("shop", tmp_path)
    assert formatter("envelope", context) is envelope
    assert formatter("debezium", context) == Debezium("shop")
    (tmp_path / "own_format_of_test.py").write_text(
        "import pyarrow as pa\n"
        "def short(rows, schema):\n"
        "    key = rows.column('id').cast(pa.string())\n"
        "    return pa.RecordBatch.from_arrays([key, key], names=['key', 'value'])\n"
        "number = 5\n"
        "class Nested:\n"
        "    short = staticmethod(short)\n"
    )
    for name in ("short", "Nested.short"):
        own = pickle.loads(pickle.dumps(formatter(f"own_format_of_test:{name}", context)))
        assert own(typed(changes(*ALL[:1])), SCHEMA).column("value").to_pylist() == ["1"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("envelop", "is not an import path"),
        ("no_such_module_at_all:f", "No module named 'no_such_module_at_all'"),
        ("json:no_such_function", "'json' has no 'no_such_function'"),
        ("json:__name__", "'str'"),
    ],
)
def test_a_formatter_that_is_not_there_is_said_to_be(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as wrong:
        formatter(name, SinkContext("shop", tmp_path))
    assert repr(name) in wrong.value.message
    assert wrong.value.hint


def test_a_formatter_that_fails_when_it_is_imported_is_said_to(tmp_path: Path) -> None:
    (tmp_path / "broken_format_of_test.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        formatter("broken_format_of_test:f", SinkContext("shop", tmp_path))


def test_events_keep_the_order_and_have_their_places() -> None:
    batches = [typed(changes(*ALL[:2])), typed(changes()), typed(changes(*ALL[2:]))]
    found = pa.Table.from_batches(given(envelope, *batches))
    assert found.column_names == ["key", "value", "_lsn", "_seq", "_op"]
    assert found["_op"].to_pylist() == [row["op"] for row in ALL]
    assert found["_lsn"].to_pylist() == [json.loads(v)["lsn"] for v in found["value"].to_pylist()]


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda rows, schema: None, "NoneType"),
        (lambda rows, schema: rows, "_lsn"),
        (lambda rows, schema: event_columns(rows.column("_op"), rows.column("id")), "value: int32"),
        (lambda rows, schema: event_columns(op_names()[:5], op_names()[:5]), "5 events for 6 rows"),
    ],
)
def test_a_formatter_must_give_two_texts_for_each_row(gives: Any, said: str) -> None:
    with pytest.raises(SinkError, match=said) as wrong:
        list(given(gives, typed(changes(*ALL))))
    assert wrong.value.hint


def test_the_rows_of_a_formatter_have_the_tables_columns_first() -> None:
    rows = typed(changes(*ALL))
    assert tuple(rows.schema.names[: len(SCHEMA.columns)]) == SCHEMA.names
    assert pc.all(pc.equal(rows.column("_schema"), SCHEMA.version)).as_py()
