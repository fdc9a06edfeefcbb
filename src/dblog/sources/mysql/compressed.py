"""Decompression: compressed events of both servers are replaced by their contents.

MariaDB compresses the text of each statement and the rows of each row event. MySQL compresses all events of a
transaction, except the first, into one event.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from struct import unpack_from
from typing import Any

import numpy as np
import pyarrow as pa

from dblog.errors import DecodeError
from dblog.sources.columns import Raw
from dblog.sources.mysql.events import ARRAYS, HEADER, ROWS_COMPRESSED, Events, Type, packed, unknown

PART_BYTES = 8 << 20
"""Bytes of a transaction above which it is decompressed in parts."""

_COMPRESSED = np.zeros(256, np.bool_)
_COMPRESSED[[Type.payload, Type.query_compressed, *ROWS_COMPRESSED]] = True
_ZSTD, _UNCOMPRESSED = 0, 255
_UPDATES, _SECOND_VERSION = {167, 170}, {169, 170, 171}


def inflated(events: Events) -> Events:
    """The events, with compressed ones replaced by their contents. Large transactions are left to `parts`."""
    compressed = np.flatnonzero(_COMPRESSED[events.kind])
    if not compressed.size:
        return events
    raw = events.raw
    content = [raw.data[Raw.origin : raw.tail]]
    at = raw.tail
    pieces: list[Events] = []
    first = 0
    for number in compressed.tolist():
        pieces.append(events.some(slice(first, number)))
        event = events.some(slice(number, number + 1))
        kind, body = int(event.kind[0]), event.body(0)
        if kind == Type.payload:
            held = b"".join(_payload(body))
            pieces.append(_inner(event, held, at))
        elif kind == Type.query_compressed:
            held = _plain(body, _query_head(body))
            kinds = np.array([Type.query], np.uint8)
            pieces.append(replace(event, kind=kinds, start=np.array([at]), end=np.array([at + len(held)])))
        else:
            held = _plain(body, _rows_head(kind, body))
            pieces.append(replace(event, start=np.array([at]), end=np.array([at + len(held)])))
        content.append(np.frombuffer(held, np.uint8))
        at += len(held)
        first = number + 1
    pieces.append(events.some(slice(first, None)))
    joined: dict[str, Any] = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in ARRAYS}
    return replace(events, raw=Raw.pad(np.concatenate(content)), **joined)


def _plain(body: bytes, head: int) -> bytes:
    """The body with the part after `head` decompressed. MariaDB writes the kind and the size of the length, the length,
    then zlib."""
    kind = body[head]
    if kind & 0x70:
        raise DecodeError(f"an event in the log has an unknown compression: {kind:#x}")
    try:
        return body[:head] + zlib.decompress(body[head + 1 + (kind & 7) :])
    except zlib.error as error:
        raise DecodeError(f"a compressed event in the log cannot be read: {error}") from error


def _query_head(body: bytes) -> int:
    schema, _, status = unpack_from("<BHH", body, 8)
    return int(13 + status + schema + 1)


def _rows_head(kind: int, body: bytes) -> int:
    at = 8 + (unpack_from("<H", body, 8)[0] if kind in _SECOND_VERSION else 0)
    count = body[at]
    at += 1
    if count == 252:
        (count,) = unpack_from("<H", body, at)
        at += 2
    return int(at + (count + 7) // 8 * (2 if kind in _UPDATES else 1))


def is_large(body: bytes) -> bool:
    """Whether a compressed transaction is read in parts."""
    return _payload_head(body)[1] > PART_BYTES


def _payload_head(body: bytes) -> tuple[int, int, int]:
    """The kind of compression of a transaction, its uncompressed size, and the start of its content."""
    at, kind, size = 0, 0, 0
    while True:
        field, at = packed(body, at)
        if field == 0:
            return kind, size, at
        length, at = packed(body, at)
        if field == 2:
            kind, _ = packed(body, at)
        elif field == 3:
            size, _ = packed(body, at)
        at += length


def _payload(body: bytes) -> Iterator[bytes]:
    """The decompressed content of a transaction, in parts."""
    kind, size, at = _payload_head(body)
    if kind == _UNCOMPRESSED:
        yield body[at:]
        return
    if kind != _ZSTD:
        raise DecodeError(f"a transaction in the log has an unknown compression: {kind}")
    found = 0
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)[at:]), "zstd")
        while part := stream.read(PART_BYTES):
            found += len(part)
            yield part
    except (OSError, pa.ArrowException) as error:
        raise DecodeError(f"a compressed transaction in the log cannot be read: {error}") from error
    if found != size:
        raise DecodeError(f"a compressed transaction in the log has {found} bytes instead of {size}")


def _cut(held: bytes) -> list[int]:
    """The start of each event in the content of a transaction, and the end of the last complete one."""
    bounds = [0]
    at = 0
    while at + HEADER <= len(held):
        (size,) = unpack_from("<I", held, at + 9)
        if size < HEADER:
            raise DecodeError("an event in a compressed transaction does not have the size in its header")
        at += size
        if at > len(held):
            break
        bounds.append(at)
    return bounds


def _inner(event: Events, held: bytes, at: int) -> Events:
    """The events in the content of a compressed transaction, which begins at `at`. They have its position and no
    checksums."""
    bounds = np.array(_cut(held), np.int64)
    count = len(bounds) - 1
    if bounds[-1] != len(held) or not count:
        raise DecodeError("a compressed transaction in the log does not end where its last event does")
    raw = Raw.pad(np.frombuffer(held, np.uint8))
    begin = bounds[:-1] + Raw.origin
    kind = raw.data[begin + 4]
    if np.any(kind == Type.payload):
        raise unknown(Type.payload)
    size = np.zeros(count, np.int64)
    size[0] = event.size[0]
    return replace(
        event,
        kind=kind,
        start=bounds[:-1] + at + HEADER,
        end=bounds[1:] + at,
        when=raw.le32(begin).astype(np.int64),
        position=np.repeat(event.position, count),
        after=np.repeat(event.after, count),
        size=size,
    )


def parts(event: Events) -> Iterator[Events]:
    """The events of one large compressed transaction, some at a time."""
    left = b""
    for part in _payload(event.body(0)):
        held = left + part
        end = _cut(held)[-1]
        left = held[end:]
        if end:
            inner = _inner(event, held[:end], Raw.origin)
            yield replace(inner, raw=Raw.pad(np.frombuffer(held, np.uint8)))
            event = replace(event, size=np.zeros(1, np.int64), fresh=False)
    if left:
        raise DecodeError("a compressed transaction in the log does not end where its last event does")
