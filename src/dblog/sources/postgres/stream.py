"""The change log over the replication protocol: receive it, pass it to the decoder, acknowledge it."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator

from dblog.databases.postgres.connect import Address, Connection, connect, identifier, literal, translating
from dblog.errors import DecodeError
from dblog.sources.base import Run, Wait
from dblog.sources.postgres.in_progress import Committed, InProgress
from dblog.sources.postgres.pending import Pending
from dblog.sources.postgres.pgoutput import Decoder
from dblog.sources.postgres.replication import Replication
from dblog.sources.postgres.slot_creation import create_slot

TAKE_BYTES = 4 << 20
MANY = 500
"""Messages in one read above which the stream is busy. Then a short wait saves the server two system calls per
message."""
PAUSE_SECONDS = 0.003
SILENCE_SECONDS = 0.02
"""Seconds without a message after which a caller that waits for a commit pings the server. A walsender of PostgreSQL 16
and later can miss its wake-up and hold a commit back for seconds; any message from us wakes it."""
TEMPORARY_SECONDS = 60
"""How long the creation of a temporary slot may wait for open transactions, in seconds."""
IN_PROGRESS_VERSION = 14_00_00
"""The version of PostgreSQL from which on a server can send a transaction before it commits."""
IN_PROGRESS_MEMORY = "16MB"
"""How much memory the server uses for transactions that it decodes, before it sends what it has of the largest one.
What is sent before the commit need not be sent after it, so the value is small."""


def lsn(position: int) -> str:
    """The position in PostgreSQL's form: 0/16B3748."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def plugin_options(publication: str, *, in_progress: bool = False) -> dict[str, str]:
    """The options of the plugin `pgoutput`, whichever way the log is read. With `in_progress`, large transactions are
    sent before they commit."""
    protocol = {"proto_version": "2", "streaming": "on"} if in_progress else {"proto_version": "1"}
    return {**protocol, "publication_names": identifier(publication)}


class PostgresLog:
    """A slot's log from a position on (`sources.base.LogStream`). A temporary slot is created here, starts at the
    current end of the log, and ends with the connection."""

    def __init__(
        self,
        address: Address,
        slot: str,
        publication: str,
        position: int,
        decoder: Decoder,
        *,
        in_progress: str | None = None,
        temporary: bool = False,
        wait: Wait | None = None,
        link: Connection | None = None,
    ) -> None:
        """`in_progress` is the folder for files of transactions in progress; None if the server must not send such.
        `wait` is how the creation of a temporary slot waits for open transactions. `link` is a replication connection
        to use, which belongs to this log from now on; otherwise one is opened."""
        self._decoder = decoder
        self._pending = Pending(decoder)
        self._queue: deque[list[bytes] | Committed] = deque()
        """What has arrived and is not decoded yet, in order."""
        self._decoding: Iterator[list[Run]] | None = None
        """The runs of the committed transaction that is first in the queue."""
        self._decoded_at = 0.0
        self._busy = False
        self._acknowledged = 0
        self._connection = link or connect(address, replication=True, application_name=f"dblog {slot}")
        early = in_progress is not None and self._connection.server_version >= IN_PROGRESS_VERSION
        self._in_progress = InProgress(in_progress) if in_progress is not None and early else None
        try:
            with translating(f"opening replication slot {slot!r}"):
                cursor = self._connection.cursor()
                if temporary:
                    create_slot(self._connection, slot, wait or Wait(TEMPORARY_SECONDS), temporary=True)
                if early:
                    cursor.execute(f"set logical_decoding_work_mem = {literal(IN_PROGRESS_MEMORY)}")
                chosen = plugin_options(publication, in_progress=early)
                options = ", ".join(f"{name} {literal(value)}" for name, value in chosen.items())
                # Not the driver's start_replication, which corrupts names that are not ASCII.
                cursor.start_replication_expert(
                    f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {lsn(position)} ({options})"
                )
        except BaseException:
            self._connection.close()
            raise
        self._replication = Replication(self._connection)
        self._arrived = select.poll()
        self._arrived.register(self._connection, select.POLLIN)

    def read(self, timeout: float, *, eager: bool = False) -> list[Run]:
        if not self._queue:
            self._receive(timeout, eager=eager)
        return self._decode()

    def _receive(self, timeout: float, *, eager: bool) -> None:
        """Wait until there is something to decode, or for `timeout` seconds."""
        if self._busy:
            time.sleep(PAUSE_SECONDS)
        deadline = time.monotonic() + timeout
        with translating("reading the log"):
            took = self._take()
            while not self._queue and (left := deadline - time.monotonic()) > 0:
                if took:  # of a transaction in progress
                    time.sleep(PAUSE_SECONDS)
                else:
                    wait = min(left, SILENCE_SECONDS) if eager else left
                    if not self._arrived.poll(wait * 1000) and eager:
                        self._replication.send(self._acknowledged, reply=True)
                took = self._take()
        self._busy = took >= MANY

    def _take(self) -> int:
        """Receive what has arrived, up to a limit; return the number of messages."""
        messages: list[bytes] = []
        self._replication.receive(messages, TAKE_BYTES)
        if messages:
            self._queue += [messages] if self._in_progress is None else self._in_progress.sort(messages)
        return len(messages)

    def _decode(self) -> list[Run]:
        """The runs of what is first in the queue; of a committed transaction, those of a part of it."""
        while self._queue:
            first = self._queue[0]
            if not isinstance(first, Committed):
                self._queue.popleft()
                self._pending.messages += first
                return self._pending.decode(len(first), sum(map(len, first)))
            if self._decoding is None:
                if not self._pending.empty:
                    raise DecodeError("the log has the commit of a transaction within another transaction")
                self._decoding = first.decode(self._decoder)
            runs = next(self._decoding, None)
            self._decoded_at = time.monotonic()
            if runs is not None:
                return runs
            self._queue.popleft()
            self._decoding = None
        return []

    @property
    def coordinate(self) -> None:
        return None

    @property
    def passing(self) -> bool:
        return False

    @property
    def idle_position(self) -> int:
        """A keep-alive has the position that the server has read; all commits before it were sent earlier."""
        return self._replication.wal_end if self._pending.empty and not self._queue else 0

    @property
    def heard(self) -> float:
        """While a large transaction is decoded, nothing is received: that is not the server's silence."""
        return max(self._replication.heard, self._decoded_at)

    def redefined(self) -> bool:
        redefined, self._decoder.redefined = self._decoder.redefined, False
        return redefined

    def acknowledge(self, position: int) -> None:
        self._acknowledged = max(self._acknowledged, position)
        with translating("acknowledging the log"):
            self._replication.send(self._acknowledged)

    def close(self) -> None:
        self._connection.close()
        if self._in_progress is not None:
            self._in_progress.close()
        for each in self._queue:
            if isinstance(each, Committed):
                each.file.close()
        self._queue.clear()
