"""Rows in several files of a table, and conditions on them: a reader that skips files by their statistics must find the
same rows as one that reads them all."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from dblog.core.schema import Column, TableSchema
from dblog.sinks.base import Batch
from tests.sinks.lakes import ID, NAME, Source, read
from tests.sinks.target import Row

UTC = datetime.UTC
LONG = "long text " * 20


def moment(*given: int) -> datetime.datetime:
    return datetime.datetime(*given)  # type: ignore[arg-type]


COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (
        pa.string(),
        ["", "a", "ab", LONG, LONG + "b", "\U0001f600", "\uffff", "z", None, "quote'd", 'a "b" \\', "\x01", "é"],
    ),
    "whole": (pa.int64(), [-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1, None, 5, 6, 7, 8, 9, 10]),
    "price": (
        pa.decimal128(20, 4),
        [Decimal("-9999999999999999.9999"), Decimal("-0.0001"), Decimal("0.0000"), Decimal("0.0001"), None]
        + [(Decimal(n) / 4).quantize(Decimal("0.0001")) for n in range(7)]
        + [Decimal("9999999999999999.9999")],
    ),
    "day": (
        pa.date32(),
        [
            datetime.date(1, 1, 1),
            datetime.date(999, 12, 31),
            datetime.date(1000, 1, 1),
            datetime.date(1582, 10, 4),
            datetime.date(1582, 10, 15),
            datetime.date(1969, 12, 31),
            datetime.date(1970, 1, 1),
            datetime.date(9999, 12, 31),
            None,
            *(datetime.date(2024, 2, 26 + n) for n in range(4)),
        ],
    ),
    "local": (
        pa.timestamp("us"),
        [
            moment(1, 1, 1),
            moment(1000, 1, 1),
            moment(1582, 10, 10, 1, 2, 3, 4),
            moment(1900, 1, 1, 0, 0, 0, 1),
            moment(1969, 12, 31, 23, 59, 59, 999999),
            moment(1970, 1, 1),
            moment(2024, 3, 31, 2, 30, 0, 123456),
            moment(2024, 3, 31, 2, 30, 0, 123999),
            moment(9999, 12, 31, 23, 59, 59, 999999),
            None,
            *(moment(2024, 1, 1, n) for n in range(3)),
        ],
    ),
    "ratio": (
        pa.float64(),
        [float("nan"), float("-inf"), -0.0, 0.0, 1e-300, float("inf"), None, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    ),
    "small": (pa.float32(), [float("nan"), -0.5, None, *(float(n) for n in range(10))]),
    "flag": (pa.bool_(), [True, False, None, True, True, False, False, None, True, False, True, False, True]),
    "raw": (pa.binary(), [b"", b"\0", b"\xff\xff", None, *(bytes([n]) for n in range(9))]),
    "names": (pa.list_(pa.string()), [[], ["a", None], None, ["b"], *([str(n)] for n in range(9))]),
    "numbers": (pa.list_(pa.int32()), [[], [1, None], None, [2], *([n] for n in range(9))]),
    "never": (pa.string(), [None] * 13),
}
"""Types, and thirteen values of each."""
COLUMNS["moment"] = (
    pa.timestamp("us", tz="UTC"),
    [value and value.replace(tzinfo=UTC) for value in COLUMNS["local"][1]],
)
SCHEMA = TableSchema(NAME, (ID, *(Column(name, str(kind), kind) for name, (kind, _) in COLUMNS.items())), ("id",))
COMPARED = ("id", "text", "whole", "price", "day", "local", "moment", "flag")
"""Columns whose values compare in the same way everywhere. For a NaN that is not so: engines of SQL take it for the
greatest value, and equal to itself."""


def batches(source: Source) -> Iterator[Batch]:
    """Thirteen rows, two in each file: the fifth and the sixth file have values between those of the others."""
    rows = [[values[n] for _, values in COLUMNS.values()] for n in range(13)]
    order = [0, 12, 1, 11, 2, 10, 3, 9, 4, 8, 5, 7, 6]
    for at in range(0, 13, 2):
        yield source(*(read(10 + at, n, *rows[n]) for n in order[at : at + 2]), schema=SCHEMA)


Condition = tuple[str, str, Any]
"""A column, an operator of SQL, a value."""
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    ">=": operator.ge,
}


def conditions(*more: str) -> list[Condition]:
    """Of the columns that compare everywhere, and of others."""
    found: list[Condition] = []
    for name in (*COMPARED, *more):
        values = [0, 6, 12] if name == "id" else COLUMNS[name][1]
        found += [(name, op, value) for value in values if value is not None for op in _OPERATORS]
    return found


def expected(rows: list[Row], condition: Condition) -> set[int]:
    """The ids of the rows for which a condition is true."""
    name, op, value = condition

    def ordered(value: Any) -> Any:
        return (value != value, 0 if value != value else value) if isinstance(value, float) else value

    return {row["id"] for row in rows if row[name] is not None and _OPERATORS[op](ordered(row[name]), ordered(value))}
