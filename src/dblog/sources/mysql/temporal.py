"""Dates and times, from the log and from a dump's rows.

MySQL can store dates that do not exist. The zero date 0000-00-00 becomes the least number of the Arrow type: it differs
from every real date and sorts first, as in MySQL. Other such dates (2024-00-00, 2024-02-31) do not fit: the column's
rule decides (`sources.unfit`).

TIME is a duration of up to 838 hours with a sign. Spark has no type for it, so it is delivered as MySQL's text.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog.core.arrays import Ints, Mask
from dblog.sources import columns
from dblog.sources.columns import Cells, Raw
from dblog.sources.mysql.column_types import MyColumn, refuse, unfit


class _Parts:
    """A column of dates and times, as arrays of years, months, days and so on."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        zeros = np.zeros(len(cells), np.int64)
        self.year, self.month, self.day, self.hour, self.minute, self.second, self.micro = (zeros,) * 7
        self.minus: Mask = np.zeros(len(cells), np.bool_)

    def _unfit(self, column: MyColumn, wrong: Mask, *, time: bool) -> None:
        """Raise Unfit if dates are wrong."""
        if wrong.any():
            texts = self.texts(column, time=time)
            unfit(column, wrong, lambda row: str(texts[row]))

    def _days(self, column: MyColumn, *, time: bool) -> tuple[Ints, Mask]:
        """Days since 1970, and which are the zero date."""
        year, month, day = self.year, self.month, self.day
        zero = (year | month | day) == 0
        months, first = year * 12 + month - 1, _first_days()
        known = (month >= 1) & (month <= 12) & (months >= 0) & (months < len(first) - 1)
        months = np.where(known, months, 0)
        days = first[months] + (day - 1)
        fits = known & (day >= 1) & (days < first[months + 1])
        self._unfit(column, ~fits & ~zero & (self.cells.length >= 0), time=time)
        return days, zero

    def dates(self, column: MyColumn) -> pa.Array:
        if column.arrow == pa.string():
            return self.texts(column, time=False)
        days, zero = self._days(column, time=False)
        days[zero] = np.iinfo(np.int32).min
        return columns.fixed(column.arrow, days.astype(np.int32), self.cells.valid)

    def _seconds(self) -> Ints:
        return (self.hour * 60 + self.minute) * 60 + self.second

    def timestamps(self, column: MyColumn) -> pa.Array:
        if column.arrow == pa.string():
            return self.texts(column)
        days, zero = self._days(column, time=True)
        time = self._seconds() * 1_000_000 + self.micro
        self._unfit(column, zero & (time != 0) & (self.cells.length >= 0), time=True)
        micros = days * 86_400_000_000 + time
        micros[zero] = np.iinfo(np.int64).min
        return columns.fixed(column.arrow, micros, self.cells.valid)

    def texts(self, column: MyColumn, *, date: bool = True, time: bool = True) -> pa.Array:
        """The values as MySQL prints them. Hours have at least two digits."""
        fields: list[tuple[Ints, int, str]] = []
        if date:
            fields += [(self.year, 4, "-"), (self.month, 2, "-"), (self.day, 2, " " if time else "")]
        if time:
            fields += [(self.hour, 2 if date else 3, ":"), (self.minute, 2, ":"), (self.second, 2, "")]
            if column.kind.size:
                shown = self.micro // 10 ** (6 - column.kind.size)
                fields[-1] = (self.second, 2, ".")
                fields.append((shown, column.kind.size, ""))
        width = 1 + sum(digits + len(after) for _, digits, after in fields)
        text = np.empty((len(self.cells), width), np.uint8)
        at = 1
        for values, digits, after in fields:
            for digit in range(digits):
                text[:, at + digit] = values // 10 ** (digits - 1 - digit) % 10 + ord("0")
            at += digits
            if after:
                text[:, at] = ord(after)
                at += 1
        start = Raw.origin + np.arange(len(self.cells)) * width + 1
        if not date:
            start += self.hour < 100
            text.reshape(-1)[start[self.minus] - Raw.origin - 1] = ord("-")
            start -= self.minus
        length = Raw.origin + (np.arange(len(self.cells)) + 1) * width - start
        return columns.strings(Cells(Raw.pad(text.reshape(-1)), start, np.where(self.cells.length < 0, -1, length)))


@cache
def _first_days() -> Ints:
    """The first day of every month of the years 0 to 9999, and of the month after, in days since 1970."""
    months = np.datetime64("0000-01") + np.arange(10_000 * 12 + 1)
    return months.astype("M8[D]").astype(np.int64)


def _big_endian(cells: Cells, offset: int, width: int) -> Ints:
    """`width` (at most 7) bytes at `offset` of each value, as a big-endian number."""
    if not width:
        return np.zeros(len(cells), np.int64)
    return (cells.raw.be64(cells.start + offset) >> np.uint64(8 * (8 - width))).view(np.int64)


def _fraction(cells: Cells, column: MyColumn, offset: int) -> Ints:
    """The fraction of a second in microseconds. One, two or three bytes have hundredths, ten-thousandths or
    millionths."""
    width = (column.kind.size + 1) // 2
    unit: int = 100 ** (3 - width)
    return _big_endian(cells, offset, width) * unit


def date_log(cells: Cells, column: MyColumn) -> pa.Array:
    parts = _Parts(cells)
    packed = (cells.raw.le32(cells.start) & np.uint32(0xFFFFFF)).astype(np.int64)
    parts.year, parts.month, parts.day = packed >> 9, packed >> 5 & 15, packed & 31
    return parts.dates(column)


def datetime_log(cells: Cells, column: MyColumn) -> pa.Array:
    parts = _Parts(cells)
    packed = _big_endian(cells, 0, 5) - (1 << 39)
    refuse(column, (packed < 0) & (cells.length >= 0), lambda row: "a negative date")
    months = packed >> 22
    parts.year, parts.month, parts.day = months // 13, months % 13, packed >> 17 & 31
    parts.hour, parts.minute, parts.second = packed >> 12 & 31, packed >> 6 & 63, packed & 63
    parts.micro = _fraction(cells, column, 5)
    return parts.timestamps(column)


def timestamp_log(cells: Cells, column: MyColumn) -> pa.Array:
    """Seconds since 1970; 0 is the zero date."""
    micros = cells.raw.be32(cells.start).astype(np.int64) * 1_000_000 + _fraction(cells, column, 4)
    if column.arrow != pa.string():
        micros[micros == 0] = np.iinfo(np.int64).min
        return columns.fixed(column.arrow, micros, cells.valid)
    parts = _Parts(cells)
    moment = micros.view("datetime64[us]")
    day, month = moment.astype("datetime64[D]"), moment.astype("datetime64[M]")
    real = micros != 0
    parts.year = (month.astype(np.int64) // 12 + 1970) * real
    parts.month = (month.astype(np.int64) % 12 + 1) * real
    parts.day = ((day - month.astype("datetime64[D]")).astype(np.int64) + 1) * real
    seconds = micros // 1_000_000 % 86400
    parts.hour, parts.minute, parts.second = seconds // 3600, seconds // 60 % 60, seconds % 60
    parts.micro = micros % 1_000_000
    return parts.texts(column)


def time_log(cells: Cells, column: MyColumn) -> pa.Array:
    """Hours, minutes and seconds in 24 bits, then the fraction. Together they are one number with an offset: values
    below the middle are negative."""
    width = (column.kind.size + 1) // 2
    packed = _big_endian(cells, 0, 3 + width) - (1 << 23 + 8 * width)
    parts = _Parts(cells)
    parts.minus = (packed < 0) & (cells.length >= 0)
    size = np.abs(packed)
    whole = size >> 8 * width
    parts.hour, parts.minute, parts.second = whole >> 12, whole >> 6 & 63, whole & 63
    parts.micro = (size & (1 << 8 * width) - 1) * 100 ** (3 - width)
    return parts.texts(column, date=False)


def year_log(cells: Cells, column: MyColumn) -> pa.Array:
    value = cells.raw.data[cells.start].astype(np.int16)
    return columns.fixed(column.arrow, np.where(value, value + 1900, 0).astype(np.int16), cells.valid)


def _fields(cells: Cells, column: MyColumn, *sizes: int) -> Any:
    """A function that reads a little-endian number at an offset of each struct; zero if the struct is too short."""
    wrong = ~np.isin(cells.length, sizes) & (cells.length >= 0)
    refuse(column, wrong, lambda row: f"{cells.length[row]} bytes")

    def field(offset: int, width: int) -> npt.NDArray[np.int64]:
        value = (cells.raw.le64(cells.start + offset) & np.uint64((1 << 8 * width) - 1)).view(np.int64)
        return np.where(cells.length >= offset + width, value, 0)

    return field


_FITS = np.isin(np.arange(13), (0, 4, 7, 11))
"""Which lengths a date and time can have."""


def _datetime_row(cells: Cells, column: MyColumn) -> _Parts:
    """A date, hours, minutes and seconds in seven bytes, then microseconds. Zeros at the end are left out."""
    refuse(column, ~np.take(_FITS, cells.length, mode="clip"), lambda row: f"{cells.length[row]} bytes")
    parts = _Parts(cells)
    word = (cells.raw.le64(cells.start) & columns.KEEP_FIRST[np.clip(cells.length, 0, 7)]).view(np.int64)
    parts.year, parts.month, parts.day = word & 0xFFFF, word >> 16 & 0xFF, word >> 24 & 0xFF
    parts.hour, parts.minute, parts.second = word >> 32 & 0xFF, word >> 40 & 0xFF, word >> 48
    exact = cells.length == 11
    if exact.any():
        parts.micro = cells.raw.le32(cells.start + 7).astype(np.int64) * exact
    return parts


def date_row(cells: Cells, column: MyColumn) -> pa.Array:
    return _datetime_row(cells, column).dates(column)


def timestamp_row(cells: Cells, column: MyColumn) -> pa.Array:
    return _datetime_row(cells, column).timestamps(column)


def time_row(cells: Cells, column: MyColumn) -> pa.Array:
    field = _fields(cells, column, 0, 8, 12)
    parts = _Parts(cells)
    parts.minus = (field(0, 1) != 0) & (cells.length > 0)
    parts.hour = field(1, 4) * 24 + field(5, 1)
    parts.minute, parts.second, parts.micro = field(6, 1), field(7, 1), field(8, 4)
    return parts.texts(column, date=False)
