"""The boundaries of chunks: what a round must know of a table's keys.

    Boundaries      a table's keys, asked of the database
    SmallTables     the same for one round, in which many small tables are asked about at once

The first chunk of a table needs its key, its greatest key, and the key at which to cut. Each is a query to the
database. A round of many small tables would mostly wait for these queries, while the executors have nothing to do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from dblog.core.offset import Key
from dblog.core.schema import TableName

AT_ONCE = 50
"""How many tables are asked about at once. The answers about tables that do not fit into the round are thrown away."""


class Boundaries(Protocol):
    """A table's keys, asked of the database. Every method raises TableUnreadable when the table can never be read. The
    abstract ones have no default (`sources.simple`)."""

    def key(self, table: TableName) -> str:
        """A text that identifies the table's primary key: its columns and their types."""
        ...

    @abstractmethod
    def last_key(self, table: TableName) -> Key | None:
        """The greatest primary key of the table, or None when it is empty."""
        ...

    @abstractmethod
    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        """Up to `count` keys that cut `(after, upto]` into chunks of `rows` rows. The last key is `upto` itself if the
        whole range is cut."""
        ...

    def small(self, tables: Sequence[TableName], rows: int) -> Mapping[TableName, tuple[str, Key | None]]:
        """Those of the tables that have at most `rows` rows, each with its `key` and `last_key`, in few queries. A
        table that is missing in the result is asked about alone. Does not raise TableUnreadable."""
        return {}


class SmallTables(Boundaries):
    """The boundaries of one round: the answers about small tables are those of one moment."""

    def __init__(self, boundaries: Boundaries, new: Sequence[TableName], rows: int) -> None:
        """`new` are the tables that the round may begin with, in the order in which it takes them. A table is small if
        it has at most `rows` rows."""
        self._boundaries, self._rows = boundaries, rows
        self._new = list(dict.fromkeys(new))
        self._small: dict[TableName, tuple[str, Key | None]] = {}

    def key(self, table: TableName) -> str:
        if table in self._new:
            at = self._new.index(table)
            asked, self._new[at : at + AT_ONCE] = self._new[at : at + AT_ONCE], []
            if len(asked) > 1:
                self._small |= self._boundaries.small(asked, self._rows)
        return self._small[table][0] if table in self._small else self._boundaries.key(table)

    def last_key(self, table: TableName) -> Key | None:
        return self._small[table][1] if table in self._small else self._boundaries.last_key(table)

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        if after is None and rows >= self._rows and table in self._small and self._small[table][1] == upto:
            return [upto]
        return self._boundaries.cuts(table, after, upto, rows, count)
