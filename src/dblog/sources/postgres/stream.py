"""The change log over the replication protocol: receive it, pass it to the decoder, acknowledge it."""

from __future__ import annotations

import select
import time

from dblog.databases.postgres.connect import Address, connect, identifier, literal, translating
from dblog.sources.base import Run, Wait
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


def lsn(position: int) -> str:
    """The position in PostgreSQL's form: 0/16B3748."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def plugin_options(publication: str) -> dict[str, str]:
    """The options of the plugin `pgoutput`, whichever way the log is read."""
    return {"proto_version": "1", "publication_names": identifier(publication)}


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
        temporary: bool = False,
        wait: Wait | None = None,
    ) -> None:
        """`wait` is how the creation of a temporary slot waits for open transactions."""
        self._decoder = decoder
        self._pending = Pending(decoder)
        self._took_bytes = 0
        self._busy = False
        self._acknowledged = 0
        self._connection = connect(address, replication=True, application_name=f"dblog {slot}")
        try:
            with translating(f"opening replication slot {slot!r}"):
                cursor = self._connection.cursor()
                if temporary:
                    create_slot(self._connection, slot, wait or Wait(TEMPORARY_SECONDS), temporary=True)
                options = ", ".join(f"{name} {literal(value)}" for name, value in plugin_options(publication).items())
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
        if self._busy:
            time.sleep(PAUSE_SECONDS)
        with translating("reading the log"):
            took = self._take()
            deadline = time.monotonic() + timeout
            while not took and (left := deadline - time.monotonic()) > 0:
                wait = min(left, SILENCE_SECONDS) if eager else left
                if not self._arrived.poll(wait * 1000) and eager:
                    self._replication.send(self._acknowledged, reply=True)
                took = self._take()
        self._busy = took >= MANY
        return self._pending.decode(took, self._took_bytes) if took else []

    def _take(self) -> int:
        """Receive what has arrived, up to a limit; return the number of messages."""
        before = len(self._pending.messages)
        self._took_bytes = self._replication.receive(self._pending.messages, TAKE_BYTES)
        return len(self._pending.messages) - before

    @property
    def coordinate(self) -> None:
        return None

    @property
    def passing(self) -> bool:
        return False

    @property
    def idle_position(self) -> int:
        """A keep-alive has the position that the server has read; all changes before it were sent earlier."""
        return self._replication.wal_end if self._pending.empty else 0

    @property
    def heard(self) -> float:
        return self._replication.heard

    def redefined(self) -> bool:
        redefined, self._decoder.redefined = self._decoder.redefined, False
        return redefined

    def acknowledge(self, position: int) -> None:
        self._acknowledged = max(self._acknowledged, position)
        with translating("acknowledging the log"):
            self._replication.send(self._acknowledged)

    def close(self) -> None:
        self._connection.close()
