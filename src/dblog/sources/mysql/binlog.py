"""From packets to events: positions are counted, checksums are checked, contents are decompressed.

This module keeps what an event's meaning depends on but the event does not contain: the file, the byte in it, and
whether there are checksums. The byte is counted, because the event's header has only its lowest 4 bytes, or 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import unpack_from

import numpy as np

from dblog.core.arrays import Bytes, Ints
from dblog.databases.mysql.connect import ServerError
from dblog.errors import DecodeError, PositionLost
from dblog.sources.columns import Raw
from dblog.sources.mysql.compressed import inflated, is_large, parts
from dblog.sources.mysql.events import HEADER, Events, Type, file_and_byte, position
from dblog.sources.mysql.packets import Packets

try:
    from isal.isal_zlib import crc32
except ImportError:  # not available on every platform; zlib is eight times slower
    from zlib import crc32

CHECKSUM = 4
MOST_FILES = 1000
"""For how many files the creation time is remembered."""

_CONTROL = np.zeros(256, np.bool_)
_CONTROL[[Type.rotate, Type.format, Type.heartbeat, Type.heartbeat_v2]] = True

_ARTIFICIAL = 0x20
"""The flag of an event that the server has generated for us: it is in no file."""
_INTACT = 0x2144DF1C
"""The CRC-32 of anything followed by its own CRC-32."""


class EventReader:
    """Reads events from a position on, which must be the position of an event.

    `shift` is added to the numbers of files. The creation time of each file is stored in `files`; that of the first
    file must be `created`, unless that is 0."""

    def __init__(self, begin: int, shift: int = 0, files: dict[int, int] | None = None, created: int = 0) -> None:
        self._begin = begin
        self._shift = shift
        self._files = {} if files is None else files
        self._created = created
        self._file, self._byte = file_and_byte(begin)
        self._checksum = 0
        self._fresh = False
        self.version = ""
        """The version of the server that has written the file."""

    @property
    def position(self) -> int:
        """The position of the next event."""
        return position(self._file, self._byte)

    def read(self, packets: Packets) -> Iterator[Events]:
        """The events of some packets. Raises ServerError if the server has sent an error instead."""
        if not len(packets):
            return
        base = int(packets.start[0])
        raw = Raw.pad(packets.data[base : packets.end[-1]])
        start, end = packets.start - base + Raw.origin, packets.end - base + Raw.origin
        failed = np.flatnonzero(raw.data[start] != 0)
        if failed.size:
            raise _failure(raw.data[start[failed[0]] : end[failed[0]]].tobytes())
        at = start + 1
        if np.any(end - at < HEADER) or np.any(raw.le32(at + 9) != end - at):
            raise DecodeError("an event in the log does not have the size in its header")
        kind = raw.data[at + 4]
        apart = _CONTROL[kind]
        for number in np.flatnonzero(kind == Type.payload).tolist():
            apart[number] = is_large(raw.data[at[number] + HEADER : end[number]].tobytes())
        first = 0
        for number in [*np.flatnonzero(apart).tolist(), len(kind)]:
            if number > first:
                for events in self._events(raw, kind[first:number], at[first:number], end[first:number]):
                    yield inflated(events)
            if number < len(kind):
                yield from self._apart(raw, int(kind[number]), int(at[number]), int(end[number]))
            first = number + 1

    def _apart(self, raw: Raw, kind: int, at: int, end: int) -> Iterator[Events]:
        """Handle an event by itself: others depend on it, or it is large."""
        event = raw.data[at:end].tobytes()
        if kind == Type.payload:
            for events in self._events(raw, np.array([kind], np.uint8), np.array([at]), np.array([end])):
                yield from parts(events)
        elif kind == Type.rotate:
            self._rotate(event)
        elif kind == Type.format:
            self._format(event)
        elif self._checksum and crc32(event) != _INTACT:
            raise _damaged()

    def _rotate(self, event: bytes) -> None:
        """Go on in another file. Nothing says whether a generated rotate event has a checksum, so both are tried."""
        made_up = _made_up(event)
        checked = crc32(event) == _INTACT
        if not checked and self._checksum and not made_up:
            raise _damaged()
        body = event[HEADER : -CHECKSUM if checked else None]
        name = re.search(rb"\.(\d+)\Z", body[8:])
        if name is None:
            raise DecodeError(f"the log goes on in a file whose name has no number: {body[8:]!r}")
        file, byte = int(name[1]) + self._shift, int.from_bytes(body[:8], "little")
        if file < self._file:
            raise PositionLost(
                f"the log continues in file {file} after file {self._file}: file numbers must not decrease",
                hint="the log was reset: start with a new checkpoint and a new dump",
            )
        self._file, self._byte = file, byte
        self._fresh = True

    def _format(self, event: bytes) -> None:
        """Handle the first event of a file. The server also generates it when reading starts in the middle of a
        file."""
        algorithm = event[-5]
        if algorithm not in (0, 1):
            raise DecodeError(f"the log has checksums of the unknown kind {algorithm}")
        if algorithm and crc32(event) != _INTACT:
            raise _damaged()
        self._checksum = CHECKSUM if algorithm else 0
        self.version = event[HEADER + 2 : HEADER + 52].rstrip(b"\0").decode("ascii", "replace")
        created = int.from_bytes(event[:4], "little")
        if self._created not in (0, created):
            raise PositionLost(
                f"file {self._file - self._shift} of the log is not the file of this number that was read before",
                hint="the log was reset: start with a new checkpoint and a new dump",
            )
        self._created = 0
        while len(self._files) >= MOST_FILES:
            self._files.pop(min(self._files))
        self._files[self._file] = created
        if not _made_up(event):
            self._byte += len(event)

    def _events(self, raw: Raw, kind: Bytes, at: Ints, end: Ints) -> Iterator[Events]:
        size = end - at
        if self._checksum:
            data = raw.data.data
            # Only calls into C: this is the only step that handles events one by one.
            found = map(crc32, map(data.__getitem__, map(slice, at.tolist(), end.tolist())))
            if np.any(np.fromiter(found, np.int64, len(at)) != _INTACT):
                raise _damaged()
            end = end - CHECKSUM
        said = raw.le32(at + 13)
        # When reading starts in the middle of an encrypted file, the event that says so comes again, without a
        # position.
        made_up = (raw.le32(at + 17) & np.uint32(_ARTIFICIAL) != 0) | ((kind == Type.start_encryption) & (said == 0))
        counted = np.where(made_up, 0, size)
        after = self._byte + np.cumsum(counted)
        if np.any((said != after & 0xFFFFFFFF) & (said != 0) & ~made_up):
            raise DecodeError("the server has left out events of its log: the positions of events have a gap")
        self._byte = int(after[-1])
        base = position(self._file, 0)
        events = Events(
            raw,
            kind,
            at + HEADER,
            end,
            raw.le32(at).astype(np.int64),
            base + after - counted,
            base + after,
            size,
            self._fresh,
        )
        self._fresh = False
        wanted = int(np.searchsorted(events.position, self._begin))
        if wanted < len(events):
            yield events.some(slice(wanted, None)) if wanted else events


def _made_up(event: bytes) -> bool:
    end, flags = unpack_from("<IH", event, 13)
    return bool(flags & _ARTIFICIAL) or not end


def _damaged() -> DecodeError:
    return DecodeError(
        "an event in the log is damaged: its checksum is wrong", hint="check the server's disk and network"
    )


def _failure(packet: bytes) -> ServerError:
    if packet[0] == 0xFF:
        (number,) = unpack_from("<H", packet, 1)
        text = packet[9:] if packet[3:4] == b"#" else packet[3:]
        return ServerError(number, text.decode(errors="replace"))
    return ServerError(2013, "the server has ended the log")
