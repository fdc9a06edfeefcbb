"""Arrow columns as the text that servers read."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog.errors import SinkError
from dblog.sinks.sql import text
from dblog.sinks.sql.mysql.rows import written as _written
from dblog.sinks.sql.postgres.copy_text import copied as _copied
from dblog.sinks.sql.postgres.copy_text import raw_text

NAIVE, MOMENT = pa.timestamp("us"), pa.timestamp("us", tz="UTC")


def copied(values: list[Any], kind: pa.DataType) -> list[Any]:
    return _copied("c", pa.array(values, kind)).to_pylist()


def written(values: list[Any], kind: pa.DataType) -> list[Any]:
    return _written("c", pa.array(values, kind)).to_pylist()


@pytest.mark.parametrize(
    ("kind", "value", "in_copy", "in_insert"),
    [
        (pa.string(), "a\\b\t'\n\r\"é", "a\\\\b\\t'\\n\\r\"é", "'a\\\\b\t\\'\n\r\"é'"),
        (pa.string(), "", "", "''"),
        (pa.string(), "\\N", "\\\\N", "'\\\\N'"),
        (pa.binary(), b"\0\xff\\", "\\\\x00ff5c", "x'00ff5c'"),
        (pa.binary(), b"", "\\\\x", "x''"),
        (pa.bool_(), True, "true", "1"),
        (pa.int64(), -(2**63), str(-(2**63)), str(-(2**63))),
        (pa.float64(), 0.1, "0.1", "0.1"),
        (pa.float32(), 3.4028234663852886e38, "3.4028235e+38", "3.4028234663852886e+38"),
        (pa.decimal128(20, 0), Decimal(2**64 - 1), str(2**64 - 1), str(2**64 - 1)),
        (pa.decimal128(12, 10), Decimal("1E-10"), "1E-10", "'1E-10'"),
        (pa.date32(), 0, "1970-01-01", "'1970-01-01'"),
        (NAIVE, -1, "1969-12-31 23:59:59.999999", "'1969-12-31 23:59:59.999999'"),
        (MOMENT, 1, "1970-01-01 00:00:00.000001", "'1970-01-01 00:00:00.000001'"),
    ],
)
def test_a_value_as_each_server_reads_it(kind: pa.DataType, value: Any, in_copy: str, in_insert: str) -> None:
    assert copied([value, None], kind) == [in_copy, None]
    assert written([None, value], kind) == [None, in_insert]


def test_arrays_of_postgresql() -> None:
    strings = pa.list_(pa.string())
    assert copied([["a", None, 'q"\\'], [], None, ["NULL", ""]], strings) == [
        '{"a",NULL,"q\\\\"\\\\\\\\"}', "{}", None, '{"NULL",""}',
    ]  # fmt: skip
    assert copied([[b"\xff", None]], pa.list_(pa.binary())) == ['{"\\\\\\\\xff",NULL}']
    assert copied([[1, None], None], pa.list_(pa.int32())) == ["{1,NULL}", None]
    sliced = pa.array([[1], [2, 3], None, [4]], pa.list_(pa.int32())).slice(1)
    assert _copied("c", sliced).to_pylist() == ["{2,3}", None, "{4}"]


def test_moments_that_only_one_of_them_has() -> None:
    least, greatest = -(2**63), 2**63 - 1
    assert copied([least, greatest, 0, None], NAIVE) == ["-infinity", "infinity", "1970-01-01 00:00:00.000000", None]
    assert copied([-719163, 2932897], pa.date32()) == ["0001-12-31 00:00:00.000000 BC", "10000-01-01 00:00:00.000000"]
    assert written([least, 0], NAIVE) == ["'0000-00-00'", "'1970-01-01 00:00:00.000000'"]
    day = 86_400_000_000
    assert written([-719163 * day], NAIVE) == ["'0000-12-31'"], "MySQL has a year 0"
    for value in (greatest, 2932897 * day, -719529 * day):
        with pytest.raises(SinkError, match=r"column 'c': the server stores only the years 0 to 9999"):
            written([value], NAIVE)


def test_what_one_of_them_cannot_hold_is_refused() -> None:
    with pytest.raises(SinkError, match=r"column 'c': the server cannot store the character 0"):
        copied(["a\0b"], pa.string())
    with pytest.raises(SinkError, match="character 0"):
        copied([["a\0b"]], pa.list_(pa.string()))
    assert written(["a\0b"], pa.string()) == ["'a\0b'"]
    for value in (float("nan"), float("inf")):
        assert copied([value], pa.float64()) == [str(value)]
        with pytest.raises(SinkError, match="infinity and NaN"):
            written([value], pa.float64())


@given(st.integers(-5_000_000, 5_000_000))
def test_days_are_those_of_the_calendar(days: int) -> None:
    date = np.datetime64(days, "D")
    month = date.astype("datetime64[M]")
    assert text.civil(days) == (
        int(month.astype(int)) // 12 + 1970,
        int(month.astype(int)) % 12 + 1,
        int((date - month.astype("datetime64[D]")).astype(int)) + 1,
    )


@given(st.lists(st.one_of(st.none(), st.text(max_size=5)), min_size=1), st.integers(0, 3))
def test_rows_can_be_cut_apart_again(values: list[str | None], skip: int) -> None:
    column = pa.array(values, pa.string()).slice(min(skip, len(values) - 1))
    rows = text.surrounded(text.joined([column.cast(text.TEXT), column.cast(text.TEXT)], ",", "NULL"), "(", ")")
    content, at = text.buffer(rows)
    found = [bytes(content[at[n] : at[n + 1]]).decode() for n in range(len(rows))]
    assert found == [f"({'NULL' if v is None else v},{'NULL' if v is None else v})" for v in column.to_pylist()]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=4)), min_size=1), st.integers(0, 3))
def test_bytes_as_digits(values: list[bytes | None], skip: int) -> None:
    column = pa.array(values, pa.binary()).slice(min(skip, len(values) - 1))
    assert text.hexed(column).to_pylist() == [None if v is None else v.hex() for v in column.to_pylist()]


def test_an_array_of_boxes_is_read_as_an_array_of_texts() -> None:
    assert raw_text("box[]", "{{(1,1),(0,0)};{(2,2),(1,1)}}") == '{{"(1,1),(0,0)"},{"(2,2),(1,1)"}}'
    assert raw_text("text[]", "{{(1),(2)},{a;b,c}}") == "{{(1),(2)},{a;b,c}}"


def test_mysql_has_the_year_0_without_a_leap_day() -> None:
    first = -719_528  # 0000-01-01
    assert written([first, first + 365], pa.date32()) == ["'0000-01-01'", "'0000-12-31'"]
    assert written([first * 86_400_000_000 + 1], NAIVE) == ["'0000-01-01 00:00:00.000001'"]
    for day in (first + 59, first - 1):
        with pytest.raises(SinkError, match="years 0 to 9999"):
            written([day], pa.date32())
