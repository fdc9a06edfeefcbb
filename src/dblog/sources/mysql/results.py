"""Rows of a prepared statement (binary protocol) to Arrow. Dumps read such rows.

A row is a packet: a zero, a bitmap of nulls that begins at its third bit, then the values, each of fixed width or with
its length before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Ints
from dblog.core.schema import TableSchema
from dblog.errors import DecodeError
from dblog.sources.columns import LIMIT, Cells, Nulls, Raw
from dblog.sources.mysql.codecs import CODECS, decode
from dblog.sources.mysql.column_types import LENGTH, SHORT, MyColumn


def decode_rows(packets: Sequence[bytes], schema: TableSchema) -> pa.RecordBatch:
    """The table's columns from the rows' packets (without their headers)."""
    raw, start, size = Raw.join(packets)
    return decode_packets(raw, start, start + size, schema)


def decode_packets(raw: Raw, start: Ints, end: Ints, schema: TableSchema) -> pa.RecordBatch:
    """The table's columns from packets at `start` to `end`. The select must have named exactly the schema's columns.
    The batch has one more column, `_raw_values`, if a value does not fit."""
    if raw.data.size >= 2 * LIMIT:
        raise DecodeError(
            f"one batch has {raw.data.size} bytes of table {schema.table}, which is too many",
            hint="decode fewer rows at once",
        )
    if np.any(raw.data[start]):
        raise DecodeError(f"a row of table {schema.table} is not in the binary protocol of prepared statements")
    misfit = DecodeError(f"a row of table {schema.table} does not end where its last column does")
    try:
        cells, last = _march(raw, start + 1, schema)
    except IndexError:
        raise misfit from None
    if np.any(last != end):
        raise misfit
    found = decode(schema, cells, log=False)
    return found.batch(found.arrays, schema.arrow)


def _march(raw: Raw, at: Ints, schema: TableSchema) -> tuple[list[Cells], Ints]:
    """The cells of each column of all rows, and the end of each row. Raises IndexError if an end is beyond the
    buffer."""
    bitmap = (len(schema.columns) + 9) // 8
    nulls, at = Nulls(raw, at, bitmap), at + bitmap
    cells = []
    for number, column in enumerate(schema.columns, 2):
        assert isinstance(column, MyColumn)
        width = CODECS[column.codec].row_width
        if width == LENGTH:
            start, length = _sized(raw, at)
        elif width == SHORT:
            start, length = at + 1, raw.data[at].astype(np.int64)
        else:
            start, length = at, np.full(len(at), width)
        after = start + length
        missing = nulls.of(number >> 3, 1 << (number & 7))
        if missing is not None:
            length[missing] = -1
            start, after = np.where(missing, at, start), np.where(missing, at, after)
        cells.append(Cells(raw, start, length))
        at = after
    return cells, at


def _sized(raw: Raw, at: Ints) -> tuple[Ints, Ints]:
    """Length-encoded integers: one byte, or a byte with the size and then two, three or eight bytes."""
    first = raw.data[at].astype(np.int64)
    if first.max(initial=0) < 251:
        return at + 1, first
    kinds = [first < 251, first == 252, first == 253]
    word = raw.le64(at + 1)
    wide = [(word & np.uint64(mask)).view(np.int64) for mask in (0xFFFF, 0xFFFFFF)]
    length = np.select(kinds, [first, *wide], np.minimum(word, np.uint64(2 * LIMIT)).view(np.int64))
    return at + np.select(kinds, [1, 3, 4], 9), length
