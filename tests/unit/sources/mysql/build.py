"""Events and rows by hand: what a server would write, made from plain Python values."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Context, Decimal

from dblog.sources.mysql.column_types import Code

UTF8MB4 = 45
WIDE = Context(prec=80)
WRITE, UPDATE, DELETE = 30, 31, 32


def packed(number: int) -> bytes:
    """A length-encoded integer."""
    if number < 251:
        return bytes([number])
    return b"\xfc" + struct.pack("<H", number) if number < 65536 else b"\xfd" + struct.pack("<I", number)[:3]


def sized(value: bytes) -> bytes:
    return packed(len(value)) + value


def bits(flags: Sequence[bool], *, high_first: bool = False) -> bytes:
    made = bytearray((len(flags) + 7) // 8)
    for n, flag in enumerate(flags):
        if flag:
            made[n // 8] |= 0x80 >> n % 8 if high_first else 1 << n % 8
    return bytes(made)


@dataclass(frozen=True)
class Field:
    """A column of a table map."""

    name: str
    code: int
    meta: bytes = b""
    nullable: bool = True
    unsigned: bool | None = None
    """None for types that have no sign."""
    collation: int | None = None
    labels: Sequence[bytes] = ()
    extra: Mapping[int, bytes] = field(default_factory=dict)


def number(name: str, code: int, *, unsigned: bool = False, nullable: bool = True, meta: bytes = b"") -> Field:
    return Field(name, code, meta, nullable, unsigned)


def varchar(name: str, size: int = 200, collation: int = UTF8MB4, *, nullable: bool = True) -> Field:
    return Field(name, Code.varchar, struct.pack("<H", size), nullable, collation=collation)


def char(name: str, size: int, collation: int = UTF8MB4, *, nullable: bool = True) -> Field:
    # The two highest bits of a size of ten are turned and put into the type.
    real = 0xFE ^ (size >> 8 & 3) << 4
    return Field(name, Code.string, bytes([real, size & 0xFF]), nullable, collation=collation)


def blob(name: str, prefix: int, collation: int = 63) -> Field:
    return Field(name, Code.blob, bytes([prefix]), collation=collation)


def label(name: str, code: int, size: int, labels: Sequence[bytes], collation: int = UTF8MB4) -> Field:
    return Field(name, Code.string, bytes([code, size]), collation=collation, labels=labels)


def table_map(
    fields: Sequence[Field],
    *,
    key: Sequence[int] | None = (0,),
    prefixes: Sequence[int] | None = None,
    schema: str = "shop",
    name: str = "t",
    full: bool = True,
    extra: bytes = b"",
) -> bytes:
    """The body of a TABLE_MAP event; a collation for each column."""
    made = struct.pack("<Q", 77)[:6] + b"\1\0"
    made += sized(schema.encode()) + b"\0" + sized(name.encode()) + b"\0"
    made += packed(len(fields)) + bytes(f.code for f in fields)
    made += sized(b"".join(f.meta for f in fields)) + bits([f.nullable for f in fields])

    def tlv(kind: int, value: bytes) -> bytes:
        return bytes([kind]) + sized(value)

    signs = [f.unsigned for f in fields if f.unsigned is not None]
    if signs:
        made += tlv(1, bits(signs, high_first=True))
    texts = [f for f in fields if f.collation is not None and not f.labels]
    if texts:
        made += tlv(3, b"".join(packed(f.collation or 0) for f in texts))
    if not full:
        return made
    made += tlv(4, b"".join(sized(f.name.encode()) for f in fields))
    labelled = [f for f in fields if f.labels]
    for kind, code in ((5, Code.set), (6, Code.enum)):
        mine = [f for f in labelled if f.meta[0] == code]
        if mine:
            made += tlv(kind, b"".join(packed(len(f.labels)) + b"".join(map(sized, f.labels)) for f in mine))
    if labelled:
        made += tlv(11, b"".join(packed(f.collation or 0) for f in labelled))
    if key is not None and prefixes is not None:
        made += tlv(9, b"".join(packed(k) + packed(p) for k, p in zip(key, prefixes, strict=True)))
    elif key is not None:
        made += tlv(8, b"".join(map(packed, key)))
    return made + extra


def image(values: Sequence[bytes | None]) -> bytes:
    """A row: its nulls, and its values as they are stored."""
    return bits([value is None for value in values]) + b"".join(value for value in values if value is not None)


def row_event(kind: int, columns: int, images: Sequence[bytes], *, present: bytes | None = None) -> bytes:
    """The body of a row event; of an update, the row before and the row after in turn."""
    present = bits([True] * columns) if present is None else present
    head = struct.pack("<Q", 77)[:6] + b"\1\0"
    if kind >= 30:
        head += struct.pack("<H", 2 + 3) + b"xyz"
    return head + packed(columns) + present * (2 if kind in (24, 31) else 1) + b"".join(images)


def short(value: bytes, prefix: int = 1) -> bytes:
    """A value with its length in front, as the log has it."""
    return struct.pack("<I", len(value))[:prefix] + value


def decimal(value: Decimal, digits: int, scale: int) -> bytes:
    """NEWDECIMAL, digit by digit."""
    shown = str(abs(int(value.scaleb(scale, WIDE)))).rjust(digits, "0")
    before, after = shown[: digits - scale], shown[digits - scale :]
    left = len(before) % 9
    parts = ([before[:left]] if left else []) + [before[n : n + 9] for n in range(left, len(before), 9)]
    parts += [after[n : n + 9] for n in range(0, len(after), 9)]
    made = bytearray(b"".join(int(part).to_bytes((0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[len(part)]) for part in parts))
    if value < 0:
        made = bytearray(byte ^ 0xFF for byte in made)
    made[0] ^= 0x80
    return bytes(made)


def fraction(micros: int, digits: int) -> bytes:
    width = (digits + 1) // 2
    return (micros // 100 ** (3 - width)).to_bytes(width) if width else b""


def datetime2(value: datetime, digits: int) -> bytes:
    months = value.year * 13 + value.month
    packed = months << 22 | value.day << 17 | value.hour << 12 | value.minute << 6 | value.second
    return (packed + (1 << 39)).to_bytes(5) + fraction(value.microsecond, digits)


def date3(value: date) -> bytes:
    return struct.pack("<I", value.year << 9 | value.month << 5 | value.day)[:3]


def time2(micros: int, digits: int) -> bytes:
    """A time of either sign, in microseconds."""
    seconds, left = divmod(abs(micros), 1_000_000)
    packed = seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60
    width = (digits + 1) // 2
    value = packed << 8 * width | left // 100 ** (3 - width)
    return ((1 << 23 + 8 * width) + (-value if micros < 0 else value)).to_bytes(3 + width)


def datetime_row(value: datetime) -> bytes:
    """In a row: as few of its parts as are not zero, and their length."""
    made = struct.pack("<HBB", value.year, value.month, value.day)
    if value.microsecond:
        made += struct.pack("<BBBI", value.hour, value.minute, value.second, value.microsecond)
    elif value.hour or value.minute or value.second:
        made += struct.pack("<BBB", value.hour, value.minute, value.second)
    return short(made)


def time_row(micros: int) -> bytes:
    if not micros:
        return b"\0"
    seconds, left = divmod(abs(micros), 1_000_000)
    made = struct.pack("<BIBBB", micros < 0, seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60, seconds % 60)
    return short(made + (struct.pack("<I", left) if left else b""))


def result_row(values: Sequence[bytes | None]) -> bytes:
    """A row of a prepared statement."""
    nulls = bits([False, False, *(value is None for value in values)])
    return b"\0" + nulls + b"".join(value for value in values if value is not None)
