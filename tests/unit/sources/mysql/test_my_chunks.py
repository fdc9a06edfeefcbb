"""What a prepared statement answers, in whatever pieces it comes."""

from __future__ import annotations

from struct import pack
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from dblog.core.offset import Extent
from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.connect import ServerError
from dblog.databases.mysql.flavor import MARIADB
from dblog.sources.mysql import chunks
from dblog.sources.mysql.codecs import my_column
from dblog.sources.mysql.column_types import Code, MyType, TypeOptions

SCHEMA = TableSchema(TableName("shop", "t"), (my_column("id", MyType(Code.bigint), MARIADB, TypeOptions()),), ("id",))
ROW_BYTES = 10
END, BROKEN = b"\xfe\0\0\2\0", b"\xff\x25\x05#70100gone"


class Wire:
    """A socket that has `piece` bytes ready whenever somebody waits."""

    def __init__(self, payloads: list[bytes], piece: int) -> None:
        self._left = b"".join(pack("<I", len(p) | (n + 1 & 0xFF) << 24) + p for n, p in enumerate(payloads))
        self._piece = piece
        self._ready = 0

    def settimeout(self, seconds: float | None) -> None:
        if seconds:
            self._ready = self._piece

    def setsockopt(self, *option: int) -> None:
        raise OSError("no such option")

    def recv_into(self, room: memoryview) -> int:
        count = min(len(room), self._ready, len(self._left))
        if not count:
            raise TimeoutError
        room[:count], self._left = self._left[:count], self._left[count:]
        self._ready -= count
        return count


def select(rows: int, piece: int, end: bytes = END) -> list[pa.RecordBatch]:
    head = [b"\1", b"the column", b"\xfe\0\0\2\0"]
    wire = Wire([*head, *(b"\0\0" + pack("<q", n) for n in range(rows)), end], piece)
    answers = iter([b"\0" + pack("<IH", 1, 1)] + [b""] * 2)
    connection: Any = SimpleNamespace(
        _sock=wire, _execute_command=lambda *_: None, _read_packet=lambda: SimpleNamespace(_data=next(answers))
    )
    found: list[pa.RecordBatch] = []
    chunks.select(connection, SCHEMA, Extent(None, None), found.append)
    return found


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 20])
def test_all_rows_in_portions_of_some_size(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LEAST_BYTES", 1000)
    found = select(500, piece)
    assert [value for batch in found for value in batch.column("id").to_pylist()] == list(range(500))
    assert all(batch.num_rows * (ROW_BYTES + 4) >= 1000 for batch in found[:-1])


def test_no_rows() -> None:
    assert select(0, 3) == []


@pytest.mark.parametrize("rows", [0, 5])
def test_an_error_after_some_rows(rows: int) -> None:
    with pytest.raises(ServerError, match="gone"):
        select(rows, 3, BROKEN)
