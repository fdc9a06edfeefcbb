"""Rows of a prepared statement (binary protocol) to Arrow: what a dump reads.

A row is a packet: a zero, a bitmap of nulls that begins at its third bit, then the values, each of a fixed width or
with its length in front of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dblog.core.schema import TableSchema
from dblog.errors import DecodeError
from dblog.sources.columns import LIMIT, Cells, Ints, Raw
from dblog.sources.mysql.kinds import LENGTH, SHORT, MyColumn
from dblog.sources.mysql.types import CODECS, decode


def decode_rows(packets: Sequence[bytes], schema: TableSchema) -> pa.RecordBatch:
    """The table's columns from the rows' packets (without their headers)."""
    raw, start, size = Raw.join(packets)
    return decode_packets(raw, start, start + size, schema)


def decode_packets(raw: Raw, start: Ints, end: Ints, schema: TableSchema) -> pa.RecordBatch:
    """The table's columns from packets at `start` to `end`, all of the schema's columns selected by their names."""
    if raw.data.size >= 2 * LIMIT:
        raise DecodeError(
            f"{raw.data.size} bytes of table {schema.table} in one batch", hint="decode fewer rows at once"
        )
    if np.any(raw.data[start]):
        raise DecodeError(f"a row of table {schema.table} is none of a prepared statement")
    cells, last = _march(raw, start + 1, schema)
    if np.any(last != end):
        raise DecodeError(f"a row of table {schema.table} does not end where its last column does")
    return pa.RecordBatch.from_arrays(decode(schema, cells, log=False), schema=schema.arrow)


def _march(raw: Raw, nulls: Ints, schema: TableSchema) -> tuple[list[Cells], Ints]:
    """Where each column of all rows lies, column by column, and where the rows end."""
    at = nulls + (len(schema.columns) + 9) // 8
    cells = []
    for number, column in enumerate(schema.columns, 2):
        assert isinstance(column, MyColumn)
        at = np.minimum(at, raw.tail)
        null = raw.data[nulls + (number >> 3)] & np.uint8(1 << (number & 7)) != 0
        width = CODECS[column.codec].row_width
        if width == LENGTH:
            start, length = _sized(raw, at)
        elif width == SHORT:
            start, length = at + 1, raw.data[at].astype(np.int64)
        else:
            start, length = at, np.full(len(at), width)
        if null.any():
            length[null] = -1
            start = np.where(null, at, start)
        cells.append(Cells(raw, start, length))
        at = start + np.maximum(length, 0)
    return cells, at


def _sized(raw: Raw, at: Ints) -> tuple[Ints, Ints]:
    """Lengths in one byte or, after a byte that says how many, in two, three or eight."""
    head = raw.le32(at)
    first = (head & np.uint32(0xFF)).astype(np.int64)
    if first.max(initial=0) < 251:
        return at + 1, first
    wide = raw.le64(at + 1).view(np.int64)
    length = np.select(
        [first < 251, first == 252, first == 253], [first, wide & 0xFFFF, wide & 0xFFFFFF], np.minimum(wide, 2 * LIMIT)
    )
    skip = np.select([first < 251, first == 252, first == 253], [1, 3, 4], 9)
    return at + skip, length
