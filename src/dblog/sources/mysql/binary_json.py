"""MySQL's binary JSON, which its log carries, to the text that MySQL itself prints.

A document is a type and a value. Objects and arrays begin with a count and a size, then a table of keys (objects) and
one of values: a type with either the value itself, when it is short, or its offset from where the object begins.
MariaDB stores JSON as text and needs none of this.

A document is read into plain lists and dictionaries, whose other values are already the text that is printed.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from struct import error as StructError  # noqa: N812
from struct import unpack_from
from typing import Any, TypeAlias

from dblog.errors import DecodeError

Node: TypeAlias = "str | list[Any] | dict[str, Any]"

TEXT = 255
"""The type of a document that is text already. No server writes it."""
_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE = 15
_NUMBERS = {_INT16: "<h", _UINT16: "<H", _INT32: "<i", _UINT32: "<I", _INT64: "<q", _UINT64: "<Q"}
_LITERALS = ("null", "true", "false")
_INLINE = {_LITERAL, _INT16, _UINT16}
_INLINE_LARGE = _INLINE | {_INT32, _UINT32}
_DEPTH = 100
"""MySQL's own limit."""

_DATE, _TIME, _DATETIME, _TIMESTAMP, _DECIMAL, _TEXT = 10, 11, 12, 7, 246, 253
_BASE64_LINE = 76
_FIXED_POINT = 15
"""A double is printed with an exponent if its decimal point is outside of its digits and more than this many digits
away."""


def text(document: bytes) -> str:
    """The document as MySQL prints it. Raises DecodeError."""
    return document[1:].decode() if document[:1] == bytes([TEXT]) else printed(read(document))


def read(document: bytes) -> Node:
    """The document's values. Raises DecodeError."""
    if not document:
        return "null"  # INSERT IGNORE stores a missing document as an empty one
    try:
        return _value(document[0], document, 1, _DEPTH)
    except (IndexError, KeyError, ValueError, StructError) as error:
        raise DecodeError(f"a JSON document cannot be read: {error}") from error


def printed(node: Node) -> str:
    if isinstance(node, str):
        return node
    if isinstance(node, list):
        return "[" + ", ".join(map(printed, node)) + "]"
    return "{" + ", ".join(f"{quoted(key)}: {printed(value)}" for key, value in node.items()) + "}"


def key_order(key: str) -> tuple[int, bytes]:
    """The sort key of an object's members."""
    name = key.encode()
    return len(name), name


def _value(kind: int, data: bytes, at: int, depth: int) -> Node:
    if kind <= _LARGE_ARRAY:
        if not depth:
            raise ValueError("it is nested too deep")
        return _container(kind, data, at, depth - 1)
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind in _NUMBERS:
        return str(unpack_from(_NUMBERS[kind], data, at)[0])
    if kind == _DOUBLE:
        return _double(unpack_from("<d", data, at)[0])
    if kind == _STRING:
        return quoted(_sized(data, at).decode())
    if kind == _OPAQUE:
        return _opaque(data[at], _sized(data, at + 1))
    raise ValueError(f"it has a value of type {kind}")


def _container(kind: int, data: bytes, origin: int, depth: int) -> Node:
    large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    number, width = ("<I", 4) if large else ("<H", 2)
    inline = _INLINE_LARGE if large else _INLINE
    count = unpack_from(number, data, origin)[0]
    keyed = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    keys = origin + 2 * width
    values = keys + count * (width + 2) * keyed
    found = []
    for entry in range(values, values + count * (1 + width), 1 + width):
        of = data[entry]
        at = entry + 1 if of in inline else origin + unpack_from(number, data, entry + 1)[0]
        found.append(_value(of, data, at, depth))
    if not keyed:
        return found
    names = []
    for entry in range(keys, values, width + 2):
        start = origin + unpack_from(number, data, entry)[0]
        names.append(data[start : start + unpack_from("<H", data, entry + width)[0]].decode())
    return dict(zip(names, found, strict=True))


def _sized(data: bytes, at: int) -> bytes:
    """Read a length (seven bits a byte, the lowest first) and that many bytes after it."""
    size = shift = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if at + size > len(data):
        raise ValueError("a string runs over its end")
    return data[at : at + size]


quoted = json.JSONEncoder(ensure_ascii=False).encode


def _double(value: float) -> str:
    """The shortest digits that give the number, with a point or an exponent to show that it is not an integer."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    point = len(digits) + exponent
    shown = "".join(map(str, digits))
    if value == 0:
        made = "0.0"
    elif not -_FIXED_POINT < point <= max(_FIXED_POINT, len(digits) - 1):
        made = f"{shown[0]}{'.' * (len(shown) > 1)}{shown[1:]}e{point - 1}"
    elif point <= 0:
        made = "0." + "0" * -point + shown
    else:
        made = shown[:point].ljust(point, "0") + "." + (shown[point:] or "0")
    return "-" * sign + made


def _opaque(kind: int, data: bytes) -> str:
    """A value of a SQL type."""
    if kind == _DECIMAL:
        return _decimal(data)
    if kind in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        (packed,) = unpack_from("<q", data)
        return f'"{_moment(kind, packed)}"'
    if kind == _TEXT:  # text in UTF-16 and similar: the server prints its bytes as if they were UTF-8
        return quoted(data.decode())
    digits = base64.b64encode(data).decode()
    lines = "\\n".join(digits[at : at + _BASE64_LINE] for at in range(0, len(digits), _BASE64_LINE))
    return f'"base64:type{kind}:{lines}"'


def _moment(kind: int, packed: int) -> str:
    size = abs(packed)
    micros, time = size & 0xFFFFFF, size >> 24
    clock = f"{time >> 6 & 63:02}:{time & 63:02}.{micros:06}"
    if kind == _TIME:
        return f"{'-' * (packed < 0)}{time >> 12 & 0x3FF:02}:{clock}"
    months, day = time >> 22, time >> 17 & 31
    date = f"{months // 13:04}-{months % 13:02}-{day:02}"
    return date if kind == _DATE else f"{date} {time >> 12 & 31:02}:{clock}"


def _decimal(data: bytes) -> str:
    """Digits and scale, then the groups of a DECIMAL column."""
    digits, scale = data[0], data[1]
    minus = not data[2] & 0x80
    groups = bytearray(data[2:])
    groups[0] ^= 0x80
    if minus:
        groups = bytearray(byte ^ 0xFF for byte in groups)
    shown = ""
    at = 0
    (whole, left), (whole_after, left_after) = divmod(digits - scale, 9), divmod(scale, 9)
    for count in [left] * (left > 0) + [9] * (whole + whole_after) + [left_after] * (left_after > 0):
        width = (count + 1) // 2 if count < 9 else 4
        shown += str(int.from_bytes(groups[at : at + width])).rjust(count, "0")
        at += width
    before, after = shown[: digits - scale].lstrip("0") or "0", shown[digits - scale :]
    return "-" * minus + before + "." * (scale > 0) + after
