"""Comparison of a target's table with the source's schema, and the changes that the table needs.

A column's type is compared with the type in the ledger, which the sink gave to it. A column that the sink did not
create is used as it is: the server converts the values or refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dblog.core.schema import TableSchema
from dblog.errors import TargetRefused

_MYSQL = re.compile(
    r"(tinyint|mediumint|int|decimal|float|double|year|datetime|timestamp|time|char|varchar|binary|varbinary|enum|set|"
    r"tinytext|mediumtext|longtext|tinyblob|blob|mediumblob|longblob|geometry)(\([^)]*\))?( unsigned)?( /\*.*)?",
    re.DOTALL,
)


def of_mysql(schema: TableSchema) -> bool:
    """Whether a table's types are MySQL's. Some tables have only types that are spelled the same in both families."""
    return any(c.type.startswith(("enum(", "set(")) or _MYSQL.fullmatch(c.type) for c in schema.columns)


@dataclass(frozen=True)
class Found:
    """An existing table: the types of its columns, as the server spells them, and its primary key."""

    types: Mapping[str, str]
    key: tuple[str, ...]
    plain: Mapping[str, str]
    """The types without lengths, for values that are to be checked when they are stored."""


@dataclass
class Changes:
    """The changes that a table needs."""

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
    """The changes after which a table with the columns `names` can hold rows of `schema`. Raises SinkError in mode
    `fail`.

    `wanted` has the type of each column, `made` the types that the sink gave to the existing columns."""
    changes = Changes()
    for name, kind in wanted.items():
        if name not in names:
            changes.add[name] = kind
        elif name in made and not holds(made[name], kind):
            changes.alter[name] = kind if holds(kind, made[name]) else any_text
    if mode == "evolve":
        return changes
    lines = [f"column {name!r} ({schema.column(name).type}) is missing" for name in changes.add]
    lines += [f"column {name!r} is {made[name]}, which cannot store {wanted[name]}" for name in changes.alter]
    if mode == "fail" and lines:
        raise TargetRefused(
            f"the target's table {schema.table} does not fit the source: {'; '.join(lines)}",
            hint="alter the table, or set schema_changes to evolve or ignore",
        )
    if lost := (changes.add.keys() | changes.alter.keys()) & set(schema.key):
        raise TargetRefused(f"the target's table {schema.table} lacks the key columns {sorted(lost)}")
    return Changes(left_out={*changes.add, *changes.alter})


# -- types -----------------------------------------------------------------------------------------------------------

_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64, "year": 13}
_LENGTHS = ("tiny", "", "medium", "long")


def holds(outer: str, inner: str) -> bool:
    """Whether a column of type `outer` can store every value of type `inner`."""
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
        varying = a.startswith(("var", "character varying"))  # fixed-length types pad or cut values
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
    """A type's name without parameters, its first two parameters, and whether it is unsigned."""
    kind = re.sub(r" (character set|collate) .*", "", kind)
    numbers = [int(n) for n in re.findall(r"\d+", (re.search(r"\(([\d, ]*)\)", kind) or [""])[0])]
    first, second = (*numbers, 0, 0)[:2]
    return (
        re.sub(r"\(.*\)", "", kind, flags=re.DOTALL).removesuffix(" unsigned").strip(),
        first,
        second,
        "unsigned" in kind,
    )
