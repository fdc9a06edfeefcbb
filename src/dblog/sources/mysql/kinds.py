"""A column's type as the log has it, as SQL spells it, and as the kernels that read its values need it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dblog.core.schema import Column
from dblog.errors import DecodeError
from dblog.sources.columns import Cells
from dblog.sources.mysql.flavor import Flavor


class Code(IntEnum):
    """Types by their number in a table map. ENUM and SET are there as STRING, with their own number beside it."""

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
"""Widths in bytes."""
SIGNED = {*INTEGERS, Code.float, Code.double, Code.decimal, Code.year}
"""Those for which a table map has a bit that says whether they are unsigned."""
BINARY = 63
"""The collation of bytes that are no text."""


@dataclass(frozen=True)
class TypeOptions:
    """How the types that do not always fit Arrow are delivered."""

    decimals: Literal["decimal", "string"] = "decimal"
    dates: Literal["date", "string"] = "date"


@dataclass(frozen=True)
class MyType:
    """What a table map says of a column's type."""

    code: int
    size: int = 0
    """By type: bytes (CHAR, VARCHAR), bytes of the length prefix (BLOB, JSON, GEOMETRY), bytes (ENUM, SET), bits (BIT),
    digits (DECIMAL), digits of the fraction of a second (TIME, DATETIME, TIMESTAMP)."""
    scale: int = 0
    unsigned: bool = False
    collation: int = BINARY
    labels: tuple[bytes, ...] = ()
    """Of an ENUM or SET, in the column's character set."""
    geometry: int = 0
    dimensions: int = 0
    compressed: bool = False
    """A MariaDB column of which each value is compressed by itself."""
    special: str | None = None
    """`uuid`, `inet4` or `inet6`: the log shows it as BINARY(n), the catalog told us."""


@dataclass(frozen=True)
class MyColumn(Column):
    """A column and how its values are read."""

    codec: str
    """A key of CODECS."""
    kind: MyType
    labels: tuple[str, ...] = ()

    @property
    def log_width(self) -> int:
        """Bytes of a value in the log; when negative, of the length in front of it."""
        return log_width(self.kind)


Kernel = Callable[[Cells, MyColumn], pa.Array]


@dataclass(frozen=True)
class Codec:
    """One type: how its values are read from the log and from the rows of a prepared statement."""

    name: str
    from_log: Kernel
    from_row: Kernel
    row_width: int = 0
    """Bytes of a value in a row; `LENGTH`, or `SHORT` for the structs of dates, when a length is in front of it."""


LENGTH, SHORT = 0, -1

_PARTIAL_GROUP = (0, 1, 1, 2, 2, 3, 3, 4, 4)


def decimal_groups(digits: int) -> tuple[int, int]:
    """How many whole groups of nine digits, in four bytes each, and how many digits are left over."""
    return divmod(digits, 9)


def group_bytes(digits: int) -> int:
    """Bytes of a group of fewer than nine digits."""
    return _PARTIAL_GROUP[digits]


def log_width(kind: MyType) -> int:
    """Bytes of a value in the log; when negative, of the length in front of it."""
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
    raise DecodeError(f"type {kind.code} in the log")


_GEOMETRIES = ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon")
_BLOBS = ("tiny", "", "medium", "long")


def spelled(kind: MyType, flavor: Flavor, bytes_per_character: int, labels: tuple[str, ...]) -> str:
    """The type in SQL: `information_schema.columns.column_type` as far as the log can tell.

    It cannot tell the display width of numbers (`int(11)` is `int`, so BOOLEAN is `tinyint`, `float(7,4)` is `float`
    and `year(4)` is `year`), ZEROFILL, and on MariaDB JSON (`longtext`).
    """
    if kind.special:
        return kind.special
    name = Code(kind.code).name
    binary = kind.collation == BINARY
    match kind.code:
        case Code.decimal:
            name = f"decimal({kind.size},{kind.scale})"
        case Code.bit:
            name = f"bit({kind.size})"
        case Code.timestamp | Code.datetime | Code.time if kind.size:
            name = f"{name}({kind.size})"
        case Code.string:
            name = f"binary({kind.size})" if binary else f"char({kind.size // bytes_per_character})"
        case Code.varchar:
            size = kind.size - kind.compressed  # which adds a byte
            name = f"varbinary({size})" if binary else f"varchar({size // bytes_per_character})"
        case Code.blob:
            name = _BLOBS[kind.size - 1] + ("blob" if binary else "text")
        case Code.enum | Code.set:
            quoted = ",".join("'" + label.replace("'", "''") + "'" for label in labels)
            name = f"{name}({quoted})"
        case Code.geometry:
            name = (*_GEOMETRIES, flavor.collection)[kind.geometry]
        case Code.vector:
            name = f"vector({kind.dimensions})"
    if kind.unsigned and kind.code != Code.year:
        name += " unsigned"
    return name + " /*M!100301 COMPRESSED*/" if kind.compressed else name


def wrong_value(column: MyColumn, value: str, hint: str | None = None) -> DecodeError:
    shown = value if len(value) <= 100 else value[:100] + "…"
    return DecodeError(
        f"column {column.name!r} ({column.type}) holds {shown!r}, which {column.arrow} cannot", hint=hint
    )


def refuse(column: MyColumn, wrong: Any, show: Callable[[int], str], hint: str | None = None) -> None:
    """Raise DecodeError for the first row that is `wrong`; `show` gives its value."""
    if wrong.any():
        raise wrong_value(column, show(int(np.argmax(wrong))), hint)
