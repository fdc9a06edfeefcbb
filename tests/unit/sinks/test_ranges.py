"""What a batch is handed over as: schemas put together, the log in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog.capture.spool import LogFile, Spool
from dblog.core.event import Op, change_schema
from dblog.core.offset import Chunk, Extent
from dblog.core.schema import Column, TableName, TableSchema
from dblog.spark import ranges
from dblog.spark.ranges import handed, merged
from dblog.work.tasks import Log, Window

ID = Column("id", "int", pa.int32())
N = Column("n", "int", pa.int32())
LONG = Column("n", "bigint", pa.int64())
NOTE = Column("note", "text", pa.string())
NAME = TableName("public", "t")


def table(*columns: Column, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(NAME, columns, key)


def file(rows: int, *, incomplete: int = 0) -> LogFile:
    return LogFile(f"log/{rows}", NAME, "v", rows, incomplete)


@pytest.mark.parametrize(
    ("schemas", "columns"),
    [
        ([table(ID, N)], [ID, N]),
        ([table(ID, N), table(ID, N, NOTE)], [ID, N, NOTE]),
        ([table(ID, NOTE, N), table(ID, N)], [ID, N, NOTE]),
        ([table(ID, N), table(ID, LONG)], [ID, LONG]),
        ([table(ID, N), table(ID), table(ID, NOTE)], [ID, NOTE, N]),
        ([table(ID, N), table(ID), table(ID, LONG)], [ID, LONG]),
    ],
)
def test_all_columns_of_a_batch_are_put_together_as_the_last_schema_has_them(
    schemas: list[TableSchema], columns: list[Column]
) -> None:
    assert merged(schemas) == table(*columns)


def test_the_key_is_that_of_the_last_schema() -> None:
    assert merged([table(ID, N), table(ID, N, key=("n", "id"))]).key == ("n", "id")


def test_a_large_log_is_read_in_parts_that_keep_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "PART_ROWS", 10)
    segments = tuple((file(n),) for n in (4, 5, 6, 20, 1))
    parts = list(ranges._parts(Log(Window(5, 9, segments), ())))
    assert [[f.rows for f in part.window.files] for part in parts] == [[4, 5, 6], [20], [1]]
    assert {(part.window.start, part.window.end) for part in parts} == {(5, 9)}


def test_a_log_that_is_completed_from_chunks_is_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left out of a change is looked for in all of the window."""
    monkeypatch.setattr(ranges, "PART_ROWS", 10)
    chunk = Chunk("c-0", "initial", NAME, Extent(), stamp="s")
    log = Log(Window(5, 9, ((file(20),), (file(20, incomplete=1),))), (chunk,))
    assert list(ranges._parts(log)) == [log]
    assert len(list(ranges._parts(Log(log.window, ())))) == 2


def test_a_log_without_files_has_no_parts() -> None:
    assert list(ranges._parts(Log(Window(5, 9, ()), ()))) == []


def test_a_batch_is_handed_over_as_one_row() -> None:
    row = handed("0.0")
    assert (row.num_rows, row.schema) == (1, ranges.HANDED)


def test_the_spool_notes_where_a_file_begins_and_ends_and_where_its_table_was_emptied(tmp_path: Path) -> None:
    schema = table(ID, N)
    writer = Spool(str(tmp_path)).log_writer("l-1", schema, before=False)
    blank: dict[str, Any] = {"_op": Op.update, "_lsn": 10, "_txid": 1, "_committed_at": 0}
    arrow = change_schema(schema.arrow)
    writer.append(pa.RecordBatch.from_pylist([{**blank, "_seq": 1, "id": 1}, {**blank, "_seq": 2, "id": 2}], arrow))
    assert writer._truncates == []
    emptied = {**blank, "_op": Op.truncate}
    writer.append(pa.RecordBatch.from_pylist([{**emptied, "_seq": 3}, {**blank, "_seq": 4, "id": 1}], arrow))
    writer.append(pa.RecordBatch.from_pylist([{**emptied, "_lsn": 11, "_seq": 0}], arrow))
    file = writer.close()
    assert file.truncates == ((10, 3), (11, 0))
    assert (file.first, file.last) == (10, 11)
