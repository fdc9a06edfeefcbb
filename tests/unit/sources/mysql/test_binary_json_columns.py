"""Columns of binary JSON: the same texts as one by one, however the documents are mixed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog.errors import DecodeError
from dblog.sources.columns import Cells, Raw
from dblog.sources.mysql import binary_json, binary_json_columns
from tests.unit.sources.mysql.test_binary_json import document, values


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even two documents are enough to be read together."""
    monkeypatch.setattr(binary_json_columns, "_FEW", 2)


def column(given: list[bytes | None]) -> Cells:
    raw, start, size = Raw.join([each or b"" for each in given])
    return Cells(raw, start, np.where([each is None for each in given], -1, size))


def read(given: list[bytes | None]) -> list[str | None]:
    made: list[str | None] = binary_json_columns.texts(column(given)).to_pylist()
    return made


def one_by_one(given: list[bytes | None]) -> list[str | None]:
    return [None if each is None else binary_json.text(each) for each in given]


@given(st.lists(st.none() | values, max_size=4), st.lists(st.integers(0, 3), max_size=12), st.booleans())
def test_any_mixture(kinds: list[Any], order: list[int], large: bool) -> None:
    made = [document(value, large=large) if value is not None else None for value in kinds]
    column = [made[place % len(made)] for place in order] if made else []
    assert read(column) == one_by_one(column)


def test_the_same_members_with_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(kind: int, values: Any) -> pa.Array:
        raise AssertionError(f"{len(values)} values of type {kind} were read one by one")

    monkeypatch.setattr(binary_json_columns, "_one_by_one", alone)
    dice = random.Random(1)

    def member() -> Any:
        return dice.choice(
            [7, -7, 70_000, -70_000, 2**40, 2**64 - 1, "", "é" * dice.choice([1, 63, 64, 1000]), True, None]
        )

    shapes = ("k", "tag"), ("k", "tax"), (), ("longer", "names", "and", "more")
    rows = [{name: [member(), {"x": member()}] for name in dice.choice(shapes)} for _ in range(2000)]
    column = [document(row) for row in rows]
    assert read([*column, None, b""]) == [*one_by_one(column), None, "null"]


@pytest.mark.parametrize("sizes", [(0, 1, 63, 64), (63, 64, 8191, 8192, 50_000), (8192, 1_048_576)])
def test_strings_of_any_length(sizes: tuple[int, ...]) -> None:
    column = [document("é" * size) for size in sizes for _ in range(2)]
    assert read(column) == one_by_one(column)


def test_strings_with_characters_that_are_escaped() -> None:
    column = [document({"a": text}) for text in ("plain", 'a "quote"', "back\\slash", "line\n", "\x01", "\x7f", "ü")]
    assert read(column) == one_by_one(column)


@pytest.mark.parametrize("value", [{"k": 1, "tag": "t1"}, [1, [2, "three"]], {"a": {"b": 100_000}}, "text", 100_000])
def test_a_document_that_is_cut_off_is_an_error_wherever(value: Any) -> None:
    whole = document(value)
    for size in range(1, len(whole)):
        with pytest.raises(DecodeError, match="JSON"):
            one_by_one([whole[:size]])
        with pytest.raises(DecodeError, match="JSON"):
            read([whole, whole[:size], whole])
        with pytest.raises(DecodeError, match="JSON"):
            read([whole, whole, whole[:size]])


def test_names_that_lie_elsewhere() -> None:
    """The names' table may point anywhere, even though MySQL writes them one after the other."""
    column = []
    for names in ("ab", "cd", "ab"):
        whole = bytearray(document({names[0]: 1, names[1]: 2}))
        whole[5:7], whole[9:11] = whole[9:11], whole[5:7]
        column.append(bytes(whole))
    assert read(column) == one_by_one(column) == ['{"b": 1, "a": 2}', '{"d": 1, "c": 2}', '{"b": 1, "a": 2}']


def test_names_that_are_the_same_only_together() -> None:
    column = [document({"a": 1, "bc": 2}), document({"": 1, "abc": 2})] * 3
    assert read(column) == one_by_one(column)


def test_a_name_that_is_no_text() -> None:
    whole = document({"a": 1}).replace(b"a", b"\xff")
    with pytest.raises(DecodeError, match="JSON"):
        read([whole] * 5)
