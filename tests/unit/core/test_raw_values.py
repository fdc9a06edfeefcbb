"""Raw values of rows: written, read, renamed, put into texts."""

from __future__ import annotations

import pyarrow as pa

from dblog.core.raw_values import alike, by_row, counted, mapped, raw_column, renamed, replaced, some, with_raw


def test_rows_without_raw_values_are_null() -> None:
    column = raw_column(3, {1: {"a": "NaN"}, 2: {}})
    assert column.to_pylist() == [None, '{"a":"NaN"}', None]
    assert by_row(column) == {1: {"a": "NaN"}}
    assert by_row(raw_column(2, {})) == {}


def test_batches_get_the_column_if_one_of_them_has_it() -> None:
    plain = pa.record_batch({"a": [1, 2]})
    assert list(alike([plain, plain])) == [plain, plain]
    both = alike([plain, with_raw(plain)])
    assert both[0].schema == both[1].schema
    assert not some(both[0])


def test_raw_values_are_renamed_with_those_of_the_old_row_and_others_are_left_out() -> None:
    raw = {"a": "1", "b": "2", "_before.a": "3", "_before.b": "4"}
    assert renamed(raw, {"a": "x"}) == {"x": "1", "_before.x": "3"}
    column = raw_column(2, {0: raw})
    assert by_row(mapped(column, lambda texts: renamed(texts, {"a": "x"}))) == {0: {"x": "1", "_before.x": "3"}}
    assert mapped(column, lambda texts: {}).null_count == 2


def test_counts_are_by_column_and_without_old_rows() -> None:
    assert counted(raw_column(3, {0: {"a": "1", "_before.a": "2"}, 2: {"a": "3", "b": "4"}})) == {"a": 2, "b": 1}


def test_texts_are_replaced_in_their_rows() -> None:
    texts = pa.array(["1", None, "3", None], pa.large_string())
    assert replaced(texts, {3: "NaN", 1: "Infinity"}).to_pylist() == ["1", "Infinity", "3", "NaN"]
