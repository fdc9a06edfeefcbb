"""A column's type in the catalog, and in the form that the kernels need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from dblog.core.promised_keys import PromisedKeys
from dblog.core.schema import Column
from dblog.core.value_rules import ValueRules
from dblog.sources.columns import Cells
from dblog.sources.unfit import Unfit

EPOCH_DAYS = 10957
EPOCH_MICROS = EPOCH_DAYS * 86_400_000_000
"""Microseconds from Arrow's epoch, 1970-01-01, to PostgreSQL's, 2000-01-01."""


NEAR = "1-9999"
"""The years that every target can store."""


@dataclass(frozen=True)
class TypeOptions:
    """How types are delivered whose values do not always fit an Arrow type."""

    decimals: Literal["decimal", "string"] = "decimal"
    arrays: Literal["array", "string"] = "array"
    values: ValueRules = field(default_factory=ValueRules)
    """The rules for single values that do not fit."""
    keys: PromisedKeys = field(default_factory=PromisedKeys)
    """The keys that users promise for tables without one."""
    years: str = "all"
    """NEAR: dates and timestamps of other years do not fit."""


@dataclass(frozen=True)
class PgType:
    """A column's type in the catalog. A domain is replaced by its base type."""

    oid: int
    typmod: int = -1
    output: str | None = None
    """The output function, quoted and qualified, if the type has its own cast to text, which may give another text:
    `inet` adds a netmask, `xml` keeps its declaration."""
    element: PgType | None = None
    delimiter: str = ","


@dataclass(frozen=True)
class PgColumn(Column):
    """A column and how its values are read."""

    oid: int
    codec: str
    """A key of CODECS, followed by `[]` for an array."""
    output: str | None = None
    delimiter: str = ","


Kernel = Callable[[Cells, PgColumn], pa.Array]


@dataclass(frozen=True)
class Codec:
    """One type: how its text form is decoded and, if a dump reads it in binary form, how that is decoded."""

    name: str
    from_text: Kernel
    from_binary: Kernel | None = None


def refuse(
    cells: Cells, column: PgColumn, wrong: Any, why: str | None = None, text: Callable[[int], str] | None = None
) -> None:
    """Raise Unfit if some rows are `wrong`. `text` gives PostgreSQL's text of a row's value."""
    if wrong.any():
        message = f"column {column.name!r} ({column.type}) has values that do not fit {column.arrow}"
        raise Unfit(f"{message}: {why}" if why else message, wrong, text or cells.plain_text)
