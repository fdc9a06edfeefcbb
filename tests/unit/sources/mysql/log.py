"""A binary log by hand: events in order, with the places and checksums that a server would give them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from dblog.sources.mysql.events import HEADER, Type
from dblog.sources.mysql.packets import Packets
from tests.unit.sources.mysql.build import Field, image, row_event, table_map

ARTIFICIAL = 0x20
WHEN = 1_700_000_000


def event(kind: int, body: bytes, *, place: int = 0, flags: int = 0, checksum: bool = True, when: int = WHEN) -> bytes:
    """One event, which ends at `place`."""
    size = HEADER + len(body) + 4 * checksum
    made = struct.pack("<IBIIIH", when, kind, 1, size, place & 0xFFFFFFFF, flags) + body
    return made + struct.pack("<I", zlib.crc32(made)) if checksum else made


def packets(payloads: Sequence[bytes]) -> Packets:
    """Payloads where a receiver would have put them."""
    data = b"".join(b"HEAD" + payload for payload in payloads)
    end = np.cumsum([4 + len(payload) for payload in payloads], dtype=np.int64)
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    return Packets(np.frombuffer(data, np.uint8), end - sizes, end)


class Log:
    """The events that are sent to a reader that begins at `place` of `file`."""

    def __init__(self, file: int = 1, place: int = 4, *, checksum: bool = True) -> None:
        self.checksum = checksum
        self.file, self.place = file, place
        self.events: list[bytes] = []
        self.enter(file, place)

    @property
    def position(self) -> int:
        return self.file << 40 | self.place

    def packets(self, first: int = 0, last: int | None = None) -> Packets:
        return packets([b"\0" + made for made in self.events[first:last]])

    def enter(self, file: int, place: int = 4) -> None:
        """What a server sends before the first event of a file, or of what it has been asked for."""
        self.file, self.place = file, place
        body = struct.pack("<Q", place) + b"binlog.%06d" % file
        self.events.append(event(Type.rotate, body, flags=ARTIFICIAL, checksum=False))
        form = struct.pack("<H50sIB", 4, b"10.11.6-MariaDB", WHEN, HEADER) + bytes(40) + bytes([self.checksum])
        if place == 4:
            self.place += HEADER + len(form) + 4
        self.events.append(event(Type.format, form, place=self.place if place == 4 else 0))

    def add(self, kind: int, body: bytes, *, flags: int = 0, when: int = WHEN, silent: bool = False) -> int:
        """Append an event; its position. `silent`: its header does not say where it ends."""
        begin = self.position
        self.place += HEADER + len(body) + 4 * self.checksum
        place = 0 if silent else self.place
        self.events.append(event(kind, body, place=place, flags=flags, checksum=self.checksum, when=when))
        return begin

    def begin(self, number: int = 1, *, statement: bool = False, when: int = WHEN) -> int:
        """MariaDB's GTID event."""
        return self.add(Type.mariadb_gtid, struct.pack("<QIB6x", number, 0, statement), when=when)

    def mysql_begin(self, number: int = 1, *, micros: int = 0, first: int | None = None) -> int:
        """MySQL's GTID event and, for a transaction of several statements, what `query("BEGIN")` adds to it. A replica
        says when the transaction was first committed."""
        times = [micros] if first is None else [micros | 1 << 55, first]
        committed = b"".join(struct.pack("<Q", time)[:7] for time in times)
        body = b"\0" + bytes(16) + struct.pack("<q", number) + b"\2" + bytes(16) + committed
        return self.add(Type.gtid, body)

    def commit(self) -> int:
        """An XID event; where the transaction ends."""
        self.add(Type.xid, struct.pack("<Q", 7))
        return self.position

    def query(self, text: str, schema: str = "shop") -> int:
        self.add(Type.query, query_body(text, schema))
        return self.position

    def map(self, fields: Sequence[Field], name: str = "t", table: int = 77, schema: str = "shop") -> None:
        body = table_map(fields, schema=schema, name=name)
        self.add(Type.table_map, struct.pack("<Q", table)[:6] + body[6:])

    def rows(self, kind: int, *rows: Sequence[bytes | None], table: int = 77) -> None:
        body = row_event(kind, len(rows[0]), [image(row) for row in rows])
        self.add(kind, struct.pack("<Q", table)[:6] + body[6:])


def query_body(text: str, schema: str = "shop") -> bytes:
    name, status = schema.encode(), b"\0\0\0\0\0"
    return struct.pack("<IIBHH", 1, 0, len(name), 0, len(status)) + status + name + b"\0" + text.encode()
