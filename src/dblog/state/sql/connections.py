"""Connections that a process keeps for a moment after a store was closed.

The HTTP API opens the store for each request. To connect takes longer than all that a request reads.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from dataclasses import dataclass
from typing import Any

from dblog.databases.families import Address

KEEP_SECONDS = 10.0
"""How long an unused connection is kept, in seconds."""
MOST = 4
"""How many unused connections are kept for one database."""


@dataclass(frozen=True, eq=False)
class _Idle:
    at: tuple[Address, float, int]
    """The database, the patience, and the process that opened the connection."""
    connection: Any
    since: float


class Connections:
    """The unused connections of a process."""

    def __init__(self) -> None:
        self._idle: list[_Idle] = []
        self._lock = threading.Lock()

    def take(self, database: Address, patience: float) -> Any:
        """An unused connection with the database; None if there is none. It may have broken in the meantime."""
        at = (database, patience, os.getpid())
        with self._lock:
            self._drop_old()
            found = next((each for each in self._idle if each.at == at), None)
            if found is not None:
                self._idle.remove(found)
        return found and found.connection

    def give(self, database: Address, patience: float, connection: Any) -> None:
        """Keep a connection that works, for the next handle."""
        at = (database, patience, os.getpid())
        with self._lock:
            self._drop_old()
            if sum(each.at == at for each in self._idle) < MOST:
                self._idle.append(_Idle(at, connection, time.monotonic()))
                return
        self.end(connection)

    def end(self, connection: Any) -> None:
        with contextlib.suppress(Exception):  # it may be broken
            connection.close()

    def end_all(self, database: Address | None = None) -> None:
        """End the unused connections, only those with the database if one is named."""
        with self._lock:
            ending = [each for each in self._idle if database in (None, each.at[0])]
            self._idle = [each for each in self._idle if each not in ending]
        for each in ending:
            if each.at[2] == os.getpid():
                self.end(each.connection)

    def _drop_old(self) -> None:
        long_ago = time.monotonic() - KEEP_SECONDS
        for each in [each for each in self._idle if each.since < long_ago or each.at[2] != os.getpid()]:
            self._idle.remove(each)
            if each.at[2] == os.getpid():
                self.end(each.connection)


IDLE = Connections()
atexit.register(IDLE.end_all)
os.register_at_fork(after_in_child=lambda: setattr(IDLE, "_lock", threading.Lock()))
