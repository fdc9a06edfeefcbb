"""Row events by hand: images, nulls, keys that change, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog.core.event import BEFORE, Op
from dblog.databases.mysql.flavor import MYSQL
from dblog.errors import DecodeError
from dblog.sources.columns import Raw
from dblog.sources.mysql import rows
from dblog.sources.mysql.codecs import table_schema
from dblog.sources.mysql.column_types import Code
from dblog.sources.mysql.layout import Layout
from dblog.sources.mysql.rows import Changes, find_changes, table_batch, truncation
from dblog.sources.mysql.tablemap import TableMap
from tests.unit.sources.mysql.build import (
    DELETE,
    UPDATE,
    WRITE,
    bits,
    blob,
    image,
    number,
    row_event,
    short,
    table_map,
    varchar,
)

FIELDS = [
    number("id", Code.int, nullable=False),
    varchar("name"),
    number("n", Code.smallint),
    varchar("long", 1000),
    *(number(f"t{n}", Code.tinyint) for n in range(5)),
    blob("data", 3),
    number("last", Code.bigint, nullable=False),
]
Row = tuple[Any, ...]


def layout(key: Sequence[int] = (0,)) -> Layout:
    mapped = TableMap.parse(table_map(FIELDS, key=key), MYSQL)
    return Layout.of(mapped, table_schema(mapped, MYSQL))


def encode(row: Row) -> bytes:
    number, name, small, long, *tiny, data, last = row
    return image(
        [
            struct.pack("<i", number),
            None if name is None else short(name.encode()),
            None if small is None else struct.pack("<h", small),
            None if long is None else short(long.encode(), 2),
            *(None if value is None else struct.pack("<b", value) for value in tiny),
            None if data is None else short(data, 3),
            struct.pack("<q", last),
        ]
    )


def event(kind: int, images: Sequence[Row]) -> bytes:
    return row_event(kind, len(FIELDS), [encode(row) for row in images])


def find(how: Layout, kinds: Sequence[int], bodies: Sequence[bytes]) -> Changes:
    raw, start, size = Raw.join(bodies)
    return find_changes(how, raw, start, start + size, np.array(kinds, np.uint8))


def batch(how: Layout, kinds: Sequence[int], bodies: Sequence[bytes], **options: bool) -> pa.RecordBatch:
    changes = find(how, kinds, bodies)
    numbers = np.arange(len(bodies), dtype=np.int64)
    preceding = np.cumsum(changes.counts) - changes.counts
    made, event = table_batch(changes, numbers + 1000, preceding, numbers + 7, numbers * 10**6, **options)
    made.validate(full=True)
    assert event.tolist() == [lsn - 1000 for lsn in made["_lsn"].to_pylist()]
    return made


def content(made: pa.RecordBatch) -> list[tuple[int, Row]]:
    names = [field.name for field in FIELDS]
    return [(row["_op"], tuple(row[name] for name in names)) for row in made.to_pylist()]


a_row = st.tuples(
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(max_size=20),
    st.none() | st.integers(-(2**15), 2**15 - 1),
    st.none() | st.text(max_size=100),
    *[st.none() | st.integers(-128, 127)] * 5,
    st.none() | st.binary(max_size=40),
    st.integers(-(2**63), 2**63 - 1),
)
an_event = st.tuples(st.sampled_from([WRITE, UPDATE, DELETE, 23, 24, 25]), st.lists(a_row, min_size=1, max_size=8))


def expected(events: Sequence[tuple[int, Sequence[Row]]]) -> list[tuple[int, Row]]:
    made: list[tuple[int, Row]] = []
    for kind, images in events:
        if kind in (WRITE, 23):
            made += [(Op.create, row) for row in images]
        elif kind in (DELETE, 25):
            made += [(Op.delete, row) for row in images]
        else:
            for old, new in zip(images[::2], images[1::2], strict=True):
                if old[0] == new[0]:
                    made.append((Op.update, new))
                else:
                    made += [(Op.delete, old), (Op.create, new)]
    return made


def even(events: Sequence[tuple[int, list[Row]]]) -> list[tuple[int, list[Row]]]:
    """Updates with as many new rows as old ones, every second one with the same key."""
    made = []
    for kind, images in events:
        if kind in (UPDATE, 24):
            images = (images * 2)[: len(images) // 2 * 2 + 2]
            images = [(images[n - 1][0], *row[1:]) if n % 4 == 1 else row for n, row in enumerate(images)]
        made.append((kind, images))
    return made


@pytest.mark.parametrize("few", [1, 3, 1000])
@given(events=st.lists(an_event, max_size=12))
def test_every_row_of_every_event_is_read(events: list[tuple[int, list[Row]]], few: int) -> None:
    events = even(events)
    before, rows._FEW = rows._FEW, few
    try:
        made = batch(layout(), [kind for kind, _ in events], [event(*each) for each in events])
    finally:
        rows._FEW = before
    assert content(made) == expected(events)
    order = list(zip(made["_lsn"].to_pylist(), made["_seq"].to_pylist(), strict=True))
    assert order == sorted(set(order))


ROW = (1, "one", None, "ö", 1, None, 3, 4, 5, b"\0\1", -1)


def test_metadata_and_ordinals() -> None:
    moved = (2, *ROW[1:])
    bodies = [event(WRITE, [ROW, moved]), event(UPDATE, [ROW, (*ROW[:-1], 8), ROW, (3, *ROW[1:]), ROW, ROW])]
    made = batch(layout(), [WRITE, UPDATE], bodies)
    assert made["_op"].to_pylist() == [Op.create, Op.create, Op.update, Op.delete, Op.create, Op.update]
    assert made["_seq"].to_pylist() == [0, 2, 4, 6, 7, 8]
    assert made["_lsn"].to_pylist() == [1000, 1000, 1001, 1001, 1001, 1001]
    assert made["_txid"].to_pylist() == [7, 7, 8, 8, 8, 8]
    assert made["_committed_at"].cast(pa.int64()).to_pylist() == [0, 0] + [10**6] * 4
    assert made["_unchanged"].null_count == 6
    assert made["id"].to_pylist() == [1, 2, 1, 1, 3, 1]


def test_before_has_the_old_row() -> None:
    new = (1, "two", *ROW[2:])
    moved = (9, *ROW[1:])
    kinds = [WRITE, UPDATE, UPDATE, DELETE]
    bodies = [event(WRITE, [ROW]), event(UPDATE, [ROW, new]), event(UPDATE, [new, moved]), event(DELETE, [moved])]
    made = batch(layout(), kinds, bodies, before=True)
    old = [row and (row["id"], row["name"]) for row in made[BEFORE].to_pylist()]
    assert made["_op"].to_pylist() == [Op.create, Op.update, Op.delete, Op.create, Op.delete]
    assert old == [None, (1, "one"), (1, "two"), None, (9, "one")]


@pytest.mark.parametrize(("column", "new"), [(1, "other"), (3, "x" * 300), (10, 5)])
def test_any_column_may_be_of_the_key(column: int, new: Any) -> None:
    changed = (*ROW[:column], new, *ROW[column + 1 :])
    for key in ([column], [0, column], [column, 0]):
        made = batch(layout(key), [UPDATE], [event(UPDATE, [ROW, changed, ROW, ROW])])
        assert content(made) == [(Op.delete, ROW), (Op.create, changed), (Op.update, ROW)]


def test_a_schema_may_leave_columns_out() -> None:
    mapped = TableMap.parse(table_map(FIELDS), MYSQL)
    whole = table_schema(mapped, MYSQL)
    some = type(whole)(whole.table, tuple(c for c in whole.columns if c.name in ("id", "long", "t3")), whole.key)
    made = batch(Layout.of(mapped, some), [UPDATE], [event(UPDATE, [ROW, (2, *ROW[1:])])])
    assert made.schema.names[6:] == ["id", "long", "t3"]
    assert [made[name].to_pylist() for name in ("id", "long", "t3")] == [[1, 2], ["ö", "ö"], [4, 4]]


def test_a_schema_of_another_table_is_refused() -> None:
    other = TableMap.parse(table_map([number("id", Code.int), number("other", Code.int)]), MYSQL)
    with pytest.raises(DecodeError, match="does not match the table map"):
        Layout.of(TableMap.parse(table_map(FIELDS), MYSQL), table_schema(other, MYSQL))


@pytest.mark.parametrize("few", [1, 1000])
@pytest.mark.parametrize("cut", range(1, 60))
def test_an_event_that_ends_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch, cut: int, few: int) -> None:
    monkeypatch.setattr(rows, "_FEW", few)
    whole = event(WRITE, [ROW, ROW])
    one = len(encode(ROW))
    if cut == one:
        return
    for wrong in (whole[:-cut], whole + encode(ROW)[:cut] if cut < one else whole + b"\0"):
        with pytest.raises(DecodeError):
            batch(layout(), [WRITE, WRITE], [whole, wrong])


@pytest.mark.parametrize("few", [1, 1000])
def test_a_value_that_reaches_beyond_everything_is_refused(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(rows, "_FEW", few)
    whole, data = encode(ROW), len(ROW[-2])
    long = whole[: -8 - data - 3] + b"\xff\xff\xff" + whole[-8 - data :]
    with pytest.raises(DecodeError, match="does not end where its last row does"):
        batch(layout(), [WRITE, WRITE], [event(WRITE, [ROW]), row_event(WRITE, len(FIELDS), [long, whole])])


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (WRITE, row_event(WRITE, 10, [encode(ROW)]), "does not have 11 columns"),
        (WRITE, row_event(WRITE, 11, [encode(ROW)], present=bits([True] * 10 + [False])), "lacks column 'last'"),
        (WRITE, row_event(WRITE, 11, [encode(ROW)], present=bits([False] + [True] * 10)), "lacks column 'id'"),
        (UPDATE, event(UPDATE, [ROW]), "has no new row"),
        (39, event(UPDATE, [ROW, ROW]), "a partial update of table shop.t"),
        (20, event(WRITE, [ROW]), "type 20"),
        (WRITE, event(WRITE, [])[:-1], "ends within its head"),
    ],
)
def test_what_does_not_fit_the_table_is_refused(kind: int, body: bytes, said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        batch(layout(), [WRITE, kind], [event(WRITE, [ROW]), body])


def test_the_image_must_be_full() -> None:
    body = row_event(UPDATE, 11, [encode(ROW), encode(ROW)], present=bits([True] * 9 + [False, True]))
    with pytest.raises(DecodeError, match="binlog_row_image = FULL"):
        batch(layout(), [UPDATE], [body])


def test_a_key_is_never_null() -> None:
    with pytest.raises(DecodeError, match="lacks its key column 'name'"):
        batch(layout([1]), [WRITE], [event(WRITE, [(1, None, *ROW[2:])])])


def test_a_wide_table_has_a_longer_count() -> None:
    fields = [number(f"c{n}", Code.int, nullable=n > 0) for n in range(300)]
    mapped = TableMap.parse(table_map(fields), MYSQL)
    how = Layout.of(mapped, table_schema(mapped, MYSQL))
    values = [struct.pack("<i", n) if n % 3 else None for n in range(1, 300)]
    body = row_event(WRITE, 300, [image([struct.pack("<i", 0), *values])])
    made = batch(how, [WRITE], [body])
    assert [made[f"c{n}"][0].as_py() for n in range(300)] == [0, *(n if n % 3 else None for n in range(1, 300))]


def test_many_changes_are_made_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [(n, *ROW[1:]) for n in range(100)]
    bodies = [event(WRITE, images[:70]), event(WRITE, images[70:])]
    whole = batch(layout(), [WRITE, WRITE], bodies)
    monkeypatch.setattr(rows, "_BLOCK", 9)
    assert batch(layout(), [WRITE, WRITE], bodies).equals(whole)
    assert content(whole) == [(Op.create, row) for row in images]


@pytest.mark.parametrize("few", [1, 1000])
def test_changes_are_in_the_order_of_the_events_wherever_their_bytes_lie(
    monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(rows, "_FEW", few)
    images = [(n, *ROW[1:]) for n in range(12)]
    bodies = [event(WRITE, images[at : at + 3]) for at in range(0, 12, 3)]
    raw, start, size = Raw.join(bodies[::-1])
    begin, end = start[::-1], (start + size)[::-1]
    changes = find_changes(layout(), raw, begin, end, np.full(4, WRITE, np.uint8))
    numbers = np.arange(4, dtype=np.int64)
    made, events = table_batch(changes, numbers, numbers * 3, numbers, numbers)
    assert content(made) == [(Op.create, row) for row in images]
    assert events.tolist() == [n // 3 for n in range(12)]
    assert made["_seq"].to_pylist() == [2 * n for n in range(12)]


def test_no_events_are_an_empty_batch() -> None:
    made = batch(layout(), [], [])
    assert made.num_rows == 0
    assert made.schema.names[:6] == ["_op", "_lsn", "_seq", "_txid", "_committed_at", "_unchanged"]


def test_a_transaction_of_too_many_changes_is_refused() -> None:
    changes = find(layout(), [WRITE], [event(WRITE, [ROW])])
    one = np.array([1], np.int64)
    with pytest.raises(DecodeError, match=r"2\*\*30"):
        table_batch(changes, one, np.array([2**30], np.int64), one, one)


def test_a_truncation_has_no_row() -> None:
    schema = layout().schema
    for before in (False, True):
        made = truncation(schema, 5, 3, 7, 10**6, before=before)
        made.validate(full=True)
        [row] = made.to_pylist()
        assert (row["_op"], row["_lsn"], row["_seq"], row["_txid"]) == (Op.truncate, 5, 6, 7)
        assert all(row[name] is None for name in schema.names)
