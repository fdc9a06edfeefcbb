"""A column of MySQL's binary JSON to text, many documents at a time (`binary_json` reads one).

The documents of a column mostly have the same members. So they are grouped by type, number of members and names of
members. Within a group each member is again a column, and is decoded in the same way. Small groups, rare types and
malformed documents are left to `binary_json`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.arrays import Bytes, Ints, Mask
from dblog.errors import DecodeError
from dblog.sources import columns
from dblog.sources.columns import Cells, Raw
from dblog.sources.mysql import binary_json

_FEW = 100
"""The number of documents below which decoding one by one is faster."""
_LEVELS = 20
"""How many levels of nesting are decoded by column. Deeper values are decoded one by one."""
_VARIANTS = 20
"""How many different sets of member names are decoded by column. Objects with other sets are decoded one by one."""

_OBJECT, _ARRAY, _LITERAL, _STRING = 0, 2, 4, 12
_INTEGERS = {5: 2, 6: 2, 7: 4, 8: 4, 9: 8, 10: 8}
"""The integer types and their widths in bytes. Even types are unsigned."""
_INLINE = np.isin(np.arange(256), [_LITERAL, 5, 6])
"""The types whose values are stored in the table of values itself."""
_LITERALS = pa.array(["null", "true", "false"])

_ESCAPED = np.isin(np.arange(256), [*range(32), ord('"'), ord("\\")])
_ESCAPES = r'["\\\x00-\x1f]'


@dataclass(frozen=True, eq=False)
class _Values:
    """Values inside documents: the type and start of each, and the end of its document."""

    raw: Raw
    kind: Bytes
    at: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.at)

    def some(self, rows: Any) -> _Values:
        return _Values(self.raw, self.kind[rows], self.at[rows], self.end[rows])

    def reach(self, size: Any) -> bool:
        """Whether every value has this many bytes before the end of its document."""
        return bool(np.all(self.at + size <= self.end))


@dataclass(frozen=True, eq=False)
class _Texts:
    """Texts, and whether each is printed between quotes. The caller adds the quotes when it joins the texts."""

    inner: pa.Array
    quote: str = ""

    @property
    def whole(self) -> pa.Array:
        return pc.binary_join_element_wise(self.quote, self.inner, self.quote, "") if self.quote else self.inner


def texts(cells: Cells) -> pa.Array:
    """The documents as MySQL prints them. Raises DecodeError or pyarrow.ArrowInvalid."""
    full = np.flatnonzero(cells.length > 0)
    complete = len(full) == len(cells)
    start, length = (cells.start, cells.length) if complete else (cells.start[full], cells.length[full])
    documents = _Values(cells.raw, cells.raw.data[start], start + 1, start + length)
    try:
        made = _texts(documents, _LEVELS).whole
    except UnicodeDecodeError as error:
        raise DecodeError(f"a JSON document cannot be read: {error}") from error
    if complete:
        return made
    # INSERT IGNORE stores a missing document as one without a type.
    index = np.full(len(cells), len(full))
    index[full] = np.arange(len(full))
    return pa.concat_arrays([made, pa.array(["null"])]).take(columns.fixed(pa.int64(), index, cells.valid))


def _texts(values: _Values, levels: int) -> _Texts:
    return _sorted(values, values.kind, lambda kind, some: _of_kind(kind, some, levels))


def _sorted(values: _Values, by: Any, make: Callable[[int, _Values], _Texts]) -> _Texts:
    """Group the values by their number in `by`, and return the texts that `make` returns for each group."""
    if not len(values):
        return _Texts(pa.array([], pa.string()))
    if np.all(by == by[0]):
        return make(int(by[0]), values)
    order = np.argsort(by, kind="stable")
    begins = np.flatnonzero(np.diff(by[order], prepend=-1))
    made = [make(int(by[some[0]]), values.some(some)) for some in np.split(order, begins[1:])]
    return _ordered(made, order)


def _ordered(made: list[_Texts], indexes: Ints) -> _Texts:
    """Return the texts of all groups in the order of their documents; `indexes` has the document of each text."""
    back = np.empty(len(indexes), np.int64)
    back[indexes] = np.arange(len(indexes))
    return _Texts(pa.concat_arrays([each.whole for each in made]).take(pa.array(back)))


def _of_kind(kind: int, values: _Values, levels: int) -> _Texts:
    made = None
    if len(values) >= _FEW and levels and values.reach(1):
        if kind in (_OBJECT, _ARRAY) and values.reach(4):
            count = values.raw.le16(values.at)
            alike = _objects if kind == _OBJECT else _arrays
            return _sorted(values, count, lambda count, some: alike(count, some, levels - 1))
        if kind in _INTEGERS:
            made = _integers(values, _INTEGERS[kind], signed=kind % 2 == 1)
        elif kind == _LITERAL and np.all(values.raw.data[values.at] < len(_LITERALS)):
            made = _Texts(_LITERALS.take(pa.array(values.raw.data[values.at])))
        elif kind == _STRING:
            made = _strings(values)
    return _one_by_one(kind, values) if made is None else made


def _one_by_one(kind: int, values: _Values) -> _Texts:
    data, head = values.raw.data, bytes([kind])
    each = zip(values.at.tolist(), values.end.tolist(), strict=True)
    return _Texts(pa.array([binary_json.text(head + data[at:end].tobytes()) for at, end in each], pa.string()))


def _integers(values: _Values, width: int, *, signed: bool) -> _Texts | None:
    if not values.reach(width):
        return None
    raw = values.raw
    words: Any = {2: raw.le16, 4: raw.le32, 8: raw.le64}[width](values.at)
    return _Texts(pa.array(words.view(f"i{width}") if signed else words).cast(pa.string()))


def _strings(values: _Values) -> _Texts | None:
    sized = _lengths(values)
    if sized is None:
        return None
    skip, size = sized
    if not values.reach(skip + size):
        return None
    text = columns.strings(Cells(values.raw, values.at + skip, size))
    content, _ = columns.contiguous(text)
    if not np.any(_ESCAPED[content]):
        return _Texts(text, '"')
    odd = pc.match_substring_regex(text, _ESCAPES)
    escaped = _one_by_one(_STRING, values.some(odd.to_numpy(zero_copy_only=False)))
    return _Texts(pc.replace_with_mask(_Texts(text, '"').whole, odd, escaped.whole))


def _lengths(values: _Values) -> tuple[Any, Ints] | None:
    """The size of each string's length field, and the length in it. A byte of the field has seven bits of the length,
    the lowest first; its highest bit means that another byte follows. None if a field has more than three bytes."""
    first = values.raw.data[values.at]
    if first.max() < 0x80:
        return 1, first.astype(np.int64)
    head = values.raw.le32(values.at).astype(np.int64)
    second = head & 0x80 != 0
    third = second & (head & 0x8000 != 0)
    if np.any(third & (head & 0x800000 != 0)):
        return None
    size = (head & 0x7F) + second * (head >> 1 & 0x3F80) + third * (head >> 2 & 0x1FC000)
    return 1 + second + third, size


def _arrays(count: int, values: _Values, levels: int) -> _Texts:
    head = 4 + 3 * count
    if len(values) < _FEW or not values.reach(head):
        return _one_by_one(_ARRAY, values)
    return _joined("[]", [""] * count, values, 4, levels)


def _objects(count: int, values: _Values, levels: int) -> _Texts:
    """Decode the objects, one set of member names after the other."""
    made, indexes = [], []
    left, numbers = values, np.arange(len(values))
    for _ in range(_VARIANTS):
        if len(left) < _FEW or not left.reach(4 + 7 * count):
            break
        same = _same_names(count, left)
        found = left if same.all() else left.some(same)
        names = _names(count, found)
        if names is None or len(found) < _FEW:
            made.append(_one_by_one(_OBJECT, found))
        else:
            made.append(_joined("{}", names, found, 4 + 4 * count, levels))
        if len(found) == len(values):
            return made[0]
        indexes.append(numbers[same])
        left, numbers = left.some(~same), numbers[~same]
    if len(left):
        made.append(_one_by_one(_OBJECT, left))
        indexes.append(numbers)
    return _ordered(made, np.concatenate(indexes))


def _name_table(count: int, values: _Values) -> Ints:
    """The offset and length of each name in the first object."""
    at = int(values.at[0]) + 4
    return values.raw.data[at : at + 4 * count].view("<u2").astype(np.int64).reshape(count, 2)


def _same_names(count: int, values: _Values) -> Mask:
    """Which objects have the same names as the first, at the same offsets."""
    same = _same_bytes(values.raw, values.at + 4, 4 * count)
    if count:
        table = _name_table(count, values)
        begin, end = int(table[0, 0]), int(table[-1].sum())
        same &= _same_bytes(values.raw, values.at + begin, max(end - begin, 0))
    return same


def _same_bytes(raw: Raw, at: Ints, size: int) -> Mask:
    """Which of the positions have the same `size` bytes as the first position."""
    same = np.ones(len(at), np.bool_)
    for skip in range(0, size, 8):
        word = raw.le64(np.minimum(at + skip, raw.tail))
        word <<= np.uint64(8 * max(8 - (size - skip), 0))
        same &= word == word[0]
    return same


def _names(count: int, values: _Values) -> list[str] | None:
    """The names of the first object as MySQL prints them; None if they are not stored one directly after the other."""
    table = _name_table(count, values)
    if np.any(table[1:, 0] != table[:-1].sum(axis=1)) or (count and not values.reach(int(table[-1].sum()))):
        return None
    at = int(values.at[0])
    found = (values.raw.data[at + offset : at + offset + size] for offset, size in table.tolist())
    return [binary_json.quoted(name.tobytes().decode()) + ": " for name in found]


def _joined(brackets: str, names: list[str], values: _Values, table: int, levels: int) -> _Texts:
    """The texts of containers, which have one member for each name. `table` is the offset of the table of values."""
    if not names:
        return _Texts(pa.repeat(brackets, len(values)))
    raw = values.raw
    pieces: list[Any] = []
    between = brackets[0]
    for n, name in enumerate(names):
        entry = values.at + (table + 3 * n)
        word = raw.le32(entry)
        kind = word.astype(np.uint8)
        at = np.minimum(values.at + (word >> np.uint32(8) & np.uint32(0xFFFF)), values.end)
        inline = _INLINE[kind]
        if inline.any():
            at = np.where(inline, entry + 1, at)
        made = _texts(_Values(raw, kind, at, values.end), levels)
        pieces += [between + name + made.quote, made.inner]
        between = made.quote + ", "
    return _Texts(pc.binary_join_element_wise(*pieces, made.quote + brackets[1], ""))
