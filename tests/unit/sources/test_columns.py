"""The kernels against plain Python, value by value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog.sources import columns
from dblog.sources.columns import ABSENT, Cells, Raw, Rows


def cells(values: Sequence[bytes | None]) -> Cells:
    """Values laid end to end; a null lies where the next value begins."""
    raw, start, size = Raw.join([value or b"" for value in values])
    return Cells(raw, start, np.where([value is None for value in values], -1, size).astype(np.int64))


binaries = st.lists(st.none() | st.binary(max_size=30))


@given(binaries)
def test_binary_gives_the_bytes_of_every_length(values: list[bytes | None]) -> None:
    made = columns.binary(cells(values))
    made.validate(full=True)
    assert made.to_pylist() == values


@given(st.data())
def test_binary_gives_the_bytes_in_any_order_wherever_nulls_lie(data: st.DataObject) -> None:
    values = data.draw(binaries.filter(len))
    order = data.draw(st.lists(st.integers(0, len(values) - 1)))
    laid = cells(values).take(np.array(order, np.int64))
    where = Raw.origin + data.draw(st.integers(0, 100))
    made = columns.binary(Cells(laid.raw, np.where(laid.length < 0, where, laid.start), laid.length))
    made.validate(full=True)
    assert made.to_pylist() == [values[n] for n in order]


@given(st.data(), st.sampled_from([0, 1, 16, 255, 256, 257]))
def test_binary_gives_the_bytes_where_all_have_the_same_size(data: st.DataObject, size: int) -> None:
    values = data.draw(st.lists(st.binary(min_size=size, max_size=size), min_size=1))
    order = data.draw(st.lists(st.integers(0, len(values) - 1)))
    made = columns.binary(cells(values).take(np.array(order, np.int64)))
    made.validate(full=True)
    assert made.to_pylist() == [values[n] for n in order]


@given(st.lists(st.none() | st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)))
def test_strings_gives_the_text(values: list[str | None]) -> None:
    made = columns.strings(cells([None if value is None else value.encode() for value in values]))
    assert made.type == pa.string()
    assert made.to_pylist() == values


@pytest.mark.parametrize("wrong", [b"\xff", b"short \xc3", b"a long value that ends \xe6\xbc"])
def test_strings_refuses_what_is_not_utf8(wrong: bytes) -> None:
    with pytest.raises(pa.ArrowInvalid):
        columns.strings(cells([b"right", wrong]))


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_integers_reads_every_64_bit_number(values: list[int | None]) -> None:
    read, wrong = columns.integers(cells([None if value is None else str(value).encode() for value in values]))
    assert not wrong.any()
    assert [n for n, value in zip(read.tolist(), values, strict=True) if value is not None] == [
        value for value in values if value is not None
    ]


@pytest.mark.parametrize(
    "value", [b"", b"-", b"1a", b"a1", b"+1", b"1 ", b"--1", b"1-1", b"/", b":", b"123456789x", b"1\xb1", b"1" * 21]
)
def test_integers_marks_what_is_not_a_number(value: bytes) -> None:
    _, wrong = columns.integers(cells([b"1", value, b"-123456789012"]))
    assert wrong.tolist() == [False, True, False]


@given(binaries, st.booleans())
def test_unhex_is_the_inverse_of_hex(values: list[bytes | None], upper: bool) -> None:
    written = [None if value is None else value.hex() for value in values]
    encoded = [None if v is None else b"\\x" + (v.upper() if upper else v).encode() for v in written]
    made, whole = columns.unhex(cells(encoded), prefix=2)
    assert whole
    assert made.to_pylist() == values


@pytest.mark.parametrize("value", [b"\\x0", b"\\xg0", b"\\x0g", b"\\", b"", b"\\x\xff\xff"])
def test_unhex_says_when_a_value_is_not_hex(value: bytes) -> None:
    _, whole = columns.unhex(cells([b"\\xab", value]), prefix=2)
    assert not whole


@pytest.mark.parametrize("most", [8, 15])
@given(st.data())
def test_differ_compares_bytes(most: int, data: st.DataObject) -> None:
    value = st.none() | st.binary(max_size=most)
    pairs = data.draw(st.lists(st.tuples(value, value) | value.map(lambda same: (same, same))))
    left, right = (cells([pair[side] for pair in pairs]) for side in (0, 1))
    assert columns.differ(left, right).tolist() == [a is None or a != b for a, b in pairs]


def test_absent_names_the_columns_that_a_row_lacks() -> None:
    raw, _, _ = Raw.join([])
    rows = Rows(raw, np.zeros((3, 4), np.int64), np.array([[1, ABSENT, -1, 1], [1, ABSENT, 1, -1], [1, 1, -1, ABSENT]]))
    assert rows.absent(["a", "b", "c"]).to_pylist() == [None, ["a", "b"], None, ["c"]]
    present = Rows(raw, np.zeros((1, 2), np.int64), np.array([[1, -1]]))
    assert present.absent(["a"]).to_pylist() == [None, None]


def test_portions_end_at_the_limit_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "LIMIT", 10)
    messages = [bytes(n) for n in (4, 4, 4, 30, 1, 1, 10, 3)]
    made = list(columns.portions(messages))
    assert [len(message) for portion, _ in made for message in portion] == [len(message) for message in messages]
    assert all(sum(map(len, portion[:-1])) < 10 for portion, _ in made)
    assert all(sizes.tolist() == list(map(len, portion)) for portion, sizes in made)
    assert len(made) > 3
