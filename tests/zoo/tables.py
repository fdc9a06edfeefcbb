"""What the zoo knows of a table: how it is made, the values that may be written to it, and whether it is followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """One table of the zoo."""

    schema: str
    name: str
    create: tuple[str, ...]
    """Statements that make it, and what it needs."""
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By column that is written to: SQL expressions of its values."""
    key: tuple[str, ...] = ("id",)
    counter: str | None = "n"
    """An integer column that a change may raise without changing anything else."""
    other: bool = True
    """Whether a target of the other family can store all of its values."""
    lake: bool = True
    """Whether a lake can: with a cascade of MySQL it cannot."""
    truncate: bool = True
    """Whether it may be truncated."""
    rows: int = 8
    """How many rows it has at first, about."""

    @property
    def place(self) -> tuple[str, str]:
        return self.schema, self.name


@dataclass(frozen=True)
class Zoo:
    """The tables of a family."""

    patterns: str
    """The option `tables` that brings all of them."""
    prepare: tuple[str, ...]
    """Statements before the tables."""
    tables: tuple[Table, ...]
    left_out: Mapping[tuple[str, str], str]
    """By what a pattern brings and cannot be followed: words of the reason."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The option `values`, by table: for keys with values that do not fit."""
    finish: tuple[str, ...] = ()
    """Statements after the tables: what is left out and what is not seen."""


NUMBERS = tuple(str(n) for n in range(1, 25))
"""Keys of tables whose key is nothing special."""


def quoted(text: str) -> str:
    """A text as a literal of SQL, for servers that take a backslash as it is."""
    return "'" + text.replace("'", "''") + "'"
