"""TABLE_MAP events: the definition of a table at the time of the row events that follow.

Types and their parameters are always present. Names, character sets, labels, signs and the primary key are optional
metadata, a list of (type, length, value), which the server writes if `binlog_row_metadata` is FULL. Missing metadata
are taken from the present catalog, which must agree with the map in everything that the map has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from dblog.core.schema import TableName
from dblog.databases.mysql.flavor import Flavor
from dblog.errors import DecodeError
from dblog.sources.mysql.charsets import charset
from dblog.sources.mysql.column_types import BINARY, SIGNED, Code, MyType


class Field(IntEnum):
    """The optional metadata."""

    signedness = 1
    default_charset = 2
    column_charset = 3
    column_name = 4
    set_labels = 5
    enum_labels = 6
    geometry = 7
    simple_key = 8
    key_with_prefix = 9
    label_default_charset = 10
    label_charset = 11
    visibility = 12
    vector = 13


_CHARSETS = frozenset({Field.default_charset, Field.column_charset})
_LABEL_CHARSETS = frozenset({Field.label_default_charset, Field.label_charset})


@dataclass(frozen=True)
class MappedColumn:
    name: str
    type: MyType
    nullable: bool
    visible: bool = True


@dataclass(frozen=True)
class TableMap:
    """A table's columns and primary key."""

    id: int
    table: TableName
    columns: tuple[MappedColumn, ...]
    key: tuple[str, ...]
    """The columns of the primary key; empty without one. A key on a prefix of a column counts as a key on the
    column."""
    told: frozenset[int] = frozenset()
    """The kinds of optional metadata that the event has."""

    @property
    def named(self) -> bool:
        """Whether the event has names, and so all metadata. Otherwise the columns have no names until `completed`."""
        return Field.column_name in self.told

    def completed(self, now: TableMap | None) -> TableMap:
        """This map, completed from the catalog's present definition `now` (None if the table does not exist).

        Raises DecodeError if the two contradict each other. A change that is visible in neither cannot be noticed:
        columns of equal types that were exchanged or renamed."""
        if now is None:
            wrong = "the table does not exist any more"
        elif len(now.columns) != len(self.columns):
            wrong = f"it has {len(self.columns)} columns in the log and {len(now.columns)} in the catalog"
        else:
            pairs = zip(self.columns, now.columns, strict=True)
            differs = [its.name for own, its in pairs if replace(its, name="", type=self._shown(its.type)) != own]
            if not differs:
                return replace(now, id=self.id, told=self.told)
            wrong = f"{', '.join(map(repr, differs))} differ in log and catalog"
        raise DecodeError(
            f"the log does not describe the columns of table {self.table}, and the catalog does not fit: {wrong}",
            hint="set global binlog_row_metadata = FULL, and start with a new checkpoint and a new dump",
        )

    def _shown(self, kind: MyType) -> MyType:
        """A type of the catalog, reduced to what this map contains."""
        labelled = kind.code in (Code.enum, Code.set)
        charsets = _LABEL_CHARSETS if labelled else _CHARSETS
        return replace(
            kind,
            unsigned=kind.unsigned and Field.signedness in self.told,
            collation=kind.collation if self.told & charsets else BINARY,
            labels=kind.labels if self.told & {Field.enum_labels, Field.set_labels} else (),
            geometry=kind.geometry if Field.geometry in self.told else 0,
            dimensions=kind.dimensions if Field.vector in self.told else 0,
            special=None,
        )

    @classmethod
    def parse(cls, body: bytes, flavor: Flavor) -> TableMap:
        """Read the body of an event. Raises DecodeError."""
        try:
            return _parse(body, flavor)
        except (IndexError, KeyError, ValueError) as error:
            raise DecodeError(f"a table map in the log cannot be read: {error}") from error


class _Bytes:
    """Reads bytes from front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise IndexError(f"it ends {end - len(self._data)} bytes too early")
        taken, self._at = self._data[self._at : end], end
        return taken

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def packed(self) -> int:
        """A length-encoded integer."""
        first = self.number(1)
        return first if first < 251 else self.number({252: 2, 253: 3, 254: 8}[first])

    def string(self) -> bytes:
        return self.take(self.packed())


def _parse(body: bytes, flavor: Flavor) -> TableMap:
    read = _Bytes(body)
    number = read.number(6)
    read.take(2)
    schema = read.take(read.number(1)).decode()
    read.take(1)
    table = TableName(schema, read.take(read.number(1)).decode())
    read.take(1)
    codes = read.take(read.packed())
    parameters = _Bytes(read.string())
    nullable = _bits_low_first(read.take((len(codes) + 7) // 8), len(codes))
    extra = {}
    while read:
        field = read.number(1)
        extra[field] = read.string()
    types = _described([_type(code, parameters, table) for code in codes], extra, flavor)
    named = Field.column_name in extra
    names = [name.decode() for name in _strings(extra[Field.column_name])] if named else [""] * len(codes)
    visible = _bits(extra[Field.visibility], len(codes)) if Field.visibility in extra else [True] * len(codes)
    columns = tuple(map(MappedColumn, names, types, nullable, visible))
    if len(names) != len(codes):
        raise DecodeError(
            f"a table map in the log has {len(names)} names for the {len(codes)} columns of table {table}"
        )
    key = tuple(names[index] for index in _key(extra)) if named else ()
    return TableMap(number, table, columns, key, frozenset(extra))


def _type(code: int, parameters: _Bytes, table: TableName) -> MyType:
    """A column's type with its parameters, whose number depends on the type."""
    match code:
        case Code.varchar:
            return MyType(code, parameters.number(2))
        case 141:
            return MyType(Code.varchar, parameters.number(2), compressed=True)
        case 140:
            return MyType(Code.blob, parameters.number(1), compressed=True)
        case Code.string:
            real, size = parameters.take(2)
            if real in (Code.enum, Code.set):
                return MyType(real, size)
            # The type's number has these two bits always set, so the server stores two more bits of the size there,
            # inverted.
            return MyType(code, size | ((real & 0x30) ^ 0x30) << 4)
        case Code.decimal:
            return MyType(code, *parameters.take(2))
        case Code.bit:
            bits, whole = parameters.take(2)
            return MyType(code, 8 * whole + bits)
        case Code.float | Code.double:
            parameters.take(1)
            return MyType(code)
        case Code.timestamp | Code.datetime | Code.time | Code.blob | Code.json | Code.geometry | Code.vector:
            return MyType(code, parameters.number(1))
        case _ if code in set(Code) - {Code.enum, Code.set}:
            return MyType(code)
    old = "it has the format of MySQL 5.5: alter table ... force" if code in (7, 11, 12) else None
    raise DecodeError(f"table {table} has a column of the unknown type {code}", hint=old)


def _described(types: list[MyType], extra: dict[int, bytes], flavor: Flavor) -> list[MyType]:
    """The types, completed by the optional metadata. Each field applies to the columns of certain types."""

    def about(field: Field, codes: Collection[int]) -> list[int]:
        """The columns that a field applies to; none if the metadata lack the field."""
        told = field in extra or Field.column_name in extra
        return [n for n, kind in enumerate(types) if kind.code in codes] if told else []

    numbers = about(Field.signedness, {*SIGNED, Code.year})
    for n, unsigned in zip(numbers, _bits(extra.get(Field.signedness, b""), len(numbers)), strict=True):
        types[n] = replace(types[n], unsigned=unsigned and types[n].code in SIGNED)
    textual = {Code.varchar, Code.string, Code.blob, Code.vector} | ({Code.geometry} if flavor.text_geometry else set())
    texts = [n for n, kind in enumerate(types) if kind.code in textual]
    labelled = [n for n, kind in enumerate(types) if kind.code in (Code.enum, Code.set)]
    for numbers, default, each in (
        (texts, Field.default_charset, Field.column_charset),
        (labelled, Field.label_default_charset, Field.label_charset),
    ):
        for n, collation in zip(numbers, _collations(extra, default, each, len(numbers)), strict=True):
            types[n] = replace(types[n], collation=collation)
    for code, field in ((Code.enum, Field.enum_labels), (Code.set, Field.set_labels)):
        for n, labels in zip(about(field, {code}), _labels(extra.get(field, b"")), strict=True):
            types[n] = replace(types[n], labels=tuple(map(charset(types[n].collation).decode, labels)))
    for n, shape in zip(about(Field.geometry, {Code.geometry}), _packed(extra.get(Field.geometry, b"")), strict=True):
        types[n] = replace(types[n], geometry=shape)
    for n, dimensions in zip(about(Field.vector, {Code.vector}), _packed(extra.get(Field.vector, b"")), strict=True):
        types[n] = replace(types[n], dimensions=dimensions)
    return types


def _collations(extra: dict[int, bytes], default: Field, each: Field, count: int) -> list[int]:
    """The collation of each column. The metadata have one per column, or a default and pairs of index and collation."""
    if each in extra:
        return list(_packed(extra[each]))
    usual, *others = _packed(extra[default]) if default in extra else [BINARY]
    found = [usual] * count
    for index, collation in zip(others[::2], others[1::2], strict=True):
        found[index] = collation
    return found


def _key(extra: dict[int, bytes]) -> Sequence[int]:
    if Field.key_with_prefix in extra:
        return list(_packed(extra[Field.key_with_prefix]))[::2]
    return list(_packed(extra.get(Field.simple_key, b"")))


def _packed(data: bytes) -> Iterator[int]:
    read = _Bytes(data)
    while read:
        yield read.packed()


def _strings(data: bytes) -> Iterator[bytes]:
    read = _Bytes(data)
    while read:
        yield read.string()


def _labels(data: bytes) -> Iterator[tuple[bytes, ...]]:
    read = _Bytes(data)
    while read:
        yield tuple(read.string() for _ in range(read.packed()))


def _bits(data: bytes, count: int) -> list[bool]:
    """The first `count` bits, from the highest bit of the first byte on."""
    if len(data) != (count + 7) // 8:
        raise IndexError(f"{len(data)} bytes for {count} bits")
    return [bool(data[n // 8] & 0x80 >> n % 8) for n in range(count)]


def _bits_low_first(data: bytes, count: int) -> list[bool]:
    return [bool(data[n // 8] & 1 << n % 8) for n in range(count)]
