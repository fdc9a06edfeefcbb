"""Values that the Arrow type of their column cannot hold, in columns that are decoded as a whole.

A kernel that meets such values raises `Unfit`, with the rows that have them. Only then this module looks at single
rows: a column without such values costs nothing more. The rule of the column (`core.value_rules`) decides what is
delivered. Any other DecodeError means that the bytes were misunderstood, and is never turned into a null.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Mask
from dblog.core.event import RAW
from dblog.core.raw_values import FIELD, OLD, raw_column
from dblog.core.schema import STOP, Column, TableSchema
from dblog.errors import DecodeError, ValueRefused
from dblog.sources.columns import Cells

SHOWN = 100
"""How many characters of a value an error shows."""

_Column = TypeVar("_Column", bound=Column)


class Unfit(DecodeError):
    """Values of a column that its Arrow type cannot hold: their rows, and the database's text of each."""

    def __init__(
        self,
        message: str,
        rows: Mask | None = None,
        text: Callable[[int], str] | None = None,
        *,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.rows, self.text = rows, text


@dataclass
class Decoded:
    """The decoded columns of some rows, and the raw values of their cells."""

    rows: int
    arrays: list[pa.Array] = field(default_factory=list)
    raw: dict[int, dict[str, str]] = field(default_factory=dict)

    def batch(self, columns: Sequence[pa.Array], schema: pa.Schema, before: Decoded | None = None) -> pa.RecordBatch:
        """A batch of these columns, with `_raw_values` at its end if there are any: those of this and of the old
        rows."""
        raw = self.raw
        if before is not None and before.raw:
            old = {row: {OLD + name: text for name, text in texts.items()} for row, texts in before.raw.items()}
            raw = {row: {**raw.get(row, {}), **old.get(row, {})} for row in sorted({*raw, *old})}
        if raw:
            columns, schema = [*columns, raw_column(self.rows, raw)], schema.append(FIELD)
        return pa.RecordBatch.from_arrays(list(columns), schema=schema)


def decode_columns(
    schema: TableSchema,
    cells: Sequence[Cells],
    kernel_of: Callable[[Any], Callable[[Cells, Any], pa.Array]],
    positions: Any = None,
) -> Decoded:
    """The table's columns from their cells, each by its kernel. `positions` are those of the rows in the log. Raises
    DecodeError, ValueRefused."""
    found = Decoded(len(cells[0]) if cells else 0)
    for column, values in zip(schema.columns, cells, strict=True):
        kernel = kernel_of(column)
        try:
            found.arrays.append(kernel(values, column))
        except (Unfit, pa.ArrowInvalid) as error:
            array, texts = _without(values, column, kernel, error, schema)
            if column.rule == STOP or column.name in schema.key:
                row = min(texts)
                key = _key(schema, cells, kernel_of, row)
                at = None if positions is None else int(positions[row])
                raise _refused(schema, column, texts[row], key, at) from None
            found.arrays.append(array)
            for row, text in texts.items():
                found.raw.setdefault(row, {})[column.name] = text
        except DecodeError as error:
            raise DecodeError(f"table {schema.table}: {error.message}", hint=error.hint) from None
    return found


def _without(
    cells: Cells, column: Any, kernel: Callable[[Cells, Any], pa.Array], error: Exception, schema: TableSchema
) -> tuple[pa.Array, dict[int, str]]:
    """The column with nulls in place of the values that do not fit, and the texts of these values, by row."""
    texts: dict[int, str] = {}
    while True:
        unfit = error.rows if isinstance(error, Unfit) else None
        wrong = _failing(cells, column, kernel) if unfit is None else np.flatnonzero(unfit).tolist()
        if not wrong:
            message = f"table {schema.table}: column {column.name!r} ({column.type}) cannot be read: {error}"
            raise DecodeError(message) from error
        text = error.text if isinstance(error, Unfit) and error.text is not None else cells.plain_text
        texts |= {row: text(row) for row in wrong}
        length = cells.length.copy()
        length[wrong] = -1
        cells = Cells(cells.raw, cells.start, length)
        try:
            return kernel(cells, column), texts
        except (Unfit, pa.ArrowInvalid) as again:
            error = again


def _failing(cells: Cells, column: Any, kernel: Callable[[Cells, Any], pa.Array]) -> list[int]:
    """The rows whose values the kernel cannot decode, found by halves."""
    found: list[int] = []
    parts = [np.flatnonzero(cells.length >= 0)]
    while parts:
        rows = parts.pop()
        if not len(rows):
            continue
        try:
            kernel(cells.take(rows), column)
        except (Unfit, pa.ArrowInvalid):
            if len(rows) == 1:
                found.append(int(rows[0]))
            else:
                middle = len(rows) // 2
                parts += [rows[:middle], rows[middle:]]
    return sorted(found)


def _key(schema: TableSchema, cells: Sequence[Cells], kernel_of: Any, row: int) -> dict[str, str] | None:
    """The texts of the key columns of a row, as far as they can be decoded."""
    key: dict[str, str] = {}
    for name in schema.key:
        column = schema.column(name)
        values = cells[schema.names.index(name)].take(np.array([row]))
        with contextlib.suppress(DecodeError, pa.ArrowInvalid):
            key[name] = str(kernel_of(column)(values, column)[0].as_py())
    return key or None


def _refused(
    schema: TableSchema, column: Column, value: str, key: dict[str, str] | None, position: int | None
) -> ValueRefused:
    shown = value if len(value) <= SHOWN else value[:SHOWN] + "…"
    where = f" of the row with the key {key}" if key else ""
    at = f", at position {position} of the log" if position is not None else ""
    why = "; a column of the key is never null" if column.name in schema.key and column.rule != STOP else ""
    rule = json.dumps({str(schema.table): {column.name: "text"}})
    return ValueRefused(
        f"table {schema.table}: column {column.name!r} ({column.type}){where} has the value {shown!r}, which does not "
        f"fit {column.arrow}{at}{why}",
        table=str(schema.table),
        column=column.name,
        value=value,
        key=key,
        position=position,
        hint=f".option(\"values\", '{rule}') delivers the column as text",
    )


def rows_of(unfit: Unfit, owner: Any, rows: int, text: Callable[[int], str]) -> Unfit:
    """The error about elements of arrays as one about the rows that have them; `owner` is the row of each element."""
    assert unfit.rows is not None
    wrong = np.zeros(rows, np.bool_)
    wrong[owner[np.flatnonzero(unfit.rows)]] = True
    return Unfit(unfit.message, wrong, text, hint=unfit.hint)


__all__ = ["RAW", "Decoded", "Unfit", "decode_columns", "rows_of"]
