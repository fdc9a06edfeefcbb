"""Dumps: which part of which table comes next, and how large a chunk may be.

A dump of a table is a cursor that moves from its first key to the greatest key of the moment it began. Keys are
texts that only the database compares; here they are only handed around.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dblog.core.offset import Chunk, Cursor, Extent, Key
from dblog.core.schema import TableName

INITIAL = "initial"
"""The dump that every table gets when a stream first meets it."""

REPAIR = "repair"
"""Rows read again because the log left them incomplete (a moved row's unchanged TOAST value)."""

REPAIR_LIMIT = 1000
"""More incomplete rows than this waiting, and the whole table is dumped again."""

_NO_RANGE: Key = ()


@dataclass(frozen=True)
class Staged:
    """What is known of a chunk's staged file."""

    stamp: str
    rows: int
    seconds: float
    version: str = ""
    """The schema the rows were read under."""


@dataclass(frozen=True)
class Pace:
    """How much a round may read."""

    chunks: int = 2
    """Chunks per round: what the executors select in parallel."""
    rows: int | None = None
    """Rows per chunk; None adapts them to `seconds`."""
    seconds: float = 0.5
    """How long one chunk's select should take."""

    FIRST_ROWS = 20_000
    LEAST_ROWS = 1_000
    MOST_ROWS = 500_000

    @property
    def first_rows(self) -> int:
        return self.rows or self.FIRST_ROWS

    def next_rows(self, rows: int, measured: Iterable[Staged]) -> int:
        """The next chunk's size, from how long the last full chunks of this cursor took."""
        if self.rows is not None:
            return self.rows
        full = [s for s in measured if s.rows * 2 >= rows]
        if not full:
            return rows
        slowest = max(s.seconds / s.rows for s in full)
        fitting = int(self.seconds / slowest) if slowest > 0 else self.MOST_ROWS
        return max(self.LEAST_ROWS, min(fitting, rows * 16, self.MOST_ROWS))


class Boundaries(Protocol):
    """What the database says about a table's keys."""

    def last_key(self, table: TableName) -> Key | None:
        """The greatest primary key of the table, or None when it is empty or gone."""
        ...

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        """Up to `count` keys, `rows` rows apart, that cut `(after, upto]` into chunks; the last one is `upto` itself
        when the range ends within them."""
        ...


def requested(
    dumps: Sequence[Cursor], known: Sequence[TableName], wanted: Sequence[TableName], pace: Pace
) -> tuple[tuple[Cursor, ...], tuple[TableName, ...]]:
    """The cursors and known tables after every wanted table that is not known yet has been given its first dump."""
    new = [t for t in wanted if t not in set(known)]
    cursors = [Cursor(INITIAL, table, pace.first_rows) for table in new]
    return (*dumps, *cursors), (*known, *new)


def read_again(dumps: Sequence[Cursor], lost: Iterable[Chunk], pace: Pace) -> tuple[Cursor, ...]:
    """The cursors, with the extents of lost chunks put back in front."""
    result = list(dumps)
    for chunk in lost:
        for i, cursor in enumerate(result):
            if (cursor.dump, cursor.table) == (chunk.dump, chunk.table):
                result[i] = replace(cursor, again=(*cursor.again, chunk.extent))
                break
        else:
            result.append(_only(chunk.dump, chunk.table, chunk.extent, pace))
    return tuple(result)


def repaired(
    dumps: Sequence[Cursor], holes: Mapping[TableName, Sequence[Key] | None], pace: Pace
) -> tuple[Cursor, ...]:
    """The cursors, with the rows that the log left incomplete added; a table with too many is dumped whole."""
    result = tuple(dumps)
    for table, keys in holes.items():
        waiting = sum(len(e.keys) for c in result if (c.dump, c.table) == (REPAIR, table) for e in c.again)
        if keys is not None and len(keys) + waiting <= REPAIR_LIMIT:
            extent = Extent(keys=tuple(dict.fromkeys(keys)))
            result = read_again(result, [Chunk("", REPAIR, table, extent)] if keys else [], pace)
        elif not any(c.table == table and c.upto is None for c in result):
            result = (*result, Cursor(REPAIR, table, pace.first_rows))
    return result


def next_round(
    dumps: Sequence[Cursor], pace: Pace, boundaries: Boundaries, round_id: str
) -> tuple[tuple[Chunk, ...], tuple[Cursor, ...]]:
    """The chunks to read now, filled from the first cursor on, and the cursors that remain.

    Chunks of one round must not overlap: a batch would deliver a key's state twice. So a round takes from a table
    either one extent that is read again or ranges of one cursor; who had to wait for that comes first next time.
    """
    chunks: list[Chunk] = []
    left: list[Cursor] = []
    waiting: list[Cursor] = []

    def take(cursor: Cursor, extent: Extent) -> None:
        chunks.append(Chunk(f"{round_id}-{len(chunks)}", cursor.dump, cursor.table, extent))

    for queued in dumps:
        if any(c.table == queued.table for c in chunks):
            waiting.append(queued)
            continue
        cursor, free = queued, pace.chunks - len(chunks)
        if free and cursor.again:
            extent, rest = _first(cursor.again)
            take(cursor, extent)
            cursor, free = replace(cursor, again=rest), 0
        if free and cursor.upto is None:
            cursor = _begun(cursor, boundaries)
        if free and cursor.upto is not None and cursor.after != cursor.upto:
            after = cursor.after
            for upto in boundaries.cuts(cursor.table, after, cursor.upto, cursor.rows, free):
                take(cursor, Extent(after, upto))
                after = upto
            cursor = replace(cursor, after=after)
        if not cursor.exhausted:
            left.append(cursor)
    return tuple(chunks), (*waiting, *left)


def _begun(cursor: Cursor, boundaries: Boundaries) -> Cursor:
    """The cursor with its upper bound fixed; over nothing when the table is empty."""
    upto = boundaries.last_key(cursor.table)
    return replace(cursor, after=_NO_RANGE, upto=_NO_RANGE) if upto is None else replace(cursor, upto=upto)


def _first(again: Sequence[Extent]) -> tuple[Extent, tuple[Extent, ...]]:
    """The extent to read first, and the rest: all single rows together, else one range."""
    keys = dict.fromkeys(k for e in again for k in e.keys)
    if keys:
        return Extent(keys=tuple(keys)), tuple(e for e in again if not e.keys)
    return again[0], tuple(again[1:])


def _only(dump: str, table: TableName, extent: Extent, pace: Pace) -> Cursor:
    """A cursor over nothing but this extent."""
    return Cursor(dump, table, pace.first_rows, after=_NO_RANGE, upto=_NO_RANGE, again=(extent,))
