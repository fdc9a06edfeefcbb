"""The types of MySQL and MariaDB as Arrow arrays: one codec per type, the same value from the log and from a dump.

The log has values as they are stored. A dump has them as in the binary protocol: integers and floats as in the log,
dates in parts, and DECIMAL, labels and text as UTF-8 text. So every type has two kernels, which must agree.

The mapping, chosen so that no value changes and Spark (which has no unsigned numbers) knows every type:

    tinyint, smallint, mediumint, int     int8, int16, int32, int32; unsigned int16, int32, int32, int64
    bigint                                int64                      bigint unsigned          decimal128(20, 0)
    decimal(p, s), p <= 38                decimal128(p, s)           other decimals           string
    float, double                         float32, float64           year                     int16
    bit(n), n < 64                        int64                      bit(64)                  decimal128(20, 0)
    date                                  date32                     time                     string
    datetime, timestamp                   micros, without and with UTC
    char, varchar, text                   string                     binary, varbinary, blob, vector  binary
    enum, set                             string: the label, the labels with commas
    json, uuid, inet4, inet6              string                     geometry                 binary (WKB)

A geometry with a reference system (SRID) is EWKB, which contains the SRID; without one it is plain WKB. BOOLEAN is a
tinyint in the log. The zero date is described in `temporal`; the year 0000 is 0; an ENUM's invalid value is ''.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dblog.core.event import UTC_MICROS
from dblog.core.schema import NULL, TEXT, TableSchema
from dblog.databases.mysql.flavor import Flavor
from dblog.errors import PreconditionFailed
from dblog.sources.columns import Cells
from dblog.sources.mysql import numbers, strings, temporal
from dblog.sources.mysql.column_types import (
    BINARY,
    INTEGERS,
    LENGTH,
    SHORT,
    Code,
    Codec,
    Kernel,
    MyColumn,
    MyType,
    TypeOptions,
)
from dblog.sources.mysql.spelling import spelled
from dblog.sources.mysql.tablemap import TableMap
from dblog.sources.unfit import Decoded, decode_columns

CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec("tinyint", numbers.integer, numbers.integer_row, 1),
        Codec("smallint", numbers.integer, numbers.integer_row, 2),
        Codec("mediumint", numbers.integer, numbers.integer_row, 4),
        Codec("int", numbers.integer, numbers.integer_row, 4),
        Codec("bigint", numbers.integer, numbers.integer_row, 8),
        Codec("float", numbers.floating, numbers.floating, 4),
        Codec("double", numbers.floating, numbers.floating, 8),
        Codec("decimal", numbers.decimal_log, numbers.decimal_row, LENGTH),
        Codec("bit", numbers.bits, numbers.bits, LENGTH),
        Codec("year", temporal.year_log, numbers.year_row, 2),
        Codec("date", temporal.date_log, temporal.date_row, SHORT),
        Codec("datetime", temporal.datetime_log, temporal.timestamp_row, SHORT),
        Codec("timestamp", temporal.timestamp_log, temporal.timestamp_row, SHORT),
        Codec("time", temporal.time_log, temporal.time_row, SHORT),
        Codec("text", strings.text_log, strings.text, LENGTH),
        Codec("bytes", strings.bytes_log, strings.raw_bytes, LENGTH),
        Codec("binary", strings.padded_log, strings.raw_bytes, LENGTH),
        Codec("enum", strings.enum_log, strings.text, LENGTH),
        Codec("set", strings.set_log, strings.text, LENGTH),
        Codec("json", strings.json_log, strings.text, LENGTH),
        Codec("geometry", strings.geometry, strings.geometry, LENGTH),
        Codec("uuid", strings.uuid_log, strings.text, LENGTH),
        Codec("inet4", strings.inet_log, strings.text, LENGTH),
        Codec("inet6", strings.inet_log, strings.text, LENGTH),
    )
}

_UNSIGNED: dict[int, pa.DataType] = {1: pa.int16(), 2: pa.int32(), 3: pa.int32(), 4: pa.int64(), 8: pa.decimal128(20)}
_INTEGER: dict[int, pa.DataType] = {1: pa.int8(), 2: pa.int16(), 3: pa.int32(), 4: pa.int32(), 8: pa.int64()}


def my_column(name: str, kind: MyType, flavor: Flavor, options: TypeOptions, rule: str = NULL) -> MyColumn:
    """The column `name`, whose type is `kind`. `rule` is that for values that do not fit."""
    codec, arrow = _mapped(kind, replace(options, dates="string") if rule == TEXT else options)
    return MyColumn(name, spelled(kind, flavor), arrow, codec, kind, rule=rule)


def _mapped(kind: MyType, options: TypeOptions) -> tuple[str, pa.DataType]:
    if kind.special:
        return kind.special, pa.string()
    code = Code(kind.code)
    text = pa.string() if options.dates == "string" else None
    match code:
        case Code.float:
            return "float", pa.float32()
        case Code.double:
            return "double", pa.float64()
        case Code.decimal:
            fits = kind.size <= 38 and options.decimals == "decimal"
            return "decimal", pa.decimal128(kind.size, kind.scale) if fits else pa.string()
        case Code.bit:
            return "bit", pa.int64() if kind.size < 64 else pa.decimal128(20)
        case Code.year:
            return "year", pa.int16()
        case Code.date:
            return "date", text or pa.date32()
        case Code.datetime:
            return "datetime", text or pa.timestamp("us")
        case Code.timestamp:
            return "timestamp", text or UTC_MICROS
        case Code.geometry:
            return "geometry", pa.binary()
        case Code.vector:
            return "bytes", pa.binary()
        case Code.string | Code.varchar | Code.blob if kind.collation == BINARY:
            return "binary" if code == Code.string else "bytes", pa.binary()
        case Code.string | Code.varchar | Code.blob:
            return "text", pa.string()
        case Code.time | Code.enum | Code.set | Code.json:
            return code.name, pa.string()
    return code.name, (_UNSIGNED if kind.unsigned else _INTEGER)[INTEGERS[code]]


def table_schema(
    mapped: TableMap,
    flavor: Flavor,
    options: TypeOptions | None = None,
    catalog: Mapping[str, MyType] | None = None,
) -> TableSchema:
    """The schema of a table as the log describes it. Raises PreconditionFailed when it has no primary key.

    `catalog` has the present types of the columns, by name: the log shows a UUID as BINARY(16), and only the catalog
    has its type. Hidden columns of the server are left out.
    """
    options = options or TypeOptions()
    promised = () if mapped.key else options.keys.usable(mapped.table, [column.name for column in mapped.columns])
    if not mapped.key and not promised:
        raise PreconditionFailed(
            f"table {mapped.table} has no primary key", hint=f"alter table {mapped.table} add primary key (...)"
        )
    described = []
    for column in mapped.columns:
        told = (catalog or {}).get(column.name)
        if told is None and re.fullmatch(flavor.hidden, column.name):
            continue
        same = told is not None and replace(told, special=None) == column.type
        kind = told if told is not None and same else column.type
        rule = options.values.of(mapped.table, column.name)
        described.append(my_column(column.name, kind, flavor, options, rule))
    return TableSchema(mapped.table, tuple(described), mapped.key or promised, promised=bool(promised))


def decode(schema: TableSchema, cells: Sequence[Cells], *, log: bool, positions: Any = None) -> Decoded:
    """The table's columns from their cells, in the form of the log or of a dump's rows. `positions` are those of the
    rows in the log. Raises DecodeError."""

    def kernel(column: MyColumn) -> Kernel:
        codec = CODECS[column.codec]
        return codec.from_log if log else codec.from_row

    return decode_columns(schema, cells, kernel, positions)
