"""The envelope of a change, and the JSON texts it is made of, against Python's own reading of JSON."""

from __future__ import annotations

import base64
import datetime
import json
import re
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema

from dblog.core.event import Op, change_schema
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import DecodeError, SchemaChanged
from dblog.work.envelope import ENVELOPE, envelope
from dblog.work.json_text import json_object, json_text

INT32, INT64 = np.iinfo(np.int32), np.iinfo(np.int64)
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n\t\x00\x1f\x7f/é\u2028'))


@st.composite
def arrays(draw: DrawFn, values: SearchStrategy[Any], kind: pa.DataType) -> pa.Array:
    """An array with nulls that begins and ends somewhere within its buffers."""
    array = pa.array(draw(st.lists(st.none() | values, max_size=20)), kind)
    start = draw(st.integers(0, len(array)))
    return array.slice(start, draw(st.integers(0, len(array) - start)))


def texts(array: pa.Array) -> list[str | None]:
    result = json_text(array)
    result.validate(full=True)
    assert result.type == pa.string()
    assert len(result) == len(array)
    return result.to_pylist()


def parsed(array: pa.Array) -> list[Any]:
    """What a reader of the texts gets. A null value must be a null text, which is not the text `null`."""
    return [None if text is None else json.loads(text) for text in texts(array)]


# JSON, type by type


@given(arrays(st.booleans(), pa.bool_()))
def test_booleans_read_back(array: pa.Array) -> None:
    assert parsed(array) == array.to_pylist()


@pytest.mark.parametrize("bits", [16, 32, 64])
@given(data=st.data())
def test_integers_read_back(bits: int, data: st.DataObject) -> None:
    values = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    array = data.draw(arrays(values, getattr(pa, f"int{bits}")()))
    assert parsed(array) == array.to_pylist()


@pytest.mark.parametrize("bits", [32, 64])
@given(data=st.data())
def test_floats_read_back_to_the_same_bits(bits: int, data: st.DataObject) -> None:
    values = st.floats(width=bits, allow_nan=False) | st.integers(-10, 10).map(float)  # type: ignore[arg-type]
    array = data.draw(arrays(values, getattr(pa, f"float{bits}")()))
    layout = "f" if bits == 32 else "d"

    def image(value: float | str | None) -> bytes | None:
        return None if value is None else struct.pack(layout, float(value))

    assert [image(value) for value in parsed(array)] == [image(value) for value in array.to_pylist()]


def test_a_float_is_never_written_as_an_integer() -> None:
    assert texts(pa.array([1.0, -0.0, 100.0, 1e22, 2.5, None])) == ["1.0", "-0.0", "100.0", "1e+22", "2.5", None]


def test_floats_that_are_no_number_are_strings() -> None:
    array = pa.array([float("nan"), float("inf"), float("-inf"), 1.5, None], pa.float32())
    assert texts(array) == ['"NaN"', '"Infinity"', '"-Infinity"', "1.5", None]


@pytest.mark.parametrize(("precision", "scale"), [(5, 0), (12, 2), (6, 6), (7, 7), (38, 18), (38, 38), (5, -3)])
@given(data=st.data())
def test_decimals_keep_their_scale_and_have_no_exponent(precision: int, scale: int, data: st.DataObject) -> None:
    digits = st.integers(1 - 10**precision, 10**precision - 1) | st.integers(-3, 3)
    values = digits.map(lambda unscaled: Decimal(f"{unscaled}e{-scale}"))
    array = data.draw(arrays(values, pa.decimal128(precision, scale)))
    exact = [None if value is None else f"{value if value else abs(value):f}" for value in array.to_pylist()]
    if scale < 0:
        exact = ["0" if text is not None and not int(text) else text for text in exact]
    assert texts(array) == exact
    assert [None if text is None else json.loads(text, parse_int=Decimal, parse_float=Decimal) for text in exact] == (
        array.to_pylist()
    )


@given(arrays(TEXT, pa.string()))
def test_strings_are_escaped_as_pythons_json_does(array: pa.Array) -> None:
    assert texts(array) == [None if v is None else json.dumps(v, ensure_ascii=False) for v in array.to_pylist()]


def test_every_control_character_is_escaped() -> None:
    every = "".join(map(chr, range(128)))
    assert parsed(pa.array([every, "plain"])) == [every, "plain"]


@given(arrays(st.binary(max_size=10), pa.binary()))
def test_binary_values_are_base64(array: pa.Array) -> None:
    encoded = [None if v is None else base64.b64encode(v).decode() for v in array.to_pylist()]
    assert parsed(array) == encoded


@given(arrays(st.dates(), pa.date32()))
def test_dates_are_iso_dates(array: pa.Array) -> None:
    assert parsed(array) == [None if v is None else v.isoformat() for v in array.to_pylist()]


@given(arrays(st.datetimes(), pa.timestamp("us")))
def test_timestamps_always_have_six_digits_of_fraction(array: pa.Array) -> None:
    iso = [None if v is None else v.isoformat(timespec="microseconds") for v in array.to_pylist()]
    assert parsed(array) == iso


@pytest.mark.parametrize("zone", ["UTC", "Europe/Vienna"])
def test_timestamps_with_a_time_zone_are_in_utc(zone: str) -> None:
    moment = datetime.datetime(2024, 7, 1, 12, 0, 0, 5, tzinfo=datetime.UTC)
    assert parsed(pa.array([moment, None], pa.timestamp("us", zone))) == ["2024-07-01T12:00:00.000005Z", None]


def numpy_text(value: np.datetime64) -> str:
    """NumPy knows every year, but writes no plus and counts the minus as one of the four places."""
    sign, year, rest = re.fullmatch(r"(-?)(\d+)(-.*)", str(value)).groups()  # type: ignore[union-attr]
    return f"{sign or ('+' if len(year) > 4 else '')}{year.zfill(4)}{rest}"


@given(arrays(st.integers(INT32.min + 1, INT32.max - 1) | st.integers(-800_000, 0), pa.int32()))
def test_dates_of_any_year_are_in_expanded_form(days: pa.Array) -> None:
    expected = [None if v is None else numpy_text(np.datetime64(v, "D")) for v in days.to_pylist()]
    assert parsed(days.view(pa.date32())) == expected


@given(arrays(st.integers(INT64.min + 1, INT64.max - 1), pa.int64()))
def test_timestamps_of_any_year_are_in_expanded_form(micros: pa.Array) -> None:
    expected = [None if v is None else numpy_text(np.datetime64(v, "us")) + "Z" for v in micros.to_pylist()]
    assert parsed(micros.view(pa.timestamp("us", "UTC"))) == expected


def test_years_outside_1_to_9999_look_as_documented() -> None:
    days = [np.datetime64(text).astype(int) for text in ("-0043-03-15", "0000-12-31", "0001-01-01", "12345-01-01")]
    assert parsed(pa.array(days, pa.int32()).view(pa.date32())) == [
        "-0043-03-15",
        "0000-12-31",
        "0001-01-01",
        "+12345-01-01",
    ]


def test_the_ends_of_the_storage_are_infinities() -> None:
    dates = pa.array([INT32.max, 0, INT32.min, None], pa.int32()).view(pa.date32())
    assert parsed(dates) == ["infinity", "1970-01-01", "-infinity", None]
    moments = pa.array([INT64.max, 0, INT64.min, None], pa.int64())
    assert parsed(moments.view(pa.timestamp("us", "UTC"))) == [
        "infinity",
        "1970-01-01T00:00:00.000000Z",
        "-infinity",
        None,
    ]
    assert parsed(moments.view(pa.timestamp("us")))[0] == "infinity"


@given(arrays(st.lists(st.none() | TEXT, max_size=4), pa.list_(pa.string())))
def test_lists_are_arrays_with_their_nulls(array: pa.Array) -> None:
    assert parsed(array) == array.to_pylist()


@given(arrays(st.lists(st.none() | st.lists(st.none() | st.integers(0, 9))), pa.list_(pa.list_(pa.int32()))))
def test_lists_of_lists_are_nested_arrays(array: pa.Array) -> None:
    assert parsed(array) == array.to_pylist()


@given(arrays(st.fixed_dictionaries({"a": st.none() | TEXT, 'b "': st.none() | st.booleans()}),
              pa.struct({"a": pa.string(), 'b "': pa.bool_()})))  # fmt: skip
def test_structs_are_objects(array: pa.Array) -> None:
    assert parsed(array) == array.to_pylist()


def test_values_hidden_under_a_null_stay_hidden() -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array(["a", "b", "c"]), mask=pa.array([True, False]))
    assert parsed(lists) == [None, ["c"]]
    structs = pa.StructArray.from_arrays([pa.array([1, 2])], names=["a"], mask=pa.array([True, False]))
    assert parsed(structs) == [None, {"a": 2}]


def test_a_type_without_a_json_form_is_refused_by_name() -> None:
    with pytest.raises(DecodeError, match="duration"):
        json_text(pa.array([1], pa.duration("us")))


# Objects


@given(st.lists(TEXT, min_size=1, max_size=4, unique=True))
def test_an_object_has_the_names_in_order_whatever_they_contain(names: list[str]) -> None:
    objects = json_object(names, [pa.array([i, None]) for i in range(len(names))]).to_pylist()
    assert [list(json.loads(text).items()) for text in objects] == [
        [(name, i) for i, name in enumerate(names)],
        [(name, None) for name in names],
    ]


@given(st.data())
def test_absent_members_are_left_out_and_null_ones_are_not(data: st.DataObject) -> None:
    names = ["a", "b", "ü"]
    absent = data.draw(arrays(st.lists(st.sampled_from(names)), pa.list_(pa.string())))
    values = [data.draw(st.lists(st.none() | TEXT, min_size=len(absent), max_size=len(absent))) for _ in names]
    objects = json_object(names, [pa.array(column, pa.string()) for column in values], absent=absent)
    assert [json.loads(text) for text in objects.to_pylist()] == [
        {name: value for name, value in zip(names, row, strict=True) if name not in (gone or [])}
        for row, gone in zip(zip(*values, strict=True), absent.to_pylist(), strict=True)
    ]


# The envelope

ORDERS = TableSchema(
    TableName("public", "orders"),
    (
        Column("note", "text", pa.string()),
        Column("id", "bigint", pa.int64()),
        Column("shop", "integer", pa.int32()),
    ),
    key=("shop", "id"),
)
KEY = {"shop": 7, "id": 1}


def changes(*rows: dict[str, Any], schema: TableSchema = ORDERS, before: bool = False) -> pa.RecordBatch:
    metadata = {"_lsn": 10, "_seq": 0, "_txid": 3, "_committed_at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)}
    return pa.RecordBatch.from_pylist(
        [metadata | row for row in rows], schema=change_schema(schema.arrow, before=before)
    )


def enveloped(*rows: dict[str, Any], before: bool = False) -> list[dict[str, Any]]:
    """The envelopes of the rows, with their JSON read."""
    batch = envelope(changes(*rows, before=before), ORDERS)
    batch.validate(full=True)
    read = batch.to_pylist()
    for row in read:
        for name in ("key", "before", "after"):
            row[name] = None if row[name] is None else json.loads(row[name])
    return read


def test_the_envelopes_schema_is_the_one_spark_expects() -> None:
    string, long = spark_types.StringType(), spark_types.LongType()
    fields: list[tuple[str, spark_types.DataType]] = [
        *((name, string) for name in ("schema", "table", "op", "key", "before", "after")),
        ("_lsn", long),
        ("_seq", spark_types.IntegerType()),
        ("_txid", long),
        ("_committed_at", spark_types.TimestampType()),
        ("_dump", string),
        ("_schema", string),
        ("_unchanged", spark_types.ArrayType(string)),
        ("_raw_values", string),
    ]
    expected = to_arrow_schema(
        spark_types.StructType([spark_types.StructField(name, kind) for name, kind in fields]), timezone="UTC"
    )
    assert expected.equals(ENVELOPE)
    assert expected.equals(envelope(changes(), ORDERS).schema)


@pytest.mark.parametrize("op", [Op.create, Op.update, Op.read])
def test_a_row_that_exists_has_a_key_and_an_after_image(op: Op) -> None:
    (row,) = enveloped({"_op": op, "note": None, **KEY})
    assert (row["schema"], row["table"], row["op"]) == ("public", "orders", op.name)
    assert list(row["key"].items()) == [("shop", 7), ("id", 1)]
    assert row["after"] == {"note": None, "id": 1, "shop": 7}
    assert row["before"] is None


def test_the_metadata_is_carried_over() -> None:
    row = {"_op": Op.read, "_unchanged": ["note"], **KEY}
    (given_row,) = changes(row).to_pylist()
    (result,) = envelope(changes(row), ORDERS, dump="d1").to_pylist()
    for name in ("_lsn", "_seq", "_txid", "_committed_at", "_unchanged"):
        assert result[name] == given_row[name] is not None
    assert result["_dump"] == "d1"
    assert result["_schema"] == ORDERS.version
    assert enveloped(row)[0]["_dump"] is None


def test_a_column_the_log_did_not_carry_is_absent_and_not_null() -> None:
    rows = enveloped(
        {"_op": Op.update, "_unchanged": ["note"], **KEY},
        {"_op": Op.update, "_unchanged": None, **KEY},
        {"_op": Op.update, "_unchanged": [], **KEY},
    )
    assert [row["after"] for row in rows] == [KEY, KEY | {"note": None}, KEY | {"note": None}]


def test_a_truncate_has_neither_key_nor_images() -> None:
    (row,) = enveloped({"_op": Op.truncate})
    assert (row["op"], row["key"], row["before"], row["after"]) == ("truncate", None, None, None)


def test_a_delete_of_which_only_the_key_is_known_has_the_key_before() -> None:
    (row,) = enveloped({"_op": Op.delete, **KEY})
    assert (row["key"], row["before"], row["after"]) == (KEY, KEY, None)


def test_a_delete_with_its_old_row_has_the_row_before() -> None:
    (row,) = enveloped({"_op": Op.delete, "note": "x", **KEY})
    assert (row["before"], row["after"]) == (KEY | {"note": "x"}, None)


def test_an_old_image_is_written_as_far_as_it_is_known() -> None:
    old = KEY | {"note": "old"}
    rows = enveloped(
        {"_op": Op.update, "note": "new", "_before": old, **KEY},
        {"_op": Op.update, "note": "new", "_before": KEY | {"note": None}, **KEY},
        {"_op": Op.update, "note": "new", "_before": None, **KEY},
        {"_op": Op.delete, "_before": old, **KEY},
        {"_op": Op.delete, "note": "old", "_before": None, **KEY},
        before=True,
    )
    assert [row["before"] for row in rows] == [old, KEY, None, old, old]


def test_a_table_of_nothing_but_its_key_has_images() -> None:
    pairs = TableSchema(ORDERS.table, tuple(c for c in ORDERS.columns if c.name in ORDERS.key), ORDERS.key)
    rows = envelope(changes({"_op": Op.create, **KEY}, {"_op": Op.delete, **KEY}, schema=pairs), pairs).to_pylist()
    assert json.loads(rows[0]["after"]) == json.loads(rows[1]["before"]) == KEY


def test_columns_may_be_called_like_the_metadata() -> None:
    schema = TableSchema(
        TableName("public", "odd"), (Column("_op", "text", pa.string()), Column("_lsn", "text", pa.string())), ("_op",)
    )
    metadata = changes({"_op": Op.create, **KEY})
    columns = [*metadata.columns[:6], pa.array(["a"]), pa.array(["b"])]
    (row,) = envelope(pa.record_batch(columns, schema=change_schema(schema.arrow)), schema).to_pylist()
    assert (row["op"], row["_lsn"], json.loads(row["after"])) == ("create", 10, {"_op": "a", "_lsn": "b"})


@given(st.data())
def test_a_part_of_a_batch_gives_that_part_of_the_envelopes(data: st.DataObject) -> None:
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "_op": st.sampled_from(Op),
                    "_unchanged": st.none() | st.just(["note"]),
                    "note": st.none() | TEXT,
                    "_before": st.none() | st.just(KEY | {"note": "old"}),
                }
            ),
            max_size=10,
        )
    )
    batch = changes(*(row | KEY for row in rows), before=True)
    start = data.draw(st.integers(0, len(rows)))
    length = data.draw(st.integers(0, len(rows) - start))
    assert envelope(batch.slice(start, length), ORDERS).equals(envelope(batch, ORDERS).slice(start, length))


def test_a_schema_that_is_not_the_batchs_is_refused() -> None:
    other = TableSchema(ORDERS.table, ORDERS.columns[1:], ORDERS.key)
    with pytest.raises(SchemaChanged, match="'note'"):
        envelope(changes({"_op": Op.create, **KEY}), other)
