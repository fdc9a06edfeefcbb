"""The progress of dumps, computed from the offsets of committed batches. If it is lost, it can be computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dblog.core.dump import REPAIR
from dblog.core.offset import Offset, Taken, Tally
from dblog.state.requests import Progress, State, TableProgress


@dataclass(frozen=True)
class Delivered:
    """A batch that Spark has committed."""

    offset: Offset
    tally: Sequence[Tally]
    """What its dumps have delivered so far, this batch included."""
    at: float
    """Seconds since 1970."""

    @property
    def dumps(self) -> set[str]:
        """The ids of the dumps that the batch concerns."""
        offset = self.offset
        cursors, chunks = (d for c in offset.dumps for d in c.dumps), (d for c in offset.read for d in c.dumps)
        return {*cursors, *chunks, *(t.dump for t in self.tally)}


def taken(dump: str, number: int | None, progress: Progress, delivered: Delivered, store: str) -> bool:
    """Whether the stream has turned the request into cursors by the end of the batch."""
    if number is not None:
        last = delivered.offset.taken or Taken("", 0)
        return last.store == store and number <= last.number
    known = {str(t) for t in delivered.offset.tables}
    return progress.state is State.running if dump == REPAIR else set(progress.tables) <= known


def mirrored(dump: str, old: Progress, delivered: Delivered, *, cancelled: bool, seconds: float) -> Progress:
    """The dump's progress after a batch; `seconds` is how long it ran since the batch before."""
    offset = delivered.offset
    tables = dict(old.tables)
    opened = {c.table for c in offset.dumps if dump in c.dumps} | {c.table for c in offset.read if dump in c.dumps}
    for name in map(str, opened):
        tables.setdefault(name, TableProgress())
    for count in delivered.tally:
        if count.dump == dump:
            was = tables.get(str(count.table), TableProgress())
            read = count.emitted + count.dropped
            tables[str(count.table)] = replace(was, read=read, emitted=count.emitted, dropped=count.dropped)
    reasons = {str(c.table): c.failed for c in offset.dumps if dump in c.dumps and c.failed is not None}
    going = {str(t) for t in opened} - set(reasons)
    begun = {str(c.table) for c in offset.read} | {str(c.table) for c in offset.dumps if c.upto is not None}
    for name, table in tables.items():
        if name in reasons:
            tables[name] = replace(table, state=State.failed, reason=reasons[name])
        elif name in going:
            tables[name] = replace(table, state=State.running if name in begun or table.read else State.queued)
        elif not table.state.ended:
            tables[name] = replace(table, state=State.cancelled if cancelled else State.completed)
    state, reason = _state(tables, going, cancelled)
    return Progress(
        state=state,
        reason=reason,
        started_at=old.started_at if old.started_at is not None else delivered.at,
        finished_at=delivered.at if state.ended else None,
        active_seconds=old.active_seconds + seconds,
        tables=tables,
    )


def _state(tables: Mapping[str, TableProgress], going: set[str], cancelled: bool) -> tuple[State, str | None]:
    reasons = [t.reason or "" for t in tables.values() if t.state is State.failed]
    if going:
        return State.running, None
    if cancelled and any(t.state is State.cancelled for t in tables.values()):
        return State.cancelled, None
    return (State.failed, "; ".join(reasons)) if reasons else (State.completed, None)
