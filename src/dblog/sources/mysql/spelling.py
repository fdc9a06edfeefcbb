"""Types in SQL: written like `information_schema.columns.column_type`, and read from it.

The log and the catalog must give equal types for the same column. Details that the log lacks are left out: the display
width of numbers (`int(11)` is `int`, so BOOLEAN is `tinyint`, `float(7,4)` is `float` and `year(4)` is `year`) and
ZEROFILL. On MariaDB JSON is `longtext`, for its catalog as well, and `vector(n)` is `varbinary(4n)`.
"""

from __future__ import annotations

import re

from dblog.databases.mysql.flavor import Flavor
from dblog.errors import DecodeError
from dblog.sources.mysql.charsets import charset
from dblog.sources.mysql.column_types import BINARY, SIGNED, Code, MyType

_GEOMETRIES = ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon")
_BLOBS = ("tiny", "", "medium", "long")
_COMPRESSED = " /*M!100301 COMPRESSED*/"
_FIXED_BINARY = {"uuid": 16, "inet4": 4, "inet6": 16}
_ESCAPES = {"\\": "\\\\", "\0": "\\0", "\n": "\\n", "\r": "\\r", "'": "''"}
_ESCAPED = {escape: character for character, escape in _ESCAPES.items()}


def spelled(kind: MyType, flavor: Flavor) -> str:
    """The type in SQL."""
    if kind.special:
        return kind.special
    name = Code(kind.code).name
    binary = kind.collation == BINARY
    width = charset(kind.collation).width
    match kind.code:
        case Code.decimal:
            name = f"decimal({kind.size},{kind.scale})"
        case Code.bit:
            name = f"bit({kind.size})"
        case Code.timestamp | Code.datetime | Code.time if kind.size:
            name = f"{name}({kind.size})"
        case Code.string:
            name = f"binary({kind.size})" if binary else f"char({kind.size // width})"
        case Code.varchar:
            size = kind.size - kind.compressed  # compression adds a byte
            name = f"varbinary({size})" if binary else f"varchar({size // width})"
        case Code.blob:
            name = _BLOBS[kind.size - 1] + ("blob" if binary else "text")
        case Code.enum | Code.set:
            quoted = ",".join("'" + "".join(_ESCAPES.get(c, c) for c in label) + "'" for label in kind.labels)
            name = f"{name}({quoted})"
        case Code.geometry:
            name = (*_GEOMETRIES, flavor.collection)[kind.geometry]
        case Code.vector:
            name = f"vector({kind.dimensions})"
    return name + " unsigned" * kind.unsigned + _COMPRESSED * kind.compressed


def read_type(text: str, octets: int | None, collation: int | None, flavor: Flavor) -> MyType:
    """The type of a `column_type`, with `character_octet_length` and the number of the collation.

    Raises DecodeError for an unknown type."""
    plain = text.removesuffix(_COMPRESSED)
    compressed = plain != text
    name, arguments = re.match(r"(\w*)(?:\((.*)\))?", plain, re.DOTALL).groups()  # type: ignore[union-attr]
    first, second = (*map(int, re.findall(r"\d+", arguments or "")), 0, 0)[:2] if name not in _LABELLED else (0, 0)
    shapes = (*_GEOMETRIES, flavor.collection)
    stored = BINARY if collation is None else collation
    if name in flavor.fixed_binary:
        return MyType(Code.string, _FIXED_BINARY[name], special=name)
    if name in ("char", "varchar", "binary", "varbinary"):
        fixed = name in ("char", "binary")
        size = (octets or 0) + compressed
        return MyType(Code.string if fixed else Code.varchar, size, collation=stored, compressed=compressed)
    if name.endswith(("text", "blob")):
        return MyType(Code.blob, _BLOBS.index(name[:-4]) + 1, collation=stored, compressed=compressed)
    if name in _LABELLED:
        labels = tuple(_unquoted(label) for label in re.findall(r"'((?:[^']|'')*)'", arguments))
        count = len(labels)
        size = 1 + (count > 255) if name == "enum" else (count + 7) // 8
        return MyType(Code[name], size if size <= 4 else 8, collation=stored, labels=labels)
    if name in shapes:
        return MyType(Code.geometry, 4, geometry=shapes.index(name))
    if name == "json":
        return MyType(Code.json, 4)
    if name == "vector":
        return MyType(Code.varchar, 4 * first) if flavor.plain_vector else MyType(Code.vector, 4, dimensions=first)
    if name not in Code.__members__ or name in ("string", "blob"):
        raise DecodeError(f"a column has the unknown type {text!r}")
    code = Code[name]
    if code in SIGNED:
        digits, scale = (first, second) if code == Code.decimal else (0, 0)
        return MyType(code, digits, scale, "unsigned" in plain)
    return MyType(code, 0 if code in (Code.date, Code.year) else first)


_LABELLED = ("enum", "set")


def _unquoted(label: str) -> str:
    return re.sub(r"\\.|''", lambda found: _ESCAPED.get(found[0], found[0][1:]), label, flags=re.DOTALL)
