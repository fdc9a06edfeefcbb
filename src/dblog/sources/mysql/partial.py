"""Partial updates of JSON documents (`binlog_row_value_options` is PARTIAL_JSON).

Before the new row of such an update there are options and, depending on them, a bit for each JSON column. If the bit is
set, the value is a list of differences from the old row's document. This module turns such an event into a plain
update, row by row, with the new document as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from struct import error as StructError  # noqa: N812
from struct import unpack_from
from typing import Any

import numpy as np

from dblog.core.arrays import Bytes, Ints
from dblog.errors import DecodeError
from dblog.sources.columns import Raw
from dblog.sources.mysql.binary_json import TEXT, Node, key_order, printed, read
from dblog.sources.mysql.events import Type, packed
from dblog.sources.mysql.layout import Layout

_UPDATE = 31
_PARTIAL_JSON = 1
_REPLACE, _INSERT, _REMOVE = range(3)
_PREFIX = 4
"""The size of a document's length, in bytes."""

_LEG = re.compile(r'\.(?:"((?:[^"\\]|\\.)*)"|([^."[]+))|\[(?:(\d+)|last(?:-(\d+))?)\]', re.DOTALL)


def completed(layout: Layout, raw: Raw, start: Ints, end: Ints, kind: Bytes) -> tuple[Raw, Ints, Ints, Bytes]:
    """Row events for `find_changes`, with partial updates replaced by plain ones."""
    partial = np.flatnonzero(kind == Type.partial_update)
    if not partial.size:
        return raw, start, end, kind
    start, end, kind = start.copy(), end.copy(), kind.copy()
    content = [raw.data[Raw.origin : raw.tail]]
    at = raw.tail
    for number in partial.tolist():
        made = _plain(layout, raw.data[start[number] : end[number]].tobytes())
        content.append(np.frombuffer(made, np.uint8))
        start[number], end[number] = at, at + len(made)
        at += len(made)
    kind[partial] = _UPDATE
    return Raw.pad(np.concatenate(content)), start, end, kind


def _plain(layout: Layout, body: bytes) -> bytes:
    """The body of a plain update."""
    table = layout.schema.table
    try:
        at = 8 + unpack_from("<H", body, 8)[0]
        count, at = packed(body, at)
        first = at + 2 * layout.bitmap
        every = (1 << len(layout.widths)) - 1
        maps = body[at : at + layout.bitmap], body[at + layout.bitmap : first]
        if count != len(layout.widths) or any(every & ~int.from_bytes(bits, "little") for bits in maps):
            raise DecodeError(
                f"a change of table {table} in the log lacks columns",
                hint="set global binlog_row_image = FULL; sessions that are open keep the old setting",
            )
        return body[:first] + b"".join(_rows(layout, body, first))
    except (LookupError, TypeError, ValueError, StructError) as error:
        raise DecodeError(f"a partial update of table {table} in the log cannot be read: {error}") from error


def _rows(layout: Layout, body: bytes, at: int) -> Iterator[bytes]:
    """The row images, old and new in turn."""
    while at < len(body):
        old, after = _values(layout, body, at)
        yield body[at:after]
        options, at = packed(body, after)
        if options & ~_PARTIAL_JSON:
            raise ValueError(f"it has options {options:#x}")
        size = (len(layout.documents) + 7) // 8 if options else 0
        partial = int.from_bytes(body[at : at + size], "little")
        at += size
        new, after = _values(layout, body, at)
        yield body[at : at + layout.bitmap]
        for number, column in enumerate(layout.documents):
            if partial >> number & 1:
                new[column] = _complete(old[column], new[column])
        yield from new
        at = after


def _values(layout: Layout, body: bytes, at: int) -> tuple[list[bytes], int]:
    """The values of an image, each with its length (empty for a null), and the end of the image."""
    nulls = int.from_bytes(body[at : at + layout.bitmap], "little")
    at += layout.bitmap
    values = []
    for column, width in enumerate(layout.widths):
        size = 0
        if not nulls >> column & 1:
            size = width if width >= 0 else int.from_bytes(body[at : at - width], "little") - width
        values.append(body[at : at + size])
        at += size
    if at > len(body):
        raise ValueError("it ends within a row")
    return values, at


def _complete(old: bytes, differences: bytes) -> bytes:
    """The new value of a document, from the old row's value and the differences."""
    if not old or not differences:
        raise ValueError("it changes a document that does not exist")
    document = bytes([TEXT]) + printed(changed(read(old[_PREFIX:]), differences[_PREFIX:])).encode()
    return len(document).to_bytes(_PREFIX, "little") + document


def changed(document: Node, differences: bytes) -> Node:
    """The document after applying the differences. Each has an operation, a path and, unless it removes, a value."""
    at = 0
    while at < len(differences):
        operation = differences[at]
        path, at = _sized(differences, at + 1)
        value: Node = ""
        if operation != _REMOVE:
            content, at = _sized(differences, at)
            value = read(content)
        _change(document, operation, _legs(path.decode()), value)
    return document


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = packed(data, at)
    if at + size > len(data):
        raise ValueError("a difference runs over its end")
    return data[at : at + size], at + size


def _legs(path: str) -> list[str | int]:
    """The members and array cells of a path. A cell that is counted from the end is negative: -1 is the last."""
    legs: list[str | int] = []
    at = 1
    while at < len(path):
        leg = _LEG.match(path, at)
        if leg is None:
            raise ValueError(f"its path {path!r} cannot be parsed")
        quoted, name, cell, before_last = leg.groups()
        if quoted is not None:
            legs.append(json.loads(f'"{quoted}"', strict=False))
        elif name is not None:
            legs.append(name)
        else:
            legs.append(int(cell) if cell is not None else -1 - int(before_last or 0))
        at = leg.end()
    return legs


def _change(node: Node, operation: int, legs: Sequence[str | int], value: Node) -> None:
    for leg in legs[:-1]:
        node = _container(node, leg)[leg]
    last = legs[-1]
    holder = _container(node, last)
    if operation == _REPLACE:
        holder[last]  # raises if it does not exist
        holder[last] = value
    elif operation == _REMOVE:
        del holder[last]
    elif operation != _INSERT:
        raise ValueError(f"operation {operation} is unknown")
    elif isinstance(last, int):
        holder.insert(last if last >= 0 else max(len(holder) + last, 0), value)
    elif last in holder:
        raise ValueError(f"{last!r} exists already")
    else:
        members = sorted([*holder.items(), (last, value)], key=lambda member: key_order(member[0]))
        holder.clear()
        holder.update(members)


def _container(node: Node, leg: str | int) -> Any:
    """The node as the object or array that the leg needs. Raises ValueError if it is neither."""
    if not isinstance(node, dict if isinstance(leg, str) else list):
        raise ValueError(f"{leg!r} does not exist")
    return node
