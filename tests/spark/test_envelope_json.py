"""Spark reads the JSON of an envelope back to the values that went in."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from dblog.core.event import Op, change_schema
from dblog.core.schema import Column, TableName, TableSchema
from dblog.work.envelope import envelope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ARROW = {
    "id": pa.int64(),
    "region": pa.string(),
    "flag": pa.bool_(),
    "small": pa.int16(),
    "ratio": pa.float32(),
    "score": pa.float64(),
    "price": pa.decimal128(12, 2),
    "precise": pa.decimal128(38, 18),
    "name": pa.string(),
    "data": pa.binary(),
    "day": pa.date32(),
    "moment": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "tags": pa.list_(pa.string()),
}
DDL = (
    "id bigint, region string, flag boolean, small smallint, ratio float, score double, price decimal(12,2), "
    "precise decimal(38,18), name string, data binary, day date, moment timestamp, local timestamp_ntz, "
    "tags array<string>"
)
SCHEMA = TableSchema(
    TableName("public", "everything"), tuple(Column(n, str(t), t) for n, t in ARROW.items()), ("region", "id")
)
ROWS: list[dict[str, Any]] = [
    {
        "id": 2**63 - 1,
        "region": 'a"b\\ü\n',
        "flag": True,
        "small": -32768,
        "ratio": float(np.float32(0.1)),
        "score": 1.7976931348623157e308,
        "price": Decimal("-1.50"),
        "precise": Decimal("0.000000000000000001"),
        "name": "tab\tnul\x00 \x1f \u2028 \U0001f600",
        "data": b"\x00\xff\x10z",
        "day": datetime.date(1, 1, 1),
        "moment": datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=datetime.UTC),
        "local": datetime.datetime(9999, 12, 31, 0, 0, 0, 1),
        "tags": ["x", None, 'y"'],
    },
    {
        "id": -(2**63),
        "region": "",
        "flag": False,
        "small": 0,
        "ratio": float("-inf"),
        "score": -0.0,
        "price": Decimal("9999999999.99"),
        "precise": Decimal("0E-18"),
        "name": "",
        "data": b"",
        "day": datetime.date(9999, 12, 31),
        "moment": datetime.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=datetime.UTC),
        "local": datetime.datetime(1582, 10, 10),
        "tags": [],
    },
    {"id": 0, "region": "nulls"} | dict.fromkeys(list(ARROW)[2:]),
]


def read_back(spark: SparkSession, rows: list[dict[str, Any]], *, column: str, ddl: str) -> list[dict[str, Any]]:
    changes = pa.RecordBatch.from_pylist(
        [{"_op": Op.create, "_lsn": i, "_seq": 0, **row} for i, row in enumerate(rows)],
        schema=change_schema(SCHEMA.arrow),
    )
    envelopes = spark.createDataFrame(pa.Table.from_batches([envelope(changes, SCHEMA)]))
    read = envelopes.selectExpr("_lsn", f"from_json({column}, '{ddl}', map('mode', 'FAILFAST')) AS r")
    return read.orderBy("_lsn").select("r.*").toArrow().to_pylist()


def test_from_json_reads_every_column_of_after_back(spark: SparkSession) -> None:
    assert repr(read_back(spark, ROWS, column="after", ddl=DDL)) == repr(
        pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA.arrow).to_pylist()
    )


def test_from_json_reads_the_key_back(spark: SparkSession) -> None:
    keys = read_back(spark, ROWS, column="key", ddl="region string, id bigint")
    assert keys == [{"region": row["region"], "id": row["id"]} for row in ROWS]


def test_from_json_reads_years_that_need_a_sign(spark: SparkSession) -> None:
    days = [int(np.datetime64(text).astype(int)) for text in ("-0043-03-15", "0000-12-31", "12345-01-01")]
    rows = [{"id": i, "region": "", "day": day} for i, day in enumerate(days)]
    table = [row | {"day": None} for row in rows]
    changes = pa.RecordBatch.from_pylist(
        [{"_op": Op.create, "_lsn": row["id"], **row} for row in table], schema=change_schema(SCHEMA.arrow)
    )
    place = changes.schema.get_field_index("day")
    changes = changes.set_column(place, "day", pa.array(days, pa.int32()).view(pa.date32()))
    frame = spark.createDataFrame(pa.Table.from_batches([envelope(changes, SCHEMA)]))
    read = frame.orderBy("_lsn").selectExpr("unix_date(from_json(after, 'day date').day) AS day").collect()
    assert [row.day for row in read] == days
