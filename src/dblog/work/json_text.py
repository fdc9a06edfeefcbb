"""Arrow arrays as JSON texts, a column at a time.

| Arrow | JSON |
|---|---|
| bool, integers | `true`, `false`, digits |
| floats | the shortest text that reads back the same, with a point or an exponent |
| floats that are not finite | `"NaN"`, `"Infinity"`, `"-Infinity"` |
| decimals | a number with exactly the digits of its scale (`1.50`), never an exponent |
| strings | escaped as RFC 8259 asks and no further: what is not ASCII stays UTF-8 |
| binary | base64 with padding |
| dates | `"2024-02-29"` |
| timestamps | `"2024-02-29T12:00:00.000000"`, always six digits of fraction; with a time zone in UTC with a final `Z` |
| lists, structs | arrays, objects |

The least and the greatest number that a date or timestamp can store are PostgreSQL's infinities, here `"-infinity"`
and `"infinity"`; Spark's `from_json` makes them null unless the column is read as a string. Years that need no sign
have four digits; others are in ISO 8601's expanded form (`"-0043-03-15"`, `"+12345-01-01"`), where the year before 1
is 0.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog.errors import DecodeError

_SHORT_ESCAPES = {0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r", 0x22: '\\"', 0x5C: "\\\\"}
_ESCAPES = {code: _SHORT_ESCAPES.get(code, f"\\u{code:04x}") for code in (0x5C, 0x22, *range(0x20))}
"""The backslash comes first: the other replacements bring in backslashes that must not be escaped again."""

_SPECIAL = np.zeros(256, dtype=np.bool_)
_SPECIAL[list(_ESCAPES)] = True

_MICROS_PER_DAY = 86_400_000_000
_YEAR_1 = -719_162
"""0001-01-01 in days since 1970."""
_YEAR_10000 = 2_932_897
"""10000-01-01 in days since 1970."""


def json_text(array: pa.Array) -> pa.StringArray:
    """The JSON text of every value; null, not the text `null`, where the value is null."""
    kind = array.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return pc.cast(array, pa.string())
    if pa.types.is_string(kind):
        return _quoted(_escaped(array))
    if pa.types.is_decimal128(kind):
        return _decimals(array)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _floats(array)
    if pa.types.is_date32(kind):
        return _dates(array)
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return _timestamps(array)
    if pa.types.is_binary(kind):
        return _base64(array)
    if pa.types.is_list(kind):
        return _lists(array)
    if pa.types.is_struct(kind):
        return _structs(array)
    raise DecodeError(f"values of Arrow type {str(kind)!r} have no JSON form", hint="leave the column out")


def json_object(
    names: Sequence[str], arrays: Sequence[pa.Array], *, absent: pa.ListArray | None = None
) -> pa.StringArray:
    """One JSON object per row; a null value becomes `null`. The members that `absent` names in a row are left out."""
    return join_members(names, [json_text(array) for array in arrays], absent=absent)


def join_members(
    names: Sequence[str], texts: Sequence[pa.StringArray], *, absent: pa.ListArray | None = None
) -> pa.StringArray:
    """`json_object` over texts that are JSON already, for callers that put a column into several objects."""
    pieces: list[pa.StringArray | str] = []
    for name, text in zip(names, texts, strict=True):
        pieces += [f"{',' if pieces else '{'}{_member(name)}", text]
    whole = pc.binary_join_element_wise(*pieces, "}", "", null_handling="replace", null_replacement="null")
    if absent is None or absent.null_count == len(absent):
        return whole
    partial = pc.is_valid(absent)
    part = _join_present(names, [text.filter(partial) for text in texts], absent.filter(partial))
    return pc.replace_with_mask(whole, partial, part)


def _join_present(names: Sequence[str], texts: Sequence[pa.StringArray], absent: pa.ListArray) -> pa.StringArray:
    """Objects without the members that `absent` names; a name that is no member is out already."""
    missing = np.zeros((len(names), len(absent)), dtype=np.bool_)
    column = pc.index_in(absent.flatten(), pa.array(names, pa.string()))
    row = pc.list_parent_indices(absent)
    known = pc.is_valid(column)
    missing[column.filter(known).to_numpy(), row.filter(known).to_numpy()] = True
    members = [
        pc.if_else(pa.array(gone), "", _join(f",{_member(name)}", text.fill_null("null")))
        for name, text, gone in zip(names, texts, missing, strict=True)
    ]
    # The comma is part of the member: joining with null_handling="skip" loses rows in which every member is null.
    return _join("{", pc.utf8_slice_codeunits(_join(*members), 1), "}")


def _member(name: str) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}:"


def _join(*pieces: pa.StringArray | str) -> pa.StringArray:
    return pc.binary_join_element_wise(*pieces, "")


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    return _join('"', texts, '"')


def _escaped(strings: pa.StringArray) -> pa.StringArray:
    _, data = _variable_width(strings)
    special = data[_SPECIAL[data]]
    if not special.size:
        return strings
    present = set(np.unique(special).tolist())
    for code, escape in _ESCAPES.items():
        if code in present:
            strings = pc.replace_substring(strings, chr(code), escape)
    return strings


def _decimals(array: pa.Decimal128Array) -> pa.StringArray:
    scale = array.type.scale
    if 0 <= scale <= 6:
        return pc.cast(array, pa.string())
    # With more digits Arrow writes small numbers with an exponent, so take the unscaled digits and set the point.
    unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(array), array.buffers(), offset=array.offset)
    digits = pc.cast(unscaled, pa.string())
    if scale < 0:
        return pc.if_else(pc.equal(digits, "0"), digits, _join(digits, "0" * -scale))
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    padded = pc.ascii_lpad(pc.ascii_ltrim(digits, "-"), width=scale + 1, padding="0")
    integer = pc.utf8_slice_codeunits(padded, 0, -scale)
    return _join(sign, integer, ".", pc.utf8_slice_codeunits(padded, -scale))


def _floats(array: pa.FloatingPointArray) -> pa.StringArray:
    texts = pc.cast(array, pa.string())
    # `1` becomes `1.0` (and `-0` keeps its sign): a reader that infers types must see one type in all rows.
    integral = pc.and_(pc.equal(array, pc.trunc(array)), pc.is_finite(array))
    if pc.any(integral).as_py():
        bare = pc.and_(integral, pc.invert(pc.match_substring(texts, "e")))
        texts = pc.if_else(bare, _join(texts, ".0"), texts)
    if not pc.all(pc.is_finite(array)).as_py():
        texts = pc.if_else(pc.is_nan(array), '"NaN"', texts)
        texts = pc.if_else(pc.equal(array, float("inf")), '"Infinity"', texts)
        texts = pc.if_else(pc.equal(array, float("-inf")), '"-Infinity"', texts)
    return texts


def _dates(array: pa.Date32Array) -> pa.StringArray:
    days = np.asarray(array.view(pa.int32()).fill_null(0))
    usual = (days >= _YEAR_1) & (days < _YEAR_10000)
    plain = pc.cast(pa.array(np.where(usual, days, 0).astype(np.int32), pa.date32()), pa.string())
    return _with_unusual(_quoted(plain), array, days, usual)


def _timestamps(array: pa.TimestampArray) -> pa.StringArray:
    micros = np.asarray(array.view(pa.int64()).fill_null(0))
    usual = (micros >= _YEAR_1 * _MICROS_PER_DAY) & (micros < _YEAR_10000 * _MICROS_PER_DAY)
    plain = pc.cast(pa.array(np.where(usual, micros, 0), pa.timestamp("us")), pa.string())
    _, data = _variable_width(plain)
    width = 26
    letters = data.reshape(-1, width).copy()
    letters[:, 10] = ord("T")
    offsets = np.arange(0, len(array) * width + 1, width, dtype=np.int32)
    plain = pa.StringArray.from_buffers(len(array), pa.py_buffer(offsets), pa.py_buffer(letters))
    return _with_unusual(_join('"', plain, _zone(array.type) + '"'), array, micros, usual)


def _zone(kind: pa.TimestampType) -> str:
    return "" if kind.tz is None else "Z"


def _with_unusual(
    texts: pa.StringArray, array: pa.Array, stored: npt.NDArray[np.integer], usual: npt.NDArray[np.bool_]
) -> pa.StringArray:
    """Replace the texts of infinities and of years outside 1..9999, which Arrow cannot print, and restore the nulls."""
    if not usual.all():
        values, which = np.unique(stored[~usual], return_inverse=True)
        rare = pa.array([_unusual(int(value), array.type) for value in values], pa.string())
        texts = pc.replace_with_mask(texts, pa.array(~usual), rare.take(pa.array(which)))
    return pc.if_else(pc.is_valid(array), texts, None) if array.null_count else texts


def _unusual(stored: int, kind: pa.DataType) -> str:
    limits = np.iinfo(np.int32 if pa.types.is_date32(kind) else np.int64)
    if stored == limits.max:
        return '"infinity"'
    if stored == limits.min:
        return '"-infinity"'
    if pa.types.is_date32(kind):
        return f'"{_expanded_date(stored)}"'
    days, micros = divmod(stored, _MICROS_PER_DAY)
    seconds, fraction = divmod(micros, 1_000_000)
    time = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    return f'"{_expanded_date(days)}T{time}{_zone(kind)}"'


def _expanded_date(days: int) -> str:
    """The proleptic Gregorian date of a day since 1970. The calendar repeats every 400 years, 146,097 days."""
    cycles, day = divmod(days - _YEAR_1, 146_097)
    date = np.datetime64("2001-01-01") + day  # 2001 begins a cycle, as year 1 does
    text = str(date)
    year = int(text[:4]) - 2000 + 400 * cycles
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}{text[4:]}"


def _base64(array: pa.BinaryArray) -> pa.StringArray:
    """Pad every value with zeros to whole groups of three bytes, encode all at once, then set the `=` signs."""
    offsets, data = _variable_width(array)
    sizes = np.diff(offsets)
    ends = np.cumsum((sizes + 2) // 3, dtype=np.int64)
    groups = int(ends[-1]) if ends.size else 0
    if groups * 4 > np.iinfo(np.int32).max:
        raise DecodeError(
            f"{len(array)} binary values need {groups * 4} bytes of base64, too many for an Arrow array",
            hint="lower the number of rows per batch",
        )
    short_by_any, short_by_two = ends[sizes % 3 != 0], ends[sizes % 3 == 1]
    filled = np.ones(groups * 3, np.bool_)
    filled[short_by_any * 3 - 1] = False
    filled[short_by_two * 3 - 2] = False
    padded = np.zeros(groups * 3, np.uint8)
    padded[filled] = data
    encoded = np.frombuffer(binascii.b2a_base64(padded.data, newline=False), np.uint8).copy()
    encoded[short_by_any * 4 - 1] = ord("=")
    encoded[short_by_two * 4 - 2] = ord("=")
    starts = np.concatenate([np.zeros(1, np.int64), ends])
    buffers = pa.py_buffer((starts * 4).astype(np.int32)), pa.py_buffer(encoded)
    texts = _quoted(pa.StringArray.from_buffers(len(array), *buffers))
    return pc.if_else(pc.is_valid(array), texts, None) if array.null_count else texts


def _lists(array: pa.ListArray) -> pa.StringArray:
    offsets = np.asarray(array.offsets)
    items = json_text(array.values.slice(offsets[0], offsets[-1] - offsets[0])).fill_null("null")
    mask = pc.is_null(array) if array.null_count else None
    lists = pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), items, mask=mask)
    return _join("[", pc.binary_join(lists, ","), "]")


def _structs(array: pa.StructArray) -> pa.StringArray:
    kind = array.type
    objects = json_object(
        [kind.field(i).name for i in range(kind.num_fields)], [array.field(i) for i in range(kind.num_fields)]
    )
    return pc.if_else(pc.is_valid(array), objects, None) if array.null_count else objects


def _variable_width(array: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """The offsets of a string or binary array and the bytes from the first to the last of them."""
    _, offsets_buffer, data_buffer = array.buffers()
    if not len(array) or offsets_buffer is None:
        return np.zeros(len(array) + 1, np.int32), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    if data_buffer is None:
        return offsets, np.zeros(0, np.uint8)
    return offsets, np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
