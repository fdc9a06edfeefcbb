"""PostgreSQL's types as Arrow arrays: one codec per type, the same value from the log and from a dump.

The log carries the text of each value (`pgoutput` in text mode: the type's output function). A dump carries the
binary form of the types that have a `from_binary` kernel here, and the same text for all others. So every type has a
`from_text` kernel, and the binary one, where there is one, must agree with it.

The mapping, chosen so that no value changes and Spark knows every type:

    bool, int2/4/8, float4/8, bytea       themselves                 oid, xid, cid            int64
    numeric(p, s), p <= 38, 0 <= s <= p   decimal128(p, s)           other numerics           string
    date                                  date32                     arrays                   list of the element
    timestamp, timestamptz                micros, without and with UTC
    a domain                              its base type              everything else          string, the type's output

`infinity` and `-infinity` of the date types are the greatest and the least number of the Arrow storage: distinct from
every real date, and they sort where PostgreSQL sorts them. A kernel raises `Unfit` for values that their type cannot
hold: NaN in numeric(p, s), arrays with other bounds, timestamps after the year 294246.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Bytes, Mask
from dblog.core.event import UTC_MICROS
from dblog.core.schema import NULL, TEXT, TableSchema
from dblog.sources import columns
from dblog.sources.columns import Cells, Raw
from dblog.sources.postgres.binary import (
    bool_binary,
    bytea_binary,
    date_binary,
    eight_bytes_binary,
    four_bytes_binary,
    int2_binary,
    jsonb_binary,
    oid_binary,
    timestamp_binary,
    uuid_binary,
)
from dblog.sources.postgres.column_types import NEAR, Codec, Kernel, PgColumn, PgType, TypeOptions, refuse
from dblog.sources.postgres.near_dates import near
from dblog.sources.postgres.text import bool_text, bytea_text, cast_text, decimal_text, int_text, string, temporal_text
from dblog.sources.unfit import Decoded, Unfit, decode_columns, rows_of

CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec("bool", bool_text, bool_binary),
        Codec("int2", int_text, int2_binary),
        Codec("int4", int_text, four_bytes_binary),
        Codec("int8", int_text, eight_bytes_binary),
        Codec("oid", int_text, oid_binary),
        Codec("xid", int_text),
        Codec("float4", cast_text, four_bytes_binary),
        Codec("float8", cast_text, eight_bytes_binary),
        Codec("decimal", decimal_text),
        Codec("date", temporal_text, date_binary),
        Codec("near date", near(temporal_text, binary=False), near(date_binary, binary=True)),
        Codec("timestamp", temporal_text, timestamp_binary),
        Codec("near timestamp", near(temporal_text, binary=False), near(timestamp_binary, binary=True)),
        Codec("bytea", bytea_text, bytea_binary),
        Codec("text", string, string),
        Codec("jsonb", string, jsonb_binary),
        Codec("uuid", string, uuid_binary),
        Codec("output", string),
    )
}

_NUMERIC = 1700
_BUILT_IN: dict[int, tuple[str, pa.DataType]] = {
    16: ("bool", pa.bool_()),
    17: ("bytea", pa.binary()),
    19: ("text", pa.string()),  # name
    20: ("int8", pa.int64()),
    21: ("int2", pa.int16()),
    23: ("int4", pa.int32()),
    25: ("text", pa.string()),
    26: ("oid", pa.int64()),
    28: ("xid", pa.int64()),
    29: ("xid", pa.int64()),  # cid
    114: ("text", pa.string()),  # json
    700: ("float4", pa.float32()),
    701: ("float8", pa.float64()),
    1042: ("text", pa.string()),  # bpchar
    1043: ("text", pa.string()),  # varchar
    1082: ("date", pa.date32()),
    1114: ("timestamp", pa.timestamp("us")),
    1184: ("timestamp", UTC_MICROS),
    2950: ("uuid", pa.string()),
    3802: ("jsonb", pa.string()),
}
"""By type OID; the OIDs of built-in types never change. All other types have the codec `output`: the server's text."""


def codec(column: PgColumn) -> Codec:
    return Codec(column.codec, _array_text) if column.codec.endswith("[]") else CODECS[column.codec]


def pg_column(name: str, oid: int, spelled: str, kind: PgType, options: TypeOptions, rule: str = NULL) -> PgColumn:
    """The column `name` of type `oid`, which is `spelled` so in SQL and described by `kind`. `rule` is that for values
    that do not fit."""
    key, arrow = _mapped(kind, options)
    if rule == TEXT and (kind.element is not None or key in _PARTIAL):
        key, arrow = "output", pa.string()
    if options.years == NEAR and key in ("date", "timestamp"):
        key = f"near {key}"
    output = kind.output if CODECS.get(key, CODECS["output"]).from_binary is None else None
    return PgColumn(name, spelled, arrow, oid, key, output, kind.delimiter if kind.element else ",", rule=rule)


_PARTIAL = {"decimal", "date", "timestamp"}
"""Codecs of types with values that their Arrow type cannot hold, or holds as its least or greatest number."""


def _mapped(kind: PgType, options: TypeOptions) -> tuple[str, pa.DataType]:
    if kind.element is not None:
        if options.arrays == "string":
            return "output", pa.string()
        key, arrow = _mapped(kind.element, options)
        return key + "[]", pa.list_(arrow)
    if kind.oid == _NUMERIC and kind.typmod >= 4 and options.decimals == "decimal":
        precision, scale = (kind.typmod - 4) >> 16 & 0xFFFF, (((kind.typmod - 4) & 0x7FF) ^ 1024) - 1024
        if 0 <= scale <= precision <= 38:
            return "decimal", pa.decimal128(precision, scale)
    return _BUILT_IN.get(kind.oid, ("output", pa.string()))


def decode(schema: TableSchema, cells: Sequence[Cells], *, binary: bool, positions: Any = None) -> Decoded:
    """The table's columns from their cells: all as text, or as selected by `copy.select_list`. `positions` are those of
    the rows in the log. Raises DecodeError."""

    def kernel(column: PgColumn) -> Kernel:
        kind = codec(column)
        return kind.from_binary if binary and kind.from_binary else kind.from_text

    return decode_columns(schema, cells, kernel, positions)


def _array_text(cells: Cells, column: PgColumn) -> pa.Array:
    """One-dimensional array literals: every element of every row becomes a cell of one long element column."""
    text, offsets = columns.contiguous(columns.binary(cells))
    valid = cells.length >= 0
    other = (cells.raw.data[cells.start] != ord("{")) | (cells.raw.data[cells.start + 1] == ord("{"))
    refuse(cells, column, valid & other, "only one-dimensional arrays that begin at 1 fit")

    escape = _escapes(text)
    quote = text == ord('"')
    quote[np.flatnonzero(escape) + 1] = False
    cut = (text == ord(column.delimiter)) & ~np.logical_xor.accumulate(quote)
    opens, closes = cut.copy(), cut
    opens[offsets[:-1][valid]] = True
    closes[offsets[1:][valid] - 1] = True
    start, end = np.flatnonzero(opens) + 1, np.flatnonzero(closes)
    filled = start < end  # an empty element is always quoted, so this drops only the one of `{}`
    start, end = start[filled], end[filled]
    ends = np.searchsorted(start, offsets).astype(np.int32)

    shift = np.cumsum(escape)
    start, end = start - shift[start - 1], end - shift[end - 1]
    raw = Raw.pad(text[~escape])
    start += raw.origin
    quoted = raw.data[start] == ord('"')
    length = end + raw.origin - start - 2 * quoted
    length[~quoted & (length == 4) & (raw.le32(start) == int.from_bytes(b"NULL", "little"))] = -1
    element = replace(column, arrow=column.arrow.value_type, codec=column.codec.removesuffix("[]"))
    try:
        values = codec(element).from_text(Cells(raw, start + quoted, length), element)
    except Unfit as unfit:
        owner = np.searchsorted(ends, np.arange(len(start)), "right") - 1
        raise rows_of(unfit, owner, len(cells), cells.plain_text) from None
    return columns.lists(column.arrow, ends, values, cells.valid)


def _escapes(text: Bytes) -> Mask:
    """Which bytes are backslashes that escape the next byte: every second one of a run, from its first."""
    found: Mask = text == ord("\\")
    at = np.flatnonzero(found)
    if at.size:
        begins = np.append(True, np.diff(at) != 1)
        in_run = at - np.maximum.accumulate(np.where(begins, at, 0))
        found[at[in_run % 2 == 1]] = False
    return found
