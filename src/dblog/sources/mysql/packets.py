"""Packets from the connection's socket, many at a time.

A packet is a length of three bytes, a number that counts packets, and its payload. One of the greatest length goes on
in the next. What has arrived lies in one buffer; whoever reads takes whole packets from its front.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from struct import Struct

import numpy as np

from dblog.errors import DecodeError
from dblog.sources.columns import Bytes, Ints
from dblog.sources.mysql.connect import ServerError

HEADER = 4
LONGEST = 0xFFFFFF
"""A packet of this length goes on in the next one."""
ROOM = 8 << 20

_HEAD = Struct("<I").unpack_from
_LOST = 2013


@dataclass(frozen=True, eq=False)
class Packets:
    """Payloads where they lie."""

    data: Bytes
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)

    def first(self, count: int) -> Packets:
        return Packets(self.data, self.start[:count], self.end[:count])


class Receiver:
    """The packets of a socket, with or without TLS. `number` is that of the first.

    Raises ServerError when the connection ends or breaks, which `connect.translating` knows.
    """

    def __init__(self, source: socket.socket, number: int) -> None:
        self._socket = source
        self._number = number
        self._data: Bytes = np.empty(ROOM, np.uint8)
        self._have = 0
        """Bytes in the buffer."""
        self._split = 0
        """Of which this many are packets that have been found."""
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def packets(self) -> Packets:
        """What has arrived. Valid until the next call of a method."""
        return Packets(self._data, np.array(self._starts, np.int64), np.array(self._ends, np.int64))

    def __len__(self) -> int:
        return len(self._starts)

    def receive(self, timeout: float, most: int) -> int:
        """Take what is there, up to `most` bytes, waiting only for the first of them; how many bytes."""
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
                break  # what it said last comes first
            if not count:
                raise ServerError(_LOST, "the server closed the connection")
            self._have += count
            received += count
        if received:
            self._find()
        return received

    def drop(self, count: int) -> None:
        """Forget the first packets."""
        if count == len(self._starts):
            end = self._split
        else:
            end = self._starts[count] - HEADER
        room = self._data
        left = self._have - end
        if len(room) > ROOM >= 2 * left:
            self._data = np.empty(ROOM, np.uint8)
        self._data[:left] = room[end : self._have]
        self._starts = [at - end for at in self._starts[count:]]
        self._ends = [at - end for at in self._ends[count:]]
        self._have, self._split = left, self._split - end

    def _grow(self) -> None:
        data = np.empty(2 * len(self._data), np.uint8)
        data[: self._have] = self._data[: self._have]
        self._data = data

    def _find(self) -> None:
        """Find the packets that are complete."""
        data, have, at = self._data.data, self._have, self._split
        heads, starts, ends = [], [], []
        while at + HEADER <= have:
            head = _HEAD(data, at)[0]
            end = at + HEADER + (head & LONGEST)
            if end > have:
                break
            if head & LONGEST == LONGEST:
                parts = self._long(at)
                if parts is None:
                    break
                heads += [_HEAD(data, part)[0] for part in parts]
                start, end, after = self._join(parts)
                starts.append(start)
                ends.append(end)
                at = after
                continue
            heads.append(head)
            starts.append(at + HEADER)
            ends.append(end)
            at = end
        number = np.array(heads, np.int64) >> 24
        if np.any(number != (np.arange(len(heads)) + self._number) & 0xFF):
            raise DecodeError("a packet of the log is missing: their numbers are not consecutive")
        self._number += len(heads)
        self._split = at
        self._starts += starts
        self._ends += ends

    def _long(self, at: int) -> list[int] | None:
        """Where the packets lie of which the one at `at` is the first; None when they have not all arrived."""
        parts = []
        size = LONGEST
        while size == LONGEST:
            if at + HEADER > self._have:
                return None
            size = _HEAD(self._data.data, at)[0] & LONGEST
            parts.append(at)
            at += HEADER + size
        return parts if at <= self._have else None

    def _join(self, parts: list[int]) -> tuple[int, int, int]:
        """Move the payloads together; where they begin and end, and where the next packet begins."""
        start = end = parts[0] + HEADER
        for part in parts:
            size = _HEAD(self._data.data, part)[0] & LONGEST
            begin = part + HEADER
            payload = self._data[begin : begin + size]
            self._data[end : end + size] = payload if end == begin else payload.copy()
            end += size
        return start, end, parts[-1] + HEADER + size
