"""Values of Arrow as the text that PostgreSQL's types read: for COPY, and for SQL literals."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from dblog.sinks.sql import text

_BOX = re.compile(r"\([^()]*\),\([^()]*\)")
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def copied(name: str, values: pa.Array) -> pa.Array:
    """The values of a column as COPY reads them. Raises Refused."""
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return text.surrounded(text.hexed(values), "\\\\x", "")
    shown = input_texts(name, values)
    special = pa.types.is_list(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return text.escaped(shown, _ESCAPES) if special else shown


def literals(name: str, values: pa.Array) -> pa.Array:
    """The values of a column as SQL literals without a type. A backslash needs no escape: every session has
    `standard_conforming_strings` on. Raises Refused."""
    return text.surrounded(text.escaped(input_texts(name, values), {"'": "''"}), "'", "'")


def input_texts(name: str, values: pa.Array) -> pa.Array:
    """The values of a column as their type's input function reads them. Raises Refused."""
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return text.surrounded(text.hexed(values), "\\x", "")
    if pa.types.is_list(kind):
        return _array(name, values)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text.refuse_nul(name, values)
        return values.cast(text.TEXT)
    if pa.types.is_temporal(kind):
        return text.temporal(name, values, _odd)
    return values.cast(text.TEXT)


def raw_text(kind: str, text: str) -> str:
    """The text of a value of the source's type `kind`, as the target's column reads it. The items of a box array are
    separated by semicolons; its column here is a text array, whose items are quoted and separated by commas."""
    return _BOX.sub(r'"\g<0>"', text).replace(";", ",") if kind.startswith("box[") else text


def _array(name: str, values: pa.Array) -> pa.Array:
    """One-dimensional array literals."""
    items = values.flatten()
    try:
        shown = _items(name, items)
    except text.Refused as refused:
        row = pc.list_parent_indices(values)[refused.row].as_py()
        raise text.Refused(name, row, refused.why) from None
    lengths = pc.list_value_length(values).fill_null(0)
    ends = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
    lists = pa.LargeListArray.from_arrays(ends, shown.fill_null("NULL"))
    joined = text.surrounded(pc.binary_join(lists, pa.scalar(",", text.TEXT)), "{", "}")
    return pc.if_else(pc.is_valid(values), joined, pa.scalar(None, text.TEXT))


def _items(name: str, items: pa.Array) -> pa.Array:
    """The items of arrays as they are written in an array literal."""
    if pa.types.is_binary(items.type):
        return text.surrounded(text.hexed(items), '"\\\\x', '"')
    if pa.types.is_string(items.type):
        text.refuse_nul(name, items)
        return text.surrounded(text.escaped(items, {"\\": "\\\\", '"': '\\"'}), '"', '"')
    if pa.types.is_temporal(items.type):
        return text.surrounded(text.temporal(name, items, _odd), '"', '"')
    return items.cast(text.TEXT)


def _odd(days: int, micros: int, infinite: bool) -> str:
    if infinite:
        return "infinity" if days > 0 else "-infinity"
    year, month, day = text.civil(days)
    shown = f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02} {text.clock(micros)}"
    return shown if year > 0 else shown + " BC"
