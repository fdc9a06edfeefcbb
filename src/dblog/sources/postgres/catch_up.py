"""The change log far behind its end: read by SQL, in bounded calls, from copies of the slot (`copy_session`).

The log is cut into windows `[start, upto)` of positions, and a window has the transactions whose commit begins in it.
Each call reads a window. The copies take turns: while the messages of one window are received and decoded, the server
decodes the next window for the other copy.

Each call reads the server's log from where its copy's `restart_lsn` stands. That position moves only at certain records
(of running transactions, at least every 15 seconds while the server writes), and not beyond the beginning of a
transaction that is still open. So windows grow with the log that is read again, and if it is too much (`REREAD_BYTES`)
the stream is faster.
"""

from __future__ import annotations

import time
from collections import deque

from dblog.errors import ConnectionLost, DecodeError
from dblog.sources.base import Run
from dblog.sources.postgres.copy_session import HEADER, CopySession
from dblog.sources.postgres.pending import Pending
from dblog.sources.postgres.pgoutput import Decoder
from dblog.sources.postgres.slot_copy import Ask, refuse_readers, slot_state
from dblog.sources.postgres.stream import lsn

NEAR_BYTES = 8 << 20
"""How near to the end of the log the calls end."""
REREAD_BYTES = 2 << 30
"""Log before the reader's position that every call reads again, above which the log is not read by calls."""
LEAST_WINDOW, MOST_WINDOW = 32 << 20, 512 << 20
"""The size of a window, in bytes of log. The server keeps the decoded messages of a window in a temporary file."""
REREAD_SHARE = 2
"""How many times as large as the log that is read again a window is. Reading costs the server an eighth of decoding."""
RELATION_BYTES = 1 << 20
"""How large a window is at least for each table: every call describes each table again, which takes some queries."""
LOOK_SECONDS = 1.0
"""How often the slot itself is looked at, in seconds: somebody else may read or drop it."""
ADVANCE_SHARE = 20
"""An acknowledgement lets the server read its log from the slot's `restart_lsn` on. It takes at most one part in this
many of the time."""
HELD_SECONDS = 30.0
"""How long a call may wait for its reader, in seconds. It holds back the server's vacuum, like any open query."""


class CatchUpLog:
    """A slot's log from a position on, until its end is near: what `log.SlotLog` reads meanwhile."""

    def __init__(self, ask: Ask, slot: str, sessions: list[CopySession], position: int, decoder: Decoder) -> None:
        """`ask` uses another session. The sessions belong to this log from now on."""
        self._ask = ask
        self._slot = slot
        self._decoder = decoder
        self._pending = Pending(decoder, HEADER)
        self._idle = sessions
        self._running: deque[CopySession] = deque()
        self._next = position
        """Where the next window starts."""
        self._read = position
        self._looked_at = self._advance_at = 0.0
        self._taken_at = self.heard = time.monotonic()
        self.over = False
        """Whether the stream should be read from now on, from the last position on: the end of the log is near, or too
        much of the log is read again."""

    def read(self, timeout: float, *, eager: bool = False) -> list[Run]:
        self._begin()
        if not self._running:
            return []
        session = self._running[0]
        messages = session.take(timeout)
        self._taken_at = time.monotonic()
        if messages is None:
            return []
        self.heard = self._taken_at
        if messages:
            self._pending.messages += messages
            return self._pending.decode(len(messages), sum(map(len, messages)))
        if not self._pending.empty:
            raise DecodeError("a call has returned a transaction without its end")
        self._read = session.upto
        self._idle.append(self._running.popleft())
        return []

    def _begin(self) -> None:
        """Start calls in the sessions that have none."""
        while self._idle and not self.over:
            restart, latest = self._idle[0].look()
            again = self._next - restart
            if again > REREAD_BYTES or latest - self._next < NEAR_BYTES:
                self.over = not self._running
                return
            wanted = max(REREAD_SHARE * again, RELATION_BYTES * self._decoder.relations, LEAST_WINDOW)
            upto = min(self._next + min(wanted, MOST_WINDOW), latest)
            session = self._idle.pop(0)
            session.begin(self._next, upto)
            self._running.append(session)
            self._next = upto

    @property
    def idle_position(self) -> int:
        """The end of the last window that was read completely: all commits that begin before it have been returned."""
        return self._read if self._pending.empty else 0

    def redefined(self) -> bool:
        redefined, self._decoder.redefined = self._decoder.redefined, False
        return redefined

    def acknowledge(self, position: int) -> None:
        """Let the slot itself move. Raises ConnectionLost if somebody else reads it, or if a call has waited too long
        for its reader: the next one begins at the last position."""
        now = time.monotonic()
        if self._running and now - self._taken_at > HELD_SECONDS and not self._decoder.inside:
            raise ConnectionLost(
                f"a call that reads slot {self._slot!r} has waited {HELD_SECONDS:.0f} s for Spark: it is repeated later"
            )
        if now - self._looked_at < LOOK_SECONDS:
            return
        state = slot_state(self._ask, self._slot)
        self._looked_at = self.heard = now
        if state.reader is not None:
            refuse_readers(self._slot, state)
        if position <= state.confirmed or now < self._advance_at:
            return
        self._ask("select pg_replication_slot_advance(%s, %s)", self._slot, lsn(position))
        took = time.monotonic() - now
        self._advance_at = now + took * ADVANCE_SHARE

    def close(self) -> None:
        for session in (*self._idle, *self._running):
            session.close()
