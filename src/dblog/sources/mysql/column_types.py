"""A column's type in the log, in the form that the kernels need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dblog.core.promised_keys import PromisedKeys
from dblog.core.schema import Column
from dblog.core.value_rules import ValueRules
from dblog.errors import DecodeError
from dblog.sources.columns import Cells
from dblog.sources.unfit import Unfit


class Code(IntEnum):
    """Types by their number in a table map. ENUM and SET have the number of STRING, and their own as a parameter."""

    tinyint = 1
    smallint = 2
    int = 3
    float = 4
    double = 5
    bigint = 8
    mediumint = 9
    date = 10
    year = 13
    varchar = 15
    bit = 16
    timestamp = 17
    datetime = 18
    time = 19
    vector = 242
    json = 245
    decimal = 246
    enum = 247
    set = 248
    blob = 252
    string = 254
    geometry = 255


INTEGERS = {Code.tinyint: 1, Code.smallint: 2, Code.mediumint: 3, Code.int: 4, Code.bigint: 8}
"""Integer types and their widths in bytes."""
SIGNED = {*INTEGERS, Code.float, Code.double, Code.decimal}
BINARY = 63
"""The collation of binary columns."""


@dataclass(frozen=True)
class TypeOptions:
    """How types are delivered whose values do not always fit an Arrow type."""

    decimals: Literal["decimal", "string"] = "decimal"
    dates: Literal["date", "string"] = "date"
    values: ValueRules = field(default_factory=ValueRules)
    """The rules for single values that do not fit."""
    keys: PromisedKeys = field(default_factory=PromisedKeys)
    """The keys that users promise for tables without one."""


@dataclass(frozen=True)
class MyType:
    """A column's type in a table map."""

    code: int
    size: int = 0
    """By type: bytes (CHAR, VARCHAR), bytes of the length prefix (BLOB, JSON, GEOMETRY), bytes (ENUM, SET), bits (BIT),
    digits (DECIMAL), digits of the fraction of a second (TIME, DATETIME, TIMESTAMP)."""
    scale: int = 0
    unsigned: bool = False
    collation: int = BINARY
    labels: tuple[str, ...] = ()
    """The labels of an ENUM or SET."""
    geometry: int = 0
    dimensions: int = 0
    compressed: bool = False
    """Whether it is a MariaDB column whose values are each compressed."""
    special: str | None = None
    """`uuid`, `inet4` or `inet6`, from the catalog. The log shows these types as BINARY(n)."""


@dataclass(frozen=True)
class MyColumn(Column):
    """A column and how its values are read."""

    codec: str
    """A key of CODECS."""
    kind: MyType


Kernel = Callable[[Cells, MyColumn], pa.Array]


@dataclass(frozen=True)
class Codec:
    """One type: how its values are decoded from the log, and from the rows of a prepared statement."""

    name: str
    from_log: Kernel
    from_row: Kernel
    row_width: int = 0
    """Bytes of a value in a row. `LENGTH`, or `SHORT` for dates, if the value has a length before it."""


LENGTH, SHORT = 0, -1

_PARTIAL_GROUP = (0, 1, 1, 2, 2, 3, 3, 4, 4)


def decimal_groups(digits: int) -> tuple[int, int]:
    """The number of groups of nine digits (four bytes each), and the number of remaining digits."""
    return divmod(digits, 9)


def group_bytes(digits: int) -> int:
    """The size of a group of fewer than nine digits, in bytes."""
    return _PARTIAL_GROUP[digits]


def log_width(kind: MyType) -> int:
    """Bytes of a value in the log. If negative: bytes of the length before the value."""
    match kind.code:
        case Code.date:
            return 3
        case Code.year:
            return 1
        case Code.float:
            return 4
        case Code.double:
            return 8
        case Code.timestamp:
            return 4 + (kind.size + 1) // 2
        case Code.datetime:
            return 5 + (kind.size + 1) // 2
        case Code.time:
            return 3 + (kind.size + 1) // 2
        case Code.decimal:
            parts = [decimal_groups(kind.size - kind.scale), decimal_groups(kind.scale)]
            return sum(4 * whole + group_bytes(left) for whole, left in parts)
        case Code.bit:
            return (kind.size + 7) // 8
        case Code.enum | Code.set:
            return kind.size
        case Code.string | Code.varchar:
            return -1 if kind.size < 256 else -2
        case Code.blob | Code.json | Code.geometry | Code.vector:
            return -kind.size
        case code if code in INTEGERS:
            return INTEGERS[Code(code)]
    raise DecodeError(f"a column in the log has the unknown type {kind.code}")


def wrong_value(column: MyColumn, value: str, hint: str | None = None) -> DecodeError:
    shown = value if len(value) <= 100 else value[:100] + "…"
    return DecodeError(
        f"column {column.name!r} ({column.type}) has the value {shown!r}, which does not fit {column.arrow}", hint=hint
    )


def unfit(column: MyColumn, wrong: Any, text: Callable[[int], str]) -> None:
    """Raise Unfit if some rows are `wrong`: they have values that the server may store and that do not fit the
    column's Arrow type. `text` gives the server's text of a row's value."""
    if wrong.any():
        message = f"column {column.name!r} ({column.type}) has values that do not fit {column.arrow}"
        raise Unfit(message, wrong, text)


def refuse(column: MyColumn, wrong: Any, show: Callable[[int], str], hint: str | None = None) -> None:
    """Raise DecodeError for the first row that is `wrong`: no server stores such bytes. `show` gives its value."""
    if wrong.any():
        raise wrong_value(column, show(int(np.argmax(wrong))), hint)
