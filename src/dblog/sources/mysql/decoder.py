"""The log: from events to runs of typed change batches.

All events that have arrived are decoded together. Transactions, ordinals and tables are arrays over the events; the row
events of a table are decoded together (`rows`). Only new table maps, statements and watermarks are handled one at a
time; they are rare.

A transaction begins with a GTID event. Its position is the `_lsn` of the changes, because it is already known when a
large transaction is decoded in parts. The transaction ends with an XID event, a COMMIT or, if it is a single statement,
with that. Between calls the decoder keeps the table maps and the open transaction, so the result does not depend on
where the packets are cut.

Only the beginning and the end of a transaction that was already delivered are read. Its contents are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Ints, Mask
from dblog.core.event import Op
from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.flavor import Flavor
from dblog.databases.mysql.gtid import AHEAD, DeliveredFilter, Names, unmarked
from dblog.errors import DecodeError, PositionLost
from dblog.sources.base import Commits, Run
from dblog.sources.mysql.binlog import EventReader
from dblog.sources.mysql.events import BEGINS, KNOWN, Events, Type, unknown
from dblog.sources.mysql.packets import Packets
from dblog.sources.mysql.rows import Changes, find_changes, table_batch, truncation
from dblog.sources.mysql.statements import Statement, read_control, read_statement, statement_text
from dblog.sources.mysql.table_ids import IS_ROWS, CapturedTables, Destination, TableMaps
from dblog.sources.mysql.transactions import committed_at, names
from dblog.sources.mysql.xa import PreparedTransactions

_BEGIN = np.zeros(256, np.bool_)
_BEGIN[list(BEGINS)] = True

_STANDALONE = 1
"""The flag of MariaDB's GTID event for a transaction that is a single statement."""
_UNDONE = "the log has changes that were rolled back"
_UNDONE_HINT = "a table has an engine without transactions, such as MyISAM: convert it to InnoDB, start with a new dump"


@dataclass(frozen=True)
class _Transaction:
    """A transaction in progress between two calls."""

    lsn: int = 0
    committed_at: int = 0
    xid: int = 0
    origin: str = ""
    delivered: bool = False
    changes: int = 0
    several: bool = False
    """Whether it is more than a single statement."""
    token: str | None = None
    maps: dict[int, Destination] = field(default_factory=dict)
    touched: frozenset[TableName] = frozenset()
    """The captured tables that its table maps have named so far."""


@dataclass(frozen=True, eq=False)
class _Feed:
    """Events and their transactions. Transaction 0 is the one already in progress."""

    events: Events
    commits: Ints
    """The events that end a transaction."""
    transaction: Ints
    """The number of each event's transaction."""
    first: Ints
    """The first event of each transaction."""
    lsn: Ints
    committed_at: Ints
    xid: Ints
    origin: Names
    delivered: Mask
    """Which transactions were already delivered: the log is read from further back than the stream goes on."""
    open: bool
    several: bool
    """Whether the last transaction is more than a single statement."""
    stated: list[tuple[int, TableName, bool]]
    """For each statement that empties tables: its event, the table, and whether the table gets other rows."""
    tokens: dict[int, str] = field(default_factory=dict)


class Decoder:
    """Turns packets, in any portions, into runs, from the event at `begin` on.

    `watermark` names the table whose column `token` carries the watermarks. `before` adds the old rows.
    """

    def __init__(
        self,
        tables: CapturedTables,
        flavor: Flavor,
        begin: int,
        *,
        watermark: TableName,
        before: bool = False,
        shift: int = 0,
        delivered: DeliveredFilter | None = None,
        files: dict[int, int] | None = None,
        created: int = 0,
        lower_case: bool = False,
    ) -> None:
        """`shift`, `files` and `created` are those of `EventReader`. `delivered` finds transactions to skip.
        `lower_case`: the server stores table names in lower case."""
        self._maps = TableMaps(tables, flavor, watermark)
        self._before = before
        self._reader = EventReader(begin, shift, files, created)
        self._delivered = delivered
        self._lower_case = lower_case
        self._passing = self.awaits
        self._open: _Transaction | None = None
        self._prepared = PreparedTransactions(tables.prepared)
        self._captured = tables.captured
        self._arrived: set[TableName] = set()
        """The captured tables that got their name in the log, by a rename or creation. Their earlier rows are
        unknown."""
        self.redefined = False
        """Whether the log has shown a statement that changes a definition."""

    @property
    def position(self) -> int:
        """The position of the next event."""
        return self._reader.position

    @property
    def inside(self) -> bool:
        """Whether a transaction is open."""
        return self._open is not None

    @property
    def awaits(self) -> bool:
        """Whether some delivered transactions have not begun in the log yet."""
        return self._delivered is not None and self._delivered.awaits

    @property
    def passing(self) -> bool:
        """Whether some delivered transactions have not ended in the log yet."""
        return self._passing

    def feed(self, packets: Packets) -> list[Run]:
        """The runs of the next packets. The last run has no position if the packets end inside a transaction."""
        runs: list[Run] = []
        begun = self._open is not None
        for events in self._reader.read(packets):
            if events.fresh and self._open is not None:
                if begun:
                    raise DecodeError(
                        "the log has a large transaction that does not end: the server failed while it wrote it",
                        hint="start with a new checkpoint and a new dump",
                    )
                runs.pop()
                self._open = None
            runs += self._runs(self._read(events))
            begun = begun and self._open is not None
        self._passing = self._passing and (self.awaits or self._open is not None)
        return runs

    def _read(self, events: Events) -> _Feed:
        """Find the transactions."""
        raw, kind = events.raw, events.kind
        begin = _BEGIN[kind]
        carried = self._open or _Transaction()
        transaction: Ints = np.cumsum(begin, dtype=np.int64)
        opened = np.flatnonzero(begin)
        first = np.append(0, opened)
        origin, xid = names(events, opened)
        delivered = xid < 0
        if self._delivered is not None:
            delivered, marks = self._delivered(origin, xid)
            origin = marks + origin
        delivered = np.append(carried.delivered, delivered)
        passed = delivered[transaction]
        query = kind == Type.query
        tail = raw.le64(events.end - 8)
        several_from = query & (tail >> np.uint64(16) == int.from_bytes(b"\0BEGIN", "little"))
        commit = query & (tail >> np.uint64(8) == int.from_bytes(b"\0COMMIT", "little"))
        commit |= (kind == Type.xid) | (kind == Type.xa_prepare) | (kind == Type.incident) & passed
        if np.any(wrong := ~KNOWN[kind] & ~passed):
            raise unknown(int(kind[np.argmax(wrong)]))
        begun = np.cumsum(several_from)
        marked = raw.data[events.start[opened] + 12] & _STANDALONE == 0
        several = np.append(carried.several, (kind[opened] == Type.mariadb_gtid) & marked)

        def is_several(number: int) -> bool:
            """Whether the event's transaction has more than one statement up to that event."""
            mine = int(transaction[number])
            return bool(several[mine] or begun[number] - (begun[first[mine]] if mine else 0))

        stated: list[tuple[int, TableName, bool]] = []
        for number in np.flatnonzero(query & ~several_from & ~commit | (kind == Type.xa_prepare)).tolist():
            body = events.body(number)
            if kind[number] == Type.xa_prepare:
                touched = self._touched(events, transaction, number)
                self._prepared.prepare(body, touched, passed=bool(passed[number]))
                continue
            text, schema = statement_text(body)
            if passed[number]:
                statement = read_control(text) or Statement()
            else:
                statement = read_statement(text, schema)
                statement = statement.lowered() if self._lower_case else statement
                self._maps.check(statement.defined)
                if statement.undoes and self._touched(events, transaction, number):
                    raise DecodeError(_UNDONE, hint=_UNDONE_HINT)
            several[transaction[number]] |= statement.begins
            commit[number] = statement.closes or (statement.ends and not is_several(number))
            if statement.xa is not None:
                lands = statement.commits and not passed[number]
                self._prepared.end(statement.xa, int(events.position[number]), commits=bool(lands))
            emptied = (*statement.emptied, *self._maps.tables_of(statement.dropped))
            # The schema of the former table of this name is unknown, so it is emptied when the next one comes.
            come = (d.table for d in statement.defined if d.arrives and self._maps.is_first(d.table))
            emptied = tuple(dict.fromkeys((*emptied, *come)))
            stated += [(number, table, table in statement.replaced) for table in emptied]
            # Rows that changed without a log entry before the table was repaired never come later.
            mended = (d.table for d in statement.defined if d.mends and d.table in self._arrived)
            stated += [(number, table, True) for table in mended if table not in emptied]
            self._arrived |= {d.table for d in statement.defined if d.arrives and self._captured(d.table)}
            self.redefined |= bool(statement.defined or statement.dropped or emptied)
        self._check(events, begin, commit)
        commits = np.flatnonzero(commit)
        last = len(kind) - 1
        feed = _Feed(
            events,
            commits,
            transaction,
            first,
            lsn=np.append(carried.lsn, events.position[opened]),
            committed_at=np.append(carried.committed_at, committed_at(events, opened)),
            xid=np.append(carried.xid, xid),
            origin=np.append(np.array([carried.origin], np.object_), origin),
            delivered=delivered,
            open=bool(np.count_nonzero(begin) + (self._open is not None) - len(commits)),
            several=is_several(last),
            stated=stated,
        )
        if carried.token is not None:
            feed.tokens[0] = carried.token
        return feed

    def _touched(self, events: Events, transaction: Ints, number: int) -> frozenset[TableName]:
        """The captured tables that the event's transaction has changed up to that event."""
        mine = transaction[: number + 1] == transaction[number]
        found = self._maps.captured(events, np.flatnonzero(mine & (events.kind[: number + 1] == Type.table_map)))
        return found | self._open.touched if self._open and not transaction[number] else found

    def _check(self, events: Events, begin: Mask, commit: Mask) -> None:
        both = begin | commit
        marks = begin[both]
        if marks.size and (marks[0] != (self._open is None) or np.any(marks[1:] == marks[:-1])):
            raise DecodeError("begins and commits do not alternate in the log")
        depth = np.cumsum(begin) - np.cumsum(commit) + (self._open is not None)
        if np.any(IS_ROWS[events.kind] & (depth == 0)):
            raise DecodeError("the log has a change outside a transaction")

    def _runs(self, feed: _Feed) -> list[Run]:
        events = feed.events
        counts = np.zeros(len(events), np.int64)
        counted = np.zeros(len(events), np.int64)
        found: list[tuple[Destination, Ints, Changes]] = []
        carried = self._open.maps if self._open else {}
        maps, groups = self._maps.targets(events, feed.transaction, carried, feed.delivered[feed.transaction])
        for target, numbers in groups:
            if target.layout is not None:
                changes = find_changes(
                    target.layout, events.raw, events.start[numbers], events.end[numbers], events.kind[numbers]
                )
                counts[numbers] = changes.counts
                counted[numbers] = 0 if target.watermark else changes.counts
                found.append((target, numbers, changes))
        emptied = [
            (number, schema, replaced)
            for number, table, replaced in feed.stated
            if (schema := self._maps.schema(table)) is not None
        ]
        if self._passing:
            ours = [numbers for target, numbers, _ in found if not target.watermark]
            _check_origins(feed, np.concatenate([*ours, np.array([n for n, _, _ in emptied], np.int64)]))
        for number, _, _ in emptied:
            counts[number] += 1
            counted[number] += 1
        before = np.append(0, np.cumsum(counts))
        base = before[feed.first]
        base[0] = -self._open.changes if self._open else 0

        def told(numbers: Any) -> tuple[Any, Any, Any, Any]:
            """The arguments of `table_batch` for some events."""
            mine = feed.transaction[numbers]
            return feed.lsn[mine], before[numbers] - base[mine], feed.xid[mine], feed.committed_at[mine]

        batches: list[tuple[TableSchema, pa.RecordBatch, Ints]] = []
        for target, numbers, changes in found:
            assert target.layout is not None
            batch, event = table_batch(changes, *told(numbers), before=self._before and not target.watermark)
            if target.watermark:
                feed.tokens.update(_tokens(batch, feed.transaction[numbers[event]]))
            else:
                batches.append((target.layout.schema, batch, numbers[event]))
        for number, schema, _ in emptied:
            gone = truncation(schema, *map(int, told(number)), before=self._before)
            batches.append((schema, gone, np.array([number])))
        replaced = [(number, schema.table) for number, schema, replaced in emptied if replaced]
        runs = list(_cut(feed, batches, np.append(0, np.cumsum(counted)), replaced))
        self._carry(feed, int(before[-1] - base[-1]), maps)
        return runs

    def _carry(self, feed: _Feed, changes: int, maps: dict[int, Destination]) -> None:
        if not feed.open:
            self._open = None
        else:
            last = len(feed.first) - 1
            lsn, committed_at, xid = (int(values[last]) for values in (feed.lsn, feed.committed_at, feed.xid))
            whose = feed.origin[last], bool(feed.delivered[last])
            touched = self._touched(feed.events, feed.transaction, len(feed.events) - 1)
            self._open = _Transaction(
                lsn, committed_at, xid, *whose, changes, feed.several, feed.tokens.get(last), maps, touched
            )


def _check_origins(feed: _Feed, changes: Ints) -> None:
    """Raise PositionLost if a transaction that only this server has changed captured tables before delivered
    transactions: it is unknown whether its rows still exist."""
    for number in np.unique(feed.transaction[changes]).tolist():
        if feed.origin[number].startswith(AHEAD):
            who = unmarked(feed.origin[number])
            gtid = f"{who}{'-' if who.count('-') == 1 else ':'}{feed.xid[number]}" if who else "without a GTID"
            raise PositionLost(
                f"transaction {gtid} changed captured tables on this server only: the server that the stream read "
                "before does not have it, and later transactions were already delivered",
                hint="somebody wrote to a replica: make the servers equal, then start with a new checkpoint, which "
                "dumps the tables again",
            )


def _tokens(batch: pa.RecordBatch, transaction: Ints) -> Iterable[tuple[int, str]]:
    """The transaction's number and the `token` of each watermark."""
    if "token" not in batch.schema.names:
        raise DecodeError("the watermark table has no column 'token'")
    for number, op, token in zip(
        transaction.tolist(), batch.column("_op").to_pylist(), batch.column("token").to_pylist(), strict=True
    ):
        if op != Op.delete and token is not None:
            yield number, token if isinstance(token, str) else token.decode()


def _cut(
    feed: _Feed,
    batches: list[tuple[TableSchema, pa.RecordBatch, Ints]],
    rows: Ints,
    replaced: list[tuple[int, TableName]],
) -> Iterator[Run]:
    """The runs. A run ends after each watermark's transaction and after the last commit; an open transaction is its own
    run. `rows` has the number of rows before each event; `replaced` has replaced tables and the events that replaced
    them."""
    size = np.append(0, np.cumsum(feed.events.size))
    number = feed.transaction[feed.commits]
    marked = np.flatnonzero(np.isin(number, list(feed.tokens)))
    stops = sorted({*marked.tolist(), *range(len(feed.commits))[-1:]})
    first = begin = 0
    cuts: list[tuple[int, Run]] = []
    for last in stops:
        mine = slice(first, last + 1)
        ends = feed.commits[mine] + 1
        commits = Commits(
            feed.events.after[feed.commits[mine]],
            feed.events.after[feed.commits[mine]],
            rows[ends] - rows[begin],
            size[ends] - size[begin],
            np.where(feed.delivered[number[mine]], "", feed.origin[number[mine]]),
            feed.xid[number[mine]],
        )
        nbytes = int(size[ends[-1]] - size[begin])
        committed_at = int(feed.committed_at[number[last]])
        cuts.append((int(ends[-1]), Run((), commits, feed.tokens.get(int(number[last])), nbytes, committed_at)))
        first, begin = last + 1, int(ends[-1])
    if feed.open:
        cuts.append((len(feed.events), Run(nbytes=int(size[-1] - size[begin]))))
    begin = 0
    for end, run in cuts:
        changes = []
        for schema, batch, event in batches:
            # Cut where a table is emptied, so that changes stay before or after the truncate.
            low, high = np.searchsorted(event, [begin, end])
            emptied = np.clip(np.searchsorted(event, [number for number, _, _ in feed.stated]), low, high)
            for first, last in pairwise(sorted({int(low), *emptied.tolist(), int(high)})):
                changes.append((int(event[first]), schema, batch[first:last]))
        in_order = tuple(change[1:] for change in sorted(changes, key=lambda change: change[0]))
        yield replace(run, changes=in_order, replaced=tuple(t for number, t in replaced if begin <= number < end))
        begin = end
