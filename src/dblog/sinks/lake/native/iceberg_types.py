"""Types of Iceberg's columns, as those of Spark and of Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

import pyarrow as pa
import pyspark.sql.types as spark
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

_SAME: tuple[tuple[type[spark.DataType], iceberg.PrimitiveType], ...] = (
    (spark.BooleanType, iceberg.BooleanType()),
    (spark.ByteType, iceberg.IntegerType()),
    (spark.ShortType, iceberg.IntegerType()),
    (spark.IntegerType, iceberg.IntegerType()),
    (spark.LongType, iceberg.LongType()),
    (spark.FloatType, iceberg.FloatType()),
    (spark.DoubleType, iceberg.DoubleType()),
    (spark.StringType, iceberg.StringType()),
    (spark.BinaryType, iceberg.BinaryType()),
    (spark.DateType, iceberg.DateType()),
    (spark.TimestampType, iceberg.TimestamptzType()),
    (spark.TimestampNTZType, iceberg.TimestampType()),
)
"""Types of Spark, and Iceberg's that have the same values. For a type of Iceberg, the last one counts."""
_TO_ICEBERG = dict(_SAME)
_TO_SPARK = {kind: name() for name, kind in _SAME}
_TO_ARROW: Mapping[iceberg.IcebergType, pa.DataType] = {
    iceberg.BooleanType(): pa.bool_(),
    iceberg.IntegerType(): pa.int32(),
    iceberg.LongType(): pa.int64(),
    iceberg.FloatType(): pa.float32(),
    iceberg.DoubleType(): pa.float64(),
    iceberg.StringType(): pa.string(),
    iceberg.BinaryType(): pa.binary(),
    iceberg.DateType(): pa.date32(),
    iceberg.TimestamptzType(): pa.timestamp("us", tz="UTC"),
    iceberg.TimestampType(): pa.timestamp("us"),
}


def known(kind: iceberg.IcebergType) -> bool:
    """Whether the native writer can write the type."""
    if isinstance(kind, iceberg.ListType):
        return known(kind.element_type)
    return isinstance(kind, iceberg.DecimalType) or kind in _TO_ARROW


def to_spark(kind: iceberg.IcebergType) -> spark.DataType:
    if isinstance(kind, iceberg.ListType):
        return spark.ArrayType(to_spark(kind.element_type))
    if isinstance(kind, iceberg.DecimalType):
        return spark.DecimalType(kind.precision, kind.scale)
    return _TO_SPARK[kind] if isinstance(kind, iceberg.PrimitiveType) and kind in _TO_SPARK else spark.NullType()


def to_iceberg(kind: spark.DataType, ids: Iterator[int]) -> iceberg.IcebergType:
    """The type in Iceberg. The elements of a list get a field id."""
    if isinstance(kind, spark.ArrayType):
        element_id = next(ids)
        return iceberg.ListType(element_id, to_iceberg(kind.elementType, ids), element_required=False)
    if isinstance(kind, spark.DecimalType):
        return iceberg.DecimalType(kind.precision, kind.scale)
    return _TO_ICEBERG[type(kind)]


def to_schema(columns: Mapping[str, spark.DataType]) -> Schema:
    """A schema of columns that may all be null."""
    ids = count(1)
    return Schema(
        *(iceberg.NestedField(next(ids), name, to_iceberg(k, ids), required=False) for name, k in columns.items())
    )


def to_arrow(schema: Schema, *, ids: bool) -> pa.Schema:
    """The schema in Arrow: plain strings and binaries, as every reader expects them. `ids` adds the field ids with
    which a Parquet file names its columns."""
    return pa.schema([_field(field, ids=ids) for field in schema.fields])


def _field(field: iceberg.NestedField, *, ids: bool) -> pa.Field:
    kind = field.field_type
    if isinstance(kind, iceberg.ListType):
        made = pa.list_(_field(kind.element_field, ids=ids))
    elif isinstance(kind, iceberg.DecimalType):
        made = pa.decimal128(kind.precision, kind.scale)
    else:
        made = _TO_ARROW[kind]
    return pa.field(field.name, made, metadata={"PARQUET:field_id": str(field.field_id)} if ids else None)
