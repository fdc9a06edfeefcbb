"""The layout of a table's row images in the log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dblog.core.arrays import Ints
from dblog.core.schema import TableSchema
from dblog.errors import DecodeError
from dblog.sources.mysql.column_types import Code, log_width
from dblog.sources.mysql.tablemap import TableMap


@dataclass(frozen=True)
class Layout:
    """The layout of a table's row images: all columns, and which of them are in the schema."""

    schema: TableSchema
    widths: tuple[int, ...]
    nullable: tuple[bool, ...]
    kept: tuple[int, ...]
    documents: tuple[int, ...]
    """The columns of MySQL's type JSON."""

    @classmethod
    def of(cls, mapped: TableMap, schema: TableSchema) -> Layout:
        """The layout for a table map. `schema` is made from it and may leave out columns."""
        names = [column.name for column in mapped.columns]
        kept = tuple(names.index(name) for name in schema.names if name in names)
        if len(kept) != len(schema.names):
            raise DecodeError(f"the schema of table {schema.table} does not match the table map in the log: {mapped!r}")
        return cls(
            schema,
            tuple(log_width(c.type) for c in mapped.columns),
            tuple(c.nullable for c in mapped.columns),
            kept,
            tuple(n for n, c in enumerate(mapped.columns) if c.type.code == Code.json),
        )

    @cached_property
    def bitmap(self) -> int:
        """The size of a bitmap of all columns, in bytes."""
        return (len(self.widths) + 7) // 8

    @cached_property
    def strides(self) -> tuple[Stride, ...]:
        """The steps through an image, each up to the next value with a length."""
        strides = []
        fixed, nulls = 0, np.zeros((self.bitmap, 256), np.int64)
        for column, (width, nullable) in enumerate(zip(self.widths, self.nullable, strict=True)):
            byte, bit = column >> 3, 1 << (column & 7)
            if width >= 0:
                fixed += width
                if nullable:
                    nulls[byte] += np.where(np.arange(256) & bit, width, 0)
            else:
                strides.append(Stride(fixed, _used(nulls), -width, (byte, bit) if nullable else None))
                fixed, nulls = 0, np.zeros((self.bitmap, 256), np.int64)
        return (*strides, Stride(fixed, _used(nulls), 0, None))


@dataclass(frozen=True, eq=False)
class Stride:
    """Columns of fixed width, then a value with a length of `prefix` bytes (0 at the end of the image)."""

    fixed: int
    nulls: tuple[tuple[int, Ints], ...]
    """For bytes of the bitmap: a table of how many of the `fixed` bytes are missing because of nulls."""
    prefix: int
    bit: tuple[int, int] | None
    """Byte and bit of the value in the bitmap of nulls; None if it cannot be null."""


def _used(nulls: Ints) -> tuple[tuple[int, Ints], ...]:
    return tuple((byte, table) for byte, table in enumerate(nulls) if table.any())
