"""Tables and their columns as the log or the catalog describes them.

A schema's `version` is a fingerprint of its content, so it needs no store to be assigned and is the same after a
restart, on the driver and on the executors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

NULL, TEXT, STOP = "null", "text", "stop"
"""The rules for values that their column's type cannot hold (`core.value_rules`)."""


class TableName(NamedTuple):
    """A table's qualified name, unquoted: `TableName("public", "orders")`."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True)
class Column:
    """A column: its name, the type as the database spells it, and the Arrow type its values have downstream."""

    name: str
    type: str
    arrow: pa.DataType
    rule: str = field(default=NULL, kw_only=True)
    """What is delivered for a value that the Arrow type cannot hold."""


@dataclass(frozen=True)
class TableSchema:
    """A table's columns and primary key at one moment of its history."""

    table: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    identity: str = field(default="", compare=False)
    """Identifies the table in the log under any name. Empty where the log knows tables by their names only."""
    cascade: str = ""
    """For the cascade events of a foreign key: the rules (`core.cascades`)."""
    promised: bool = False
    """Whether the key is the user's promise (`core.promised_keys`), which no index of the database guards."""

    @cached_property
    def version(self) -> str:
        columns = [(c.name, c.type, str(c.arrow), *(() if c.rule == NULL else (c.rule,))) for c in self.columns]
        parts = [*self.table, *("\0".join(column) for column in columns), *self.key]
        parts += [self.cascade] if self.cascade else []
        parts += ["promised"] if self.promised else []
        return hashlib.sha256("\1".join(parts).encode()).hexdigest()[:8]

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns as an Arrow schema; every field is nullable, because a delete carries only its key."""
        return pa.schema([pa.field(c.name, c.arrow) for c in self.columns])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns)

    def only(self, columns: Collection[str] | None) -> TableSchema:
        """The schema with these columns and the key; with all columns for None."""
        if columns is None:
            return self
        return replace(self, columns=tuple(c for c in self.columns if c.name in columns or c.name in self.key))

    def column(self, name: str) -> Column:
        return next(c for c in self.columns if c.name == name)

    def differences(self, other: TableSchema) -> list[str]:
        """What changed from this schema to `other`, one readable line per column; empty when rows fit both."""
        mine = {c.name: c for c in self.columns}
        theirs = {c.name: c for c in other.columns}
        lines = [f"column {n!r} was dropped" for n in mine if n not in theirs]
        lines += [f"column {n!r} ({c.type}) was added" for n, c in theirs.items() if n not in mine]
        lines += [
            f"column {n!r} changed from {mine[n].type} to {c.type}"
            for n, c in theirs.items()
            if n in mine and (mine[n].type, mine[n].arrow) != (c.type, c.arrow) and mine[n].rule == c.rule
        ]
        lines += [
            f"the rule for values of column {n!r} changed from {mine[n].rule} to {c.rule}"
            for n, c in theirs.items()
            if n in mine and mine[n].rule != c.rule
        ]
        if self.key != other.key:
            lines.append(f"the primary key changed from {self.key} to {other.key}")
        return lines
