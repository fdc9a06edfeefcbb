"""Decode values from PostgreSQL's binary form, for the types that dumps read in this form. The result must equal that
of the text form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dblog.errors import DecodeError
from dblog.sources import columns
from dblog.sources.columns import Cells
from dblog.sources.postgres.column_types import EPOCH_DAYS, EPOCH_MICROS, PgColumn, refuse
from dblog.sources.postgres.text import BEYOND, string


def _sized(cells: Cells, column: PgColumn, width: int) -> None:
    if np.any((cells.length != width) & (cells.length >= 0)):
        raise DecodeError(f"column {column.name!r} ({column.type}) is not {width} bytes wide")


def bool_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 1)
    return columns.booleans(cells.raw.data[cells.start] != 0, cells.valid)


def int2_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 2)
    return columns.fixed(column.arrow, cells.raw.be16(cells.start), cells.valid)


def four_bytes_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 4)
    return columns.fixed(column.arrow, _one_nan(cells.raw.be32(cells.start), column), cells.valid)


def eight_bytes_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 8)
    return columns.fixed(column.arrow, _one_nan(cells.raw.be64(cells.start), column), cells.valid)


def _one_nan(bits: Any, column: PgColumn) -> Any:
    # The text form has one NaN; the binary form has many bit patterns for it.
    if pa.types.is_floating(column.arrow):
        values = bits.view(column.arrow.to_pandas_dtype())
        values[np.isnan(values)] = np.nan
    return bits


def oid_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 4)
    return columns.fixed(column.arrow, cells.raw.be32(cells.start).astype(np.int64), cells.valid)


def date_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 4)
    days = cells.raw.be32(cells.start).view(np.int32)
    bounds = np.iinfo(np.int32)
    np.add(days, EPOCH_DAYS, out=days, where=(days != bounds.max) & (days != bounds.min))
    return columns.fixed(column.arrow, days, cells.valid)


def timestamp_binary(cells: Cells, column: PgColumn) -> pa.Array:
    _sized(cells, column, 8)
    micros = cells.raw.be64(cells.start).view(np.int64)
    bounds = np.iinfo(np.int64)
    finite = (micros != bounds.max) & (micros != bounds.min)
    beyond = finite & (micros >= bounds.max - EPOCH_MICROS) & (cells.length >= 0)
    refuse(cells, column, beyond, BEYOND, lambda row: _late(int(micros[row]), column))
    np.add(micros, EPOCH_MICROS, out=micros, where=finite)
    return columns.fixed(column.arrow, micros, cells.valid)


def _late(micros: int, column: PgColumn) -> str:
    """The text of a timestamp after the year 9999, as PostgreSQL writes it. The calendar repeats every 400 years."""
    cycles, rest = divmod(micros, 146_097 * 86_400_000_000)
    moment = np.datetime64("2000-01-01T00:00:00", "us") + np.timedelta64(rest, "us")
    date, clock = str(moment).split("T")
    whole, _, fraction = clock.partition(".")
    fraction = fraction.rstrip("0")
    shown = f"{int(date[:4]) + 400 * cycles}{date[4:]} {whole}{'.' if fraction else ''}{fraction}"
    return shown + "+00" if column.arrow.tz else shown


def bytea_binary(cells: Cells, column: PgColumn) -> pa.Array:
    return columns.binary(cells)


def jsonb_binary(cells: Cells, column: PgColumn) -> pa.Array:
    """A version number, then the text."""
    if np.any((cells.raw.data[cells.start] != 1) & (cells.length >= 0)):
        raise DecodeError(f"column {column.name!r} (jsonb) has an unknown binary version", hint="update dblog")
    return string(Cells(cells.raw, cells.start + 1, cells.length - 1), column)


_HEX = np.array([int.from_bytes(b"%02x" % byte, "little") for byte in range(256)], np.uint16)


def uuid_binary(cells: Cells, column: PgColumn) -> pa.Array:
    """Sixteen bytes, written as 36 characters."""
    _sized(cells, column, 16)
    halves = np.stack([cells.raw.le64(cells.start), cells.raw.le64(cells.start + 8)], axis=1)
    digits = _HEX[halves.view(np.uint8)].view(np.uint8)
    texts = np.full((len(cells), 36), ord("-"), np.uint8)
    for first, last, dashes in ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4)):
        texts[:, first + dashes : last + dashes] = digits[:, first:last]
    bitmap, nulls = columns.validity(cells.valid)
    offsets = np.arange(0, 36 * len(cells) + 1, 36, dtype=np.int32)
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(texts.reshape(-1))]
    return pa.Array.from_buffers(pa.string(), len(cells), buffers, nulls)
