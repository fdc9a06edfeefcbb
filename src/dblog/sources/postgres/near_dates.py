"""Dates and timestamps for a target that stores only the years 1 to 9999: others are values that do not fit.

The rule of the column (`core.value_rules`) decides about them, as about every value that does not fit. `-infinity`
fits: such a target has the zero date for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dblog.sources.columns import Cells
from dblog.sources.postgres.column_types import Kernel, PgColumn, refuse

WHY = "the target stores only the years 1 to 9999"
DAY = 86_400_000_000
"""The microseconds of a day."""
FIRST, END = (int(np.datetime64(day, "D").astype(np.int64)) for day in ("0001-01-01", "10000-01-01"))
"""The first day of the year 1 and of the year 10000, as days since 1970."""


def near(kernel: Kernel, *, binary: bool) -> Kernel:
    """The kernel of a date or timestamp, which raises Unfit for other years and for infinity."""

    def decode(cells: Cells, column: PgColumn) -> pa.Array:
        found = kernel(cells, column)
        storage: Any = np.int32 if pa.types.is_date(column.arrow) else np.int64
        values = found.cast(pa.from_numpy_dtype(storage)).fill_null(0).to_numpy(zero_copy_only=False)
        days = values.astype(np.int64) if storage is np.int32 else values // DAY
        far = ((days < FIRST) | (days >= END)) & (values != np.iinfo(storage).min)
        text = (lambda row: shown(int(values[row]), column)) if binary else None
        refuse(cells, column, far, WHY, text)
        return found

    return decode


def shown(value: int, column: PgColumn) -> str:
    """A date or timestamp as PostgreSQL writes it in ISO style and UTC."""
    day = pa.types.is_date(column.arrow)
    if value == np.iinfo(np.int32 if day else np.int64).max:
        return "infinity"
    days, micros = (value, 0) if day else divmod(value, DAY)
    year, month, number = str(np.datetime64(days, "D")).rsplit("-", 2)
    before = int(year) <= 0
    text = f"{1 - int(year) if before else int(year):04}-{month}-{number}"
    if not day:
        seconds, fraction = divmod(micros, 1_000_000)
        text += f" {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        text += f".{fraction:06}".rstrip("0") if fraction else ""
        text += "+00" if column.arrow.tz else ""
    return f"{text} BC" if before else text
