"""Which part of the log is decoded for each table, when a table fails: a value or a definition cannot be decoded.

A failed table has no changes from the first transaction on that cannot be decoded. The other tables go on. The same log
gives the same failure, in whatever portions it is read. The decoder finds failures in the capture thread; the driver
reads them, and begins a table anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dblog.core.arrays import Ints
from dblog.core.schema import TableName
from dblog.errors import DecodeError, PositionLost, PreconditionFailed, SourceError

_T = TypeVar("_T")


@dataclass(frozen=True)
class TableFailure:
    """Why a table's log cannot be decoded from a transaction on."""

    lsn: int
    """The `_lsn` of the first transaction that is not decoded for the table."""
    error: SourceError


class TableRefused(Exception):
    """A definition of one table that cannot be followed. It never leaves a source: the decoder makes it a failure."""

    def __init__(self, table: TableName, error: SourceError) -> None:
        super().__init__(table, error)
        self.table = table
        self.error = error


@contextmanager
def about(table: TableName) -> Iterator[None]:
    """Raise errors of the block that concern the table alone as TableRefused. The block opens no connection."""
    try:
        yield
    except (DecodeError, PreconditionFailed, PositionLost) as error:
        raise TableRefused(table, error) from error


class TableFailures:
    """The failures of a source's tables in this process. Its dictionaries are replaced, never modified, because two
    threads read them."""

    def __init__(self) -> None:
        self._since: Mapping[TableName, int] = {}
        self._found: Mapping[TableName, TableFailure] = {}

    @property
    def found(self) -> Mapping[TableName, TableFailure]:
        return self._found

    def begin(self, tables: Iterable[TableName], position: int) -> None:
        """Decode the log of these tables from a position on, whatever was found in it before."""
        new = dict.fromkeys(tables, position)
        self._since = {**self._since, **new}
        self._found = {t: f for t, f in self._found.items() if t not in new or f.lsn >= position}

    def fail(self, table: TableName, lsn: int, error: SourceError) -> None:
        """Note that a table cannot be decoded from a transaction on, unless it failed before or begins later."""
        if table not in self._found and lsn >= self._since.get(table, 0):
            self._found = {**self._found, table: TableFailure(lsn, error)}

    def refused(self, table: TableName, lsn: Ints, error: SourceError) -> None:
        """`fail` at the first of these transactions at which the table is decoded."""
        part = self.part(table, lsn)
        if part.stop > part.start:
            self.fail(table, int(lsn[part.start]), error)

    def part(self, table: TableName, lsn: Ints) -> slice:
        """Which of a table's changes are decoded. `lsn` has the transaction of each change, in order."""
        since, failure = self._since.get(table, 0), self._found.get(table)
        first = int(np.searchsorted(lsn, since)) if since else 0
        return slice(first, len(lsn) if failure is None else max(first, int(np.searchsorted(lsn, failure.lsn))))

    def decoded(self, table: TableName, lsn: Ints, decode: Callable[[slice], _T]) -> _T | None:
        """What `decode` makes of the part of a table's changes that is decoded; None without any. If it raises
        DecodeError, the table fails at the first transaction that cannot be decoded, and the part ends there."""
        part = self.part(table, lsn)
        if part.stop <= part.start:
            return None
        try:
            return decode(part)
        except DecodeError as error:
            self.find(table, lsn, decode, error)
        part = self.part(table, lsn)
        return decode(part) if part.stop > part.start else None

    def find(self, table: TableName, lsn: Ints, decode: Callable[[slice], Any], error: DecodeError) -> None:
        """Find the first transaction that `decode` cannot decode, after it has failed for all, and `fail` there."""
        part = self.part(table, lsn)
        numbers, first = np.unique(lsn[part], return_index=True)
        ends = np.append(first[1:], part.stop - part.start) + part.start
        low, high = 0, len(numbers) - 1  # the transactions up to `high` cannot be decoded, those before `low` can
        while low < high:
            middle = (low + high) // 2
            try:
                decode(slice(part.start, int(ends[middle])))
                low = middle + 1
            except DecodeError as earlier:
                high, error = middle, earlier
        self.fail(table, int(numbers[low]), error)
