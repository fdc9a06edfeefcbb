"""Events of the binary log, as arrays.

An event is a header of 19 bytes (when, type, server, size, end in its file, flags), its body and, if its file says so,
a checksum. A position is the number of the file and the byte in it, in one number that only grows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from dblog.core.arrays import Bytes, Ints
from dblog.errors import DecodeError, PositionLost
from dblog.sources.columns import Raw

HEADER = 19
FIRST = 4
"""The byte of a file's first event."""
BYTE_BITS = 40


class Type(IntEnum):
    """The types of events that the decoder uses."""

    query = 2
    stop = 3
    rotate = 4
    format = 15
    xid = 16
    table_map = 19
    incident = 26
    heartbeat = 27
    gtid = 33
    anonymous = 34
    xa_prepare = 38
    partial_update = 39
    payload = 40
    heartbeat_v2 = 41
    gtid_tagged = 42
    mariadb_gtid = 162
    start_encryption = 164
    query_compressed = 165


ROWS = frozenset({23, 24, 25, 30, 31, 32, Type.partial_update})
ROWS_COMPRESSED = frozenset(range(166, 172))
BEGINS = frozenset({Type.gtid, Type.anonymous, Type.gtid_tagged, Type.mariadb_gtid})

# All known types: those above, and types that can be ignored. The latter accompany statements (INTVAR, RAND, USER_VAR),
# have the text of a statement whose rows follow (ROWS_QUERY, ANNOTATE_ROWS), list earlier transactions (PREVIOUS_GTIDS,
# GTID_LIST), or are meant for other servers (TRANSACTION_CONTEXT, VIEW_CHANGE, BINLOG_CHECKPOINT). START_ENCRYPTION
# marks an encrypted file, which the server decrypts for its readers.
KNOWN = np.zeros(256, np.bool_)
KNOWN[[5, 13, 14, 29, 35, 36, 37, 160, 161, 163]] = True
KNOWN[[Type.query, Type.stop, Type.xid, Type.xa_prepare, Type.table_map, Type.start_encryption, *ROWS, *BEGINS]] = True
KNOWN[[Type.payload, Type.query_compressed, *ROWS_COMPRESSED]] = True

_REFUSED = {
    9: "LOAD DATA was logged as a statement: set global binlog_format = ROW, and start with a new dump",
    17: "LOAD DATA was logged as a statement: set global binlog_format = ROW, and start with a new dump",
    18: "LOAD DATA was logged as a statement: set global binlog_format = ROW, and start with a new dump",
}


def position(file: int, byte: int) -> int:
    return file << BYTE_BITS | byte


def file_and_byte(position: int) -> tuple[int, int]:
    """The number of the file, and the byte in it."""
    return position >> BYTE_BITS, max(position & ((1 << BYTE_BITS) - 1), FIRST)


ARRAYS = ("kind", "start", "end", "when", "position", "after", "size")


@dataclass(frozen=True, eq=False)
class Events:
    """Consecutive events, as arrays."""

    raw: Raw
    kind: Bytes
    start: Ints
    """The start of each body in `raw`."""
    end: Ints
    """The end of each body in `raw`."""
    when: Ints
    """Seconds since 1970."""
    position: Ints
    """The position of each event in the log."""
    after: Ints
    """The position after each event."""
    size: Ints
    """Bytes received for each event."""
    fresh: bool = False
    """Whether these are the first events of a file. A transaction that was open in the file before has never ended."""

    def __len__(self) -> int:
        return len(self.kind)

    def body(self, number: int) -> bytes:
        return self.raw.data[self.start[number] : self.end[number]].tobytes()

    def some(self, which: slice) -> Events:
        return replace(self, **{name: getattr(self, name)[which] for name in ARRAYS})


def unknown(kind: int) -> DecodeError | PositionLost:
    """The error for a type of event that is not supported."""
    if kind == Type.incident:
        return PositionLost("the server says that its log has lost changes", hint="start with a new dump")
    return DecodeError(f"the log has an event of type {kind}, which is not supported", hint=_REFUSED.get(kind))


def packed(body: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer at `at`, and the index after it."""
    first = body[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(body[at + 1 : at + 1 + width], "little"), at + 1 + width
