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
every real date, and they sort where PostgreSQL sorts them. All kernels fail closed: DecodeError, with the way out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dblog.core.event import UTC_MICROS
from dblog.core.schema import Column, TableSchema
from dblog.errors import DecodeError
from dblog.sources import columns
from dblog.sources.columns import Cells, Raw

EPOCH_DAYS = 10957
EPOCH_MICROS = EPOCH_DAYS * 86_400_000_000
"""PostgreSQL counts from 2000-01-01, Arrow from 1970-01-01."""


@dataclass(frozen=True)
class TypeOptions:
    """How the two families of types that do not always fit Arrow are delivered."""

    decimals: Literal["decimal", "string"] = "decimal"
    arrays: Literal["array", "string"] = "array"


@dataclass(frozen=True)
class PgType:
    """What the catalog says of a column's type, domains followed down to their base."""

    oid: int
    typmod: int = -1
    output: str | None = None
    """The output function, quoted and qualified, when the type has a cast to text of its own that may differ from it:
    `inet` adds a netmask, `xml` keeps its declaration."""
    element: PgType | None = None
    delimiter: str = ","


@dataclass(frozen=True)
class PgColumn(Column):
    """A column and how its values are read."""

    oid: int
    codec: str
    """A key of CODECS; with `[]` behind it for an array of that."""
    output: str | None = None
    delimiter: str = ","


Kernel = Callable[[Cells, PgColumn], pa.Array]


@dataclass(frozen=True)
class Codec:
    """One type: how its text is read and, for the types that a dump reads in binary, how that is."""

    name: str
    from_text: Kernel
    from_binary: Kernel | None = None


def _wrong(column: PgColumn, value: str, hint: str | None = None) -> DecodeError:
    shown = value if len(value) <= 100 else value[:100] + "…"
    return DecodeError(
        f"column {column.name!r} ({column.type}) holds {shown!r}, which {column.arrow} cannot", hint=hint
    )


def _refuse(cells: Cells, column: PgColumn, wrong: Any, hint: str | None = None) -> None:
    if wrong.any():
        raise _wrong(column, cells.text(int(np.argmax(wrong))), hint)


# -- text --------------------------------------------------------------------------------------------------------------


def _string(cells: Cells, column: PgColumn) -> pa.Array:
    return columns.strings(cells)


def _bool_text(cells: Cells, column: PgColumn) -> pa.Array:
    return columns.booleans(cells.raw.data[cells.start] == ord("t"), cells.valid)


def _int_text(cells: Cells, column: PgColumn) -> pa.Array:
    values, wrong = columns.integers(cells)
    _refuse(cells, column, wrong)
    return columns.fixed(column.arrow, values.astype(column.arrow.to_pandas_dtype(), copy=False), cells.valid)


def _cast_text(cells: Cells, column: PgColumn) -> pa.Array:
    return columns.strings(cells).cast(column.arrow)


def _bytea_text(cells: Cells, column: PgColumn) -> pa.Array:
    values, whole = columns.unhex(cells, prefix=2)
    if not whole:
        raise DecodeError(f"column {column.name!r} is not bytea in hex form", hint="set bytea_output = hex")
    return values


def _decimal_text(cells: Cells, column: PgColumn) -> pa.Array:
    first = cells.raw.data[cells.start]
    valid = cells.length >= 0
    _refuse(cells, column, valid & (first == ord("N")), '.option("decimals", "string") delivers numerics as text')
    precision, scale = column.arrow.precision, column.arrow.scale
    if precision > 18:
        return _cast_text(cells, column)
    # numeric(p, s) always prints s digits after the point, so both halves are found from the end.
    end = cells.start + cells.length
    minus = (first == ord("-")) & valid
    point = 1 if scale else 0
    value, wrong = columns.unsigned(cells.raw, end - scale - point, cells.length - minus - scale - point)
    if scale:
        fraction, bad = columns.unsigned(cells.raw, end, np.where(valid, scale, 0))
        value = value * np.uint64(10**scale) + fraction
        wrong |= bad | (valid & (cells.raw.data[end - scale - 1] != ord(".")))
    if wrong.any():
        return _cast_text(cells, column)
    words = np.empty((len(cells), 2), np.int64)
    signed = value.view(np.int64)
    np.negative(signed, out=signed, where=minus)
    words[:, 0] = signed
    np.right_shift(signed, 63, out=words[:, 1])
    return columns.fixed(column.arrow, words, cells.valid)


_DATE = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?")


def _temporal_text(cells: Cells, column: PgColumn) -> pa.Array:
    """Arrow reads years 1 to 9999; infinities, earlier and later years go one by one."""
    end = cells.start + cells.length - 1
    usual = (cells.raw.data[cells.start + 4] == ord("-")) & (cells.raw.data[end] != ord("C"))
    usual |= cells.length < 0
    if usual.all():
        return _cast_text(cells, column)
    storage: Any = np.int32 if column.arrow == pa.date32() else np.int64
    values = np.zeros(len(cells), storage)
    ordinary = _cast_text(cells.take(usual), column).cast(pa.from_numpy_dtype(storage)).fill_null(0)
    values[usual] = ordinary.to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(~usual).tolist():
        values[row] = _temporal(cells.text(row), column, np.iinfo(storage))
    return columns.fixed(column.arrow, values, cells.valid)


def _temporal(text: str, column: PgColumn, bounds: Any) -> int:
    if text in ("infinity", "-infinity"):
        return int(bounds.min if text[0] == "-" else bounds.max)
    match = _DATE.fullmatch(text)
    if not match:
        raise _wrong(column, text)
    year, month, day = (int(part) for part in match.group(1, 2, 3))
    # Days from the civil calendar, years beginning in March; 1 BC is year 0.
    year = (1 - year if match[8] else year) - (month <= 2)
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day - 719469
    if column.arrow == pa.date32():
        value = days
    else:
        hour, minute, second = (int(part) for part in match.group(4, 5, 6))
        micros = int((match[7] or "").ljust(6, "0"))
        value = ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + micros
    if not bounds.min < value < bounds.max:
        raise _wrong(column, text, "the value is beyond 64 bits of microseconds since 1970: change it")
    return value


def _array_text(cells: Cells, column: PgColumn) -> pa.Array:
    """One-dimensional array literals: every element of every row becomes a cell of one long element column."""
    text, offsets = columns.contiguous(columns.binary(cells))
    valid = cells.length >= 0
    other = (cells.raw.data[cells.start] != ord("{")) | (cells.raw.data[cells.start + 1] == ord("{"))
    hint = 'only one-dimensional arrays that begin at 1 fit; .option("arrays", "string") delivers arrays as text'
    _refuse(cells, column, valid & other, hint)

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
    values = codec(element).from_text(Cells(raw, start + quoted, length), element)
    return columns.lists(column.arrow, ends, values, cells.valid)


def _escapes(text: columns.Bytes) -> columns.Mask:
    """Which bytes are backslashes that escape the next byte: every second one of a run, from its first."""
    found: columns.Mask = text == ord("\\")
    at = np.flatnonzero(found)
    if at.size:
        begins = np.append(True, np.diff(at) != 1)
        in_run = at - np.maximum.accumulate(np.where(begins, at, 0))
        found[at[in_run % 2 == 1]] = False
    return found


# -- binary ------------------------------------------------------------------------------------------------------------


def _sized(cells: Cells, column: PgColumn, width: int) -> None:
    if np.any((cells.length != width) & (cells.length >= 0)):
        raise DecodeError(f"column {column.name!r} ({column.type}) is not {width} bytes wide")


def _bool_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 1)
    return columns.booleans(cells.raw.data[cells.start] != 0, cells.valid)


def _int2_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 2)
    return columns.fixed(column.arrow, cells.raw.be16(cells.start), cells.valid)


def _4_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 4)
    return columns.fixed(column.arrow, _one_nan(cells.raw.be32(cells.start), column), cells.valid)


def _8_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 8)
    return columns.fixed(column.arrow, _one_nan(cells.raw.be64(cells.start), column), cells.valid)


def _one_nan(bits: Any, column: PgColumn) -> Any:
    # Text knows one NaN; binary has many bit patterns for it.
    if pa.types.is_floating(column.arrow):
        values = bits.view(column.arrow.to_pandas_dtype())
        values[np.isnan(values)] = np.nan
    return bits


def _oid_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 4)
    return columns.fixed(column.arrow, cells.raw.be32(cells.start).astype(np.int64), cells.valid)


def _date_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 4)
    days = cells.raw.be32(cells.start).view(np.int32)
    bounds = np.iinfo(np.int32)
    np.add(days, EPOCH_DAYS, out=days, where=(days != bounds.max) & (days != bounds.min))
    return columns.fixed(column.arrow, days, cells.valid)


def _timestamp_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 8)
    micros = cells.raw.be64(cells.start).view(np.int64)
    bounds = np.iinfo(np.int64)
    finite = (micros != bounds.max) & (micros != bounds.min)
    beyond = finite & (micros >= bounds.max - EPOCH_MICROS) & (cells.length >= 0)
    if beyond.any():
        raise _wrong(
            column,
            f"{micros[np.argmax(beyond)]} microseconds since 2000",
            "the value is beyond 64 bits of microseconds since 1970: change it",
        )
    np.add(micros, EPOCH_MICROS, out=micros, where=finite)
    return columns.fixed(column.arrow, micros, cells.valid)


def _bytea_binary(cells: Cells, column: PgColumn) -> pa.Array:
    return columns.binary(cells)


# -- the table ---------------------------------------------------------------------------------------------------------

CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec("bool", _bool_text, _bool_binary),
        Codec("int2", _int_text, _int2_binary),
        Codec("int4", _int_text, _4_binary),
        Codec("int8", _int_text, _8_binary),
        Codec("oid", _int_text, _oid_binary),
        Codec("xid", _int_text),
        Codec("float4", _cast_text, _4_binary),
        Codec("float8", _cast_text, _8_binary),
        Codec("decimal", _decimal_text),
        Codec("date", _temporal_text, _date_binary),
        Codec("timestamp", _temporal_text, _timestamp_binary),
        Codec("bytea", _bytea_text, _bytea_binary),
        Codec("text", _string, _string),
        Codec("output", _string),
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
    700: ("float4", pa.float32()),
    701: ("float8", pa.float64()),
    1042: ("text", pa.string()),  # bpchar
    1043: ("text", pa.string()),  # varchar
    1082: ("date", pa.date32()),
    1114: ("timestamp", pa.timestamp("us")),
    1184: ("timestamp", UTC_MICROS),
}
"""By type OID; those of built-in types never change. What is not here is `output`: the text as it comes."""


def codec(column: PgColumn) -> Codec:
    return Codec(column.codec, _array_text) if column.codec.endswith("[]") else CODECS[column.codec]


def pg_column(name: str, oid: int, spelled: str, kind: PgType, options: TypeOptions) -> PgColumn:
    """The column `name` of type `oid` (`spelled` in SQL), whose facts are `kind`."""
    key, arrow = _mapped(kind, options)
    output = kind.output if CODECS.get(key, CODECS["output"]).from_binary is None else None
    return PgColumn(name, spelled, arrow, oid, key, output, kind.delimiter if kind.element else ",")


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


def decode(schema: TableSchema, cells: Sequence[Cells], *, binary: bool) -> list[pa.Array]:
    """The table's columns from their cells: all text, or as `copy.select_list` asks for them. Raises DecodeError."""
    arrays = []
    for column, values in zip(schema.columns, cells, strict=True):
        assert isinstance(column, PgColumn)
        kind = codec(column)
        kernel = kind.from_binary if binary and kind.from_binary else kind.from_text
        try:
            arrays.append(kernel(values, column))
        except DecodeError as error:
            raise DecodeError(f"table {schema.table}: {error.message}", hint=error.hint) from None
        except pa.ArrowInvalid as error:
            message = f"table {schema.table}: column {column.name!r} ({column.type}) cannot be read: {error}"
            raise DecodeError(message, hint="a value is not UTF-8 text, or does not fit its type") from error
    return arrays
