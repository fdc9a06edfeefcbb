"""Kernels that turn raw bytes into Arrow arrays. The decoders of all sources use them.

A decoder finds the bytes of each value (`Cells`: a start and a length per row, in one buffer). A kernel turns a whole
column of them into an Arrow array. There is no loop over rows, and no value becomes a Python object.

Two techniques make it fast. Values: the buffer is used as an Arrow array whose elements are, in turn, a value and the
bytes up to the next value; Arrow copies every second element. Decimal digits: eight ASCII digits are read as one 64-bit
word, and three multiplications turn it into a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.arrays import Bytes, Ints, Mask, Words

LIMIT = 2**30
"""Bytes after which a buffer ends with the current message, because Arrow's offsets have 32 bits."""

ABSENT = -2
"""The length of a cell that is not in the log, because the update did not change it."""

_PAD = 32
"""Padding before the first message, in bytes: a word that *ends* at the first value can be loaded."""
_TAIL = b"n" * 2048
"""Padding after the last message: loads may run over the end, and rows without a tuple read these nulls."""


@dataclass(frozen=True, eq=False)
class Raw:
    """Messages in one buffer, with padding on both sides, so that a word can be loaded at or before any position."""

    data: Bytes

    @classmethod
    def join(cls, messages: Sequence[bytes], sizes: Ints | None = None) -> tuple[Raw, Ints, Ints]:
        """The buffer of all messages, and the start and size of each."""
        sizes = _sizes(messages) if sizes is None else sizes
        starts = np.cumsum(sizes)
        starts += _PAD
        starts -= sizes
        return cls(np.frombuffer(b"".join([bytes(_PAD), *messages, _TAIL]), np.uint8)), starts, sizes

    @classmethod
    def pad(cls, content: Bytes) -> Raw:
        """A buffer of computed bytes; positions in `content` are `Raw.origin` further on."""
        return cls(np.concatenate((np.zeros(_PAD, np.uint8), content, np.frombuffer(_TAIL, np.uint8))))

    origin = _PAD

    @property
    def tail(self) -> int:
        """The start of the padding after the last message: at least 2,000 bytes `n`."""
        return self.data.size - len(_TAIL)

    @cached_property
    def buffer(self) -> pa.Buffer:
        return pa.py_buffer(self.data)

    @cached_property
    def _words(self) -> tuple[Words, npt.NDArray[np.uint32], npt.NDArray[np.uint16]]:
        # Overlapping views with a stride of one byte: element i is the little-endian word that starts at byte i.
        a = self.data
        return (
            np.ndarray((a.size - 7,), "<u8", a, 0, (1,)),
            np.ndarray((a.size - 3,), "<u4", a, 0, (1,)),
            np.ndarray((a.size - 1,), "<u2", a, 0, (1,)),
        )

    def le64(self, at: Ints) -> Words:
        return self._words[0][at]

    def le32(self, at: Ints) -> npt.NDArray[np.uint32]:
        return self._words[1][at]

    def le16(self, at: Ints) -> npt.NDArray[np.uint16]:
        return self._words[2][at]

    def blocks(self, at: Ints, size: int) -> Bytes:
        """`size` bytes at each position, as a two-dimensional array. `size` is at most that of the padding."""
        every = np.ndarray((self.data.size - size + 1,), f"V{size}", self.data, 0, (1,))
        return every[at].view(np.uint8).reshape(len(at), size)

    def be64(self, at: Ints) -> Words:
        return self._words[0][at].byteswap(inplace=True)

    def be32(self, at: Ints) -> npt.NDArray[np.uint32]:
        return self._words[1][at].byteswap(inplace=True)

    def be16(self, at: Ints) -> npt.NDArray[np.uint16]:
        return self._words[2][at].byteswap(inplace=True)


class Nulls:
    """The bitmaps of nulls at each position, `size` bytes each."""

    def __init__(self, raw: Raw, at: Ints, size: int) -> None:
        self.bytes = [raw.data[at + byte] for byte in range(size)]
        self.some = [int(np.bitwise_or.reduce(each)) for each in self.bytes]
        """For each byte of the bitmap, the bits that are set in any row."""

    def of(self, byte: int, bit: int) -> Mask | None:
        """The rows whose bitmap has a bit of a byte set; None if no row has."""
        return self.bytes[byte] & np.uint8(bit) != 0 if self.some[byte] & bit else None


@dataclass(frozen=True, eq=False)
class Cells:
    """A column's values as start and length per row. A negative length is a null (or ABSENT)."""

    raw: Raw
    start: Ints
    length: Ints

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def valid(self) -> Mask | None:
        """Which rows have a value; None if all have."""
        mask = self.length >= 0
        return None if mask.all() else mask

    def take(self, rows: Any) -> Cells:
        return Cells(self.raw, self.start[rows], self.length[rows])

    def text(self, row: int) -> str:
        """One value as a Python string, for rare rows and error messages."""
        start = int(self.start[row])
        return self.raw.data[start : start + int(self.length[row])].tobytes().decode("utf-8", "replace")

    def plain_text(self, row: int) -> str:
        """One value as text. Bytes that are not UTF-8 are written as hexadecimal digits after `\\x`."""
        start = int(self.start[row])
        value = self.raw.data[start : start + int(self.length[row])].tobytes()
        try:
            return value.decode()
        except UnicodeDecodeError:
            return "\\x" + value.hex()


@dataclass(frozen=True, eq=False)
class Rows:
    """The cells of all columns: two-dimensional arrays of starts and lengths, by column and row."""

    raw: Raw
    start: Ints
    length: Ints

    @classmethod
    def empty(cls, raw: Raw, columns: int, rows: int) -> Rows:
        return cls(raw, *np.empty((2, columns, rows), np.int64))

    def __len__(self) -> int:
        return int(self.start.shape[1])

    @property
    def cells(self) -> list[Cells]:
        return [Cells(self.raw, start, length) for start, length in zip(self.start, self.length, strict=True)]

    def columns(self, kept: Sequence[int]) -> Rows:
        """The cells of some of the columns."""
        if len(kept) == len(self.start):
            return self
        return Rows(self.raw, self.start[list(kept)], self.length[list(kept)])

    def take(self, rows: Any) -> Rows:
        return Rows(self.raw, self.start[:, rows].copy(), self.length[:, rows].copy())

    def put(self, at: Ints, rows: Rows) -> None:
        self.start[:, at], self.length[:, at] = rows.start, rows.length

    def absent(self, names: Sequence[str]) -> pa.Array:
        """For each row the list of the names of its absent cells; null if there are none."""
        if self.length.min(initial=0) > ABSENT:
            return pa.nulls(len(self), pa.list_(pa.string()))
        missing = self.length.T == ABSENT
        offsets = np.append(0, np.cumsum(np.count_nonzero(missing, axis=1))).astype(np.int32)
        found = pa.array(names, pa.string()).take(pa.array(np.nonzero(missing)[1]))
        return lists(pa.list_(pa.string()), offsets, found, np.diff(offsets) > 0)


def portions(messages: Sequence[bytes]) -> Iterator[tuple[Sequence[bytes], Ints]]:
    """The messages and their sizes, in portions that fit a buffer each; nearly always one."""
    sizes = _sizes(messages)
    first = 0
    while first < len(messages):
        last = first + 1 + int(np.searchsorted(np.cumsum(sizes[first:]), LIMIT))
        yield messages[first:last], sizes[first:last]
        first = last


def _sizes(messages: Sequence[bytes]) -> Ints:
    return np.fromiter(map(len, messages), np.int64, len(messages))


def validity(valid: Mask | None) -> tuple[pa.Buffer | None, int]:
    """A mask in Arrow's form: the bitmap and the number of nulls."""
    if valid is None:
        return None, 0
    return pa.py_buffer(np.packbits(valid, bitorder="little")), int(valid.size - np.count_nonzero(valid))


def fixed(kind: pa.DataType, values: npt.NDArray[Any], valid: Mask | None) -> pa.Array:
    """An array of fixed-width values that already have Arrow's layout."""
    bitmap, nulls = validity(valid)
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)], nulls)


def booleans(values: Mask, valid: Mask | None) -> pa.Array:
    bitmap, nulls = validity(valid)
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [bitmap, bits], nulls)


def lists(kind: pa.DataType, offsets: npt.NDArray[np.int32], values: pa.Array, valid: Mask | None) -> pa.Array:
    bitmap, nulls = validity(valid)
    return pa.Array.from_buffers(kind, len(offsets) - 1, [bitmap, pa.py_buffer(offsets)], nulls, children=[values])


def binary(cells: Cells, kind: pa.DataType | None = None) -> pa.Array:
    """The bytes as they are; with `kind` string they are checked to be UTF-8. Raises pyarrow.ArrowInvalid."""
    values = _alike(cells)
    if values is None:
        values = _in_order(cells)
    if values is None:
        values = _anywhere(cells)
    if kind is None:
        return values
    content, _ = contiguous(values)
    if content.max(initial=0) < 0x80:  # ASCII is the most common case, and cheap to check
        return pa.Array.from_buffers(kind, len(values), values.buffers(), values.null_count)
    return values.cast(kind)


def same_size(kind: pa.DataType, rows: Bytes, valid: Mask | None) -> pa.Array:
    """An array of values of the same size, given as a two-dimensional array of rows and bytes."""
    count, size = rows.shape
    bitmap, nulls = validity(valid)
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32) if size else np.zeros(count + 1, np.int32)
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(rows.reshape(-1))], nulls)


_SHORT = 256


def _alike(cells: Cells) -> pa.Array | None:
    """The values, if there are no nulls and all have the same small size, like keys and hashes. Otherwise None."""
    size = int(cells.length[0]) if len(cells) else 0
    if not 0 < size <= _SHORT or np.any(cells.length != size):
        return None
    return same_size(pa.binary(), cells.raw.blocks(cells.start, size), None)


def _in_order(cells: Cells) -> pa.Array | None:
    """The values, if they are in order in the buffer; otherwise None. Only values of a compressed log are not in order.

    The buffer is used as an array of values and the bytes between them; every second element is copied.
    """
    start, end = cells.start, cells.start + cells.length
    if cells.valid is not None:  # a null gets the end of the value before it
        end = np.maximum.accumulate(np.where(cells.valid, end, 0))
        start = np.where(cells.valid, start, end)
    if np.any(start[1:] < end[:-1]):
        return None
    edges = np.empty(2 * len(cells) + 1, np.int32)
    edges[:-1:2], edges[1::2] = start, end
    edges[-1] = edges[-2:-1].max(initial=0)
    both = pa.Array.from_buffers(pa.binary(), 2 * len(cells), [None, pa.py_buffer(edges), cells.raw.buffer], 0)
    found = pc.take(both, pa.array(np.arange(len(cells), dtype=np.int32) * 2), boundscheck=False)
    bitmap, nulls = validity(cells.valid)
    return pa.Array.from_buffers(pa.binary(), len(cells), [bitmap, *found.buffers()[1:]], nulls)


_INLINE = 12


def _anywhere(cells: Cells) -> pa.Array:
    # An Arrow view has 16 bytes: a length, then up to 12 bytes of the value itself, or its first 4 bytes, the number of
    # a buffer and an offset into it. The bytes after a short value should be zero; here they are not, but the cast
    # ignores them.
    length = np.maximum(cells.length, 0)
    views = np.empty((len(cells), 2), np.uint64)
    head = cells.raw.le64(cells.start - 4)
    head &= np.uint64(0xFFFFFFFF00000000)
    np.bitwise_or(head, length.view(np.uint64), out=views[:, 0])
    rest = cells.raw.le64(cells.start + 4)
    np.copyto(rest, cells.start.view(np.uint64) << np.uint64(32), where=length > _INLINE)
    views[:, 1] = rest
    bitmap, nulls = validity(cells.valid)
    buffers = [bitmap, pa.py_buffer(views), cells.raw.buffer]
    return pa.Array.from_buffers(pa.binary_view(), len(cells), buffers, nulls).cast(pa.binary())


KEEP_FIRST = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
"""For each n: a mask of the first n bytes of a word."""


def differ(left: Cells, right: Cells) -> Mask:
    """The rows in which the bytes of two columns differ. A null differs from everything."""
    if max(left.length.max(initial=0), right.length.max(initial=0)) <= 8:
        apart = (left.raw.le64(left.start) ^ right.raw.le64(right.start)) & KEEP_FIRST[np.maximum(left.length, 0)] != 0
        return np.asarray(apart | (left.length != right.length) | (left.length < 0))
    same = pc.equal(binary(left), binary(right)).fill_null(False)
    return ~np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)


def strings(cells: Cells) -> pa.Array:
    return binary(cells, pa.string())


def contiguous(values: pa.Array) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """The bytes of a whole (unsliced) binary array and the offsets of its values."""
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, np.int32, len(values) + 1)
    return (np.frombuffer(content, np.uint8, int(ends[-1])) if content else np.empty(0, np.uint8)), ends


_KEEP_LAST = np.array([((1 << 8 * n) - 1) << 8 * (8 - n) for n in range(9)], np.uint64)


def digits(raw: Raw, end: Ints, count: Ints) -> tuple[Words, Mask]:
    """The numbers in the last `count` (clipped to 0..8) bytes before `end`, and a mask of those that are not all
    digits."""
    x = raw.le64(end - 8)
    x ^= np.uint64(0x3030303030303030)
    x &= _KEEP_LAST[np.clip(count, 0, 8)]
    # A byte is above 9 if its high bit is set, or is set after adding 118.
    wrong = ((x + np.uint64(0x7676767676767676)) | x) & np.uint64(0x8080808080808080) != 0
    x = (x * np.uint64(10) + (x >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    x = (x * np.uint64(100) + (x >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    x = (x * np.uint64(10000) + (x >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return x, wrong


def unsigned(raw: Raw, end: Ints, count: Ints) -> tuple[Words, Mask]:
    """Numbers of up to 20 digits, and a mask of wrong ones. More digits are wrong."""
    value, wrong = digits(raw, end, count)
    most = int(count.max(initial=0))
    for skip, scale in ((8, 10**8), (16, 10**16)):
        if most > skip:
            high, bad = digits(raw, end - skip, count - skip)
            value = value + high * np.uint64(scale)
            wrong = wrong | bad
    return (value, wrong) if most <= 20 else (value, wrong | (count > 20))


def integers(cells: Cells) -> tuple[Ints, Mask]:
    """Decimal integers with an optional minus sign, and a mask of the cells that are not such. Nulls are not marked."""
    minus = cells.raw.data[cells.start] == ord("-")
    minus &= cells.length > 0
    count = cells.length - minus
    value, wrong = unsigned(cells.raw, cells.start + cells.length, count)
    signed = value.view(np.int64)
    np.negative(signed, out=signed, where=minus)
    wrong |= count == 0
    return signed, wrong


_NIBBLE = np.full(256, 256, np.uint16)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _NIBBLE[np.frombuffer(_digits, np.uint8)] = np.arange(16)
# The byte of two hexadecimal digits, by the little-endian number of the two characters; 256 and above: not digits.
_UNHEX = (_NIBBLE[None, :] << 4 | _NIBBLE[:, None]).ravel()


def unhex(cells: Cells, prefix: int) -> tuple[pa.Array, bool]:
    """Binary values written in hexadecimal after `prefix` bytes, and whether every cell was well-formed."""
    length = np.where(cells.length < 0, -1, cells.length - prefix)
    text, offsets = contiguous(binary(Cells(cells.raw, cells.start + prefix, length)))
    if np.any((cells.length >= 0) & (length < 0)) or np.any(offsets & 1):
        return None, False
    content = _UNHEX[text.view("<u2")]
    bitmap, nulls = validity(cells.valid)
    buffers = [bitmap, pa.py_buffer(offsets >> 1), pa.py_buffer(content.astype(np.uint8))]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers, nulls), bool(content.max(initial=0) < 256)
