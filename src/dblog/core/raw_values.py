"""Raw values: the database's own text of values that the delivered type of their column cannot hold.

Such a value is null in its column. Its text is in the metadata column `_raw_values`, a JSON object by column, so that
nothing is lost: `{"price":"NaN"}`. The texts of the old row (`_before`) have names that begin with `_before.`. Nearly
all rows have none: then `_raw_values` is null, and a batch without any may lack the column.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import BEFORE, RAW

FIELD = pa.field(RAW, pa.string())
OLD = BEFORE + "."
"""How the names of the old row's columns begin."""

Texts = Mapping[str, str]
"""The raw values of one row, by column."""


def raw_column(rows: int, texts: Mapping[int, Texts]) -> pa.Array:
    """The column `_raw_values` of so many rows, from the raw values by row."""
    if not texts:
        return pa.nulls(rows, FIELD.type)
    found: list[str | None] = [None] * rows
    for row, values in texts.items():
        found[row] = written(values)
    return pa.array(found, FIELD.type)


def written(values: Texts) -> str | None:
    """The raw values of a row as `_raw_values` has them; None without any."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")) if values else None


def read(text: str | None) -> dict[str, str]:
    """The raw values of a row, by column."""
    return json.loads(text) if text else {}


def with_raw(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the column `_raw_values` at its end, if it has none."""
    if RAW in batch.schema.names:
        return batch
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.nulls(batch.num_rows, FIELD.type)], schema=batch.schema.append(FIELD)
    )


def alike(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """The batches, all of them with the column `_raw_values` if one has it."""
    return [with_raw(b) for b in batches] if any(RAW in b.schema.names for b in batches) else batches


def some(rows: pa.RecordBatch | pa.Table) -> bool:
    """Whether a row has raw values."""
    return RAW in rows.schema.names and rows.column(RAW).null_count < rows.num_rows


def by_row(column: pa.Array | pa.ChunkedArray) -> dict[int, dict[str, str]]:
    """The raw values of the rows that have some, by row."""
    if column.null_count == len(column):
        return {}
    at = pc.indices_nonzero(pc.is_valid(column))
    return {row: read(text) for row, text in zip(at.to_pylist(), column.take(at).to_pylist(), strict=True)}


def mapped(column: pa.Array, change: Callable[[dict[str, str]], Texts]) -> pa.Array:
    """The column `_raw_values` with changed raw values."""
    found = by_row(column)
    return raw_column(len(column), {row: change(values) for row, values in found.items()}) if found else column


def renamed(values: Texts, names: Mapping[str, str]) -> dict[str, str]:
    """The raw values of the columns in `names`, under their new names. Others are left out."""
    old = {OLD + name: OLD + new for name, new in names.items()}
    return {(names.get(n) or old[n]): text for n, text in values.items() if n in names or n in old}


def texts_of(column: pa.Array | pa.ChunkedArray, name: str) -> dict[int, str]:
    """The raw values of one column, by row."""
    return {row: values[name] for row, values in by_row(column).items() if name in values}


def replaced(texts: pa.Array, raw: Mapping[int, str]) -> pa.Array:
    """Texts with those of some rows replaced by raw values."""
    where = [False] * len(texts)
    for row in raw:
        where[row] = True
    fresh = pa.array([raw[row] for row in sorted(raw)], texts.type)
    return pc.replace_with_mask(texts, pa.array(where), fresh)


def counted(column: pa.Array | pa.ChunkedArray) -> Counter[str]:
    """How many rows have a raw value in each column. Those of old rows do not count."""
    return Counter(n for values in by_row(column).values() for n in values if not n.startswith(OLD))
