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
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Ints, Mask
from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.flavor import Flavor
from dblog.databases.mysql.gtid import DeliveredFilter
from dblog.errors import DecodeError, SourceError
from dblog.sources.base import Run
from dblog.sources.mysql.binlog import EventReader
from dblog.sources.mysql.events import BEGINS, KNOWN, Events, Type, unknown
from dblog.sources.mysql.feed import Feed, Transaction, check_origins, cut_runs, tokens_of
from dblog.sources.mysql.foreign_keys import Cascades
from dblog.sources.mysql.packets import Packets
from dblog.sources.mysql.rows import Changes, find_changes, table_batch, truncation
from dblog.sources.mysql.statements import Statement, read_control, read_statement, statement_text
from dblog.sources.mysql.table_ids import IS_ROWS, CapturedTables, Destination, TableMaps
from dblog.sources.mysql.transactions import committed_at, names
from dblog.sources.mysql.undecodable import Undecodable, decoding, note_failure
from dblog.sources.mysql.xa import PreparedTransactions
from dblog.sources.table_failures import TableFailures

_BEGIN = np.zeros(256, np.bool_)
_BEGIN[list(BEGINS)] = True

_STANDALONE = 1
"""The flag of MariaDB's GTID event for a transaction that is a single statement."""
_UNDONE = "the log has changes that were rolled back"
_UNDONE_HINT = "a table has an engine without transactions, such as MyISAM: convert it to InnoDB, start with a new dump"


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
        failures: TableFailures | None = None,
        files: dict[int, int] | None = None,
        created: int = 0,
        lower_case: bool = False,
        cascades: Cascades | None = None,
    ) -> None:
        """`shift`, `files` and `created` are those of `EventReader`. `delivered` finds transactions to skip. `failures`
        takes errors that concern one table alone; without it they are raised. `lower_case`: the server stores table
        names in lower case. `cascades` makes the events of foreign keys."""
        self._failures = failures
        self._watermark = watermark
        self._cascades = cascades
        watched = () if cascades is None else (cascades.watched,)
        self._maps = TableMaps(tables, flavor, watermark, failures, *watched)
        self._before = before
        self._reader = EventReader(begin, shift, files, created)
        self._delivered = delivered
        self._lower_case = lower_case
        self._passing = self.awaits
        self._open: Transaction | None = None
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

    def _read(self, events: Events) -> Feed:
        """Find the transactions."""
        raw, kind = events.raw, events.kind
        if self._cascades is not None and len(events):
            self._cascades.begin(int(events.position[0]))
        begin = _BEGIN[kind]
        carried = self._open or Transaction()
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
        lsn = np.append(carried.lsn, events.position[opened])

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
                refused = self._maps.refused(statement.defined)
                if statement.undoes:
                    undone = DecodeError(_UNDONE, hint=_UNDONE_HINT)
                    refused |= dict.fromkeys(self._touched(events, transaction, number), undone)
                for table, error in refused.items():
                    self._fail(table, int(lsn[transaction[number]]), error)
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
            if self._cascades is not None and not passed[number]:
                unsure = self._cascades.redefine(statement, int(events.position[number]))
                stated += [(number, table, True) for table in sorted(unsure) if table not in emptied]
            self.redefined |= bool(statement.defined or statement.dropped or emptied)
        self._check(events, begin, commit)
        commits = np.flatnonzero(commit)
        last = len(kind) - 1
        feed = Feed(
            events,
            commits,
            transaction,
            first,
            lsn=lsn,
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

    def _fail(self, table: TableName, lsn: int, error: SourceError) -> None:
        if self._failures is None or table == self._watermark:
            raise error
        self._failures.fail(table, lsn, error)

    def _runs(self, feed: Feed) -> list[Run]:
        while True:
            try:
                return self._decoded(feed)
            except Undecodable as found:  # what is counted for the other tables must not depend on the failed one
                if self._failures is None:
                    raise found.error from None

                def told(numbers: Ints) -> tuple[Any, ...]:
                    mine = feed.transaction[numbers]
                    return feed.lsn[mine], np.zeros(len(numbers), np.int64), feed.xid[mine], feed.committed_at[mine]

                note_failure(self._failures, found, feed.events, told, before=self._before)

    def _part(self, feed: Feed, target: Destination, numbers: Ints) -> Ints:
        """The events of a target that are decoded: those before the table fails."""
        if self._failures is None or target.watermark or target.watched:
            return numbers
        lsn = feed.lsn[feed.transaction[numbers]]
        if target.refused is not None:
            self._failures.refused(target.table, lsn, target.refused)
        return numbers[self._failures.part(target.table, lsn)]

    def _parts(self, feed: Feed, groups: Iterable[tuple[Destination, Ints]]) -> Iterator[tuple[Destination, Ints]]:
        """The targets and the events that are decoded of each. A table that has failed is only watched from there on,
        if foreign keys refer to it: what they do to other tables still happens. Raises the table's error if that cannot
        be known."""
        for target, numbers in groups:
            mine = self._part(feed, target, numbers)
            yield target, mine
            if len(mine) < len(numbers) and self._cascades is not None and self._cascades.watched(target.table):
                if target.refused is not None:
                    raise target.refused
                yield replace(target, watched=True), np.setdiff1d(numbers, mine)

    def _decoded(self, feed: Feed) -> list[Run]:
        events = feed.events
        counts = np.zeros(len(events), np.int64)
        counted = np.zeros(len(events), np.int64)
        found: list[tuple[Destination, Ints, Changes]] = []
        carried = self._open.maps if self._open else {}
        maps, groups = self._maps.targets(events, feed.transaction, carried, feed.delivered[feed.transaction])
        for target, numbers in self._parts(feed, groups):
            if target.layout is not None and len(numbers):
                with decoding(target, numbers):
                    changes = find_changes(
                        target.layout, events.raw, events.start[numbers], events.end[numbers], events.kind[numbers]
                    )
                counts[numbers] = changes.counts
                counted[numbers] = 0 if target.watermark or target.watched else changes.counts
                found.append((target, numbers, changes))
        emptied = [
            (number, schema, replaced)
            for number, table, replaced in feed.stated
            if len(self._part(feed, Destination(table, None), np.array([number])))
            and (schema := self._maps.schema(table)) is not None
        ]
        if self._passing:
            ours = [numbers for target, numbers, _ in found if not target.watermark]
            check_origins(feed, np.concatenate([*ours, np.array([n for n, _, _ in emptied], np.int64)]))
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
            if self._cascades is not None and not target.watermark:
                batches += self._cascade_events(changes, events, numbers, told(numbers))
            if target.watched:
                continue
            with decoding(target, numbers):
                batch, event = table_batch(changes, *told(numbers), before=self._before and not target.watermark)
            if target.watermark:
                feed.tokens.update(tokens_of(batch, feed.transaction[numbers[event]]))
            else:
                batches.append((target.layout.schema, batch, numbers[event]))
        for number, schema, _ in emptied:
            gone = truncation(schema, *map(int, told(number)), before=self._before)
            batches.append((schema, gone, np.array([number])))
        replaced = [(number, schema.table) for number, schema, replaced in emptied if replaced]
        runs = list(cut_runs(feed, batches, np.append(0, np.cumsum(counted)), replaced))
        self._carry(feed, int(before[-1] - base[-1]), maps)
        return runs

    def _cascade_events(
        self, changes: Changes, events: Events, numbers: Ints, told: tuple[Any, ...]
    ) -> list[tuple[TableSchema, pa.RecordBatch, Ints]]:
        """What foreign keys do because of changes of a table."""
        assert self._cascades is not None
        flags = events.raw.le16(events.start[numbers] + 6).astype(np.int64)
        position, version = events.position[numbers], self._reader.version
        found = self._cascades.events(changes, flags, position, version, told, before=self._before)
        return [(schema, batch, numbers[event]) for schema, batch, event in found]

    def _carry(self, feed: Feed, changes: int, maps: dict[int, Destination]) -> None:
        if not feed.open:
            self._open = None
        else:
            last = len(feed.first) - 1
            lsn, committed_at, xid = (int(values[last]) for values in (feed.lsn, feed.committed_at, feed.xid))
            whose = feed.origin[last], bool(feed.delivered[last])
            touched = self._touched(feed.events, feed.transaction, len(feed.events) - 1)
            self._open = Transaction(
                lsn, committed_at, xid, *whose, changes, feed.several, feed.tokens.get(last), maps, touched
            )
