"""Packets from the connection's socket, many at a time.

A packet is a length of three bytes, a sequence number, and its payload. A packet of the greatest length continues in
the next one. All received bytes are in one buffer; the reader takes complete packets from its front.
"""

from __future__ import annotations

import select
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct

import numpy as np

from dblog.core.arrays import Bytes, Ints
from dblog.databases.mysql.connect import ServerError
from dblog.errors import DecodeError

HEADER = 4
LONGEST = 0xFFFFFF
"""The greatest length of a packet. Such a packet continues in the next one."""
ROOM = 8 << 20

_LENGTH = Struct("<HB").unpack_from
_LOST = 2013


@dataclass(frozen=True, eq=False)
class Packets:
    """Payloads of packets, as slices of the buffer."""

    data: Bytes
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)

    def first(self, count: int) -> Packets:
        return Packets(self.data, self.start[:count], self.end[:count])


class Receiver:
    """The packets of a socket, with or without TLS. `number` is the sequence number of the first.

    Raises ServerError when the connection ends or breaks; `connect.translating` translates it.
    """

    def __init__(self, source: socket.socket, number: int) -> None:
        self._socket = source
        self._number = number
        self._make_room(ROOM)
        self._have = 0
        """Received bytes in the buffer."""
        self._split = 0
        """How many of these bytes are split into packets."""
        self._packets: list[Packets] = []

    @property
    def packets(self) -> Packets:
        """The complete packets. Valid until the next call of a method."""
        self._packets = [_joined(self._data, self._packets)]
        return self._packets[0]

    def __len__(self) -> int:
        return sum(map(len, self._packets))

    def receive(self, timeout: float, most: int) -> int:
        """Receive up to `most` bytes, and return their number. Waits at most `timeout` seconds, for the first byte
        only."""
        received = 0
        while received < most:
            if self._have == len(self._data):
                self._grow()
            self._socket.settimeout(0 if received else max(timeout, 0))
            try:
                count = self._socket.recv_into(self._data[self._have :].data[: most - received])
            except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
                break
            except OSError as error:
                raise ServerError(_LOST, f"the connection broke: {error}") from error
            if not count and received:
                break  # deliver the last bytes before the error
            if not count:
                raise ServerError(_LOST, "the server closed the connection")
            self._have += count
            received += count
        if received:
            self._find()
        return received

    def gather(self, nbytes: int, timeout: float) -> None:
        """Wait until `nbytes` have arrived, at most `timeout` seconds. Many small reads would cost more than the
        decoding."""
        with suppress(OSError, AttributeError):  # the platform or the socket may not have this option
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)
            try:
                waiting = select.poll()
                waiting.register(self._socket, select.POLLIN)
                waiting.poll(timeout * 1000)
            finally:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def drop(self, count: int) -> None:
        """Remove the first `count` packets."""
        packets, room = self.packets, self._data
        end = int(packets.start[count]) - HEADER if count < len(packets) else self._split
        left = self._have - end
        if len(room) > ROOM >= 2 * left:
            self._make_room(ROOM)
        self._data[:left] = room[end : self._have]
        self._packets = [Packets(self._data, packets.start[count:] - end, packets.end[count:] - end)]
        self._have, self._split = left, self._split - end

    def _grow(self) -> None:
        data = self._data
        self._make_room(2 * len(data))
        self._data[: self._have] = data[: self._have]

    def _make_room(self, size: int) -> None:
        self._room = bytearray(size)  # struct reads numbers faster from it than from an array
        self._data: Bytes = np.frombuffer(self._room, np.uint8)

    def _find(self) -> None:
        """Split the received bytes into packets."""
        while True:
            self._short()
            parts = self._long(self._split)
            if parts is None:
                return
            self._check(np.array(parts))
            start, end, self._split = self._join(parts)
            self._packets.append(Packets(self._data, np.array([start]), np.array([end])))

    def _short(self) -> None:
        """Split the packets up to the next long one. The length of each gives the start of the next, so this is a
        loop."""
        room, at = self._room, self._split
        last = self._have - HEADER
        bounds = [at]
        while at <= last:
            size, high = _LENGTH(room, at)
            if high:
                size += high << 16
            at += size + HEADER
            bounds.append(at)
        if at > self._have:
            bounds.pop()
        begins = np.fromiter(bounds, np.int64, len(bounds))
        long = np.flatnonzero(np.diff(begins) == LONGEST + HEADER)
        if long.size:
            begins = begins[: long[0] + 1]
        self._split = int(begins[-1])
        self._check(begins[:-1])
        self._packets.append(Packets(self._data, begins[:-1] + HEADER, begins[1:]))

    def _check(self, begins: Ints) -> None:
        if np.any(self._data[begins + 3] != (np.arange(len(begins)) + self._number) & 0xFF):
            raise DecodeError("a packet of the log is missing: the packet numbers are not consecutive")
        self._number += len(begins)

    def _long(self, at: int) -> list[int] | None:
        """The starts of the packets of a long payload, the first at `at`; None if they have not all arrived."""
        parts: list[int] = []
        size = LONGEST
        while size == LONGEST:
            if at + HEADER > self._have:
                return None
            size = self._size(at)
            parts.append(at)
            at += HEADER + size
        return parts if at <= self._have else None

    def _size(self, at: int) -> int:
        low, high = _LENGTH(self._room, at)
        return int(low | high << 16)

    def _join(self, parts: list[int]) -> tuple[int, int, int]:
        """Move the payloads together. Returns their start and end, and the start of the next packet."""
        start = end = parts[0] + HEADER
        for part in parts:
            size = self._size(part)
            begin = part + HEADER
            payload = self._data[begin : begin + size]
            self._data[end : end + size] = payload if end == begin else payload.copy()
            end += size
        return start, end, parts[-1] + HEADER + size


def _joined(data: Bytes, parts: list[Packets]) -> Packets:
    none = np.empty(0, np.int64)
    return Packets(
        data, *(np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in ("start", "end"))
    )
