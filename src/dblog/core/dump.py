"""Dumps: which part of which table is read next.

The dump of a table is a cursor. It moves from the first key to the key that was the greatest when the dump began. Keys
are texts that only the database compares; this module only passes them on. A dump is the stream's own (`initial`,
`repair`) or a request, and may have cursors on several tables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dblog.core.boundaries import Boundaries, SmallTables
from dblog.core.offset import NO_ROWS, Chunk, Cursor, Extent, Key, Taken
from dblog.core.pace import Pace
from dblog.core.schema import TableName
from dblog.errors import TableUnreadable

INITIAL = "initial"
"""The dump that every table gets when a stream first meets it."""

REPAIR = "repair"
"""Rows read again because the log left them incomplete (a moved row's unchanged TOAST value)."""

OWN = (INITIAL, REPAIR)
"""Dumps that nobody requested."""

REPAIR_LIMIT = 1000
"""How many incomplete rows of a table may wait for their repair. With more, the whole table is dumped again."""

KEYS_PER_CHUNK = 1000
"""How many keys one chunk selects at most, when it selects single keys."""

_NO_RANGE: Key = ()
"""As `after` and `upto` of a cursor: it has no range of keys to read, only the extents in `again`."""


@dataclass(frozen=True)
class Staged:
    """A chunk's staged file, without its rows."""

    stamp: str
    rows: int
    seconds: float
    version: str = ""
    """The schema the rows were read under."""
    failed: str | None = None
    """Why the chunk can never be read; None if it was read."""
    about: Mapping[str, Any] | None = None
    """If a value cannot be delivered: the facts about it (`SetAside.to_json`)."""


@dataclass(frozen=True)
class Orders:
    """What users want from the dumps, as known when a batch is planned."""

    wanted: tuple[TableName, ...] = ()
    """Tables that need an initial dump if they have not had one."""
    new: tuple[Cursor, ...] = ()
    """The cursors of the requests that are taken now."""
    taken: Taken | None = None
    """The last of these requests."""
    held: frozenset[str] = field(default_factory=frozenset)
    """Dumps that are paused."""
    cancelled: frozenset[str] = field(default_factory=frozenset)
    away: frozenset[TableName] = field(default_factory=frozenset)
    """Tables that are away: the stream's own dumps of them wait."""

    def waits(self, cursor: Cursor) -> bool:
        return cursor.dump in OWN and cursor.table in self.away


_NO_ORDERS = Orders()


def of_keys(dump: str, table: TableName, keys: Sequence[Key], key: str, pace: Pace) -> Cursor:
    """A cursor that reads these keys only."""
    portions = [tuple(keys[i : i + KEYS_PER_CHUNK]) for i in range(0, len(keys), KEYS_PER_CHUNK)]
    return _only(Cursor(dump, table, pace.first_rows, key=key), (Extent(keys=p) for p in portions))


def ordered(
    dumps: Sequence[Cursor], known: Sequence[TableName], orders: Orders, pace: Pace
) -> tuple[tuple[Cursor, ...], tuple[TableName, ...]]:
    """The cursors and the known tables after the orders are carried out.

    Every wanted table that is not known yet gets its initial dump, the new requests get cursors, and cancelled dumps
    lose theirs."""
    before = set(known)
    new = [t for t in orders.wanted if t not in before]
    cursors = [*dumps, *(Cursor(INITIAL, table, pace.first_rows) for table in new)]
    for cursor in orders.new:
        if cursor.dump not in orders.cancelled:
            cursors = _shared(cursors, cursor)
    kept = (_without(c, orders.cancelled) for c in cursors)
    return tuple(c for c in kept if c is not None), (*known, *new)


def _shared(cursors: Sequence[Cursor], new: Cursor) -> list[Cursor]:
    """The cursors, with the cursor of a request added.

    A request for a whole table shares the range that another dump of the table has still to read. By itself it reads
    only the keys before that range, and the keys after it that were inserted since. So both together cost one pass."""
    whole = new.where is None and new.failed is None and new.upto is None
    at = next((i for i, c in enumerate(cursors) if whole and c.table == new.table and _is_range(c)), None)
    if at is None:
        return [*cursors, new]
    other = cursors[at]
    result = [*cursors[:at], replace(other, also=(*other.also, new.dump)), *cursors[at + 1 :]]
    if other.after is not None:
        result.append(replace(new, upto=other.after, key=other.key))
    if other.upto is not None:
        result.append(replace(new, after=other.upto, key=other.key))
    return result


def _is_range(cursor: Cursor) -> bool:
    """Whether a cursor has all rows of a range still to read."""
    rest = cursor.upto is None or cursor.after != cursor.upto
    return rest and cursor.where is None and cursor.failed is None


def _without(cursor: Cursor, cancelled: Collection[str]) -> Cursor | None:
    """The cursor for those of its dumps that are not cancelled."""
    left = [d for d in cursor.dumps if d not in cancelled]
    return replace(cursor, dump=left[0], also=tuple(left[1:])) if left else None


def read_again(dumps: Sequence[Cursor], lost: Iterable[Chunk], pace: Pace) -> tuple[Cursor, ...]:
    """The cursors, with the extents of lost chunks put back in front."""
    result = list(dumps)
    for chunk in lost:
        at = _index(result, chunk)
        if at is None:
            cursor = Cursor(chunk.dump, chunk.table, pace.first_rows, where=chunk.extent.where, key=chunk.key)
            result.append(_only(replace(cursor, also=chunk.also), (chunk.extent,)))
        else:
            result[at] = replace(result[at], again=(*result[at].again, chunk.extent))
    return tuple(result)


def failed(dumps: Sequence[Cursor], chunks: Mapping[Chunk, str], pace: Pace) -> tuple[Cursor, ...]:
    """The cursors, where those of the unreadable chunks' tables are marked as failed for the given reasons."""
    result = list(dumps)
    for chunk, reason in chunks.items():
        if _index(result, chunk) is None:
            result.append(Cursor(chunk.dump, chunk.table, pace.first_rows, also=chunk.also))
        _fail(result, chunk, reason)
    return tuple(result)


def begun_again(dumps: Sequence[Cursor], tables: Collection[TableName]) -> tuple[Cursor, ...]:
    """The cursors, where the stream's own failed dumps of these tables start again. A request that shared such a dump
    stays failed."""
    result: list[Cursor] = []
    for c in dumps:
        if c.failed is None or c.dump not in OWN or c.table not in tables:
            result.append(c)
            continue
        fresh = Cursor(c.dump, c.table, c.rows)
        result += [fresh] if fresh not in result else []
        result += [replace(c, dump=c.also[0], also=c.also[1:])] if c.also else []
    return tuple(result)


def _fail(cursors: list[Cursor], unreadable: Chunk | Cursor, reason: str) -> None:
    """End all cursors that belong to the same dumps of the same table."""
    for i, c in enumerate(cursors):
        if c.table == unreadable.table and c.failed is None and set(c.dumps) & set(unreadable.dumps):
            cursors[i] = replace(c, failed=reason)


def _index(dumps: Sequence[Cursor], chunk: Chunk) -> int | None:
    """Which cursor a chunk came from, if it is still there."""
    return next((i for i, c in enumerate(dumps) if (c.dump, c.table) == (chunk.dump, chunk.table)), None)


def repaired(
    dumps: Sequence[Cursor], holes: Mapping[TableName, Sequence[Key] | None], pace: Pace
) -> tuple[Cursor, ...]:
    """The cursors, with the repair of incomplete rows added. A table with too many of them is dumped whole."""
    result = tuple(dumps)
    for table, keys in holes.items():
        waiting = sum(len(e.keys) for c in result if (c.dump, c.table) == (REPAIR, table) for e in c.again)
        if keys is not None and len(keys) + waiting <= REPAIR_LIMIT:
            extent = Extent(keys=tuple(dict.fromkeys(keys)))
            result = read_again(result, [Chunk("", REPAIR, table, extent)] if keys else [], pace)
        elif not any(c.table == table and c.dump in OWN and c.after is None and c.upto is None for c in result):
            result = (*result, Cursor(REPAIR, table, pace.first_rows))
    return result


def next_round(
    dumps: Sequence[Cursor],
    pace: Pace,
    boundaries: Boundaries,
    round_id: str,
    orders: Orders = _NO_ORDERS,
) -> tuple[tuple[Chunk, ...], tuple[Cursor, ...]]:
    """The chunks to read now and the cursors that remain.

    A round has as many chunks as fit into the time of `Pace.budget`, and at least `Pace.chunks`. Every dump gets an
    equal share of both. What remains goes to the first dumps in the list. A dump that got nothing comes first in the
    next round. The tables of one dump are read one after the other.

    A small table takes only the time of its few rows, so many of them share a round. If only the number of chunks
    counts, the chunk of an empty table does not count. A table that was never read before gets at most `Pace.chunks`
    chunks, because nothing is known about its rows.

    Chunks of one round must not overlap, because the batch would deliver a key twice. So a round reads from one table
    either one extent of `again` or ranges of one cursor. A cursor that had to wait for this comes first in the next
    round.
    """
    chunks: list[Chunk] = []
    cursors = list(dumps)
    runs = [
        i for i, c in enumerate(cursors) if c.failed is None and not set(c.dumps) <= orders.held and not orders.waits(c)
    ]
    new = [cursors[i].table for i in runs if cursors[i].upto is None] if pace.budget else []
    boundaries = SmallTables(boundaries, new, pace.LEAST_ROWS)
    sharing = max(1, len({cursors[i].dump for i in runs}))
    owner: dict[TableName, int | None] = {}  # the cursor whose ranges are read; None for an extent of `again`
    given: Counter[str] = Counter()  # chunks of each dump
    spent: defaultdict[str, float] = defaultdict(float)  # seconds of each dump
    total = [0, 0.0]  # chunks and seconds of the round

    def take(i: int, extent: Extent, rows: int) -> None:
        cursor = cursors[i]
        seconds = pace.expected(cursor.table, rows)
        spent[cursor.dump] += seconds
        total[1] += seconds
        if not extent.empty:
            extent = replace(extent, where=cursor.where)
        if not extent.empty or pace.budget:
            given[cursor.dump] += 1
            total[0] += 1
        chunk_id = f"{round_id}-{len(chunks)}"
        chunks.append(Chunk(chunk_id, cursor.dump, cursor.table, extent, cursor.key, also=cursor.also))

    def left(dump: str, *, shared: bool) -> tuple[int, float]:
        """How many chunks, and how many seconds, a dump may still have."""
        count, seconds = int(pace.chunks - total[0]), pace.budget - total[1]
        if shared:
            count = min(count, -(-pace.chunks // sharing) - given[dump])
            seconds = min(seconds, pace.budget / sharing - spent[dump])
        return count, seconds

    def serve(i: int, least: int, seconds: float) -> None:
        cursor = cursors[i] = _begun(cursors[i], boundaries)
        if cursor.again:
            extent, rest = _first(cursor.again)
            take(i, extent, 0 if extent.empty else len(extent.keys) or cursor.rows)
            owner[cursor.table] = None
            cursors[i] = replace(cursor, again=rest)
        elif cursor.upto is not None and cursor.after != cursor.upto:
            owner[cursor.table] = i
            size, cuts = _cut(cursor, pace, boundaries, least, seconds)
            after = cursor.after
            for upto in cuts:
                take(i, Extent(after, upto), size)
                after = upto
            cursors[i] = replace(cursor, after=after)

    served, waited = set(), set()
    for shared in (True, False):
        for i in runs:
            least, seconds = left(cursors[i].dump, shared=shared)
            if least <= 0 and not pace.fitting(cursors[i].table, pace.LEAST_ROWS, seconds):
                if shared:
                    continue
                break
            if cursors[i].exhausted or cursors[i].failed:
                continue
            if i in served and least <= 0 and cursors[i].table not in pace.row_seconds:
                continue
            if owner.get(cursors[i].table, i) != i:
                waited.add(i)
                continue
            try:
                served.add(i)
                serve(i, least, seconds)
            except TableUnreadable as error:
                _fail(cursors, cursors[i], error.message)

    remain = [i for i, c in enumerate(cursors) if c.failed or not c.exhausted]
    remain.sort(key=lambda i: (i not in waited - served, cursors[i].dump in given))
    return tuple(chunks), tuple(cursors[i] for i in remain)


def _cut(cursor: Cursor, pace: Pace, boundaries: Boundaries, least: int, seconds: float) -> tuple[int, Sequence[Key]]:
    """The upper bounds of the next chunks of a cursor, and about how many rows each has. As many chunks as fit into the
    seconds, and at least `least`."""
    table, after, upto = cursor.table, cursor.after, cursor.upto
    assert upto is not None
    if after is None and pace.budget and cursor.rows > pace.LEAST_ROWS:
        small = boundaries.cuts(table, None, upto, pace.LEAST_ROWS, 1)
        if list(small) == [upto]:
            return pace.LEAST_ROWS, small
    count = pace.fitting(table, cursor.rows, seconds)
    if table not in pace.row_seconds:
        count = min(count, pace.chunks)
    count = max(count, least)
    return cursor.rows, boundaries.cuts(table, after, upto, cursor.rows, count) if count > 0 else ()


def _begun(cursor: Cursor, boundaries: Boundaries) -> Cursor:
    """The cursor, ready to read: its upper bound is fixed. An empty table gets a chunk without rows only. A table with
    a new primary key is read from its beginning."""
    key = boundaries.key(cursor.table)
    if cursor.key not in (None, key):
        if cursor.dump != REPAIR and any(e.keys for e in cursor.again):
            raise TableUnreadable(
                f"the primary key of table {cursor.table} has changed since the dump was requested: it is {key} now"
            )
        cursor = replace(cursor, after=None, upto=None, again=())
    cursor = replace(cursor, key=key)
    if cursor.upto is None:
        upto = boundaries.last_key(cursor.table)
        return _only(cursor, (Extent(where=NO_ROWS),)) if upto is None else replace(cursor, upto=upto)
    return cursor


def _first(again: Sequence[Extent]) -> tuple[Extent, tuple[Extent, ...]]:
    """The extent to read first, and the others. All single keys together come first, then one range at a time."""
    single = [e for e in again if e.keys]
    if not single:
        return again[0], tuple(again[1:])
    keys = list(dict.fromkeys(k for e in single for k in e.keys))
    ranges = [e for e in again if not e.keys]
    later = [Extent(keys=tuple(keys[KEYS_PER_CHUNK:]))] if keys[KEYS_PER_CHUNK:] else []
    return Extent(keys=tuple(keys[:KEYS_PER_CHUNK])), (*later, *ranges)


def _only(cursor: Cursor, extents: Iterable[Extent]) -> Cursor:
    """The cursor, with these extents and nothing else to read."""
    return replace(cursor, after=_NO_RANGE, upto=_NO_RANGE, again=tuple(extents))
