"""Rows of `COPY (SELECT ...) TO STDOUT (FORMAT binary)` to Arrow.

`select_list` has the expressions to select, `decode_rows` decodes the result. A row is its number of fields, then for
each field its length (-1 is null) and its bytes. The stream starts with a header before the first row and ends with a
trailer, whose number of fields is -1 (PostgreSQL documentation, COPY, "Binary Format").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Ints
from dblog.core.schema import TableSchema
from dblog.databases.postgres.connect import identifier
from dblog.errors import DecodeError
from dblog.sources.columns import LIMIT, Cells, Raw
from dblog.sources.postgres.codecs import codec, decode
from dblog.sources.postgres.column_types import PgColumn

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_TRAILER = b"\xff\xff"


def select_list(schema: TableSchema) -> list[str]:
    """The SQL expression of each column, whose binary form `decode_rows` can decode."""
    return [_expression(column) for column in schema.columns if isinstance(column, PgColumn)]


def _expression(column: PgColumn) -> str:
    name = identifier(column.name)
    if codec(column).from_binary is not None:
        return name
    if column.output is not None:
        return f"pg_catalog.textin({column.output}({name}))"
    return f"{name}::pg_catalog.text"


def decode_rows(rows: Sequence[bytes], schema: TableSchema) -> pa.RecordBatch:
    """The table's columns from `rows`: CopyData messages, one per row, with or without header and trailer. The batch
    has one more column, `_raw_values`, if a value does not fit."""
    raw, at, size = Raw.join(_bare(rows))
    if raw.data.size >= 2 * LIMIT:
        raise DecodeError(
            f"one batch has {raw.data.size} bytes of table {schema.table}, which is too many",
            hint="decode fewer rows at once",
        )
    width = len(schema.columns)
    if np.any(raw.be16(at) != width):
        raise DecodeError(f"a row of table {schema.table} does not have {width} columns", hint="read its schema again")
    cells, end = _march(raw, at + 2, width)
    if np.any(end != at + size):
        raise DecodeError(f"a row of table {schema.table} does not end where its last column does")
    found = decode(schema, cells, binary=True)
    return found.batch(found.arrays, schema.arrow)


def _bare(rows: Sequence[bytes]) -> Sequence[bytes]:
    """The rows without header and trailer, which come in one message if the table is empty."""
    if rows and rows[0].startswith(_SIGNATURE):
        head = rows[0]
        size = len(_SIGNATURE) + 8
        first = head[size + int.from_bytes(head[size - 4 : size]) :]
        rows = [first, *rows[1:]] if first else rows[1:]
    return rows[:-1] if rows and rows[-1] == _TRAILER else rows


def _march(raw: Raw, at: Ints, width: int) -> tuple[list[Cells], Ints]:
    """The cells of each column of all rows, and the end of each row."""
    cells = []
    for _ in range(width):
        length = raw.be32(np.minimum(at, raw.tail)).view(np.int32).astype(np.int64)
        at = at + 4
        cells.append(Cells(raw, at, length))
        at = at + np.maximum(length, 0)
    return cells, at
