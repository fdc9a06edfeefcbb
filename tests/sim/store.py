"""The derived store, and the watcher that holds every delivered event against what really happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dblog.core.event import Op
from dblog.core.schema import TableName
from tests.sim.database import LEFT_OUT, TABLES, Database, Id, Row, Violation

Where = tuple[TableName, Id]
Moment = tuple[int, int, int]
"""(lsn, seq, version)."""

_BEGINNING: Moment = (-1, -1, -1)
UNKNOWN = -1
"""The version of a truncate that is not in the log."""


class Event(NamedTuple):
    """An event as delivered. The version of a delete is not in the event: the watcher knows it from the log."""

    table: TableName
    op: Op
    lsn: int
    seq: int
    id: Id | None
    v: int
    doc: str | None = None

    def __str__(self) -> str:
        return f"{self.op.name} {self.table.name}{self.id or ''} v{self.v} doc={self.doc} at {self.lsn}/{self.seq}"


class Store:
    """Applies events in the order of their delivery, like a sink that keeps a copy of every table."""

    def __init__(self, database: Database, *, transactional: bool) -> None:
        self.rows: dict[Where, Row] = {}
        self.transactional = transactional
        self._database = database
        self._batch = -1
        self._whole = False
        self._last: dict[Where, Moment] = {}
        self._truncated: dict[TableName, Moment] = {}
        self._before = (self._last, self._truncated)
        self.delivered: dict[Where, int] = {}
        """The batch that last had an event of a key."""

    def apply(self, batch: int, events: Sequence[Event], *, upto: int | None = None) -> None:
        """Apply a batch, or only its first events when the driver dies in the middle of it.

        A transactional sink takes a batch whole and once; another takes a batch again, from its beginning.
        """
        if self.transactional:
            if upto is not None or batch == self._batch:
                return
        elif batch == self._batch:
            self._last, self._truncated = dict(self._before[0]), dict(self._before[1])
        else:
            self._before = (dict(self._last), dict(self._truncated))
        self._batch = batch
        for event in events[:upto]:
            self._watch(event)
            self._take(event)
            if event.id is not None:
                self.delivered[event.table, event.id] = batch

    def _take(self, event: Event) -> None:
        if event.op is Op.truncate:
            self.rows = {where: row for where, row in self.rows.items() if where[0] != event.table}
            return
        assert event.id is not None
        where = (event.table, event.id)
        if event.op is Op.delete:
            self.rows.pop(where, None)
            return
        doc = event.doc
        if doc == LEFT_OUT and event.op is Op.update and where in self.rows:
            doc = self.rows[where].doc
        self.rows[where] = Row(event.v, doc)

    def _watch(self, event: Event) -> None:
        now = (event.lsn, event.seq, event.v)
        if event.op is Op.truncate:
            self._truncated[event.table] = now
            touched = [where for where in self._last if where[0] == event.table]
        else:
            assert event.id is not None
            touched = [(event.table, event.id)]
        for where in touched:
            last = max(self._last.get(where, _BEGINNING), self._truncated.get(event.table, _BEGINNING))
            if event.op is Op.truncate:
                last = self._last[where]
                if event.v == UNKNOWN:  # the stream empties a table that it takes up again
                    now = (event.lsn, event.seq, last[2])
            # without a written watermark, windows may end at one position while nothing is committed
            again = event.op is Op.read and now == last
            if now[:2] <= last[:2] and not again:
                raise Violation(f"{event}: comes after lsn/seq {last[0]}/{last[1]} of the same key")
            if now[2] < last[2]:
                raise Violation(f"{event}: the key went back in time, it was at v{last[2]}")
            self._last[where] = now
        if event.op not in (Op.delete, Op.truncate):
            versions = self._database.versions.get(touched[0], {})
            if event.v not in versions:
                raise Violation(f"{event}: the key never had this version")
            if event.doc not in (LEFT_OUT, versions[event.v]):
                raise Violation(f"{event}: this version's document was {versions[event.v]}")

    def compare(self) -> None:
        """At the end of a history: the store is the source."""
        source = {(t, k): row for t in TABLES for k, row in self._database.rows[t].items()}
        for where in sorted({*source, *self.rows}):
            if source.get(where) != self.rows.get(where):
                raise Violation(f"{where[0]}{where[1]}: source {source.get(where)}, store {self.rows.get(where)}")
