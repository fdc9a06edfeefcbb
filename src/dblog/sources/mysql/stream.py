"""The change log over the replication protocol: request it from a position, receive it, pass it to the decoder.

The packets that have arrived are decoded together, as whole transactions. Only a transaction of more than `PART_BYTES`
is decoded in parts before it has arrived completely.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from struct import pack

import numpy as np
import pymysql.err

from dblog.databases.mysql.connect import Address, Connection, connect, translating
from dblog.databases.mysql.gtid import DIVERGED, Coordinate
from dblog.errors import ConnectionLost, PositionLost, PreconditionFailed
from dblog.sources.base import Run
from dblog.sources.mysql.decoder import Decoder
from dblog.sources.mysql.events import FIRST, Type, file_and_byte
from dblog.sources.mysql.events import position as position_of
from dblog.sources.mysql.packets import Packets, Receiver
from dblog.sources.mysql.resume import file_name

TAKE_BYTES = 4 << 20
PART_BYTES = 8 << 20
HEARTBEAT_SECONDS = 1
SILENCE_SECONDS = 30
"""Seconds without a heartbeat after which the connection counts as lost."""
PATIENCE_SECONDS = 31_536_000
"""How long the server waits for us to read on, in seconds (a year): we stop reading at the read-ahead limit."""

_REGISTER, _DUMP = 0x15, 0x12
_GTID_CAPABILITY = 4
"""The capability to tell MariaDB. Without it MariaDB replaces newer events by others, for older replicas."""
_ALL_EVENTS = 2
"""A flag of the request. Without it MariaDB leaves out the texts of statements, and positions cannot be counted. To
MySQL it means that we understand its newer heartbeats."""
_DENIED = 1045

# Kinds of events that never end a transaction. After the last event of another kind a transaction may have begun.
_GOES_ON = np.zeros(256, np.bool_)
_GOES_ON[[5, 13, 14, Type.table_map, 23, 24, 25, 29, 30, 31, 32, Type.partial_update, 160, *range(166, 172)]] = True
_GOES_ON[[Type.gtid, Type.anonymous, Type.gtid_tagged, Type.mariadb_gtid]] = True


class MySQLLog:
    """A server's log from a position on (`sources.base.LogStream`).

    Every reader of a server needs its own `server_id`: the server ends the older session of two with the same id."""

    def __init__(
        self,
        address: Address,
        position: int,
        decoder: Decoder,
        *,
        server_id: int,
        coordinate: Coordinate | None = None,
        until: int = 0,
        check: Callable[[int], None] = lambda at: None,
    ) -> None:
        """`coordinate.shift` maps the position's file number to the server's own. All delivered transactions must come
        before `until`. `check` raises an error that says why the server's log does not go on at one of its
        positions."""
        coordinate = coordinate or Coordinate()
        self._check, self._shift = check, position_of(coordinate.shift, 0)
        self._decoder = decoder
        self._until = until
        self._coordinate = str(coordinate)
        self._heard = time.monotonic()
        self._connection = connect(address, program="dblog log")
        try:
            with translating("opening the log"):
                self._packets = Receiver(_dump(self._connection, position, coordinate.shift, server_id), 1)
        except BaseException:
            self._connection.close()
            raise

    def read(self, timeout: float, *, eager: bool = False) -> list[Run]:
        """The server sends every commit at once, so `eager` has no effect."""
        try:
            return self._read(time.monotonic() + timeout)
        except PositionLost:
            self._check(self._decoder.position - self._shift)
            raise

    def _read(self, deadline: float) -> list[Run]:
        with translating("reading the log"):
            while True:
                left = deadline - time.monotonic()
                if self._packets.receive(left, TAKE_BYTES):
                    self._heard = time.monotonic()
                    runs = self._decode()
                    if self._decoder.awaits and self._decoder.position >= self._until:
                        raise PositionLost(
                            f"the server's log does not have all transactions before {self._coordinate}", hint=DIVERGED
                        )
                    if runs:
                        return runs
                elif time.monotonic() - self._heard > SILENCE_SECONDS:
                    raise ConnectionLost(f"reading the log failed: the server was silent for {SILENCE_SECONDS} s")
                if left <= 0:
                    return []

    def _decode(self) -> list[Run]:
        packets = self._packets.packets
        count = _complete(packets)
        if not count and len(packets) and packets.end[-1] - packets.start[0] >= PART_BYTES:
            count = len(packets)
        if not count:
            return []
        runs = self._decoder.feed(packets.first(count))
        self._packets.drop(count)
        return runs

    @property
    def coordinate(self) -> str:
        return self._coordinate

    @property
    def passing(self) -> bool:
        return self._decoder.passing

    @property
    def idle_position(self) -> int:
        """The server sends its whole log, so everything up to here has arrived."""
        return 0 if len(self._packets) or self._decoder.inside else self._decoder.position

    @property
    def heard(self) -> float:
        return self._heard

    def redefined(self) -> bool:
        redefined, self._decoder.redefined = self._decoder.redefined, False
        return redefined

    def acknowledge(self, position: int) -> None:
        """The server keeps its log for a fixed time, so there is nothing to acknowledge."""

    def close(self) -> None:
        self._connection._force_close()


def _complete(packets: Packets) -> int:
    """The number of packets up to the last one that may end a transaction."""
    # A packet that is not an event, like an error, has no kind: it is passed on at once.
    short = packets.end - packets.start < 6
    kind = packets.data[np.where(short, packets.start, packets.start + 5)]
    stops = np.flatnonzero(short | (packets.data[packets.start] != 0) | ~_GOES_ON[kind])
    for number in stops[::-1].tolist():
        # A QUERY event with the text BEGIN; a checksum may follow.
        if kind[number] != Type.query or b"\0BEGIN" not in bytes(
            packets.data[packets.end[number] - 10 : packets.end[number]]
        ):
            return int(number) + 1
    return 0


def _dump(connection: Connection, position: int, shift: int, server_id: int) -> socket.socket:
    """Request the log, and return the socket that it comes from."""
    file, byte = file_and_byte(position)
    name = file_name(connection, file - shift).encode()
    with connection.cursor() as cursor:
        cursor.execute(
            "set @master_binlog_checksum = @@global.binlog_checksum, "
            f"@master_heartbeat_period = {HEARTBEAT_SECONDS * 10**9}, "
            f"@mariadb_slave_capability = {_GTID_CAPABILITY}"
        )
        cursor.execute(f"set session net_write_timeout = {PATIENCE_SECONDS}")
    # Host, user, password and port are empty: the server only shows them in its list of replicas.
    connection._execute_command(_REGISTER, pack("<I3xHII", server_id, 0, 0, 0))
    try:
        connection._read_ok_packet()
    except pymysql.err.OperationalError as error:
        if error.args[0] != _DENIED:
            raise
        denied = f"opening the log failed: {error.args[1]}"
        raise PreconditionFailed(denied, hint="grant replication slave on *.* to the user in the URL") from error
    # The request has 4 bytes for the byte in the file. A file can be longer: then it is read from its beginning.
    byte = byte if byte < 1 << 32 else FIRST
    connection._execute_command(_DUMP, pack("<IHI", byte, _ALL_EVENTS, server_id) + name)
    source: socket.socket = connection._sock
    return source
