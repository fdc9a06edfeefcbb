"""Temporary copies of the replication slot, from which the log is read by SQL.

The server's function that reads a slot by SQL starts where the slot stands, so a slot that is read must move. The
stream's own slot may move only when Spark has committed. So its copies are read: they belong to our sessions and end
with them, and what they have read is kept by the slot itself.

While a copy is read, the slot itself is free, and a second stream could read it too. Neither way to read may begin
while the other is in use: each looks for the other before it begins, and once more afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dblog.errors import ConnectionLost, PositionLost
from dblog.sources.family import digest
from dblog.sources.postgres.visibility import FLUSHED, SENDABLE

COPIES = 2
"""How many copies are read in turn. While one sends, the server decodes for the other."""
RELEASE_SECONDS = 10.0
"""How long to wait for a session of ours that has just been closed, in seconds."""
POLL_SECONDS = 0.02

Ask = Callable[..., Any]
"""Asks the database, and returns the first row of the answer: `ask(query, *parameters)`."""

_STATE = f"""
select (s.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, (s.restart_lsn - '0/0'::pg_lsn)::bigint, s.wal_status,
       s.active_pid, {SENDABLE},
       (select c.active_pid from pg_catalog.pg_replication_slots c where c.slot_name = any (%s) limit 1)
from pg_catalog.pg_replication_slots s where s.slot_name = %s and s.database = current_database()
"""


HEALTH = f"""
select {FLUSHED}, s.active or c.copied, s.wal_status,
       {FLUSHED} - (s.restart_lsn - '0/0'::pg_lsn)::bigint, s.safe_wal_size,
       case when c.copied then 'catch-up' when s.active then 'stream' end
from (values (%s)) v (slot) left join pg_catalog.pg_replication_slots s on s.slot_name = v.slot,
     lateral (select exists (select from pg_catalog.pg_replication_slots o where o.slot_name = any (%s)) copied) c
"""
"""How the server keeps the log of a slot, given its name and those of its copies."""


def copy_names(slot: str) -> list[str]:
    """The names of a slot's copies. They do not depend on the process, so that two cannot read copies of one slot."""
    return [f"{slot[:46]}_{digest(slot)}_copy{number}" for number in range(1, COPIES + 1)]


@dataclass(frozen=True)
class SlotState:
    """What the server says of a slot."""

    confirmed: int
    restart: int
    """Where the server begins to read its log for the slot. It stays behind while an old transaction is open."""
    latest: int
    """The end of the log that the server sends for the slot."""
    reader: int | None
    """The server's process that reads the slot."""
    copied: int | None
    """The server's process that reads a copy of the slot."""


def slot_state(ask: Ask, slot: str) -> SlotState:
    """The state of a slot. Raises PositionLost if it does not exist or has lost its log."""
    found = ask(_STATE, copy_names(slot), slot)
    if found is None or found[0] is None or found[1] is None or found[2] == "lost":
        raise PositionLost(
            f"slot {slot!r} does not exist" if found is None else f"slot {slot!r} has lost its log",
            hint="start with a new checkpoint, which dumps the tables again; "
            "to keep more log for a stopped stream raise max_slot_wal_keep_size; a server that was promoted has the "
            "slot only if it was synchronized (docs/high-availability.md)",
        )
    confirmed, restart, _, reader, latest, copied = found
    return SlotState(confirmed, restart, latest, reader, copied)


def refuse_gap(slot: str, state: SlotState, at: int) -> None:
    """Raise PositionLost if the slot no longer has the log from a position of the server on."""
    if state.confirmed > at:
        raise PositionLost(
            f"slot {slot!r} was read up to {state.confirmed}, but the checkpoint is only at {at}",
            hint="another reader used the slot, or the checkpoint is an old copy; the log in between is lost: "
            "drop the slot and start with a new checkpoint, which dumps the tables again",
        )


def refuse_readers(slot: str, state: SlotState) -> None:
    """Raise ConnectionLost if a session reads the slot or a copy of it."""
    if state.reader is not None or state.copied is not None:
        what = "" if state.reader is not None else "a copy of "
        raise ConnectionLost(
            f"the server's process {state.reader or state.copied} reads {what}slot {slot!r}",
            hint="another session reads this slot: stop it, or set another slot for this pipeline",
        )


def await_readers(ask: Ask, slot: str) -> SlotState:
    """Wait until no session reads the slot or a copy of it. Raises ConnectionLost after `RELEASE_SECONDS`."""
    deadline = time.monotonic() + RELEASE_SECONDS
    while True:
        state = slot_state(ask, slot)
        if (state.reader is None and state.copied is None) or time.monotonic() > deadline:
            refuse_readers(slot, state)
            return state
        time.sleep(POLL_SECONDS)
