"""Keys that users promise for tables without a key of their own: `key = ["a", "b"]` in a pipeline's file.

No index of the database guards such a key. So it is checked wherever rows are seen: a NULL in one of its columns, or
two rows of a chunk with the same key, raise `KeyRefused`, and the table is set aside. A table that has a primary key or
a usable unique key is followed by that, and its promised key is not used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dblog.core.names import Pattern, parse_patterns
from dblog.core.schema import TableName, TableSchema
from dblog.core.settings import Kind
from dblog.errors import ConfigError, KeyRefused

MOST_SHOWN = 150
"""How many characters of a row a message shows."""


@dataclass(frozen=True)
class PromisedKeys:
    """The promised keys by pattern. The first pattern that matches a table decides; its key may be empty: none."""

    tables: tuple[tuple[Pattern, tuple[str, ...]], ...] = ()

    def of(self, table: TableName) -> tuple[str, ...]:
        """The promised key of a table; empty without one."""
        return next((key for pattern, key in self.tables if pattern.matches(table)), ())

    def usable(self, table: TableName, columns: Collection[str]) -> tuple[str, ...]:
        """The promised key of a table with these columns; empty if it lacks one of the key's columns."""
        key = self.of(table)
        return key if set(key) <= set(columns) else ()


def key_names(value: Any) -> tuple[str, ...]:
    """The columns of a key, as a file or JSON has them. Raises ValueError, TypeError."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TypeError
    if not value or "" in value or len(set(value)) < len(value):
        raise ValueError
    return tuple(value)


def _parsed(given: str) -> dict[str, tuple[str, ...]]:
    value = json.loads(given)
    if not isinstance(value, dict):
        raise TypeError
    return {table: () if key is None else key_names(key) for table, key in value.items()}


OPTION = Kind('JSON like {"public.visits": ["visitor", "at"]}, each column once', _parsed)
COLUMNS = Kind('a list of columns like ["visitor", "at"], each once', key_names)


def read_keys(value: Mapping[str, tuple[str, ...]] | None, default_schema: str) -> PromisedKeys:
    """The keys that the option `keys` names. Raises ConfigError."""
    entries = []
    for table, key in (value or {}).items():
        patterns = parse_patterns(table, "keys", default_schema=default_schema)
        if any(p.exclude for p in patterns):
            raise ConfigError(f"option 'keys' excludes tables: {table!r}", hint="name the tables that it applies to")
        entries += [(pattern, key) for pattern in patterns]
    return PromisedKeys(tuple(entries))


def refusing_nulls(schema: TableSchema, take: Callable[[pa.RecordBatch], None]) -> Callable[[pa.RecordBatch], None]:
    """`take`, which gets the rows of a chunk; raises KeyRefused before it gets a row without its promised key."""

    def checked(batch: pa.RecordBatch) -> None:
        for name in schema.key:
            if batch.column(name).null_count:
                row = batch.filter(batch.column(name).is_null()).slice(0, 1).to_pylist()[0]
                raise null_in_key(schema, name, str({n: v for n, v in row.items() if n in schema.names}))
        take(batch)

    return checked


def null_in_key(schema: TableSchema, column: str, row: str | None = None) -> KeyRefused:
    """The error that a row has NULL in a column of its promised key."""
    shown = "" if row is None else f": {_cut(row)}"
    return KeyRefused(
        f"a row of table {schema.table} has NULL in column {column!r} of the promised key "
        f"({', '.join(schema.key)}){shown}",
        hint="correct the row, or promise a key without this column",
    )


def two_rows(schema: TableSchema, key: Sequence[str], rows: Sequence[str]) -> KeyRefused:
    """The error that two rows have the same promised key; `key` has the texts of its values."""
    named = dict(zip(schema.key, key, strict=True))
    return KeyRefused(
        f"two rows of table {schema.table} have the promised key {named}: {' and '.join(map(_cut, rows))}",
        key={name: str(text) for name, text in named.items()},
        hint="remove one of the rows, or promise a key that no two rows share",
    )


def _cut(row: str) -> str:
    return row if len(row) <= MOST_SHOWN else f"{row[:MOST_SHOWN]} ..."
