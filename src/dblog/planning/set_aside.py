"""Which tables are set aside at an offset: what concerns one table alone does not stop the others.

    the log      a value or a definition cannot be decoded      from that transaction on
    a survey     the table cannot be followed any more           from the end of the batch on
    a dump       the table's rows cannot be read                 from the end of the batch on
    the target   it refuses the table's rows                     from the beginning of that batch on

The offset that ends the batch has the decision. In it the table is not followed, so later batches have none of its log,
and its dumps have failed. If the stream must not set tables aside, it stops with the error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dblog.capture.effects import REAL, Effects
from dblog.capture.spool import Spool
from dblog.core.dump import OWN, Staged, begun_again, failed
from dblog.core.offset import Offset
from dblog.core.pace import Pace
from dblog.core.schema import TableName
from dblog.core.set_aside import DUMP, KEY, TARGET, SetAside, set_aside
from dblog.errors import DecodeError, KeyRefused, PreconditionFailed, SourceError, ValueRefused
from dblog.planning.following import Following
from dblog.sources.base import Source

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReadFailures:
    """What the failed dumps of the stream itself mean for the offset."""

    end: Offset
    """The offset, in which dumps begin again that may succeed."""
    unread: frozenset[TableName] = frozenset()
    """Existing tables whose rows could not be read for the first time."""
    aside: Mapping[TableName, SetAside] | None = None


class TablesAside:
    """Decides which tables are set aside. `enabled`: whether tables are set aside at all. `tell` is called with each
    event."""

    def __init__(
        self,
        source: Source,
        spool: Spool,
        following: Following,
        *,
        enabled: bool,
        tell: Callable[..., None],
        effects: Effects = REAL,
    ) -> None:
        self._source = source
        self._spool = spool
        self._following = following
        self._enabled = enabled
        self._tell = tell
        self._effects = effects
        self._unread: set[TableName] = set()
        """Existing tables whose rows could not be read for an initial or repair dump."""
        self._told: Mapping[TableName, SetAside] = {}
        self._now: Mapping[TableName, SetAside] = {}
        self._refused_at: tuple[Offset, dict[TableName, SetAside]] | None = None

    def status(self) -> dict[str, Any]:
        return {"failed_tables": {str(table): found.to_json() for table, found in self._now.items()}}

    def check(self, start: Offset) -> None:
        """If no table may be set aside: raise the error of a table that cannot be followed any more."""
        if self._enabled:
            return
        followed = self._following.followed(start)
        found = {**self._following.unfit, **{t: failure.error for t, failure in self._source.failures().items()}}
        errors = [error for table, error in found.items() if table in followed]
        if len(errors) > 1:
            raise type(errors[0])("\n".join(e.message for e in errors), hint=errors[0].hint)
        for error in errors:
            raise error

    def due(self, start: Offset, position: int) -> bool:
        """Whether an offset at this position would set a table aside, or refuse to take one up again."""
        return bool(self.at(start, position))

    def at(self, start: Offset, position: int) -> dict[TableName, SetAside]:
        """The tables that are set aside at the offset after `start` that ends at the position. The log up to the
        position was decoded before."""
        self.check(start)
        followed, now = self._following.followed(start), self._effects.wall()
        found = {
            table: set_aside(failure.error, failure.lsn, now)
            for table, failure in self._source.failures().items()
            if table in followed and failure.lsn < position
        }
        for table, error in self._following.unfit.items():
            if table in followed and table not in found:
                found[table] = set_aside(error, position, now)
        for (table, failure), why in self._following.refused.items():
            if table in start.aside and start.aside[table].id == failure:
                error = PreconditionFailed(f"it was to be taken up again, but {why}")
                found[table] = set_aside(error, start.aside[table].position, now)
        return {**found, **{t: aside for t, aside in self._refused(start).items() if t in followed}}

    def _refused(self, start: Offset) -> dict[TableName, SetAside]:
        """The tables whose target has refused their rows of the batch that ended at `start`. None of these rows is
        there. The sink wrote this down before it wrote the batch without them."""
        if not self._enabled:
            return {}
        if self._refused_at is None or self._refused_at[0] != start:
            found = {
                TableName(*note["table"]): SetAside.from_json({**note, "reason": TARGET})
                for note in self._spool.refused()
                if note["end"] == start.position
            }
            self._refused_at = start, found
        return self._refused_at[1]

    def applied(self, start: Offset, end: Offset, new: Mapping[TableName, SetAside], pace: Pace) -> Offset:
        """The offset, with the tables set aside. A table that joins is not set aside any more."""
        followed = end.followed or {}
        aside = {**{t: found for t, found in start.aside.items() if t not in followed}, **new}
        return replace(taken_out(end, new, pace), aside=aside) if aside else end

    def planned(self, end: Offset) -> None:
        """Report the tables that are set aside by an offset, or were when this life began: each once."""
        self._now = end.aside
        for table, found in end.aside.items():
            if self._told.get(table) != found:
                facts = {"column": found.column, "value": found.value, "key": found.key}
                self._tell(
                    "table_set_aside",
                    table=str(table),
                    reason=found.reason,
                    message=found.message,
                    position=found.position,
                    **facts,
                )
                log.warning(
                    "table %s is set aside, the others go on: %s; dblog retry %s takes it up again",
                    table,
                    found.message,
                    table,
                )
        self._told = dict(end.aside)

    def begin(self, start: Offset) -> None:
        """Note the tables that were set aside before this life. They were reported then."""
        if not self._told and not self._now:
            self._told, self._now = dict(start.aside), start.aside

    # -- dumps -------------------------------------------------------------------------------------------------

    def was_read(self, table: TableName) -> None:
        self._unread.discard(table)

    def were_unread(self, tables: frozenset[TableName]) -> None:
        self._unread |= tables

    def read_failures(self, start: Offset, end: Offset, staged: Mapping[str, Staged]) -> ReadFailures:
        """What the failed dumps of the stream itself mean. A dropped table needs no dump. A dump that failed because
        its table was away starts again. A table that exists and fails twice, or has a value that cannot be delivered,
        is set aside: without its full state its changes are not worth anything. So is a table whose promised key does
        not hold, whoever asked for the dump that found it."""
        details = {c.table: found.about for c in start.read if (found := staged.get(c.id)) and found.about is not None}
        keyless = {table for table, about in details.items() if about.get("reason") == KEY}
        reasons = {
            c.table: c.failed for c in end.dumps if c.failed is not None and (c.dump in OWN or c.table in keyless)
        }
        if not reasons:
            return ReadFailures(end)
        there = self._source.describe(reasons)
        aside: dict[TableName, SetAside] = {}
        for table in there:
            if table in details or table in self._unread:
                about = {"reason": DUMP, "message": reasons[table] or "", **(details.get(table) or {})}
                aside[table] = SetAside.from_json({**about, "position": end.position, "at": self._effects.wall()})
                # somebody may fix the cause: then the table must be read again
                self._spool.remove_chunks({c.id for c in start.read if c.table == table})
                if not self._enabled:
                    raise _refusal(table, aside[table], value=table in details)
        if len(there) < len(reasons):
            self._following.look_for_names(start)
            self.check(start)
        again = (there.keys() | self._following.away) - aside.keys()
        return ReadFailures(
            replace(end, dumps=begun_again(end.dumps, again)), frozenset(there.keys() - aside.keys()), aside
        )


def _refusal(table: TableName, found: SetAside, *, value: bool) -> SourceError:
    message = f"table {table} cannot be dumped: {found.message}"
    if value and found.column is not None:
        return ValueRefused(message, table=str(table), column=found.column, value=found.value or "", key=found.key)
    if found.reason == KEY:
        return KeyRefused(message, key=found.key)
    if value:
        return DecodeError(message)
    return PreconditionFailed(
        message,
        hint="fix the cause, or leave the table out: without its full state the stream would be incomplete",
    )


def taken_out(end: Offset, tables: Mapping[TableName, SetAside], pace: Pace) -> Offset:
    """The offset without these tables: they are not followed after it, its batch has none of their chunks, and their
    dumps have failed. They count as dumped, because a table that is taken up again gets its dump then."""
    if not tables:
        return end
    reasons = {t: f"the table is set aside: {found.message}" for t, found in tables.items()}
    lost = {c: reasons[c.table] for c in (*end.emit, *end.read) if c.table in tables}
    dumps = tuple(c if c.table not in tables else replace(c, failed=c.failed or reasons[c.table]) for c in end.dumps)
    return replace(
        end,
        emit=tuple(c for c in end.emit if c.table not in tables),
        read=tuple(c for c in end.read if c.table not in tables),
        dumps=failed(dumps, lost, pace),
        tables=tuple(dict.fromkeys((*end.tables, *tables))),
        followed=None if end.followed is None else {t: f for t, f in end.followed.items() if t not in tables},
        emptied={t: schema for t, schema in end.emptied.items() if t not in tables},
    )
