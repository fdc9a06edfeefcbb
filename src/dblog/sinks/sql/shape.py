"""What a table of the target must look like for a batch, and what is to be changed about it.

A column's type is compared with the one that the sink gave it, as it stands in the sink's own ledger. A column that
somebody else made is taken as it is: the server converts what it is given, or refuses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dblog.core.schema import TableSchema
from dblog.errors import SinkError

_MYSQL = re.compile(
    r"(tinyint|mediumint|int|decimal|float|double|year|datetime|timestamp|time|char|varchar|binary|varbinary|enum|set|"
    r"tinytext|mediumtext|longtext|tinyblob|blob|mediumblob|longblob|geometry)(\([^)]*\))?( unsigned)?( /\*.*)?",
    re.DOTALL,
)


def of_mysql(schema: TableSchema) -> bool:
    """Whether the types of a table are spelled as MySQL does; some tables look the same in both families."""
    return any(c.type.startswith(("enum(", "set(")) or _MYSQL.fullmatch(c.type) for c in schema.columns)


@dataclass(frozen=True)
class Found:
    """A table that is there: its columns' types as the server spells them, and its primary key."""

    types: Mapping[str, str]
    key: tuple[str, ...]


@dataclass
class Changes:
    """What is to be done to a table."""

    add: dict[str, str] = field(default_factory=dict)
    alter: dict[str, str] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)


def compare(
    schema: TableSchema,
    wanted: Mapping[str, str],
    made: Mapping[str, str],
    names: Sequence[str],
    mode: str,
    any_text: str,
) -> Changes:
    """How a table with the columns `names` comes to take rows of `schema`. Raises SinkError in the mode `fail`.

    `wanted` has a type for each column, `made` the types that were given to columns when they were made."""
    changes = Changes()
    for name, kind in wanted.items():
        if name not in names:
            changes.add[name] = kind
        elif name in made and not holds(made[name], kind):
            changes.alter[name] = kind if holds(kind, made[name]) else any_text
    if mode == "evolve":
        return changes
    lines = [f"column {name!r} ({schema.column(name).type}) is missing" for name in changes.add]
    lines += [f"column {name!r} is {made[name]}, which does not hold {wanted[name]}" for name in changes.alter]
    if mode == "fail" and lines:
        raise SinkError(
            f"table {schema.table} of the target does not fit the source: {'; '.join(lines)}",
            hint="alter the table, or set schema_changes to evolve or ignore",
        )
    if lost := (changes.add.keys() | changes.alter.keys()) & set(schema.key):
        raise SinkError(f"table {schema.table} of the target has no place for the key {sorted(lost)}")
    return Changes(left_out={*changes.add, *changes.alter})


# -- types -----------------------------------------------------------------------------------------------------------

_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64, "year": 13}
_LENGTHS = ("tiny", "", "medium", "long")


def holds(outer: str, inner: str) -> bool:
    """Whether a column of type `outer` holds every value of type `inner`."""
    if outer == inner:
        return True
    (a, a1, a2, a_unsigned), (b, b1, b2, b_unsigned) = _parts(outer), _parts(inner)
    if a in ("text", "longtext"):
        return b != "bytea" and not b.endswith(("blob", "binary"))
    if b in _BITS:
        low, high = (0, 2 ** _BITS[b]) if b_unsigned else (-(2 ** (_BITS[b] - 1)), 2 ** (_BITS[b] - 1))
        if a in _BITS:
            width = _BITS[a]
            return (
                (low >= 0 and high <= 2**width)
                if a_unsigned
                else -(2 ** (width - 1)) <= low and high <= 2 ** (width - 1)
            )
        if a in ("decimal", "numeric"):
            return not a1 or (10 ** (a1 - a2) >= high and (low >= 0 or not a_unsigned))
        return a in ("double", "double precision") and high <= 2**53
    if b in ("decimal", "numeric") and a in ("decimal", "numeric"):
        return not a1 or bool(b1 and a2 >= b2 and a1 - a2 >= b1 - b2 and not (a_unsigned and not b_unsigned))
    if b in ("float", "real"):
        return a in ("double", "double precision")
    if b in _STRINGS and a in _STRINGS and _STRINGS[a] == _STRINGS[b]:
        varying = a.startswith(("var", "character varying"))  # others change the end of a value
        return (varying and not a1) or bool(b1 and a1 >= b1 and (varying or a == b))
    if a == b and a in ("datetime", "timestamp", "time"):
        return a1 >= b1
    if a.endswith("blob"):
        size = _LENGTHS.index(a.removesuffix("blob"))
        return (b.endswith("blob") and _LENGTHS.index(b.removesuffix("blob")) <= size) or (
            b in ("binary", "varbinary") and (size >= 1 or b1 < 256)
        )
    if b == "date":
        return a == "datetime" or a.startswith("timestamp")
    return b == "enum" and a == "enum" and outer.startswith(inner.rstrip(")"))


_STRINGS = {"char": 1, "varchar": 1, "character": 1, "character varying": 1, "binary": 2, "varbinary": 2}


def _parts(kind: str) -> tuple[str, int, int, bool]:
    """A type's name without its parameters, the first two of them, and whether it is unsigned."""
    kind = re.sub(r" (character set|collate) .*", "", kind)
    numbers = [int(n) for n in re.findall(r"\d+", (re.search(r"\(([\d, ]*)\)", kind) or [""])[0])]
    first, second = (*numbers, 0, 0)[:2]
    return (
        re.sub(r"\(.*\)", "", kind, flags=re.DOTALL).removesuffix(" unsigned").strip(),
        first,
        second,
        "unsigned" in kind,
    )
