"""Arrow columns as text for a server, made column by column and never row by row.

PostgreSQL reads lines of COPY, MySQL rows of an INSERT. Both consist of the escaped texts of all columns, joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.errors import SinkError

TEXT = pa.large_string()
"""Text with 64-bit offsets: the lines of a batch may take more than 2 GiB."""

EXCLUDE = "change the value in the source, or leave the column out with exclude"

_DAY = 86_400_000_000
_YEAR_1, _YEAR_10000 = -719_162, 2_932_897
"""The first days of the years 1 and 10000, in days since 1970. Arrow writes dates between them in the usual form."""

Odd = Callable[[int, int, bool], str | None]
"""Takes a date or time outside of the years 1 to 9999: its days since 1970, the microseconds of its day, and whether it
is an infinity (the least or greatest value of its type). Returns its text; None if the server cannot store it."""


class Refused(SinkError):
    """A value that the server cannot store: its column, and the index of its row."""

    def __init__(self, column: str, row: int, why: str, *, hint: str = EXCLUDE) -> None:
        super().__init__(f"column {column!r}: {why}", hint=hint)
        self.column, self.row, self.why = column, row, why


def joined(columns: Sequence[pa.Array], between: str, null: str) -> pa.Array:
    """Rows of text from columns of text."""
    rows = pc.binary_join_element_wise(
        *columns, pa.scalar(between, TEXT), null_handling="replace", null_replacement=null
    )
    return rows.cast(TEXT)


def surrounded(values: pa.Array, before: str, after: str) -> pa.Array:
    """Every value with a text before and after it; null stays null."""
    ends = (pa.scalar(before, TEXT), pa.scalar(after, TEXT), pa.scalar("", TEXT))
    return pc.binary_join_element_wise(ends[0], values.cast(TEXT), *ends[1:], null_handling="emit_null")


def escaped(values: pa.Array, escapes: dict[str, str]) -> pa.Array:
    """Text with some characters replaced by their escapes, the backslash first."""
    for character, escape in escapes.items():
        values = pc.replace_substring(values, character, escape)
    return values


def buffer(rows: pa.Array) -> tuple[memoryview, np.ndarray[Any, Any]]:
    """The bytes of all rows in one buffer, and the offset of each row; the last offset is the end."""
    _, offsets, data = rows.buffers()
    at = np.frombuffer(offsets, np.int64)[rows.offset : rows.offset + len(rows) + 1]
    return memoryview(data if data is not None else b"")[at[0] : at[-1]], at - at[0]


def hexed(values: pa.Array) -> pa.Array:
    """Bytes as hexadecimal digits."""
    values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    at = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(data if data is not None else b"", np.uint8)[at[0] : at[-1]]
    digits = _DIGITS[content].tobytes()
    valid = None if not values.null_count else pc.is_valid(values).buffers()[1]
    return pa.LargeStringArray.from_buffers(len(values), pa.py_buffer((at - at[0]) * 2), pa.py_buffer(digits), valid)


_DIGITS = np.frombuffer("".join(f"{n:02x}" for n in range(256)).encode(), np.uint16)


def temporal(name: str, values: pa.Array, odd: Odd) -> pa.Array:
    """Dates and times in UTC as text. Only values outside of the years 1 to 9999 are converted one by one."""
    day = pa.types.is_date(values.type)
    storage = values.cast(pa.int32() if day else pa.int64())
    number = storage.fill_null(0).to_numpy().astype(np.int64)
    days = number if day else number // _DAY
    far = (days < _YEAR_1) | (days >= _YEAR_10000)
    plain = pa.array(np.where(far, 0, number), storage.type, mask=np.asarray(pc.is_null(values)) | far)
    texts = plain.cast(values.type if day else pa.timestamp("us")).cast(TEXT)
    if not far.any():
        return texts
    bounds = np.iinfo(np.int32 if day else np.int64)
    found = []
    for row in np.flatnonzero(far).tolist():
        micros, infinite = 0 if day else int(number[row] % _DAY), number[row] in (bounds.min, bounds.max)
        found.append(odd(int(days[row]), micros, infinite))
        if found[-1] is None:
            raise Refused(name, row, "the server stores only the years 0 to 9999")
    return pc.replace_with_mask(texts, pa.array(far), pa.array(found, TEXT))


def civil(days: int) -> tuple[int, int, int]:
    """The year (0 is 1 BC), month and day of a number of days since 1970."""
    days += 719_468
    era, day_of_era = divmod(days, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year_of_era + era * 400 + (month <= 2), month, day


def clock(micros: int) -> str:
    """The time of day, from its microseconds."""
    seconds, fraction = divmod(micros, 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"


def refuse_nul(name: str, values: pa.Array) -> None:
    """Raise Refused for a text with the character 0, which PostgreSQL cannot store."""
    refuse(name, pc.match_substring(values, "\0"), "the server cannot store the character 0")


def refuse(name: str, wrong: pa.BooleanArray, why: str) -> None:
    """Raise Refused for the first wrong value, if any."""
    if pc.any(wrong).as_py():
        raise Refused(name, pc.index(wrong, True).as_py(), why)
