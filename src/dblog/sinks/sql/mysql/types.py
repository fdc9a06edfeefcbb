"""Types of columns in MySQL and MariaDB."""

from __future__ import annotations

import re

import pyarrow as pa

from dblog.core.schema import Column, TableSchema
from dblog.errors import TargetRefused
from dblog.sinks.sql.shape import of_mysql

_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "tinyint(1)",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "longtext",
    pa.binary(): "longblob",
    pa.date32(): "date",
    pa.timestamp("us"): "datetime(6)",
    pa.timestamp("us", tz="UTC"): "datetime(6)",
}
_OWN_TEXT = re.compile(r"(char|varchar|time|decimal)(\([\d,]+\))?( unsigned)?|(enum|set)\(.*\)", re.DOTALL)
_OWN_BYTES = re.compile(r"(tiny|medium|long)?blob|(var)?binary\(\d+\)")
_COMPRESSED = re.compile(r" /\*.*\*/$")
_LENGTH = re.compile(r"(char|varchar|character|character varying)\((\d+)\)")

INDEX_BYTES, ROW_BYTES = 3072, 60_000
"""The server's limits, in bytes, of a key and (with a margin) of all columns of a row that it does not store
separately."""


def column_types(schema: TableSchema) -> dict[str, str]:
    """The type of each column in a new table. Raises SinkError."""
    own = of_mysql(schema)
    open_ended = [c for c in schema.columns if c.name in schema.key and _type(c, own=own) in ("longtext", "longblob")]
    share = (INDEX_BYTES - 40 * len(schema.key)) // max(len(open_ended), 1)
    found = {c.name: _type(c, own=own) for c in schema.columns}
    for column in open_ended:
        text = found[column.name] == "longtext"
        found[column.name] = f"varchar({share // 4})" if text else f"varbinary({share})"
    if sum(map(_bytes, found.values())) > ROW_BYTES:
        wide = {name for name, kind in found.items() if kind.startswith("var") and name not in schema.key}
        found |= {name: "longtext" if found[name].startswith("varchar") else "longblob" for name in wide}
    return found


def lacks_blank(kind: str) -> bool:
    """Whether a type is an ENUM without the member ''. The server stores '' for an invalid value of such an ENUM."""
    return kind.startswith("enum(") and "''" not in re.findall(r"'(?:[^']|'')*'", kind)


def _type(column: Column, *, own: bool) -> str:
    kind, name = column.arrow, _COMPRESSED.sub("", column.type)
    if kind == pa.string():
        if own and _OWN_TEXT.fullmatch(name):
            return name
        if column.type == "uuid":
            return "char(36)"
        limited = _LENGTH.fullmatch(name)
        return f"varchar({limited[2]})" if limited and int(limited[2]) <= 255 else "longtext"
    if kind == pa.binary():
        return name if own and _OWN_BYTES.fullmatch(name) else "longblob"
    if pa.types.is_list(kind):
        return "longtext"
    if own and column.type != "uuid":
        return name
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})" if kind.scale <= 30 else f"varchar({kind.precision + 4})"
    raise TargetRefused(f"column {column.name!r} ({column.type}) has no type in MySQL", hint="exclude it")


def _bytes(kind: str) -> int:
    """The bytes that a string or binary column of this type takes in a row; 0 for other types."""
    found = re.fullmatch(r"(var)?(char|binary)\((\d+)\)", kind)
    return 0 if found is None else int(found[3]) * (4 if found[2] == "char" else 1)
