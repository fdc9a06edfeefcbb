"""A session that reads the log by SQL, in bounded calls, from a temporary copy of the slot.

`COPY (SELECT ... pg_logical_slot_get_binary_changes(...)) TO STDOUT` gives the messages of a part of the log, several
times as fast as the replication protocol, where the server makes three system calls for each message. The server
decodes the whole part before it sends the first message.

The driver hands over the messages by calling us, from its own loop. So it runs in a thread. The thread and its caller
never work at the same time, because the driver's loop gives back Python's lock with every message: beside a thread that
computes it would wait milliseconds to get it again.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import psycopg2

from dblog.databases.postgres.connect import REPLICATION, Address, Connection, connect, literal, translating
from dblog.errors import ConnectionLost, PositionLost, SourceError
from dblog.sources.postgres.slot_creation import CLIENT_CHECK
from dblog.sources.postgres.stream import lsn, plugin_options
from dblog.sources.postgres.visibility import SENDABLE

HEADER = 6
"""Bytes before each message: the number of columns of its row (one), and its length."""
_FILE_HEADER = 19
"""Bytes before the first row: COPY's signature, flags, and the length of an empty extension."""

PIECE_BYTES = 4 << 20
"""Bytes after which the messages that have arrived are handed over."""
WORK_MEM = "32MB"
"""Memory in which the server keeps the messages of a call. It writes more of them to a temporary file."""

_LOOK = f"""
select (restart_lsn - '0/0'::pg_lsn)::bigint, {SENDABLE}
from pg_catalog.pg_replication_slots where slot_name = %s
"""


class CallsRefused(ConnectionLost):
    """The server does not let us read by calls: no free slot, no right, no space for temporary files."""


class _Abandoned(Exception):
    """Ends the driver's loop: the session is closed."""


class CopySession:
    """One session with its copy of the slot. Any member may raise ConnectionLost or, if the server refuses what it is
    asked, CallsRefused. Whether the slot itself is sound is seen when it is opened again."""

    def __init__(self, address: Address, slot: str, copy: str, publication: str) -> None:
        self._copy = copy
        self._slot = slot
        options = (part for pair in plugin_options(publication).items() for part in pair)
        self._options = ", ".join(map(literal, options))
        self._call: _Call | None = None
        self.upto = 0
        """Where the running call ends, or the last one."""
        self._connection = connect(address, application_name=f"dblog {slot}")
        try:
            with self._using("copying"), self._connection.cursor() as cursor:
                for name, value in self._settings().items():
                    cursor.execute(f"set {name} = {literal(value)}")
                cursor.execute("select pg_copy_logical_replication_slot(%s, %s, true)", (slot, copy))
        except BaseException:
            self._connection.close()
            raise

    def _settings(self) -> dict[str, str]:
        settings = {**REPLICATION, "work_mem": WORK_MEM, "statement_timeout": "0", "lock_timeout": "0"}
        if self._connection.server_version >= CLIENT_CHECK[0]:
            # a session that was closed while the server decodes lets go of its copy at once
            settings |= {"client_connection_check_interval": "250ms", "idle_session_timeout": "0"}
        return settings

    @contextmanager
    def _using(self, doing: str) -> Iterator[None]:
        try:
            with translating(f"{doing} replication slot {self._slot!r}"):
                yield
        except (ConnectionLost, PositionLost) as error:
            raise ConnectionLost(error.message, hint=error.hint) from error
        except SourceError as error:
            raise CallsRefused(error.message, hint=error.hint) from error

    def look(self) -> tuple[int, int]:
        """Where the server begins to read its log for the next call, and where its log ends."""
        with self._using("looking at a copy of"), self._connection.cursor() as cursor:
            cursor.execute(_LOOK, (self._copy,))
            found: tuple[int | None, int] | None = cursor.fetchone()
        if found is None or found[0] is None:
            raise ConnectionLost(f"the copy of replication slot {self._slot!r} has lost its log")
        return found[0], found[1]

    def begin(self, start: int, upto: int) -> None:
        """Start to read the transactions whose commit lies in `[start, upto)`. `start` never goes back."""
        name, begin = literal(self._copy), literal(lsn(start))
        advance = (
            f"select pg_replication_slot_advance(slot_name, {begin}) from pg_catalog.pg_replication_slots "
            f"where slot_name = {name} and confirmed_flush_lsn < {begin}"
        )
        read = (
            f"copy (select data from pg_catalog.pg_logical_slot_get_binary_changes({name}, {literal(lsn(upto))}, null, "
            f"{self._options})) to stdout (format binary)"
        )
        self.upto = upto
        self._call = _Call(self._connection, advance, read)

    def take(self, timeout: float) -> list[bytes] | None:
        """The next messages of the call, each after `HEADER` other bytes; an empty list at the end of the call; None if
        nothing has arrived for `timeout` seconds."""
        assert self._call is not None
        with self._using("reading a copy of"):
            messages = self._call.take(timeout)
        if messages is not None and not messages:
            self._call = None
        return messages

    def close(self) -> None:
        """End the session, and with it the copy. Raises nothing."""
        if self._call is None:
            with suppress(psycopg2.Error), self._connection.cursor() as cursor:
                cursor.execute("select pg_drop_replication_slot(%s)", (self._copy,))
        else:
            self._call.abandon()
        with suppress(psycopg2.Error):
            self._connection.close()


class _Call:
    """One call, in a thread."""

    def __init__(self, connection: Connection, advance: str, read: str) -> None:
        self._connection = connection
        self._statements = advance, read
        self._changed = threading.Condition()
        self._wanted = self._abandoned = self._done = False
        self._piece: list[bytes] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dblog-slot-copy", daemon=True)
        self._thread.start()

    # -- the caller's side -----------------------------------------------------------------------------------

    def take(self, timeout: float) -> list[bytes] | None:
        with self._changed:
            if self._piece is None and not self._done:
                self._wanted = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._piece is not None or self._done, timeout)
            piece, self._piece = self._piece, None
            if piece is not None or not self._done:
                return piece
            if self._error is not None:
                raise self._error
            return []

    def abandon(self) -> None:
        """End the call and its thread."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()
        with suppress(OSError, psycopg2.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as beside:
            beside.shutdown(socket.SHUT_RDWR)
        self._thread.join(2.0)

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        advance, read = self._statements
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(advance)
                self._receive(cursor, read)
        except _Abandoned:
            pass
        except BaseException as error:  # raised again by `take`
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _receive(self, cursor: Any, statement: str) -> None:
        piece: list[bytes] = []
        nbytes = 0
        begun = False

        def write(row: bytes) -> None:
            """Called by the driver for each row."""
            nonlocal piece, nbytes, begun
            if not begun:
                begun, row = True, row[_FILE_HEADER:]
                self._hand_over(None)
                if not row:
                    return
            elif nbytes >= PIECE_BYTES:
                self._hand_over(piece)
                piece, nbytes = [], 0
            piece.append(row)
            nbytes += len(row)

        cursor.copy_expert(statement, SimpleNamespace(write=write))
        # Header and trailer are no rows. They come alone if there is no row.
        if messages := [row for row in piece if len(row) > HEADER]:
            with self._changed:
                self._piece = messages

    def _hand_over(self, piece: list[bytes] | None) -> None:
        """Offer what has arrived to the caller, and wait until the caller wants more."""
        with self._changed:
            if piece is not None:
                self._piece, self._wanted = piece, False
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._wanted or self._abandoned)
        if self._abandoned:
            raise _Abandoned
