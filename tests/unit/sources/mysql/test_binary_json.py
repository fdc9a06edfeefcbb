"""Binary JSON by hand, small and large, to the text that MySQL prints."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog.errors import DecodeError
from dblog.sources.mysql.binary_json import text
from tests.unit.sources.mysql import build

LITERALS = {None: 0, True: 1, False: 2}


def varying(size: int) -> bytes:
    made = bytearray()
    while size >= 0x80:
        made.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*made, size])


def scalar(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes([LITERALS[value]])
    if isinstance(value, int):
        for kind, form, low, high in (
            (5, "<h", -(2**15), 2**15),
            (6, "<H", 0, 2**16),
            (7, "<i", -(2**31), 2**31),
            (8, "<I", 0, 2**32),
            (9, "<q", -(2**63), 2**63),
        ):
            if low <= value < high:
                return kind, struct.pack(form, value)
        return 10, struct.pack("<Q", value)
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, bytes):  # a SQL value: its type, then its bytes
        return 15, value[:1] + varying(len(value) - 1) + value[1:]
    return 12, varying(len(value.encode())) + value.encode()


def encode(value: Any, *, large: bool = False) -> tuple[int, bytes]:
    """The type and bytes of a value; containers in the small or large form."""
    if not isinstance(value, dict | list):
        return scalar(value)
    form, width = ("<I", 4) if large else ("<H", 2)
    keys = sorted((key.encode() for key in value), key=lambda k: (len(k), k)) if isinstance(value, dict) else []
    values = [value[key.decode()] for key in keys] if isinstance(value, dict) else value
    head = 2 * width + len(keys) * (width + 2) + len(values) * (1 + width)
    entries, body = b"", b"".join(keys)
    at = head
    for key in keys:
        entries += struct.pack(form, at) + struct.pack("<H", len(key))
        at += len(key)
    for each in values:
        kind, made = encode(each, large=large)
        if kind in (4, 5, 6) or (large and kind in (7, 8)):
            entries += bytes([kind]) + made.ljust(width, b"\0")
        else:
            entries += bytes([kind]) + struct.pack(form, head + len(body))
            body += made
    whole = struct.pack(form, len(values)) + struct.pack(form, head + len(body)) + entries + body
    return (0 if isinstance(value, dict) else 2) + large, whole


def document(value: Any, *, large: bool = False) -> bytes:
    kind, made = encode(value, large=large)
    return bytes([kind]) + made


def ordered(value: Any) -> Any:
    """With the keys of objects in MySQL's order."""
    if isinstance(value, dict):
        return {key: ordered(value[key]) for key in sorted(value, key=lambda k: (len(k.encode()), k.encode()))}
    return [ordered(each) for each in value] if isinstance(value, list) else value


scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.integers(-70000, 70000) | st.text(max_size=200)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5),
    max_leaves=20,
)


@given(values, st.booleans())
def test_documents(value: Any, large: bool) -> None:
    assert text(document(value, large=large)) == json.dumps(ordered(value), ensure_ascii=False)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_are_the_number_and_look_like_one(value: float) -> None:
    shown = text(document([value]))[1:-1]
    assert float(shown) == value
    assert "." in shown or "e" in shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (-1.5, "-1.5"),
        (0.1, "0.1"),
        (100.0, "100.0"),
        (1e14, "100000000000000.0"),
        (1e15, "1e15"),
        (1039514241563211.0, "1.039514241563211e15"),
        (-1039514241563211.8, "-1039514241563211.8"),
        (123456789012345680.0, "1.2345678901234568e17"),
        (1e-14, "0.00000000000001"),
        (1e-15, "0.000000000000001"),
        (1e-16, "1e-16"),
        (-1.25e-20, "-1.25e-20"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (5e-324, "5e-324"),
    ],
)
def test_doubles_as_mysql_prints_them(value: float, shown: str) -> None:
    assert text(document(value)) == shown


def moment(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0, micro: int = 0) -> int:
    return ((year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second) << 24 | micro


@pytest.mark.parametrize(
    ("kind", "data", "shown"),
    [
        (246, b"\5\2" + build.decimal(Decimal("-12.30"), 5, 2), "-12.30"),
        (246, b"\x41\x1e" + build.decimal(Decimal("0.5"), 65, 30), "0.5" + "0" * 29),
        (246, b"\x0a\0" + build.decimal(Decimal("1234567890"), 10, 0), "1234567890"),
        (10, struct.pack("<q", moment(2024, 2, 29)), '"2024-02-29"'),
        (12, struct.pack("<q", moment(2024, 2, 29, 23, 59, 58, 7)), '"2024-02-29 23:59:58.000007"'),
        (7, struct.pack("<q", moment(1999, 12, 31, 1, 2, 3)), '"1999-12-31 01:02:03.000000"'),
        (11, struct.pack("<q", (838 << 12 | 59 << 6 | 58) << 24 | 5), '"838:59:58.000005"'),
        (11, struct.pack("<q", -((1 << 12 | 2 << 6 | 3) << 24 | 500000)), '"-01:02:03.500000"'),
        (15, b"\0\xff", '"base64:type15:AP8="'),
        (252, b"", '"base64:type252:"'),
        (252, bytes(57), f'"base64:type252:{"A" * 76}"'),
        (252, bytes(60), f'"base64:type252:{"A" * 76}\\nAAAA"'),
        (253, b"\0a\0b", '"\\u0000a\\u0000b"'),
    ],
)
def test_values_of_sql_types(kind: int, data: bytes, shown: str) -> None:
    assert text(document(bytes([kind]) + data)) == shown
    assert text(document({"k": bytes([kind]) + data})) == '{"k": ' + shown + "}"


def test_text_is_escaped_as_mysql_does() -> None:
    assert text(document('"\\/\b\f\n\r\t\x01\x1f\x7fé漢😀')) == '"\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7fé漢😀"'


def test_nothing_is_null() -> None:
    assert text(b"") == "null"


def test_depth_is_bounded() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert text(document(deep)) == "[" * 100 + "1" + "]" * 100
    with pytest.raises(DecodeError, match="nested too deep"):
        text(document([deep]))


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x0d\0",
        b"\x04\x03",
        b"\x05\1",
        b"\x0c\x05abc",
        b"\x0c\x02\xff\xff",
        b"\x02\xff\xff\x04\0",
        b"\x00\1\0",
        b"\x02\1\0\7\0\x0e\0\0",
    ],
)
def test_what_is_no_document_is_refused(wrong: bytes) -> None:
    with pytest.raises(DecodeError, match="JSON"):
        text(wrong)


def test_a_container_within_itself_is_refused() -> None:
    with pytest.raises(DecodeError, match="JSON"):
        text(b"\x02\1\0\7\0\x02\0\0")
