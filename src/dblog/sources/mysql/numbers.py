"""Numbers, from the log and from a dump's rows. Both have integers and floats as little-endian bytes. A row has DECIMAL
as text; the log has it as groups of nine digits in four bytes each; the first and the last group may be shorter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Ints, Mask, Words
from dblog.sources import columns
from dblog.sources.columns import Cells, Raw
from dblog.sources.mysql.column_types import INTEGERS, Code, MyColumn, decimal_groups, group_bytes, refuse


def integer(cells: Cells, column: MyColumn) -> pa.Array:
    """Integers in the log: as many bytes as the type has."""
    return _integer(cells, column, INTEGERS[Code(column.kind.code)])


def integer_row(cells: Cells, column: MyColumn) -> pa.Array:
    """Integers in a row, which has four bytes for a MEDIUMINT."""
    width = INTEGERS[Code(column.kind.code)]
    return _integer(cells, column, 4 if width == 3 else width)


def _integer(cells: Cells, column: MyColumn, width: int) -> pa.Array:
    word: Any = cells.raw.le64(cells.start)
    if width < 8:
        # Shift the value to the top of the word and back, with or without its sign.
        word <<= np.uint64(64 - 8 * width)
        word = word >> np.uint64(64 - 8 * width) if column.kind.unsigned else word.view(np.int64) >> 64 - 8 * width
    elif column.kind.unsigned:
        return wide(word, cells, column)
    return columns.fixed(column.arrow, word.astype(column.arrow.to_pandas_dtype(), copy=False), cells.valid)


def wide(values: Words, cells: Cells, column: MyColumn) -> pa.Array:
    """Unsigned 64-bit numbers as 128-bit decimals."""
    words = np.zeros((len(cells), 2), np.uint64)
    words[:, 0] = values
    return columns.fixed(column.arrow, words, cells.valid)


def floating(cells: Cells, column: MyColumn) -> pa.Array:
    load: Any = cells.raw.le32 if column.arrow == pa.float32() else cells.raw.le64
    return columns.fixed(column.arrow, load(cells.start), cells.valid)


def bits(cells: Cells, column: MyColumn) -> pa.Array:
    """BIT values: big-endian, in as few bytes as possible."""
    value = cells.raw.be64(cells.start) >> np.uint64(64 - 8 * ((column.kind.size + 7) // 8))
    if column.kind.size == 64:
        return wide(value, cells, column)
    return columns.fixed(column.arrow, value.view(np.int64), cells.valid)


def year_row(cells: Cells, column: MyColumn) -> pa.Array:
    return columns.fixed(column.arrow, cells.raw.le32(cells.start).astype(np.int16), cells.valid)


def decimal_row(cells: Cells, column: MyColumn) -> pa.Array:
    """DECIMAL in a row: text with all digits of the scale."""
    digits, scale = column.kind.size, column.kind.scale
    if column.arrow == pa.string() or digits > 18 or not 0 < scale <= 8:
        return columns.strings(cells).cast(column.arrow)
    raw, end = cells.raw, cells.start + cells.length
    minus = raw.data[cells.start] == ord("-")
    whole, wrong = columns.unsigned(raw, end - (scale + 1), cells.length - minus - (scale + 1))
    part, odd = columns.digits(raw, end, np.full(len(cells), scale))
    wrong |= odd | (raw.data[end - (scale + 1)] != ord("."))
    refuse(column, wrong & (cells.length >= 0), cells.text)
    return _narrow((whole * np.uint64(10**scale) + part).view(np.int64), minus, cells, column)


def _narrow(value: Ints, minus: Mask, cells: Cells, column: MyColumn) -> pa.Array:
    """Numbers of up to 18 digits as 128-bit decimals."""
    np.negative(value, out=value, where=minus)
    words = np.empty((len(cells), 2), np.int64)
    words[:, 0] = value
    np.right_shift(value, 63, out=words[:, 1])
    return columns.fixed(column.arrow, words, cells.valid)


def decimal_log(cells: Cells, column: MyColumn) -> pa.Array:
    digits, scale = column.kind.size, column.kind.scale
    groups, minus = _groups(cells, digits - scale, scale)
    if column.arrow == pa.string() or digits > 18:
        return _printed(cells, groups, minus, scale).cast(column.arrow)
    value = np.zeros(len(cells), np.int64)
    for group, count in groups:
        value = value * 10**count + group
    return _narrow(value, minus, cells, column)


def _groups(cells: Cells, before: int, after: int) -> tuple[list[tuple[Ints, int]], Mask]:
    """The groups in order, each with its number of digits, and which values are negative.

    The highest bit of the first byte is set for values that are not negative; all bits of negative values are
    inverted."""
    (whole, left), (whole_after, left_after) = decimal_groups(before), decimal_groups(after)
    counts = [left] * (left > 0) + [9] * (whole + whole_after) + [left_after] * (left_after > 0)
    minus = (cells.raw.data[cells.start] & 0x80 == 0) & (cells.length >= 0)
    groups = []
    at = cells.start
    for number, count in enumerate(counts):
        width = 4 if count == 9 else group_bytes(count)
        value = cells.raw.be32(at)
        if number == 0:
            value ^= np.uint32(0x80000000)
        np.invert(value, out=value, where=minus)
        groups.append(((value >> np.uint32(8 * (4 - width))).astype(np.int64), count))
        at = at + width
    return groups, minus


def _printed(cells: Cells, groups: list[tuple[Ints, int]], minus: Mask, scale: int) -> pa.Array:
    """The text as MySQL prints it: at least one digit before the point, no other leading zeros, all digits of the
    scale."""
    digits = np.concatenate(
        [np.stack([value // 10 ** (count - 1 - n) % 10 for n in range(count)], axis=1) for value, count in groups],
        axis=1,
    )
    before = digits.shape[1] - scale
    point = [np.full((len(cells), 1), ord("."))] if scale else []
    text = np.concatenate(
        [np.full((len(cells), 2), ord("0")), digits[:, :before] + ord("0"), *point, digits[:, before:] + ord("0")],
        axis=1,
    ).astype(np.uint8)
    # The text starts at the first digit that is not zero, or at the last one before the point. The sign comes before
    # it.
    shown = np.concatenate([digits[:, :before] != 0, np.ones((len(cells), 1), np.bool_)], axis=1)
    leading = np.minimum(np.argmax(shown, axis=1), max(before - 1, 0)) if before else np.full(len(cells), -1)
    rows = np.arange(len(cells)) * text.shape[1]
    start = rows + 2 + leading
    flat = text.reshape(-1)
    flat[start[minus] - 1] = ord("-")
    start -= minus
    length = rows + text.shape[1] - start
    made = Cells(Raw.pad(flat), start + Raw.origin, np.where(cells.length < 0, -1, length))
    return columns.strings(made)
