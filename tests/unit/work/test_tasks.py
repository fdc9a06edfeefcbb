"""The work of a batch over real spool files: exact windows, order across files, reconciliation, completion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog.capture.spool import LogFile, Spool
from dblog.core.event import DUMP_SEQ, Op, change_schema
from dblog.core.offset import Chunk, Extent, pinned
from dblog.core.schema import Column, TableName, TableSchema
from dblog.work.tasks import Emit, Log, Window, emitted_rows, log_changes

COLUMNS = (Column("id", "bigint", pa.int64()), Column("v", "text", pa.string()))
T = TableSchema(TableName("public", "t"), COLUMNS, ("id",))
U = TableSchema(TableName("public", "u"), COLUMNS, ("id",))


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path))


def write(spool: Spool, name: str, schema: TableSchema, *events: dict[str, Any]) -> LogFile:
    writer = spool.log_writer(name, schema, before=False)
    blank = {"_op": Op.update, "_seq": 0, "_txid": 1, "_committed_at": 0}
    for event in events:  # a batch each: the hardest case for keeping order
        writer.append(pa.RecordBatch.from_pylist([{**blank, **event}], change_schema(schema.arrow)))
    return writer.close()


def staged(spool: Spool, schema: TableSchema, *rows: dict[str, Any]) -> Chunk:
    chunk = Chunk("c-0", "initial", schema.table, Extent(upto=("9",)))
    batch = pa.RecordBatch.from_pylist(list(rows), schema.arrow)
    return pinned(chunk, spool.stage("c-0", schema, lambda take: take(batch)).stamp)


def delivered(spool: Spool, log: Log) -> list[dict[str, Any]]:
    """The rows in the order in which an output shows them: stride by stride, each put in order."""
    rows: list[dict[str, Any]] = []
    for stride in log_changes(spool, log):
        mixed = [row for _, batch in stride for row in batch.to_pylist()]
        rows += sorted(mixed, key=lambda row: (row["_lsn"], row["_seq"]))
    return rows


def test_only_transactions_that_end_in_the_window_are_delivered(spool: Spool) -> None:
    # commits lie before their end positions: the window (10, 30] holds lsn 10 to 29
    file = write(spool, "l-1", T, *({"id": lsn, "_lsn": lsn} for lsn in (5, 9, 10, 29, 30, 31)))
    assert [row["_lsn"] for row in delivered(spool, Log(Window(10, 30, ((file,),)), ()))] == [10, 29]


def test_changes_of_several_tables_and_files_come_in_commit_order(spool: Spool) -> None:
    first = write(spool, "l-1", T, *({"id": i, "_lsn": 10 + i // 3, "_seq": i} for i in range(0, 12, 2)))
    second = write(spool, "l-2", U, *({"id": i, "_lsn": 10 + i // 3, "_seq": i} for i in range(1, 12, 2)))
    third = write(spool, "l-3", U, {"id": 99, "_lsn": 50})
    log = Log(Window(0, 100, ((first, second), (third,))), ())
    assert [row["id"] for row in delivered(spool, log)] == [*range(12), 99]


def test_a_chunk_is_emitted_without_the_keys_of_the_window(spool: Spool) -> None:
    chunk = staged(spool, T, *({"id": i, "v": "old"} for i in range(1, 6)))
    mine = write(spool, "l-1", T, {"id": 2, "_lsn": 10}, {"id": 3, "_lsn": 40})
    other = write(spool, "l-2", U, {"id": 4, "_lsn": 11})
    emit = Emit(Window(10, 30, ((mine, other),)), chunk)
    rows = [r for _, b in emitted_rows(spool, emit, before=False) for r in b.to_pylist()]
    assert [r["id"] for r in rows] == [1, 3, 4, 5], "neither other tables nor later changes drop a row"
    assert {(r["_op"], r["_lsn"], r["_seq"]) for r in rows} == {(Op.read, 29, DUMP_SEQ)}
    cause = {"key": ["2"], "by": {"op": "update", "lsn": 10, "seq": 0}}
    assert spool.noted("c-0") == {"rows": 4, "dropped": 1, "examples": [cause]}


def test_a_value_that_the_log_left_out_is_rescued_from_the_chunk_row_that_is_dropped(spool: Spool) -> None:
    chunk = staged(spool, T, {"id": 1, "v": "large"}, {"id": 2, "v": "before"})
    first = write(
        spool,
        "l-1",
        T,
        {"id": 1, "_lsn": 10, "_unchanged": ["v"]},
        {"id": 2, "_lsn": 11, "_unchanged": ["v"]},
        {"id": 3, "_lsn": 12, "_unchanged": ["v"]},
    )
    second = write(spool, "l-2", T, {"id": 2, "_lsn": 20, "v": "after"})
    log = Log(Window(10, 30, ((first,), (second,))), (chunk,))
    assert [(r["id"], r["v"], r["_unchanged"]) for r in delivered(spool, log)] == [
        (1, "large", None),
        (2, None, ["v"]),  # the chunk may have been read after the later change: its value need not be this one
        (3, None, ["v"]),
        (2, "after", None),
    ]


def test_a_chunk_of_a_table_that_was_gone_emits_nothing(spool: Spool) -> None:
    gone = TableSchema(T.table, (), ())
    chunk = pinned(Chunk("c-0", "initial", T.table, Extent()), spool.stage("c-0", gone, lambda take: None).stamp)
    assert list(emitted_rows(spool, Emit(Window(0, 10, ()), chunk), before=False)) == []
