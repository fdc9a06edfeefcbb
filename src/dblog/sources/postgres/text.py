"""Values from their text form, which the log has: one kernel per type, for a whole column at once.

Ordinary values are decoded as arrays. Only rare ones (years BC or after 9999) are decoded one by one.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from dblog.errors import DecodeError
from dblog.sources import columns
from dblog.sources.columns import Cells
from dblog.sources.postgres.column_types import PgColumn, refuse


def string(cells: Cells, column: PgColumn) -> pa.Array:
    return columns.strings(cells)


def bool_text(cells: Cells, column: PgColumn) -> pa.Array:
    return columns.booleans(cells.raw.data[cells.start] == ord("t"), cells.valid)


def int_text(cells: Cells, column: PgColumn) -> pa.Array:
    values, wrong = columns.integers(cells)
    if wrong.any():
        shown = cells.text(int(np.argmax(wrong)))
        raise DecodeError(f"column {column.name!r} ({column.type}) has {shown!r}, which is no {column.arrow}")
    return columns.fixed(column.arrow, values.astype(column.arrow.to_pandas_dtype(), copy=False), cells.valid)


def cast_text(cells: Cells, column: PgColumn) -> pa.Array:
    return columns.strings(cells).cast(column.arrow)


def bytea_text(cells: Cells, column: PgColumn) -> pa.Array:
    values, whole = columns.unhex(cells, prefix=2)
    if not whole:
        raise DecodeError(f"column {column.name!r} is not bytea in hex form", hint="set bytea_output = hex")
    return values


def decimal_text(cells: Cells, column: PgColumn) -> pa.Array:
    first = cells.raw.data[cells.start]
    valid = cells.length >= 0
    letters = (first == ord("N")) | (first == ord("I"))
    letters |= (first == ord("-")) & (cells.raw.data[cells.start + 1] == ord("I"))
    refuse(cells, column, valid & letters)  # NaN, Infinity, -Infinity
    precision, scale = column.arrow.precision, column.arrow.scale
    if precision > 18:
        return cast_text(cells, column)
    # numeric(p, s) always has s digits after the point, so both parts are found from the end.
    end = cells.start + cells.length
    minus = (first == ord("-")) & valid
    point = 1 if scale else 0
    value, wrong = columns.unsigned(cells.raw, end - scale - point, cells.length - minus - scale - point)
    if scale:
        fraction, bad = columns.unsigned(cells.raw, end, np.where(valid, scale, 0))
        value = value * np.uint64(10**scale) + fraction
        wrong |= bad | (valid & (cells.raw.data[end - scale - 1] != ord(".")))
    if wrong.any():
        return cast_text(cells, column)
    words = np.empty((len(cells), 2), np.int64)
    signed = value.view(np.int64)
    np.negative(signed, out=signed, where=minus)
    words[:, 0] = signed
    np.right_shift(signed, 63, out=words[:, 1])
    return columns.fixed(column.arrow, words, cells.valid)


_DATE = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?")


def temporal_text(cells: Cells, column: PgColumn) -> pa.Array:
    """Dates and timestamps. Arrow reads the years 1 to 9999; infinities and other years are read one by one."""
    end = cells.start + cells.length - 1
    usual = (cells.raw.data[cells.start + 4] == ord("-")) & (cells.raw.data[end] != ord("C"))
    usual |= cells.length < 0
    if usual.all():
        return cast_text(cells, column)
    storage: Any = np.int32 if column.arrow == pa.date32() else np.int64
    values = np.zeros(len(cells), storage)
    ordinary = cast_text(cells.take(usual), column).cast(pa.from_numpy_dtype(storage)).fill_null(0)
    values[usual] = ordinary.to_numpy(zero_copy_only=False)
    wrong = np.zeros(len(cells), np.bool_)
    for row in np.flatnonzero(~usual).tolist():
        found = _temporal(cells.text(row), column, np.iinfo(storage))
        wrong[row], values[row] = found is None, found or 0
    refuse(cells, column, wrong, BEYOND)
    return columns.fixed(column.arrow, values, cells.valid)


BEYOND = "they are beyond 64 bits of microseconds since 1970"


def _temporal(text: str, column: PgColumn, bounds: Any) -> int | None:
    """The number of a date or timestamp; None if it is beyond the bounds."""
    if text in ("infinity", "-infinity"):
        return int(bounds.min if text[0] == "-" else bounds.max)
    match = _DATE.fullmatch(text)
    if not match:
        raise DecodeError(f"column {column.name!r} ({column.type}) has {text!r}", hint="set datestyle = ISO")
    year, month, day = (int(part) for part in match.group(1, 2, 3))
    # Days since 1970 of a civil date, with years that begin in March; 1 BC is year 0.
    year = (1 - year if match[8] else year) - (month <= 2)
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day - 719469
    if column.arrow == pa.date32():
        value = days
    else:
        hour, minute, second = (int(part) for part in match.group(4, 5, 6))
        micros = int((match[7] or "").ljust(6, "0"))
        value = ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + micros
    return value if bounds.min < value < bounds.max else None
