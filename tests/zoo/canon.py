"""One text for one value, whatever holds it: the source, a target of another family, or Arrow.

The type of a column is that in which it is delivered (Arrow's). `postgres_text` and
`mysql_text` are the SQL that shows a value; `canonical` makes the same text of what the servers show differently.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

Value = str | tuple[Any, ...] | None
_MOMENT = re.compile(r"(-?\d+)-(\d\d)-(\d\d)(?:[ T](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:\+00(?::00)?|Z)?)?( BC)?")
CYCLE_YEARS, CYCLE_DAYS = 400, 146_097
"""The calendar repeats itself."""


def canonical(text: str | None, kind: pa.DataType) -> Value:
    """The value that a server shows as `text`, if it is delivered as `kind`."""
    if text is None:
        return None
    if pa.types.is_list(kind):
        items = json.loads(text, parse_float=str, parse_int=str)
        return tuple(canonical(_item(item), kind.value_type) for item in items)
    if pa.types.is_boolean(kind):
        return {"t": "1", "f": "0", "true": "1", "false": "0"}.get(text, text)
    if pa.types.is_floating(kind):
        return _float(np.float32(text) if kind == pa.float32() else float(text))
    if pa.types.is_decimal(kind):
        return format(Decimal(text), "f")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _moment(text)
    return text


def _item(item: Any) -> str | None:
    return None if item is None else str(item).lower() if isinstance(item, bool) else str(item)


def _float(value: Any) -> str:
    return repr(float(value))


def _moment(text: str) -> str:
    if text.startswith("0000-00-00"):
        return "-infinity"
    found = _MOMENT.fullmatch(text)
    if found is None:
        return text
    year, month, day, clock, fraction, before = found.groups()
    number = 1 - int(year) if before else int(year)
    return _shown(number, int(month), int(day), clock and f"{clock}.{(fraction or '').ljust(6, '0')}")


def _shown(year: int, month: int, day: int, clock: str | None) -> str:
    return f"{year}-{month:02}-{day:02}" + (f" {clock}" if clock else "")


# -- servers ---------------------------------------------------------------------------------------------------------


def postgres_output(column: str) -> str:
    """SQL for the type's own output: `::text` strips blanks of char(n), and adds a netmask to inet. A composite of
    nulls is not null, though `is null` is true of it."""
    return f"case when num_nonnulls({column}) = 0 then null else pg_catalog.format('%s', {column}) end"


def postgres_text(column: str, kind: pa.DataType) -> str:
    """SQL for the text that `canonical` takes."""
    if pa.types.is_binary(kind):
        return f"encode({column}, 'hex')"
    if pa.types.is_list(kind):
        item = postgres_text(f"({column})[i]", kind.value_type)
        listed = f"select json_agg({item} order by i)::text from generate_subscripts({column}, 1) i"
        return f"case when {column} is null then null else coalesce(({listed}), '[]') end"
    return postgres_output(column)


def mysql_output(column: str) -> str:
    return f"cast({column} as char)"


def mysql_text(column: str, kind: pa.DataType) -> str:
    if pa.types.is_binary(kind):
        return f"lower(hex({column}))"
    if pa.types.is_floating(kind):  # as text, a float has six digits
        return f"concat({column} * 1e0)"
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):  # a BIT as text is bytes
        return f"cast({column} + 0 as char)"
    return mysql_output(column)


def delivered_geometry(digits: str) -> str:
    """A geometry as it is delivered: WKB, or EWKB if it has a reference system. The server stores that first."""
    system, order, kind, rest = digits[:8], digits[8:10], digits[10:18], digits[18:]
    if int(system, 16) == 0:
        return digits[8:]
    number = int.from_bytes(bytes.fromhex(kind), "little") | 0x20000000
    return order + number.to_bytes(4, "little").hex() + system + rest


# -- Arrow -----------------------------------------------------------------------------------------------------------


def values(column: pa.Array | pa.ChunkedArray) -> list[Value]:
    """The values of a column, each as `canonical` has it."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    column = column.dictionary.take(column.indices) if pa.types.is_dictionary(column.type) else column
    kind = column.type
    if pa.types.is_list(kind):
        items, ends = values(column.values), column.offsets.to_pylist()
        valid = column.is_valid().to_pylist()
        return [tuple(items[ends[i] : ends[i + 1]]) if valid[i] else None for i in range(len(column))]
    show: Callable[[Any], Value] = str
    if pa.types.is_boolean(kind):
        show = lambda v: str(int(v))  # noqa: E731
    elif pa.types.is_floating(kind):
        show = _float
    elif pa.types.is_decimal(kind):
        show = lambda v: format(v, "f")  # noqa: E731
    elif pa.types.is_date(kind):
        column, show = column.cast(pa.int32()), lambda v: _of_days(v, "", np.iinfo(np.int32))
    elif pa.types.is_timestamp(kind):
        column, show = column.cast(pa.int64()), _of_micros
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        show = bytes.hex
    return [None if value is None else show(value) for value in column.to_pylist()]


def _of_micros(micros: int) -> str:
    days, left = divmod(micros, 86_400_000_000)
    seconds, fraction = divmod(left, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
    bounds = np.iinfo(np.int64)
    if micros in (bounds.min, bounds.max):
        return "infinity" if micros > 0 else "-infinity"
    return _of_days(days, clock, bounds)


def _of_days(days: int, clock: str, bounds: Any) -> str:
    if not clock and days in (bounds.min, bounds.max):
        return "infinity" if days > 0 else "-infinity"
    cycles = (days + 719_162) // CYCLE_DAYS
    day = datetime.date.fromordinal(days - cycles * CYCLE_DAYS + 719_163)
    return _shown(day.year + cycles * CYCLE_YEARS, day.month, day.day, clock)
