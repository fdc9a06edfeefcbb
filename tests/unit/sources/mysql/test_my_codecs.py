"""Every type from the log and from a row: the same value, and the right one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog.core.event import UTC_MICROS
from dblog.core.schema import TableSchema
from dblog.core.value_rules import ValueRules
from dblog.databases.mysql.flavor import MARIADB
from dblog.errors import DecodeError, ValueRefused
from dblog.sources.columns import Raw
from dblog.sources.mysql.codecs import table_schema
from dblog.sources.mysql.column_types import Code, TypeOptions
from dblog.sources.mysql.layout import Layout
from dblog.sources.mysql.results import decode_rows
from dblog.sources.mysql.rows import find_changes, table_batch
from dblog.sources.mysql.spelling import read_type
from dblog.sources.mysql.tablemap import TableMap
from tests.unit.sources.mysql import build
from tests.unit.sources.mysql.build import Field, blob, char, label, number, packed, sized, varchar

KEY = number("id", Code.int, nullable=False)
TEXT = TypeOptions(decimals="string", dates="string")
ZERO = np.iinfo(np.int64).min
STOP = TypeOptions(values=ValueRules(default="stop"))


def table(field: Field, options: TypeOptions | None, catalog: dict[str, str] | None) -> tuple[TableMap, TableSchema]:
    mapped = TableMap.parse(
        build.table_map([KEY, field], extra=b"".join(bytes([k]) + sized(v) for k, v in field.extra.items())), MARIADB
    )
    told = {name: read_type(spelled, None, None, MARIADB) for name, spelled in (catalog or {}).items()}
    return mapped, table_schema(mapped, MARIADB, options, told)


def from_log(
    field: Field,
    values: Sequence[bytes | None],
    options: TypeOptions | None = None,
    catalog: dict[str, str] | None = None,
) -> pa.Array:
    mapped, schema = table(field, options, catalog)
    images = [build.image([struct.pack("<i", n), value]) for n, value in enumerate(values)]
    raw, start, size = Raw.join([build.row_event(build.WRITE, 2, images)])
    changes = find_changes(Layout.of(mapped, schema), raw, start, start + size, np.array([build.WRITE], np.uint8))
    zero = np.zeros(1, np.int64)
    made = table_batch(changes, zero, zero, zero, zero)[0].column("c")
    made.validate(full=True)
    return made


def from_rows(field: Field, values: Sequence[bytes | None], options: TypeOptions | None = None) -> pa.Array:
    schema = table(field, options, None)[1]
    made = decode_rows([build.result_row([struct.pack("<i", n), v]) for n, v in enumerate(values)], schema).column("c")
    made.validate(full=True)
    return made


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, max_size=20)


def each(make: Callable[[Any], bytes], values: Sequence[Any]) -> list[bytes | None]:
    return [None if value is None else make(value) for value in values]


@pytest.mark.parametrize(
    ("code", "width", "in_row", "unsigned", "arrow"),
    [
        (Code.tinyint, 1, 1, False, pa.int8()),
        (Code.tinyint, 1, 1, True, pa.int16()),
        (Code.smallint, 2, 2, False, pa.int16()),
        (Code.smallint, 2, 2, True, pa.int32()),
        (Code.mediumint, 3, 4, False, pa.int32()),
        (Code.mediumint, 3, 4, True, pa.int32()),
        (Code.int, 4, 4, False, pa.int32()),
        (Code.int, 4, 4, True, pa.int64()),
        (Code.bigint, 8, 8, False, pa.int64()),
        (Code.bigint, 8, 8, True, pa.decimal128(20)),
    ],
)
@given(data=st.data())
def test_integers(code: int, width: int, in_row: int, unsigned: bool, arrow: pa.DataType, data: st.DataObject) -> None:
    low, high = (0, 2 ** (8 * width) - 1) if unsigned else (-(2 ** (8 * width - 1)), 2 ** (8 * width - 1) - 1)
    values = data.draw(optional(st.integers(low, high) | st.sampled_from([low, high])))
    field = number("c", code, unsigned=unsigned)
    for made in (
        from_log(field, each(lambda v: v.to_bytes(width, "little", signed=not unsigned), values)),
        from_rows(field, each(lambda v: v.to_bytes(in_row, "little", signed=not unsigned), values)),
    ):
        assert made.type == arrow
        assert made.to_pylist() == values


@given(optional(st.floats(width=32, allow_nan=False)), optional(st.floats(allow_nan=False)))
def test_floats(single: list[float | None], double: list[float | None]) -> None:
    for code, values, form in ((Code.float, single, "<f"), (Code.double, double, "<d")):
        field = number("c", code, meta=bytes([struct.calcsize(form)]))
        stored = each(lambda v, form=form: struct.pack(form, v), values)  # type: ignore[misc]
        assert from_log(field, stored).to_pylist() == from_rows(field, stored).to_pylist() == values


@pytest.mark.parametrize(
    ("digits", "scale"),
    [(1, 0), (1, 1), (5, 2), (9, 9), (10, 0), (12, 2), (18, 9), (18, 0), (19, 3), (20, 20), (38, 10), (38, 0), (39, 1),
     (65, 30), (65, 0), (30, 30)],
)  # fmt: skip
@given(data=st.data())
def test_decimals(digits: int, scale: int, data: st.DataObject) -> None:
    most = 10**digits - 1
    whole = data.draw(optional(st.integers(-most, most) | st.integers(-9, 9) | st.sampled_from([most, -most])))
    values = [None if n is None else Decimal(n).scaleb(-scale, build.WIDE) for n in whole]
    shown = [None if v is None else format(v, "f") for v in values]
    field = number("c", Code.decimal, meta=bytes([digits, scale]))
    stored = each(lambda v: build.decimal(v, digits, scale), values)
    sent = each(lambda v: sized(v.encode()), shown)
    for made in (from_log(field, stored), from_rows(field, sent)):
        assert made.type == (pa.decimal128(digits, scale) if digits <= 38 else pa.string())
        assert made.to_pylist() == (values if digits <= 38 else shown)
    assert from_log(field, stored, TEXT).to_pylist() == from_rows(field, sent, TEXT).to_pylist() == shown


@pytest.mark.parametrize("wrong", [b"12,50", b"1x.50", b"12.5x", b"12.500", b"12.5", b"--1.50", b".", b"1e5.00"])
def test_a_decimal_that_is_none_is_refused(wrong: bytes) -> None:
    field = number("c", Code.decimal, meta=bytes([5, 2]))
    assert from_rows(field, [sized(b"-12.50"), None]).to_pylist() == [Decimal("-12.50"), None]
    with pytest.raises(DecodeError, match="column 'c'"):
        from_rows(field, [sized(b"12.50"), None, sized(wrong)])


@pytest.mark.parametrize("count", [1, 8, 9, 24, 33, 63, 64])
@given(data=st.data())
def test_bits_are_numbers(count: int, data: st.DataObject) -> None:
    values = data.draw(optional(st.integers(0, 2**count - 1)))
    width = (count + 7) // 8
    field = Field("c", Code.bit, bytes([count % 8, count // 8]))
    for made in (
        from_log(field, each(lambda v: v.to_bytes(width), values)),
        from_rows(field, each(lambda v: sized(v.to_bytes(width)), values)),
    ):
        assert made.type == (pa.int64() if count < 64 else pa.decimal128(20))
        assert made.to_pylist() == values


@given(optional(st.dates()))
def test_dates(values: list[date | None]) -> None:
    field = Field("c", Code.date)
    stored, sent = (
        each(build.date3, values),
        each(lambda v: build.datetime_row(datetime(v.year, v.month, v.day)), values),
    )
    assert from_log(field, stored).to_pylist() == from_rows(field, sent).to_pylist() == values
    shown = each(lambda v: v.isoformat(), values)
    assert from_log(field, stored, TEXT).to_pylist() == from_rows(field, sent, TEXT).to_pylist() == shown


def clipped(value: datetime, digits: int) -> datetime:
    return value.replace(microsecond=value.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits))


def printed(value: datetime, digits: int) -> str:
    whole = f"{value:%Y-%m-%d %H:%M:%S}".rjust(19, "0")
    return whole + (f".{value.microsecond:06}"[: digits + 1] if digits else "")


@pytest.mark.parametrize("digits", range(7))
@given(values=optional(st.datetimes()))
def test_datetimes(digits: int, values: list[datetime | None]) -> None:
    values = [None if v is None else clipped(v, digits) for v in values]
    field = Field("c", Code.datetime, bytes([digits]))
    stored, sent = each(lambda v: build.datetime2(v, digits), values), each(build.datetime_row, values)
    for made in (from_log(field, stored), from_rows(field, sent)):
        assert made.type == pa.timestamp("us")
        assert made.to_pylist() == values
    shown = each(lambda v: printed(v, digits), values)
    assert from_log(field, stored, TEXT).to_pylist() == from_rows(field, sent, TEXT).to_pylist() == shown


@pytest.mark.parametrize("digits", range(7))
@given(values=optional(st.integers(1_000_000, 2**32 * 10**6 - 1)))
def test_timestamps(digits: int, values: list[int | None]) -> None:
    moments = [None if v is None else clipped(datetime(1970, 1, 1) + timedelta(microseconds=v), digits) for v in values]
    field = Field("c", Code.timestamp, bytes([digits]))

    def stored(value: datetime) -> bytes:
        seconds = (value - datetime(1970, 1, 1)) // timedelta(seconds=1)
        return seconds.to_bytes(4) + build.fraction(value.microsecond, digits)

    log, sent = each(stored, moments), each(build.datetime_row, moments)
    for made in (from_log(field, log), from_rows(field, sent)):
        assert made.type == UTC_MICROS
        assert made.to_pylist() == each(lambda v: v.replace(tzinfo=UTC), moments)
    shown = each(lambda v: printed(v, digits), moments)
    assert from_log(field, log, TEXT).to_pylist() == from_rows(field, sent, TEXT).to_pylist() == shown


LONGEST = (838 * 3600 + 59 * 60 + 59) * 10**6


@pytest.mark.parametrize("digits", range(7))
@given(values=optional(st.integers(-LONGEST, LONGEST) | st.integers(-(10**7), 10**7) | st.just(-LONGEST)))
def test_times_are_text(digits: int, values: list[int | None]) -> None:
    unit = 10 ** (6 - digits)
    values = [None if v is None else abs(v) // unit * unit * (-1 if v < 0 else 1) for v in values]

    def shown(value: int) -> str:
        seconds, micros = divmod(abs(value), 10**6)
        text = f"{'-' * (value < 0)}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return text + (f".{micros:06}"[: digits + 1] if digits else "")

    field = Field("c", Code.time, bytes([digits]))
    for made in (
        from_log(field, each(lambda v: build.time2(v, digits), values)),
        from_rows(field, each(build.time_row, values)),
    ):
        assert made.to_pylist() == each(shown, values)


def test_years() -> None:
    field = number("c", Code.year, unsigned=True)
    assert from_log(field, [b"\0", b"\1", None, b"\xff"]).to_pylist() == [0, 1901, None, 2155]
    sent = each(lambda v: struct.pack("<H", v), [0, 1901, None, 2155])
    assert from_rows(field, sent).to_pylist() == [0, 1901, None, 2155]


def test_the_zero_date_comes_before_all_others() -> None:
    day, moment, stamp = Field("c", Code.date), Field("c", Code.datetime, b"\6"), Field("c", Code.timestamp, b"\3")
    zero = [b"\0", None]
    for made in (from_log(day, [bytes(3), None]), from_rows(day, zero)):
        assert made.cast(pa.int32()).to_pylist() == [np.iinfo(np.int32).min, None]
    for made in (
        from_log(moment, [b"\x80" + bytes(7), None]),
        from_rows(moment, zero),
        from_log(stamp, [bytes(6), None]),
        from_rows(stamp, zero),
    ):
        assert made.cast(pa.int64()).to_pylist() == [ZERO, None]
    assert from_log(day, [bytes(3)], TEXT).to_pylist() == from_rows(day, zero[:1], TEXT).to_pylist() == ["0000-00-00"]
    shown = ["0000-00-00 00:00:00.000"]
    assert from_log(stamp, [bytes(6)], TEXT).to_pylist() == from_rows(stamp, zero[:1], TEXT).to_pylist() == shown


@pytest.mark.parametrize(
    "wrong", [(2024, 0, 0), (2024, 2, 30), (2023, 2, 29), (1900, 2, 29), (0, 0, 1), (5, 13, 1), (5, 4, 31)]
)
def test_dates_of_no_calendar_are_null_or_refused_or_text(wrong: tuple[int, int, int]) -> None:
    year, month, day = wrong
    field = Field("c", Code.date)
    stored = struct.pack("<I", year << 9 | month << 5 | day)[:3]
    sent = build.short(struct.pack("<HBB", year, month, day))
    shown = f"{year:04}-{month:02}-{day:02}"
    for read in (lambda o: from_log(field, [None, stored], o), lambda o: from_rows(field, [None, sent], o)):
        assert read(None).to_pylist() == [None, None]
        with pytest.raises(ValueRefused, match=shown) as caught:
            read(STOP)
        assert "values" in (caught.value.hint or "")
    assert from_log(field, [stored], TEXT).to_pylist() == from_rows(field, [sent], TEXT).to_pylist() == [shown]


def test_leap_days_are_dates() -> None:
    field = Field("c", Code.date)
    days = [date(2000, 2, 29), date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)]
    assert from_log(field, each(build.date3, days)).to_pylist() == days


@given(optional(st.text(max_size=80)))
def test_text(values: list[str | None]) -> None:
    for field, prefix in ((varchar("c", 255), 1), (varchar("c", 256), 2), (char("c", 1020), 2), (blob("c", 4, 45), 4)):
        stored = each(lambda v, prefix=prefix: build.short(v.encode()[:255], prefix), values)  # type: ignore[misc]
        whole = each(lambda v: v.encode()[:255].decode("utf-8", "ignore"), values)
        if any(v is not None and len(v.encode()) > 255 for v in values):
            continue
        assert from_log(field, stored).to_pylist() == whole
        assert from_rows(field, each(lambda v: sized(v.encode()), values)).to_pylist() == values


def test_long_values_have_long_lengths() -> None:
    values = ["x" * size for size in (0, 1, 250, 251, 252, 255, 256, 65535, 65536, 100_000)]
    field = blob("c", 4, 45)
    assert from_log(field, each(lambda v: build.short(v.encode(), 4), values)).to_pylist() == values
    assert from_rows(field, each(lambda v: sized(v.encode()), values)).to_pylist() == values


@given(optional(st.binary(max_size=12)))
def test_binary_is_padded_to_its_size(values: list[bytes | None]) -> None:
    whole = each(lambda v: v.ljust(12, b"\0"), values)
    field = char("c", 12, 63)
    stored = each(lambda v: build.short(v.rstrip(b"\0")), values)
    assert from_log(field, stored).to_pylist() == from_rows(field, each(sized, whole)).to_pylist() == whole
    varying = varchar("c", 12, 63)
    assert from_log(varying, each(build.short, values)).to_pylist() == values


def test_labels() -> None:
    enum = label("c", Code.enum, 1, [b"a", "é".encode(), b"c,d"])
    assert from_log(enum, [b"\0", b"\1", None, b"\2", b"\3"]).to_pylist() == ["", "a", None, "é", "c,d"]
    many = label("c", Code.enum, 2, [str(n).encode() for n in range(300)])
    assert from_log(many, [struct.pack("<H", 300), struct.pack("<H", 1)]).to_pylist() == ["299", "0"]
    some = label("c", Code.set, 1, [b"a", b"b", b"c"])
    assert from_log(some, [b"\0", None, b"\5", b"\7", b"\2"]).to_pylist() == ["", None, "a,c", "a,b,c", "b"]
    all_of = label("c", Code.set, 8, [f"l{n}".encode() for n in range(64)])
    made = from_log(all_of, [b"\xff" * 8, struct.pack("<Q", 1 << 63)]).to_pylist()
    assert made == [",".join(f"l{n}" for n in range(64)), "l63"]
    for field, wrong in ((enum, b"\4"), (some, b"\x08")):
        with pytest.raises(DecodeError, match="column 'c'"):
            from_log(field, [b"\1", wrong])
    assert from_rows(enum, [sized("é".encode()), None]).to_pylist() == ["é", None]


def test_geometries_are_wkb_with_their_reference_system() -> None:
    field = Field("c", Code.geometry, b"\4", collation=63, extra={7: packed(1)})
    point = b"\1" + struct.pack("<Idd", 1, 1.5, -2.0)
    ewkb = b"\1" + struct.pack("<IIdd", 0x20000001, 4326, 1.5, -2.0)
    values = [struct.pack("<I", 0) + point, None, struct.pack("<I", 4326) + point]
    for made in (from_log(field, each(lambda v: build.short(v, 4), values)), from_rows(field, each(sized, values))):
        assert made.to_pylist() == [point, None, ewkb]
    assert from_log(field, [build.short(values[0] or b"", 4)]).to_pylist() == [point]
    for wrong in (b"\0" * 8, struct.pack("<I", 0) + b"\0" + point[1:]):
        with pytest.raises(DecodeError, match="column 'c'"):
            from_log(field, [build.short(wrong, 4)])


def test_addresses_and_uuids_of_mariadb() -> None:
    four, sixteen = char("c", 4, 63), char("c", 16, 63)
    stored = [build.short(b"\x7f\0\0\1"), build.short(b"\x0a"), None]
    assert from_log(four, stored, catalog={"c": "inet4"}).to_pylist() == ["127.0.0.1", "10.0.0.0", None]
    stored = [build.short(bytes(15) + b"\1"), build.short(b"\x20\x01\x0d\xb8"), None]
    assert from_log(sixteen, stored, catalog={"c": "inet6"}).to_pylist() == ["::1", "2001:db8::", None]
    parts = ["123e4567", "e89b", "12d3", "a456", "426614174000"]
    turned = bytes.fromhex("".join(reversed(parts)))
    kept = [
        "018c2e65-473a-7f00-b5d4-ae2b3c4d5e6f",
        "00000000-0000-8000-0000-000000000001",
        "00000000-0000-8000-6000-000000000001",
        "00000000-0000-0000-0000-000000000000",
    ]
    stored = [build.short(turned), None, *(build.short(bytes.fromhex(each.replace("-", ""))) for each in kept), b"\0"]
    made = from_log(sixteen, stored, catalog={"c": "uuid"})
    assert made.to_pylist() == ["-".join(parts), None, *kept, kept[-1]]


def test_compressed_columns_of_mariadb() -> None:
    text, data = Field("c", 141, b"\x00\x04", collation=8), Field("c", 140, b"\2", collation=63)
    whole = "é".encode("latin-1") * 300
    raw = zlib.compress(whole, wbits=-15)
    stored = [b"\x8a\x01\x2c" + raw, None, b"", b"\0short", b"\x82\x01\x2c" + zlib.compress(whole)]
    values = each(lambda v: build.short(v, 2), stored)
    assert from_log(text, values).to_pylist() == ["é" * 300, None, "", "short", "é" * 300]
    assert from_log(data, values).to_pylist() == [whole, None, b"", b"short", whole]
    for wrong in (b"\x8a\x01\x2d" + raw, b"\x8a\x01\x2cabc", b"\x9a\x01\x2c" + raw):
        with pytest.raises(DecodeError, match="column 'c'"):
            from_log(data, [build.short(wrong, 2)])


def test_a_value_that_is_no_utf8_is_null_or_refused() -> None:
    assert from_log(varchar("c"), [build.short(b"\xff"), build.short(b"a")]).to_pylist() == [None, "a"]
    with pytest.raises(ValueRefused, match="column 'c'"):
        from_log(varchar("c"), [build.short(b"\xff")], STOP)


HUGE = [bytes([kind]) + b"\xff" * width for kind, width in ((252, 2), (253, 3), (254, 8))]


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b[:-1],
        lambda b: b + b"\0",
        lambda b: b"\1" + b[1:],
        *(lambda b, h=huge: b[:-6] + h for huge in HUGE),
        *(lambda b, h=huge: b[:-6] + h + b"value" for huge in HUGE),
    ],
)
def test_rows_that_do_not_fit_are_refused(change: Callable[[bytes], bytes]) -> None:
    schema = table(varchar("c"), None, None)[1]
    row = build.result_row([struct.pack("<i", 1), sized(b"value")])
    assert decode_rows([row, row], schema).num_rows == 2
    with pytest.raises(DecodeError, match=r"shop\.t"):
        decode_rows([row, change(row)], schema)


@pytest.mark.parametrize("huge", HUGE)
def test_a_row_whose_value_reaches_beyond_everything_is_refused(huge: bytes) -> None:
    mapped = TableMap.parse(build.table_map([KEY, varchar("c"), varchar("d")]), MARIADB)
    schema = table_schema(mapped, MARIADB)
    row = build.result_row([struct.pack("<i", 1), sized(b"value"), sized(b"more")])
    wrong = build.result_row([struct.pack("<i", 1), huge, sized(b"more")])
    assert decode_rows([row, row], schema).num_rows == 2
    with pytest.raises(DecodeError, match=r"shop\.t does not end where its last column does"):
        decode_rows([row, wrong], schema)


def test_structs_of_another_size_are_refused() -> None:
    for field, wrong in ((Field("c", Code.date), b"\3abc"), (Field("c", Code.time, b"\0"), b"\4abcd")):
        with pytest.raises(DecodeError, match="bytes"):
            from_rows(field, [wrong])
