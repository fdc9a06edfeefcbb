"""GTID events: the name of a transaction, and the time of its commit."""

from __future__ import annotations

import uuid

import numpy as np

from dblog.core.arrays import Ints
from dblog.databases.mysql.gtid import Names
from dblog.errors import DecodeError
from dblog.sources.mysql.events import HEADER, Events, Type

_TIMED = 49
"""Bytes of MySQL's GTID event up to and including the time of the commit."""
_SERVER = 5 - HEADER
"""The offset of the server id in an event's header, relative to the body."""


def names(events: Events, begins: Ints) -> tuple[Names, Ints]:
    """Origin and number of the transactions that these events begin; '' and 0 for those without a GTID."""
    raw, kind, start = events.raw, events.kind[begins], events.start[begins]
    origins, numbers = np.full(len(begins), "", np.object_), np.zeros(len(begins), np.int64)
    mine = kind == Type.mariadb_gtid
    if mine.any():
        domain, server = raw.le32(start[mine] + 8), raw.le32(start[mine] + _SERVER)
        numbers[mine] = raw.le64(start[mine]).view(np.int64)
        found, which = np.unique(domain.astype(np.uint64) << np.uint64(32) | server, return_inverse=True)
        named = [f"{pair >> 32}-{pair & 0xFFFFFFFF}" for pair in found.tolist()]
        origins[mine] = np.array(named, np.object_)[which]
    mine = kind == Type.gtid
    if mine.any():
        numbers[mine] = raw.le64(start[mine] + 17).view(np.int64)
        sids = np.stack([raw.le64(start[mine] + 1), raw.le64(start[mine] + 9)], axis=1)
        found, which = np.unique(sids, axis=0, return_inverse=True)
        origins[mine] = np.array([str(uuid.UUID(bytes=sid.tobytes())) for sid in found], np.object_)[which]
    for n in np.flatnonzero(kind == Type.gtid_tagged).tolist():
        origins[n], numbers[n] = _tagged(events.body(int(begins[n])))
    return origins, numbers


def committed_at(events: Events, begins: Ints) -> Ints:
    """The commit time of transactions on their first server: in seconds on MariaDB, in microseconds on MySQL. A MySQL
    replica writes its own time and after it the first server's."""
    kind, start = events.kind[begins], events.start[begins]
    timed = ((kind == Type.gtid) | (kind == Type.anonymous)) & (events.end[begins] - start >= _TIMED)
    own = events.raw.le64(np.where(timed, start + 42, 0)).view(np.int64)
    replicated = timed & (own >> 55 & 1 == 1)
    first = events.raw.le64(np.where(replicated, start + _TIMED, 0)).view(np.int64)
    micros = np.where(replicated, first, own) & ((1 << 55) - 1)
    return np.where(timed, micros, events.when[begins] * 1_000_000)


class _Fields:
    """Reads the serialisation of MySQL's newer events. A number takes 1 to 9 bytes: the count of trailing one bits of
    the first byte is the number of bytes that follow."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def unsigned(self) -> int:
        first = self._data[self._at]
        extra = (~first & 0xFF & -(~first & 0xFF)).bit_length() - 1 if first != 0xFF else 8
        word = int.from_bytes(self._data[self._at : self._at + 1 + extra], "little")
        self._at += 1 + extra
        return word >> (extra + 1 if extra < 8 else 8)

    def signed(self) -> int:
        """A number whose lowest bit is the sign."""
        word = self.unsigned()
        return ~(word >> 1) if word & 1 else word >> 1

    def take(self, count: int) -> bytes:
        taken, self._at = self._data[self._at : self._at + count], self._at + count
        return taken


def _tagged(body: bytes) -> tuple[str, int]:
    """A GTID with a tag. The fields come in the order of their numbers: flags, UUID, number, tag."""
    try:
        read = _Fields(body)
        read.unsigned(), read.unsigned(), read.unsigned()  # version, size, the last field that must be known
        found: dict[int, object] = {}
        while len(found) < 4:
            field = read.unsigned()
            match field:
                case 0:
                    found[0] = read.unsigned()
                case 1:
                    found[1] = uuid.UUID(bytes=bytes(read.unsigned() for _ in range(16)))
                case 2:
                    found[2] = read.signed()
                case 3:
                    found[3] = read.take(read.unsigned()).decode()
                case _:
                    raise DecodeError(f"a GTID in the log has no field {len(found)}")
        return f"{found[1]}:{found[3]}", int(str(found[2]))
    except (IndexError, ValueError) as error:
        raise DecodeError(f"a GTID in the log cannot be read: {error}") from error
