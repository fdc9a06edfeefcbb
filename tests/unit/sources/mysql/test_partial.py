"""Partial updates of JSON documents by hand: what they make of a document, and what is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dblog.core.event import BEFORE, Op
from dblog.databases.mysql.flavor import MYSQL
from dblog.errors import DecodeError
from dblog.sources.columns import Raw
from dblog.sources.mysql.binary_json import printed, read
from dblog.sources.mysql.codecs import table_schema
from dblog.sources.mysql.column_types import Code
from dblog.sources.mysql.layout import Layout
from dblog.sources.mysql.partial import changed
from dblog.sources.mysql.rows import find_changes, table_batch
from dblog.sources.mysql.tablemap import TableMap
from tests.unit.sources.mysql.build import Field, bits, number, packed, short, sized, table_map, varchar
from tests.unit.sources.mysql.test_binary_json import document

REPLACE, INSERT, REMOVE = range(3)
PARTIAL, UPDATE, WRITE = 39, 31, 30
Difference = tuple[Any, ...]


def difference(operation: int, path: str, *value: Any) -> bytes:
    return bytes([operation]) + sized(path.encode()) + b"".join(sized(document(each)) for each in value)


@pytest.mark.parametrize(
    ("before", "differences", "after"),
    [
        ({"a": 1}, [], {"a": 1}),
        ({"a": 1}, [(REPLACE, "$.a", "two")], {"a": "two"}),
        ({"a": {"b": [1, 2]}}, [(REPLACE, "$.a.b[1]", {"c": None})], {"a": {"b": [1, {"c": None}]}}),
        ([1, 2, 3], [(REPLACE, "$[last]", 9), (REPLACE, "$[last-2]", 7)], [7, 2, 9]),
        ({"a b": {"": {'q"\\': 1}}}, [(REPLACE, r'$."a b"."".' + r'"q\"\\"', 2)], {"a b": {"": {'q"\\': 2}}}),
        ({"é漢": 1, "$x": 2}, [(REPLACE, "$.é漢", 3), (REMOVE, "$.$x")], {"é漢": 3}),
        ({"n": 1}, [(INSERT, "$.aa", 2), (INSERT, "$.b", 3)], {"b": 3, "n": 1, "aa": 2}),
        ([1, 2], [(INSERT, "$[0]", 0), (INSERT, "$[99]", 3), (INSERT, "$[last]", 2.5)], [0, 1, 2, 2.5, 3]),
        ([1], [(INSERT, "$[last-7]", 0)], [0, 1]),
        ([], [(INSERT, "$[last]", 0)], [0]),
        ({"a": 1, "b": [1, 2, 3]}, [(REMOVE, "$.a"), (REMOVE, "$.b[1]"), (REMOVE, "$.b[last]")], {"b": [1]}),
        ({}, [(INSERT, "$.a", {}), (INSERT, "$.a.b", []), (INSERT, "$.a.b[0]", "x" * 300)], {"a": {"b": ["x" * 300]}}),
    ],
)
def test_a_document_is_changed(before: Any, differences: Sequence[Difference], after: Any) -> None:
    made = changed(read(document(before)), b"".join(difference(*each) for each in differences))
    assert printed(made) == json.dumps(after, ensure_ascii=False)


@pytest.mark.parametrize(
    "wrong",
    [
        difference(REPLACE, "$.b", 1),
        difference(REPLACE, "$.l[2]", 1),
        difference(REPLACE, "$.l[last-2]", 1),
        difference(REPLACE, "$.l.a", 1),
        difference(REPLACE, "$[0]", 1),
        difference(REPLACE, "$.a[0]", 1),
        difference(REPLACE, "$.a.b", 1),
        difference(REPLACE, "$.a[0].b", 1),
        difference(REPLACE, "$", 1),
        difference(INSERT, "$.a", 1),
        difference(INSERT, "$.b.c", 1),
        difference(INSERT, "$[0]", 1),
        difference(REMOVE, "$.b"),
        difference(REMOVE, "$.l[2]"),
        difference(REPLACE, "$.*", 1),
        difference(REPLACE, "$.l[*]", 1),
        difference(3, "$.a", 1),
        difference(REPLACE, "$.a"),
        difference(REPLACE, "$.a", 1)[:-1],
        difference(REMOVE, "$.a")[:-1],
        b"\0",
    ],
)
def test_a_difference_that_does_not_fit_is_refused(wrong: bytes) -> None:
    with pytest.raises(DecodeError, match=r"a partial update of table shop\.t in the log cannot be read"):
        batch(event([row(1, {"a": 1, "l": [1, 2]}, None)], [partial_row(1, wrong, None)]))


FIELDS = [
    number("id", Code.int, nullable=False),
    Field("one", Code.json, b"\4"),
    varchar("text"),
    Field("other", Code.json, b"\4"),
]


def image(key: int, one: bytes | None, other: bytes | None) -> bytes:
    nulls = bits([False, one is None, False, other is None])
    parts = [struct.pack("<i", key), one and short(one, 4), short(b"text"), other and short(other, 4)]
    return nulls + b"".join(part for part in parts if part is not None)


def row(key: int, one: Any, other: Any) -> bytes:
    return image(key, *(None if value is None else document(value) for value in (one, other)))


def partial_row(key: int, one: Any, other: Any) -> bytes:
    """A new row; a document that is in bytes is there in differences."""
    values = [document(v) if v is not None and not isinstance(v, bytes) else v for v in (one, other)]
    partial = bits([isinstance(one, bytes), isinstance(other, bytes)])
    return b"\1" + partial + image(key, *values)


def event(old: Sequence[bytes], new: Sequence[bytes], *, present: bytes = b"\xff\x0f", columns: int = 4) -> bytes:
    images = b"".join(old + new for old, new in zip(old, new, strict=True))
    return struct.pack("<Q", 77)[:6] + b"\1\0" + b"\2\0" + packed(columns) + present + images


def batch(*bodies: bytes, kinds: Sequence[int] = (PARTIAL,)) -> Any:
    mapped = TableMap.parse(table_map(FIELDS), MYSQL)
    raw, start, size = Raw.join(bodies)
    layout = Layout.of(mapped, table_schema(mapped, MYSQL))
    changes = find_changes(layout, raw, start, start + size, np.array(kinds, np.uint8))
    numbers = np.arange(len(bodies), dtype=np.int64)
    made, _ = table_batch(changes, numbers, np.cumsum(changes.counts) - changes.counts, numbers, numbers, before=True)
    made.validate(full=True)
    return made


def test_partial_updates_among_others() -> None:
    first = difference(REPLACE, "$.a", 2)
    second = difference(INSERT, "$.b", [1])
    plain = struct.pack("<Q", 77)[:6] + b"\1\0" + b"\2\0" + packed(4)
    made = batch(
        plain + b"\x0f" + row(1, {"a": 1}, [1]),
        event(
            [row(1, {"a": 1}, [1]), row(2, None, {"a": 1}), row(3, {"a": 1}, {"a": 1}), row(4, [1], None)],
            [
                partial_row(1, first, [2]),
                partial_row(2, {"x": 1}, second),
                partial_row(3, first, first + second),
                b"\0" + row(5, None, {"full": 1}),
            ],
        ),
        plain + b"\xff\xff" + row(1, {"a": 2}, [2]) + row(1, {"a": 3}, None),
        kinds=[WRITE, PARTIAL, UPDATE],
    )
    rows = made.to_pylist()
    assert [(Op(r["_op"]).name, r["id"], r["one"], r["other"]) for r in rows] == [
        ("create", 1, '{"a": 1}', "[1]"),
        ("update", 1, '{"a": 2}', "[2]"),
        ("update", 2, '{"x": 1}', '{"a": 1, "b": [1]}'),
        ("update", 3, '{"a": 2}', '{"a": 2, "b": [1]}'),
        ("delete", 4, "[1]", None),
        ("create", 5, None, '{"full": 1}'),
        ("update", 1, '{"a": 3}', None),
    ]
    assert [r[BEFORE] and (r[BEFORE]["one"], r[BEFORE]["other"]) for r in rows] == [
        None,
        ('{"a": 1}', "[1]"),
        (None, '{"a": 1}'),
        ('{"a": 1}', '{"a": 1}'),
        ("[1]", None),
        None,
        ('{"a": 2}', "[2]"),
    ]
    assert {r["text"] for r in rows} == {"text"}


def test_what_is_no_partial_update_of_the_table_is_refused() -> None:
    old, new = [row(1, {"a": 1}, None)], [partial_row(1, difference(REPLACE, "$.a", 2), None)]
    whole = event(old, new)
    batch(whole)
    for size in range(len(whole)):
        if size != len(event([], [])):
            with pytest.raises(DecodeError):
                batch(whole[:size])
    for present in (b"\x0d\x0f", b"\x0f\x0d"):
        with pytest.raises(DecodeError, match="binlog_row_image = FULL"):
            batch(event(old, new, present=present))
    with pytest.raises(DecodeError, match="lacks columns"):
        batch(event(old, new, columns=5))
    with pytest.raises(DecodeError, match="options 0x2"):
        batch(event(old, [b"\2" + row(1, None, None)]))
    for wrong in (partial_row(1, None, difference(REPLACE, "$.a", 2)), b"\1\1" + image(1, None, None)):
        with pytest.raises(DecodeError, match="a document that does not exist"):
            batch(event(old, [wrong]))
