"""Dates and timestamps that Python cannot represent: infinities, and years before 1 or after 9999.

Spark can hold them, but fails when such a row becomes a Python object. This module finds them, so that an error can
name them, or turns them into text, so that nothing fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import BEFORE
from dblog.core.schema import TableSchema
from dblog.sinks.base import Batch, TableBatch
from dblog.work.json_text import json_text

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


# -- as text ---------------------------------------------------------------------------------------------------------


def dates_as_text(batch: Batch) -> Batch:
    """The batch with all dates and timestamps as text, in the envelope's format, like `+10000-01-01`."""
    return replace(batch, tables=tuple(map(_table_as_text, batch.tables)))


def _table_as_text(table: TableBatch) -> TableBatch:
    if not any(_temporal(c.arrow) for c in table.schema.columns):
        return table
    as_text = replace(table.schema, columns=tuple(replace(c, arrow=_text(c.arrow)) for c in table.schema.columns))
    return table.mapped(as_text, lambda frame, _: _frame_as_text(frame, table.schema))


def _frame_as_text(frame: DataFrame, schema: TableSchema) -> DataFrame:
    from pyspark.sql.types import StructField, StructType

    own = [n for n, name in enumerate(frame.columns) if name in schema.names or name == BEFORE]
    # Spark cannot pass columns to Arrow whose names have special characters or differ by case only.
    plain = [f"c{n}" for n in range(len(frame.columns))]
    kinds = [_spark_text(f.dataType) if n in own else f.dataType for n, f in enumerate(frame.schema)]
    shape = StructType([StructField(name, kind) for name, kind in zip(plain, kinds, strict=True)])

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            columns = [_array_as_text(c) if n in own else c for n, c in enumerate(rows.columns)]
            yield pa.RecordBatch.from_arrays(columns, names=plain)

    return frame.toDF(*plain).mapInArrow(made, shape).toDF(*frame.columns)


def _spark_text(kind: DataType) -> DataType:
    from pyspark.sql.types import (
        ArrayType,
        DateType,
        StringType,
        StructField,
        StructType,
        TimestampNTZType,
        TimestampType,
    )

    if isinstance(kind, (DateType, TimestampType, TimestampNTZType)):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_spark_text(kind.elementType))
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _spark_text(f.dataType)) for f in kind])
    return kind


def _temporal(kind: pa.DataType) -> bool:
    return _temporal(kind.value_type) if pa.types.is_list(kind) else pa.types.is_temporal(kind)


def _text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_text(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) else kind


def _array_as_text(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_temporal(kind):
        return pc.utf8_slice_codeunits(json_text(array), 1, -1)  # without the quotes
    if pa.types.is_list(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        offsets = pc.subtract(array.offsets, first)
        items = _array_as_text(array.values.slice(first, last - first))
        return pa.ListArray.from_arrays(offsets, items, mask=pc.is_null(array))
    if pa.types.is_struct(kind):
        fields = [_array_as_text(array.field(n)) for n in range(kind.num_fields)]
        names = [kind.field(n).name for n in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, names=names, mask=pc.is_null(array))
    return array


# -- found -----------------------------------------------------------------------------------------------------------


def odd_date(batch: Batch) -> str | None:
    """Table, column, value and key of a date or timestamp in the batch that Python cannot represent; None without
    one."""
    for table in batch.tables:
        for column in filter(lambda column: _temporal(column.arrow), table.schema.columns):
            for frame in filter(None, (table.changes, table.rows)):
                if found := _odd(frame, table.schema, column.name):
                    value, *key = found
                    where = f"column {column.name!r} of the row with the key ({', '.join(key)})"
                    return f"table {table.source} has {value} in {where}"
    return None


def _odd(frame: DataFrame, schema: TableSchema, name: str) -> list[str] | None:
    """The value and the key of a row with such a date in the column, as JSON."""
    from pyspark.sql import functions as f

    images = [f.col(_quoted(name))]
    if BEFORE in frame.columns:
        images.append(f.col(BEFORE).getField(name))
    value = f.coalesce(*(f.when(_beyond(image, schema.column(name).arrow), image) for image in images))
    wanted = [value, *(f.col(_quoted(key)) for key in schema.key)]
    odd = reduce(lambda a, b: a | b, (f.coalesce(_beyond(i, schema.column(name).arrow), f.lit(False)) for i in images))
    found = frame.where(odd).select(*(w.alias(f"c{n}") for n, w in enumerate(wanted))).limit(1).toArrow()
    if not found.num_rows:
        return None
    return [json_text(c.combine_chunks())[0].as_py() or "null" for c in found.columns]


def _beyond(value: Expression, kind: pa.DataType) -> Expression:
    from pyspark.sql import functions as f

    if pa.types.is_list(kind):
        return f.exists(value, lambda item: _beyond(item, kind.value_type))
    name = "date" if pa.types.is_date(kind) else "timestamp" if kind.tz else "timestamp_ntz"
    first, last = (f.lit(text).cast(name) for text in ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"))
    return (value < first) | (value > last)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
