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

COPIES = 2
"""How many copies are read in turn. While one sends, the server decodes for the other."""
RELEASE_SECONDS = 10.0
"""How long to wait for a session of ours that has just been closed, in seconds."""
POLL_SECONDS = 0.02

Ask = Callable[..., Any]
"""Asks the database, and returns the first row of the answer: `ask(query, *parameters)`."""

_STATE = """
select (s.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, (s.restart_lsn - '0/0'::pg_lsn)::bigint, s.wal_status,
       s.active_pid, (pg_catalog.pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint,
       (select c.active_pid from pg_catalog.pg_replication_slots c where c.slot_name = any (%s) limit 1)
from pg_catalog.pg_replication_slots s where s.slot_name = %s and s.database = current_database()
"""


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
    """The end of the server's log."""
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
            "to keep more log for a stopped stream raise max_slot_wal_keep_size",
        )
    confirmed, restart, _, reader, latest, copied = found
    return SlotState(confirmed, restart, latest, reader, copied)


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
