"""Collects what users want from a stream's dumps when a batch is planned. Requests become cursors here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dblog.core.dump import INITIAL, Orders
from dblog.core.offset import Cursor, Offset, Taken
from dblog.core.schema import TableName
from dblog.planning.admission import admit
from dblog.planning.following import Failure, Following
from dblog.planning.pacer import Pacer
from dblog.planning.state_sync import Inbox, StateSync
from dblog.planning.tables import FollowedTables
from dblog.sources.base import Source
from dblog.state.pipeline import request_number
from dblog.state.requests import TableProgress


class Requests:
    """The orders of a stream. Without a state store there are no requests. `dump`: whether every table is dumped when
    the stream first follows it."""

    def __init__(
        self,
        source: Source,
        sync: StateSync | None,
        tables: FollowedTables,
        following: Following,
        pacer: Pacer,
        retrying: Callable[[Callable[[], Any]], Any],
        *,
        dump: bool,
    ) -> None:
        self._source = source
        self._sync = sync
        self._tables = tables
        self._following = following
        self._pacer = pacer
        self._retrying = retrying
        self._dump = dump
        self._announced: set[TableName] = set()

    def retried(self, start: Offset) -> frozenset[Failure]:
        """The tables that are set aside and are to be taken up again: somebody has asked for it since they failed."""
        if self._sync is None or not start.aside:
            return frozenset()
        wanted = self._sync.inbox().retries
        return frozenset((t, found.id) for t, found in start.aside.items() if wanted.get(str(t)) == found.id)

    def orders(self, start: Offset) -> Orders:
        """What users want now. Requests that the offset has not taken yet become cursors."""
        away = self._following.away
        wanted = tuple({**self._tables.followed(), **dict.fromkeys(away)}) if self._dump else ()
        if self._sync is None:
            return Orders(wanted, away=away)
        inbox = self._sync.inbox()
        self._pacer.throttle = inbox.throttle
        dumped = set(start.tables)
        first = [t for t in wanted if t not in dumped]
        if new := [t for t in first if t not in self._announced]:
            self._announced |= set(new)
            self._sync.admitted(INITIAL, {str(t): TableProgress(total=self._tables.rows.get(t)) for t in new})
        return replace(self._admitted(start, inbox, self._sync), wanted=wanted, away=away)

    def _admitted(self, start: Offset, inbox: Inbox, sync: StateSync) -> Orders:
        before = start.taken.number if start.taken is not None and start.taken.store == inbox.store else 0
        new = [d for d in inbox.requests if request_number(d.id) > before and d.id not in inbox.cancelled]
        cursors: list[Cursor] = []
        for dump in new:
            request = dump.request
            there = self._retrying(lambda: self._source.describe(tuple(self._tables.followed())))
            parts = self._retrying(lambda: admit(dump.id, request, there, self._source, self._pacer.pace()))  # noqa: B023
            sync.admitted(dump.id, {str(p.cursor.table): p.progress for p in parts})
            cursors += [p.cursor for p in parts]
        taken = Taken(inbox.store, max(request_number(d.id) for d in new)) if new else None
        return Orders((), tuple(cursors), taken, inbox.held, inbox.cancelled)
