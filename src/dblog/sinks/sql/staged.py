"""Staged rows: rows of a batch on their way to a table, one per key, and the conditions of the statements that apply
them. All names are quoted.

They are in a staging table, or, if there are few of them, in the statements themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STAGED = ("_gone", "_lsn", "_seq", "_unchanged", "_whole")
"""Columns of staged rows after the table's own columns."""

Order = tuple[int, int]
NEVER: Order = (-1, 0)
"""Before every order: the table was never emptied."""


@dataclass(frozen=True)
class Kinds:
    """What kinds of rows are among staged rows."""

    gone: bool = False
    """Whether some are deletions."""
    live: bool = False
    """Whether some are not."""
    incomplete: bool = False
    """Whether some leave columns unchanged."""
    last_gone: int = -1
    """The position of the last deletion."""


@dataclass(frozen=True)
class TableNames:
    """The names of a table and its columns."""

    table: str
    deleted: str
    """The ledger's table of deleted keys."""
    key: tuple[str, ...]
    signed: tuple[str, ...]
    """Key columns that are written even if the key is equal: -0 equals 0 and must replace it."""
    columns: tuple[str, ...]
    """All written columns, with the key."""
    plain: Mapping[str, str]
    """The unquoted names of the columns, as in `_unchanged`."""
    types: Mapping[str, str]
    """The columns' types, as the server spells them."""

    def matching(self, one: str, other: str) -> str:
        return " and ".join(f"{one}.{name} = {other}.{name}" for name in self.key)


@dataclass(frozen=True)
class StagedRows:
    """Staged rows that are to be applied to a table."""

    names: TableNames
    source: str
    """What a statement selects them from. Its alias is `_s`: a table may be called s."""
    kinds: Kinds

    def matching(self, one: str, other: str) -> str:
        return self.names.matching(one, other)

    def alive(self, after: Order, *, soft: bool, remembers: bool) -> str:
        """A condition on staged rows: not deleted later. `after` is when the table was emptied; `remembers` says
        whether the ledger has deleted keys of it."""
        rows = [] if after == NEVER else [f"(_s._lsn, _s._seq) > ({after[0]}, {after[1]})"]
        if not soft and self.kinds.gone:
            rows.append("not _s._gone")
        if not soft and remembers:
            older = f"(d._lsn, d._seq) >= (_s._lsn, _s._seq) and {self.matching('d', '_s')}"
            rows.append(f"not exists (select 1 from {self.names.deleted} as d where {older})")
        return " and ".join(rows) or "true"


@dataclass(frozen=True)
class Inline:
    """A few rows as a part of statements."""

    source: str
    """What a statement selects them from. Its alias is `_s`: a table may be called s."""
    before: tuple[str, ...] = ()
    """Statements that make the source, and"""
    after: tuple[str, ...] = ()
    """remove it, in the same transaction."""


def newer(one: str, other: str) -> str:
    return f"({one}._lsn, {one}._seq) > ({other}._lsn, {other}._seq)"
