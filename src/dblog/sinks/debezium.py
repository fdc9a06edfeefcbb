"""Events in Debezium's format, as its JSON converter writes them with `schemas.enable=false`.

| here | as Debezium with |
|---|---|
| a decimal is a text, `"1.50"` | `decimal.handling.mode=string` |
| a date is its day since 1970 | `time.precision.mode=adaptive` |
| a timestamp without time zone is its milliseconds or, with more than three digits, microseconds | the same |
| binary is base64 | `binary.handling.mode=bytes` |
| a change of the key is a delete and a create | always |

A text or binary column that the log does not have is `__debezium_unavailable_value`; other such columns are left out.
One thing differs from Debezium, so that a repeated batch has the same texts: `ts_ms` is the time of the commit, and
null for dump rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import BEFORE, CASCADE, RAW
from dblog.core.schema import Column, TableSchema
from dblog.sinks.formats import event_columns, event_keys, images_of, metadata
from dblog.work.json_text import join_members, json_text

_LETTERS = {"create": "c", "update": "u", "delete": "d", "read": "r", "truncate": "t", "cascade": "x"}
"""Debezium has no events of the kind `cascade`: its letters are others."""
_UNAVAILABLE = "__debezium_unavailable_value"


@dataclass(frozen=True)
class Debezium:
    """The formatter. `name` is Debezium's logical server name or topic prefix."""

    name: str

    def __call__(self, rows: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
        size = rows.num_rows
        images = images_of(*_spelled(rows, schema))
        told = metadata(rows, schema)
        time = json_text(_millis(told["_committed_at"]))
        source = {
            "connector": json_text(pa.repeat("dblog", size)),
            "name": json_text(pa.repeat(self.name, size)),
            "ts_ms": time,
            "snapshot": pc.if_else(pc.is_valid(told["_dump"]), '"incremental"', '"false"'),
            "db": json_text(images.column("schema")),
            "schema": json_text(images.column("schema")),
            "table": json_text(images.column("table")),
            "txId": json_text(told["_txid"]),
            "lsn": json_text(told["_lsn"]),
            "seq": json_text(told["_seq"]),
            "schema_version": json_text(told["_schema"]),
            "raw_values": told.get(RAW, pa.nulls(size, pa.string())),
        }
        value = {
            "before": images.column("before"),
            "after": images.column("after"),
            "source": join_members(list(source), list(source.values())),
            "transaction": pa.nulls(size, pa.string()),
            "op": json_text(pa.array(_LETTERS.values()).take(pc.index_in(told["_op"], pa.array(_LETTERS)))),
            "ts_ms": time,
        }
        if CASCADE in told:
            value["cascade"] = told[CASCADE]
        return event_columns(event_keys(images.column("key"), told), join_members(list(value), list(value.values())))


def _spelled(rows: pa.RecordBatch, schema: TableSchema) -> tuple[pa.RecordBatch, TableSchema]:
    """The rows with values whose JSON is Debezium's, and their schema."""
    own = len(schema.columns)
    given = metadata(rows, schema)
    columns = [_value(array, column) for array, column in zip(rows.columns[:own], schema.columns, strict=True)]
    told = replace(
        schema, columns=tuple(replace(c, arrow=a.type) for c, a in zip(schema.columns, columns, strict=True))
    )
    if given["_unchanged"].null_count < rows.num_rows:
        columns, given["_unchanged"] = _marked(columns, told, given["_unchanged"])
    if BEFORE in given:
        old = given[BEFORE]
        parts = [_value(old.field(c.name), c) for c in schema.columns]
        given[BEFORE] = pa.StructArray.from_arrays(parts, names=list(schema.names), mask=pc.is_null(old))
    return pa.RecordBatch.from_arrays([*columns, *given.values()], names=[*schema.names, *given]), told


def _value(array: pa.Array, column: Column) -> pa.Array:
    kind = array.type
    if pa.types.is_date32(kind):
        return array.view(pa.int32())
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return _millis(array) if _coarse(column) else array.view(pa.int64())
    if pa.types.is_decimal(kind):
        return json_text(array)
    return array


def _millis(array: pa.TimestampArray) -> pa.Int64Array:
    """Microseconds as milliseconds, rounded down."""
    micros = array.view(pa.int64())
    millis = pc.divide(micros, 1000)
    return pc.subtract(millis, pc.if_else(pc.greater(pc.multiply(millis, 1000), micros), 1, 0))


def _coarse(column: Column) -> bool:
    """Whether a timestamp has at most three fractional digits. Without a precision PostgreSQL has six digits, MySQL
    none."""
    digits = re.search(r"\((\d)\)", column.type)
    return int(digits[1]) <= 3 if digits else column.type.startswith("datetime")


def _marked(
    columns: list[pa.Array], schema: TableSchema, unchanged: pa.ListArray
) -> tuple[list[pa.Array], pa.ListArray]:
    """The columns with Debezium's placeholder for unchanged text and binary values, and `_unchanged` without them."""
    names, row = unchanged.flatten(), pc.list_parent_indices(unchanged)
    columns = list(columns)
    marked = []
    for at, column in enumerate(schema.columns):
        if not (pa.types.is_string(column.arrow) or pa.types.is_binary(column.arrow)):
            continue
        here = row.filter(pc.equal(names, column.name)).to_numpy()
        if here.size:
            where = np.zeros(len(unchanged), np.bool_)
            where[here] = True
            columns[at] = pc.if_else(pa.array(where), pa.scalar(_UNAVAILABLE).cast(column.arrow), columns[at])
            marked.append(column.name)
    rest = pc.invert(pc.is_in(names, pa.array(marked, pa.string())))
    return columns, _lists(names.filter(rest), row.filter(rest).to_numpy(), len(unchanged))


def _lists(items: pa.Array, row: npt.NDArray[np.int64], rows: int) -> pa.ListArray:
    """One list per row, with the items that belong to it (`row` has the row of each item)."""
    sizes = np.bincount(row, minlength=rows)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items)
