"""The table of each row event.

A row event has a table's number. A table map earlier in the same transaction gives the table of that number and the
layout of its rows. A table that the server opens again gets a new number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dblog.core.arrays import Ints, Mask
from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.flavor import Flavor
from dblog.errors import DecodeError, SourceError
from dblog.sources import columns
from dblog.sources.columns import Cells
from dblog.sources.mysql.events import ROWS, ROWS_COMPRESSED, Events, Type
from dblog.sources.mysql.layout import Layout
from dblog.sources.mysql.statements import Definition
from dblog.sources.mysql.tablemap import TableMap
from dblog.sources.table_failures import TableFailures, TableRefused, about

IS_ROWS = np.zeros(256, np.bool_)
IS_ROWS[[*ROWS, *ROWS_COMPRESSED]] = True

MOST_MAPS = 10_000
"""How many table maps are remembered at most."""
_NUMBER = np.uint64((1 << 48) - 1)


class CapturedTables(Protocol):
    """The captured tables and their schemas, for the decoder."""

    def captured(self, table: TableName) -> bool: ...

    def met(self, table: TableName) -> bool:
        """Whether a captured table has existed since this process started. Before that it had no rows to empty."""
        ...

    def of_schema(self, schema: str) -> Collection[TableName]:
        """The captured tables of a schema."""
        ...

    def schema(self, mapped: TableMap) -> TableSchema:
        """The schema of a captured table or the watermark table, as the log describes it; may leave out columns."""
        ...

    def completed(self, mapped: TableMap) -> TableMap:
        """A table map without column names, completed from the catalog."""
        ...

    def check(self, said: Definition) -> None:
        """Raise TableRefused if a captured table cannot be followed, or could not between two definitions, after a
        statement."""
        ...

    def prepared(self, name: str, before: int) -> Collection[TableName] | None:
        """The captured tables that an XA transaction has changed, whose rows are in the log before a position. None if
        the log does not have them any more."""
        ...

    def latest(self, table: TableName) -> TableSchema | None:
        """The schema of a captured table that the log has not described yet; None if the table has never existed."""
        ...


@dataclass(frozen=True, eq=False)
class Destination:
    """Where the rows of a table map go: to a table, to the watermarks, or nowhere (`layout` is None)."""

    table: TableName
    layout: Layout | None
    watermark: bool = False
    watched: bool = False
    """Whether the table is not captured: its rows are read for the foreign keys that refer to it."""
    refused: SourceError | None = None
    """Why the table cannot be followed as the map describes it."""


class TableMaps:
    """The table maps that the log has shown."""

    def __init__(
        self,
        tables: CapturedTables,
        flavor: Flavor,
        watermark: TableName,
        failures: TableFailures | None = None,
        watched: Callable[[TableName], bool] = lambda table: False,
    ) -> None:
        """`watched` says whether foreign keys act on captured tables when a table's rows change."""
        self._tables = tables
        self._failures = failures
        self._watched = watched
        self._flavor = flavor
        self._watermark = watermark
        self._targets: dict[bytes, Destination] = {}
        self._same: dict[tuple[TableName, Layout | None, bool], Destination] = {}
        self._schemas: dict[TableName, TableSchema] = {}

    def tables_of(self, schema: str | None) -> Collection[TableName]:
        return () if schema is None else self._tables.of_schema(schema)

    def is_first(self, table: TableName) -> bool:
        """Whether a captured table is seen for the first time since this process started."""
        return self._tables.captured(table) and not self._tables.met(table)

    def schema(self, table: TableName) -> TableSchema | None:
        """The latest schema of a table; None when it is not captured, or gone."""
        if not self._tables.captured(table):
            return None
        return self._schemas.get(table) or self._tables.latest(table)

    def refused(self, said: Iterable[Definition]) -> dict[TableName, SourceError]:
        """The captured tables that cannot be followed any more after these definitions."""
        found: dict[TableName, SourceError] = {}
        for one in said:
            if self._tables.captured(one.table):
                try:
                    self._tables.check(one)
                except TableRefused as refused:
                    found[refused.table] = refused.error
        return found

    def captured(self, events: Events, maps: Ints) -> frozenset[TableName]:
        """The captured and watched tables and the watermark table among those that these table maps name."""
        start = events.start[maps]
        bodies = columns.binary(Cells(events.raw, start, events.end[maps] - start)).unique().to_pylist()
        tables = set(map(_table_name, bodies))
        return frozenset(t for t in tables if t == self._watermark or self._tables.captured(t) or self._watched(t))

    def targets(
        self, events: Events, transaction: Ints, carried: Mapping[int, Destination], passed: Mask
    ) -> tuple[dict[int, Destination], list[tuple[Destination, Ints]]]:
        """The destinations by table number in the last transaction; and each destination with its row events, in order.

        `transaction` has the transaction's number of each event; `carried` are the destinations in transaction 0.
        Events of skipped transactions (`passed`) are not read: they may be unreadable."""
        mapped, rows = (
            np.flatnonzero(found & ~passed) for found in (events.kind == Type.table_map, IS_ROWS[events.kind])
        )
        targets, index = self._described(events, mapped)
        of_map, of_row = _numbers(events, mapped), _numbers(events, rows)
        source = _last_before(mapped, of_map, rows, of_row)
        lost = source < 0
        lost[~lost] = transaction[mapped[source[~lost]]] != transaction[rows[~lost]]
        where = np.zeros(len(rows), np.int64)
        where[~lost] = index[source[~lost]]
        for number in np.unique(of_row[lost]).tolist():
            mine = lost & (of_row == number)
            if number not in carried or np.any(transaction[rows[mine]]):
                raise DecodeError(f"the log has rows of table {number}, which it has not described")
            where[mine] = len(targets)
            targets.append(carried[number])
        holding = dict(carried) if transaction[-1] == 0 else {}
        for n in np.flatnonzero(transaction[mapped] == transaction[-1]).tolist():
            holding[int(of_map[n])] = targets[index[n]]
        return holding, list(_split(rows, where, targets))

    def _described(self, events: Events, mapped: Ints) -> tuple[list[Destination], Ints]:
        """The distinct destinations of table maps, and for each map the index of its destination."""
        start = events.start[mapped]
        coded = columns.binary(Cells(events.raw, start, events.end[mapped] - start)).dictionary_encode()
        if len(self._targets) > MOST_MAPS:
            self._targets.clear()
            self._same.clear()
        targets = []
        for body in coded.dictionary.to_pylist():
            known = self._targets.get(body)
            if known is None or self._wanted(known):
                # Maps that differ only in the table's number get the same destination, so that their rows stay
                # together.
                target = self._target(body)
                self._targets[body] = target
                if target.refused is None:
                    same = target.table, target.layout, target.watched
                    self._targets[body] = self._same.setdefault(same, target)
            targets.append(self._targets[body])
        return targets, coded.indices.to_numpy().astype(np.int64)

    def _wanted(self, known: Destination) -> bool:
        """Whether rows are needed now that were not when their table map was first seen."""
        captured = self._tables.captured(known.table)
        if known.layout is None and (captured or self._watched(known.table)):
            return not self._failed(known)
        return known.watched and captured

    def _failed(self, known: Destination) -> bool:
        """Whether the table has failed, so that it need not be described again."""
        return known.refused is not None and self._failures is not None and known.table in self._failures.found

    def _target(self, body: bytes) -> Destination:
        table = _table_name(body)
        watermark = table == self._watermark
        watched = not watermark and not self._tables.captured(table)
        if watched and not self._watched(table):
            return Destination(table, None)
        try:
            return self._described_target(table, body, watermark=watermark, watched=watched)
        except TableRefused as refused:
            if watermark or watched or self._failures is None:
                raise refused.error from None
            return Destination(table, None, refused=refused.error)

    def _described_target(self, table: TableName, body: bytes, *, watermark: bool, watched: bool) -> Destination:
        with about(table):
            mapped = TableMap.parse(body, self._flavor)
        if not mapped.named:
            mapped = self._tables.completed(mapped)
        schema = self._tables.schema(mapped)
        with about(table):
            layout = Layout.of(mapped, schema)
        if not watermark and not watched:
            self._schemas[table] = schema
        return Destination(table, layout, watermark, watched)


def _table_name(body: bytes) -> TableName:
    size = body[8]
    name = body[11 + size : 11 + size + body[10 + size]]
    return TableName(body[9 : 9 + size].decode(), name.decode())


def _numbers(events: Events, which: Ints) -> Ints:
    return (events.raw.le64(events.start[which]) & _NUMBER).astype(np.int64)


def _last_before(mapped: Ints, of_map: Ints, rows: Ints, of_row: Ints) -> Ints:
    """For each row event the index of the last map of its table before it; -1 without one."""
    number, table = np.append(mapped, rows), np.append(of_map, of_row)
    order = np.lexsort((number, table))
    # Sorted by table and then by log order, it is the last map before the event, if that is of the same table.
    latest = np.maximum.accumulate(np.where(order < len(mapped), np.arange(len(order)), -1))
    found = np.where((latest >= 0) & (table[order[latest]] == table[order]), order[latest], -1)
    source = np.empty(len(order), np.int64)
    source[order] = found
    return source[len(mapped) :]


def _split(rows: Ints, where: Ints, targets: list[Destination]) -> Iterator[tuple[Destination, Ints]]:
    """Each destination with its row events."""
    unique: dict[int, int] = {}
    indexes = np.array([unique.setdefault(id(t), n) for n, t in enumerate(targets)], np.int64)
    where = indexes[where]
    order = np.argsort(where, kind="stable")
    last = np.cumsum(np.bincount(where, minlength=len(targets)))
    for target, begin, end in zip(targets, np.append(0, last), last, strict=False):
        if end > begin:
            yield target, rows[order[begin:end]]
