"""COPY rows by hand: framing, slices, and what is refused. The values themselves are tried on a real server."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest

from dblog.core.schema import TableName, TableSchema
from dblog.databases.postgres.connect import identifier
from dblog.errors import DecodeError
from dblog.sources.postgres.codecs import pg_column
from dblog.sources.postgres.column_types import PgType, TypeOptions
from dblog.sources.postgres.copy import decode_rows, select_list

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"


def schema(*kinds: PgType) -> TableSchema:
    made = tuple(pg_column(f"c{n}", kind.oid, str(kind.oid), kind, TypeOptions()) for n, kind in enumerate(kinds))
    return TableSchema(TableName("public", "t"), made, ("c0",))


def row(*fields: bytes | None) -> bytes:
    parts = [struct.pack(">i", -1) if f is None else struct.pack(">i", len(f)) + f for f in fields]
    return struct.pack(">h", len(fields)) + b"".join(parts)


TABLE = schema(PgType(23), PgType(25))
ROWS = [row(struct.pack(">i", n), str(n).encode() if n % 3 else None) for n in range(-2, 8)]
EXPECTED = [{"c0": n, "c1": str(n) if n % 3 else None} for n in range(-2, 8)]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        [HEADER + ROWS[0], *ROWS[1:], TRAILER],
        [HEADER + ROWS[0], *ROWS[1:]],
        [*ROWS, TRAILER],
        [HEADER, *ROWS, TRAILER],
        [HEADER[:-4] + struct.pack(">i", 3) + b"ext" + ROWS[0], *ROWS[1:]],
    ],
)
def test_rows_are_read_with_and_without_header_and_trailer(rows: Sequence[bytes]) -> None:
    assert decode_rows(rows, TABLE).to_pylist() == EXPECTED


def test_a_copy_may_be_read_in_slices() -> None:
    rows = [HEADER + ROWS[0], *ROWS[1:], TRAILER]
    for cut in range(len(rows) + 1):
        batches = [decode_rows(rows[:cut], TABLE), decode_rows(rows[cut:], TABLE)]
        assert pa.Table.from_batches(batches).to_pylist() == EXPECTED


@pytest.mark.parametrize("rows", [[], [HEADER], [TRAILER], [HEADER + TRAILER], [HEADER, TRAILER]])
def test_no_rows_are_an_empty_batch_of_the_right_schema(rows: Sequence[bytes]) -> None:
    made = decode_rows(rows, TABLE)
    assert made.num_rows == 0
    assert made.schema == TABLE.arrow


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (row(b"\0\0\0\1"), "does not have 2 columns"),
        (row(b"\0\0\0\1", b"a", b"b"), "does not have 2 columns"),
        (row(b"\0\0\0\1", b"a") + b"x", "does not end where"),
        (row(b"\0\0\0\1", b"abc")[:-1], "does not end where"),
        (row(b"\0\0\0\1", b"a")[:2] + struct.pack(">i", 2**31 - 1), "does not end where"),
        (row(b"\0\1", b"a"), "not 4 bytes wide"),
    ],
)
def test_a_row_that_does_not_fit_the_schema_is_refused(wrong: bytes, said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        decode_rows([ROWS[0], wrong], TABLE)


def test_a_value_that_is_not_text_is_null_and_its_bytes_are_kept() -> None:
    made = decode_rows([row(b"\0\0\0\1", b"a"), row(b"\0\0\0\2", b"\xff")], TABLE)
    assert made.column("c1").to_pylist() == ["a", None]
    assert made.column("_raw_values").to_pylist() == [None, '{"c1":"\\\\xff"}']


def test_columns_are_selected_natively_as_text_or_by_their_output_function() -> None:
    made = schema(
        PgType(23),
        PgType(1700, 0x00050002 + 4),
        PgType(869, output="pg_catalog.inet_out"),
        PgType(25, output="pg_catalog.textout"),
    )
    assert select_list(made) == [
        '"c0"',
        '"c1"::pg_catalog.text',
        'pg_catalog.textin(pg_catalog.inet_out("c2"))',
        '"c3"',
    ]
    assert identifier('a"b') == '"a""b"'
