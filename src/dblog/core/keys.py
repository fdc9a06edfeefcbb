"""Keys of rows in Arrow: which rows have the same key.

Two keys are the same if their values are. A database's collation does not count: a change that replaces a version of a
row has exactly the key of that version. Only 0 and -0 are the same key, as in every database, and NaN equals itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Columns = Sequence[pa.Array]
"""The key columns of some rows, in the order of the key."""


def key_columns(rows: pa.Table | pa.RecordBatch, key: Sequence[str]) -> list[pa.Array]:
    columns = [rows.column(k) for k in key]
    return [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]


def matches(rows: Columns, keys: Columns) -> pa.BooleanArray:
    """For each row, whether its key is among `keys`."""
    if len(rows) == 1 and not pa.types.is_nested(rows[0].type):
        return pc.is_in(_hashable(rows[0]), value_set=_hashable(keys[0]))
    mine, theirs = key_numbers(rows, keys)
    return pa.array(np.isin(mine, theirs))


def key_numbers(*tables: Columns) -> list[np.ndarray]:
    """A number for each row of each table. Rows with the same key have the same number, and the numbers are dense:
    each lies between 0 and the count of different keys."""
    ends = np.cumsum([len(columns[0]) for columns in tables])
    codes: np.ndarray | None = None
    for same in zip(*tables, strict=True):
        column = pa.concat_arrays([_hashable(c) for c in same])
        numbers = column.dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
        if codes is not None:
            _, numbers = np.unique(codes * (numbers.max(initial=0) + 1) + numbers, return_inverse=True)
        codes = numbers
    assert codes is not None
    return np.split(codes, ends[:-1])


def _hashable(column: pa.Array) -> pa.Array:
    """The column with equal values for equal keys: -0 as 0, and as text if Arrow cannot hash the type."""
    if pa.types.is_nested(column.type):
        return pa.array([repr(_signless(v)) for v in column.to_pylist()], pa.string())
    if pa.types.is_floating(column.type):
        return pc.add(column, pa.scalar(0.0, column.type))
    return column


def _signless(value: object) -> object:
    if isinstance(value, list):
        return [_signless(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value


def has_plain_text(kind: pa.DataType) -> bool:
    """Whether the database reads Arrow's text of a value of this type as the same value."""
    is_ = pa.types
    return bool(is_.is_integer(kind) or is_.is_string(kind) or is_.is_decimal(kind) or is_.is_boolean(kind))
