"""Rows of Arrow as PostgreSQL's binary COPY, column by column, without a Python object per value.

A row is the number of its fields (2 bytes), then for each field its length (4 bytes, -1 for null) and its value in the
type's binary form. Columns of a fixed size without nulls come first, as one array of records. Every other column
becomes an array of bytes. Arrow joins them row by row, and the data of the result is the content of COPY.

A column whose binary form is not known exactly makes `encoded` return None. Then the rows are copied as text.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.sinks.sql import text

HEADER, TRAILER = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
"""What COPY expects before the first row and after the last one."""

_EPOCH_DAYS = 10_957
"""2000-01-01, where PostgreSQL's days begin, in days since 1970."""
_EPOCH_MICROS = _EPOCH_DAYS * 86_400_000_000
_NULL = pa.scalar(b"\xff\xff\xff\xff", pa.binary())
_NONE = pa.scalar(b"", pa.binary())
_LENGTH = ">i4"
_TEXT_OID = 25

Numbers = np.ndarray[Any, Any]
Fixed = Callable[[pa.Array], "Numbers | None"]
"""Gives the binary form of each value, all of one size; anything where the value is null. None if it cannot."""


def encoded(rows: pa.RecordBatch, types: Mapping[str, str]) -> tuple[list[str], pa.Buffer] | None:
    """The names of the columns in the order of the fields, and the content of COPY between header and trailer. `types`
    has the server's types. None if a column has no known binary form. Raises Refused."""
    records: dict[str, Numbers] = {}
    pieces: dict[str, list[pa.Array | pa.Scalar]] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        kind = re.sub(r"\(.*?\)", "", types[name])
        fixed = _fixed(column.type, kind)
        if fixed is not None:
            values = fixed(column)
            if values is None:
                return None
            if column.null_count:
                pieces[name] = [_nullable(values, column)]
            else:
                records[name] = values
        elif (varying := _varying(name, column, kind)) is not None:
            pieces[name] = varying
        else:
            return None
    joined = pc.binary_join_element_wise(
        _record(records, rows.num_rows, len(rows.schema.names)),
        *(piece for each in pieces.values() for piece in each),
        _NONE,
        null_handling="replace",
        null_replacement=b"",
    )
    at = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset : joined.offset + len(joined) + 1]
    return [*records, *pieces], joined.buffers()[2].slice(int(at[0]), int(at[-1] - at[0]))


def _record(fields: Mapping[str, Numbers], rows: int, count: int) -> pa.Array:
    """The number of fields, and the fields of a fixed size without nulls, of each row."""
    kinds: list[tuple[Any, ...]] = [("count", ">i2")]
    for number, values in enumerate(fields.values()):
        kinds += [(f"length{number}", _LENGTH), (f"value{number}", values.dtype, values.shape[1:])]
    records = np.empty(rows, np.dtype(kinds))
    records["count"] = count
    for number, values in enumerate(fields.values()):
        records[f"length{number}"], records[f"value{number}"] = _size(values), values
    return _bytes_of(records)


def _nullable(values: Numbers, column: pa.Array) -> pa.Array:
    records = np.empty(len(values), np.dtype([("length", _LENGTH), ("value", values.dtype, values.shape[1:])]))
    records["length"], records["value"] = _size(values), values
    return pc.if_else(pc.is_valid(column), _bytes_of(records), _NULL)


def _size(values: Numbers) -> int:
    """The bytes of one value."""
    return int(values.dtype.itemsize * math.prod(values.shape[1:]))


def _bytes_of(records: Numbers) -> pa.Array:
    """An array of bytes with one element for each record."""
    size = records.dtype.itemsize
    at = np.arange(0, (len(records) + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(records), [None, pa.py_buffer(at), pa.py_buffer(records)])


# -- values of a fixed size --------------------------------------------------------------------------------------------


def _fixed(kind: pa.DataType, server: str) -> Fixed | None:
    if (found := _PLAIN.get((kind, server))) is not None:
        return found
    if pa.types.is_integer(kind) and (big := _INTEGERS.get(server)) is not None:
        return (lambda column: _numbers(column).astype(big)) if kind.bit_width <= np.dtype(big).itemsize * 8 else None
    if kind == pa.string() and server == "uuid":
        return _uuids
    if pa.types.is_decimal128(kind) and server == "numeric" and kind.scale >= 0:
        return _decimals
    return None


_INTEGERS = {"smallint": ">i2", "integer": ">i4", "bigint": ">i8"}


def _numbers(column: pa.Array) -> Numbers:
    """The numbers of a column; 0 for null."""
    found: Numbers = (column.fill_null(0) if column.null_count else column).to_numpy()
    return found


def _booleans(column: pa.Array) -> Numbers:
    return _numbers(column.cast(pa.uint8()))


def _floats(column: pa.Array) -> Numbers:
    return _numbers(column).astype(">f4" if column.type == pa.float32() else ">f8")


def _moments(column: pa.Array) -> Numbers | None:
    """Dates and times from 2000 on. The least and the greatest number are infinities on both sides."""
    day = pa.types.is_date(column.type)
    given = _numbers(column.cast(pa.int32() if day else pa.int64()))
    bounds, epoch = np.iinfo(given.dtype), _EPOCH_DAYS if day else _EPOCH_MICROS
    infinite = (given == bounds.min) | (given == bounds.max)
    if ((given < bounds.min + epoch + 1) & ~infinite).any():
        return None  # the server's own error is better than a wrong value
    return np.where(infinite, given, given - np.where(infinite, 0, epoch).astype(given.dtype)).astype(
        ">i4" if day else ">i8"
    )


_PLAIN: dict[tuple[pa.DataType, str], Fixed] = {
    (pa.bool_(), "boolean"): _booleans,
    (pa.float32(), "real"): _floats,
    (pa.float64(), "double precision"): _floats,
    (pa.date32(), "date"): _moments,
    (pa.timestamp("us"), "timestamp without time zone"): _moments,
    (pa.timestamp("us", tz="UTC"), "timestamp with time zone"): _moments,
}


def _decimals(column: pa.Array) -> Numbers:
    """Decimals as groups of four digits. All values of a column have the same number of groups: the server drops groups
    of zeros at the beginning and at the end."""
    precision, scale = column.type.precision, column.type.scale
    behind = -(-scale // 4)
    groups = -(-(precision - scale) // 4) + behind
    kinds = [("count", ">i2"), ("weight", ">i2"), ("sign", ">i2"), ("scale", ">i2"), ("digits", ">i2", (groups,))]
    records = np.zeros(len(column), np.dtype(kinds))
    negative, rest = _magnitudes(column, precision)
    first = 4 - (behind * 4 - scale)  # the last group has fewer digits of the value: zeros fill it
    for group in range(groups - 1, -1, -1):
        size = first if group == groups - 1 and behind else 4
        rest, digits = _divided(rest, 10**size)
        records["digits"][:, group] = digits * 10 ** (4 - size)
    records["count"], records["weight"], records["scale"] = groups, groups - behind - 1, scale
    records["sign"] = np.where(negative, 0x4000, 0)
    return records


def _magnitudes(column: pa.Array, precision: int) -> tuple[Numbers, list[Numbers]]:
    """Whether each value is negative, and the unscaled values without sign, as words of which the last is the lowest:
    one word of 64 bits, or four of 32 bits."""
    filled = pc.if_else(pc.is_valid(column), column, pa.scalar(0, column.type)) if column.null_count else column
    words = np.frombuffer(filled.buffers()[1], np.uint64)[2 * filled.offset : 2 * (filled.offset + len(filled))]
    low, high = words[0::2], words[1::2]
    negative = high >> np.uint64(63) == 1
    if precision <= 18:
        return negative, [np.abs(low.view(np.int64)).astype(np.uint64)]
    low, high = np.where(negative, ~low + np.uint64(1), low), np.where(negative, ~high + (low == 0), high)
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    return negative, [high >> half, high & mask, low >> half, low & mask]


def _divided(words: list[Numbers], divisor: int) -> tuple[list[Numbers], Numbers]:
    """Quotient and remainder of numbers that consist of words."""
    by, half, remainder = np.uint64(divisor), np.uint64(32), np.zeros_like(words[0])
    if len(words) == 1:
        return [words[0] // by], words[0] % by
    quotient = []
    for word in words:
        part = (remainder << half) | word
        quotient.append(part // by)
        remainder = part % by
    return quotient, remainder


_GROUPS = ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36))
"""Where the digits of a UUID are in its text."""
_DASHES = [8, 13, 18, 23]
_ZERO = "00000000-0000-0000-0000-000000000000"


@cache
def _byte_of_digits() -> Numbers:
    """The byte that each pair of hexadecimal digits stands for, by the number that the pair's two characters are in
    memory; more than 255 for other characters."""
    found = np.full(1 << 16, 0x100, np.uint16)
    digits = "0123456789abcdefABCDEF"
    pairs = [one + other for one in digits for other in digits]
    found[np.frombuffer("".join(pairs).encode(), np.uint16)] = [int(pair, 16) for pair in pairs]
    return found


def _uuids(column: pa.Array) -> Numbers | None:
    """UUIDs from their text in the usual form; None if one has another form."""
    filled = column.fill_null(_ZERO) if column.null_count else column
    _, offsets, data = filled.buffers()
    at = np.frombuffer(offsets, np.int32)[filled.offset : filled.offset + len(filled) + 1]
    if (np.diff(at) != 36).any():
        return None
    texts = np.frombuffer(data, np.uint8)[at[0] : at[-1]].reshape(len(filled), 36)
    digits = np.concatenate([texts[:, begin:end] for begin, end in _GROUPS], axis=1)
    found = _byte_of_digits()[digits.view(np.uint16)]
    if (found > 0xFF).any() or (texts[:, _DASHES] != ord("-")).any():
        return None
    return found.astype(np.uint8)


# -- values of any size ------------------------------------------------------------------------------------------------

_TEXTS = {"text", "character varying", "character", "json", "jsonb"}


def _varying(name: str, column: pa.Array, server: str) -> list[pa.Array | pa.Scalar] | None:
    """The lengths of the values and the values. None if their binary form is not known."""
    kind = column.type
    if pa.types.is_dictionary(kind) and kind.value_type == pa.list_(pa.string()) and server == "text[]":
        lists = pa.array([_text_array(names) for names in column.dictionary.to_pylist()], pa.binary())
        return [lists.take(column.indices).fill_null(_NULL)]
    if pa.types.is_string(kind) and server in _TEXTS:
        if _has_zero(column):
            text.refuse_nul(name, column)
        if server == "jsonb":  # one byte says the version of the form
            version = pa.scalar(b"\x01", pa.binary())
            versions = pc.if_else(pc.is_valid(column), version, _NONE) if column.null_count else version
            return [_lengths(column, 1), versions, column.cast(pa.binary())]
        return [_lengths(column), column.cast(pa.binary())]
    return [_lengths(column), column] if kind == pa.binary() and server == "bytea" else None


def _lengths(column: pa.Array, more: int = 0) -> pa.Array:
    """The length of each value, with `more` bytes before it; -1 for null."""
    found = pc.binary_length(column)
    sizes = (found.fill_null(-1 - more) if found.null_count else found).to_numpy() + more
    return _bytes_of(sizes.astype(_LENGTH))


def _has_zero(column: pa.Array) -> bool:
    """Whether the texts have a byte 0 somewhere."""
    _, offsets, data = column.buffers()
    at = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]]
    return data is not None and not np.frombuffer(data, np.uint8)[at[0] : at[1]].all()


def _text_array(names: list[str]) -> bytes:
    """An array of texts with its length before it."""
    items = [name.encode() for name in names]
    content = struct.pack(">iiiii", 1, 0, _TEXT_OID, len(items), 1)
    content += b"".join(struct.pack(">i", len(item)) + item for item in items)
    return struct.pack(">i", len(content)) + content
