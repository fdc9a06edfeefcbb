"""Text, bytes, and types that are delivered as text: from the log and from a dump's rows."""

from __future__ import annotations

import socket
import zlib

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Bytes, Words
from dblog.sources import columns
from dblog.sources.columns import Cells, Raw
from dblog.sources.mysql import binary_json_columns
from dblog.sources.mysql.charsets import charset
from dblog.sources.mysql.column_types import MyColumn, refuse, wrong_value


def text(cells: Cells, column: MyColumn) -> pa.Array:
    return columns.strings(cells)


def text_log(cells: Cells, column: MyColumn) -> pa.Array:
    return charset(column.kind.collation).strings(_inflated(cells, column))


def raw_bytes(cells: Cells, column: MyColumn) -> pa.Array:
    return columns.binary(cells)


def bytes_log(cells: Cells, column: MyColumn) -> pa.Array:
    return columns.binary(_inflated(cells, column))


_ZLIB, _WITHOUT_HEADER, _LENGTH = 0x80, 0x08, 0x07


def _inflated(cells: Cells, column: MyColumn) -> Cells:
    """The values of a compressed column. A value is a zero and the plain value; or a byte with the kind and the size of
    the length, the length, then zlib."""
    if not column.kind.compressed:
        return cells
    values = [_inflate(value, column) if value else b"" for value in columns.binary(cells).to_pylist()]
    raw, start, size = Raw.join(values)
    return Cells(raw, start, np.where(cells.length < 0, -1, size))


def _inflate(value: bytes, column: MyColumn) -> bytes:
    how = value[0]
    if how == 0:
        return value[1:]
    after = 1 + (how & _LENGTH)
    try:
        made = zlib.decompress(value[after:], -15 if how & _WITHOUT_HEADER else 15)
    except zlib.error:
        made = b""
    if how & 0xF0 != _ZLIB or len(made) != int.from_bytes(value[1:after]):
        raise wrong_value(column, value.hex())
    return made


def padded_log(cells: Cells, column: MyColumn) -> pa.Array:
    """BINARY(n). The log leaves out zeros at the end."""
    return columns.same_size(pa.binary(), _padded(cells, column), cells.valid)


def _padded(cells: Cells, column: MyColumn) -> Bytes:
    """The values, padded with zeros, as a two-dimensional array of rows and bytes."""
    size = column.kind.size
    refuse(column, cells.length > size, lambda row: f"{cells.length[row]} bytes")
    rows = cells.raw.blocks(cells.start, size)
    if np.any(cells.length < size):
        rows[np.arange(size) >= cells.length[:, None]] = 0
    return rows


def _number(cells: Cells, width: int) -> Words:
    return cells.raw.le64(cells.start) & np.uint64((1 << 8 * width) - 1)


def enum_log(cells: Cells, column: MyColumn) -> pa.Array:
    """ENUM: the number of the label, from 1 on; 0 is the invalid value."""
    index = _number(cells, column.kind.size).astype(np.int64)
    if cells.valid is not None:
        index[~cells.valid] = 0
    refuse(column, index > len(column.kind.labels), lambda row: str(index[row]))
    return pa.array(["", *column.kind.labels], pa.string()).take(columns.fixed(pa.int64(), index, cells.valid))


def set_log(cells: Cells, column: MyColumn) -> pa.Array:
    """SET: one bit for each label, the lowest bit for the first."""
    value = _number(cells, column.kind.size)
    if cells.valid is not None:
        value[~cells.valid] = 0
    labels = column.kind.labels
    count = len(labels)
    if count < 64:
        refuse(column, value >> np.uint64(count) != 0, lambda row: hex(int(value[row])))
    distinct, index = np.unique(value, return_inverse=True)
    texts = [",".join(label for n, label in enumerate(labels) if bits >> n & 1) for bits in distinct.tolist()]
    return pa.array(texts, pa.string()).take(columns.fixed(pa.int64(), index.astype(np.int64), cells.valid))


def json_log(cells: Cells, column: MyColumn) -> pa.Array:
    return binary_json_columns.texts(cells)


_EWKB_SRID = 0x20000000


def geometry(cells: Cells, column: MyColumn) -> pa.Array:
    """The SRID, then WKB. EWKB contains the SRID."""
    valid = cells.length >= 0
    refuse(column, valid & (cells.length < 9), lambda row: f"{cells.length[row]} bytes")
    refuse(column, valid & (cells.raw.data[cells.start + 4] != 1), lambda row: "a geometry in big-endian order")
    known = valid & (cells.raw.le32(cells.start) != 0)
    plain = columns.binary(Cells(cells.raw, cells.start + 4, np.where(valid, cells.length - 4, -1)))
    if not known.any():
        return plain
    values = plain.to_pylist()
    for row in np.flatnonzero(known).tolist():
        system, wkb = int(cells.raw.le32(cells.start[row : row + 1])[0]), values[row]
        kind = int.from_bytes(wkb[1:5], "little") | _EWKB_SRID
        values[row] = wkb[:1] + kind.to_bytes(4, "little") + system.to_bytes(4, "little") + wkb[5:]
    return pa.array(values, pa.binary())


_HEX = np.array([int.from_bytes(b"%02x" % byte, "little") for byte in range(256)], np.uint16)


def uuid_log(cells: Cells, column: MyColumn) -> pa.Array:
    """Sixteen bytes. The five parts of versions 1 to 5 are stored in reverse order, so that the UUIDs of one machine
    sort together and by time."""
    rows = _padded(cells, column)
    turned = (rows[:, 6] & 0x80 != 0) & (rows[:, 8] > 0) & (rows[:, 8] < 0x60)
    rows[turned] = rows[turned][:, [12, 13, 14, 15, 10, 11, 8, 9, 6, 7, 0, 1, 2, 3, 4, 5]]
    digits = _HEX[rows].view(np.uint8)
    texts = np.full((len(cells), 36), ord("-"), np.uint8)
    for first, last, dashes in ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4)):
        texts[:, first + dashes : last + dashes] = digits[:, first:last]
    return columns.same_size(pa.string(), texts, cells.valid)


def inet_log(cells: Cells, column: MyColumn) -> pa.Array:
    family = socket.AF_INET if column.kind.size == 4 else socket.AF_INET6
    rows = columns.same_size(pa.binary(), _padded(cells, column), cells.valid)
    return pa.array([None if v is None else socket.inet_ntop(family, v) for v in rows.to_pylist()], pa.string())
