"""A batch's ranges, read by Spark from files of a spool: what each table has in it, typed, and nothing else."""

from __future__ import annotations

import base64
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from dblog.capture.spool import LogFile, Spool
from dblog.core.event import DUMP_SEQ, Op, change_schema
from dblog.core.offset import Chunk, Extent, pinned
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import ConfigError
from dblog.spark import ranges
from dblog.spark.ranges import TableRange, ranges_of
from dblog.work.handover import RangeFiles
from dblog.work.lanes import Work
from dblog.work.tasks import Emit, Log, Select, Window

pytestmark = pytest.mark.spark

ID = Column("id", "bigint", pa.int64())
V = Column("v", "text", pa.string())
W = Column("w.x", "int", pa.int32())
T = TableSchema(TableName("public", "t"), (ID, V), ("id",))
U = TableSchema(TableName("public", "u"), (ID, V), ("id",))
WIDER = TableSchema(T.table, (ID, V, W), ("id",))
NARROWER = TableSchema(T.table, (ID, W), ("id",))


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool"))


def write(spool: Spool, name: str, schema: TableSchema, *events: dict[str, Any]) -> LogFile:
    writer = spool.log_writer(name, schema, before=False)
    blank = {"_op": Op.update, "_seq": 0, "_txid": 1, "_committed_at": 0}
    for event in events:
        writer.append(pa.RecordBatch.from_pylist([{**blank, **event}], change_schema(schema.arrow)))
    return writer.close()


def staged(spool: Spool, name: str, schema: TableSchema, *ids: int, dump: str = "initial") -> Chunk:
    chunk = Chunk(name, dump, schema.table, Extent(upto=("9",)))
    batch = pa.RecordBatch.from_pylist([{"id": i, "v": f"v{i}", "w.x": i} for i in ids], schema.arrow)
    return pinned(chunk, spool.stage(name, schema, lambda take: take(batch)).stamp)


def read(spark: SparkSession, spool: Spool, *work: Work, before: bool = False) -> dict[str, TableRange]:
    found = ranges_of(spark, RangeFiles(spool), work, before=before, tasks=2)
    for table in found:  # a task that reads the spool itself gets the same rows
        same = ("id", "_op", "_lsn", "_seq", "_unchanged")
        for frame, batches in ((table.changes, table.arrow.changes()), (table.rows, table.arrow.dump_rows())):
            arrow = [tuple(row[name] for name in same) for batch in batches for row in batch.to_pylist()]
            wanted = [] if frame is None else rows(frame, *same)
            assert set(map(str, arrow)) == set(map(str, wanted)) if table.arrow.overlapping else arrow == wanted
    return {r.schema.table.name: r for r in found}


def rows(frame: Callable[[], DataFrame] | None, *names: str) -> list[tuple[Any, ...]]:
    assert frame is not None
    return [tuple(row[name] for name in names) for row in frame().collect()]


def test_each_table_has_its_own_changes_and_rows(spark: SparkSession, spool: Spool) -> None:
    mine = write(spool, "l-1", T, {"id": 2, "v": "new", "_lsn": 10}, {"id": 8, "_op": Op.delete, "_lsn": 11})
    other = write(spool, "l-2", U, {"id": 1, "_lsn": 10, "_seq": 1})
    window = Window(10, 30, ((mine, other),))
    chunks = [staged(spool, "c-0", T, 1, 2, 3), staged(spool, "c-1", U, 1)]
    found = read(spark, spool, Log(window, tuple(chunks)), *(Emit(window, c) for c in chunks), Select(chunks[0]))
    assert list(found) == ["t", "u"]
    t, u = found["t"], found["u"]
    assert rows(t.changes, "_op", "id", "v") == [("update", 2, "new"), ("delete", 8, None)]
    assert sorted(rows(t.rows, "id", "v", "_op", "_lsn", "_seq", "_dump")) == [
        (i, f"v{i}", "read", 29, DUMP_SEQ, "initial") for i in (1, 3)
    ]
    assert rows(u.changes, "id") == [(1,)]
    assert rows(u.rows, "id") == []
    assert (t.truncated, t.incomplete) == (None, False)
    sizes = [Path(spool.chunk_path(chunk.id, chunk.stamp or "")).stat().st_size for chunk in chunks]
    assert (t.arrow.weight, u.arrow.weight) == (mine.size + sizes[0], other.size + sizes[1])


def test_a_table_may_have_only_changes_or_only_rows(spark: SparkSession, spool: Spool) -> None:
    file = write(spool, "l-1", T, {"id": 2, "_lsn": 10})
    chunk = staged(spool, "c-0", U, 1)
    window = Window(10, 30, ((file,),))
    found = read(spark, spool, Log(window, (chunk,)), Emit(window, chunk))
    assert (found["t"].rows, found["u"].changes) == (None, None)
    assert rows(found["u"].rows, "id") == [(1,)]
    assert read(spark, spool, Log(Window(10, 30, ()), ())) == {}


def test_only_what_is_in_the_window_counts(spark: SparkSession, spool: Spool) -> None:
    at = [(5, Op.truncate), (9, Op.update), (10, Op.update), (29, Op.update), (30, Op.truncate)]
    file = write(
        spool, "l-1", T, *({"id": None if op is Op.truncate else lsn, "_lsn": lsn, "_op": op} for lsn, op in at)
    )
    found = read(spark, spool, Log(Window(10, 30, ((file,),)), ()))["t"]
    assert rows(found.changes, "_lsn") == [(10,), (29,)]
    assert found.truncated is None


def test_a_table_that_has_nothing_in_the_window_is_not_there(spark: SparkSession, spool: Spool) -> None:
    """A segment of the log may reach beyond a window, and know columns that are gone or not yet there."""
    early = write(spool, "l-1", WIDER, {"id": 1, "_lsn": 9})
    mine = write(spool, "l-2", T, {"id": 1, "_lsn": 10}, {"id": 1, "_lsn": 11})
    late = write(spool, "l-3", WIDER, {"id": 1, "_lsn": 30})
    others = [write(spool, "l-4", U, {"id": 1, "_lsn": 9}), write(spool, "l-5", U, {"id": 1, "_lsn": 30})]
    found = read(spark, spool, Log(Window(10, 30, ((early, mine, others[0]), (late, others[1]))), ()))
    assert list(found) == ["t"]
    assert (found["t"].schema, found["t"].incomplete) == (T, False)
    assert rows(found["t"].changes, "_lsn") == [(10,), (11,)]


def test_old_rows_come_with_changes_where_they_are_wanted(spark: SparkSession, spool: Spool) -> None:
    writer = spool.log_writer("l-1", T, before=True)
    old = {"id": 1, "v": "old"}
    change = {"_op": Op.update, "_lsn": 10, "_seq": 0, "id": 1, "v": "new", "_before": old}
    writer.append(pa.RecordBatch.from_pylist([change], change_schema(T.arrow, before=True)))
    window = Window(10, 30, ((writer.close(),),))
    chunk = staged(spool, "c-0", T, 1, 2)
    found = read(spark, spool, Log(window, (chunk,)), Emit(window, chunk), before=True)["t"]
    assert found.changes is not None
    assert [row.asDict(recursive=True)["_before"] for row in found.changes().collect()] == [old]
    assert rows(found.rows, "id", "_before") == [(2, None)]


def test_the_last_truncate_of_the_window_is_told(spark: SparkSession, spool: Spool) -> None:
    first = write(spool, "l-1", T, {"_op": Op.truncate, "_lsn": 10, "_seq": 4}, {"id": 1, "_lsn": 11})
    second = write(
        spool, "l-2", T, {"_op": Op.truncate, "_lsn": 12, "_seq": 1}, {"_op": Op.truncate, "_lsn": 12, "_seq": 2}
    )
    chunk = staged(spool, "c-0", T, 1, 2)
    window = Window(10, 30, ((first,), (second,)))
    found = read(spark, spool, Log(window, (chunk,)), Emit(window, chunk))["t"]
    assert found.truncated == (12, 2)
    assert rows(found.rows, "id") == [], "what was there when the chunk was read may be gone"
    assert [op for (op,) in rows(found.changes, "_op")] == ["truncate", "update", "truncate", "truncate"]


def test_changes_are_in_order_through_the_partitions(
    spark: SparkSession, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "PART_ROWS", 3)
    segments = tuple(
        (write(spool, f"l-{n}", T, *({"id": i, "_lsn": 10 + n, "_seq": i} for i in range(2))),) for n in range(6)
    )
    found = read(spark, spool, Log(Window(10, 30, segments), ()))["t"]
    assert found.changes is not None
    assert found.changes().rdd.getNumPartitions() == 3
    assert rows(found.changes, "_lsn", "_seq") == [(10 + n, i) for n in range(6) for i in range(2)]


def test_a_row_that_two_dumps_have_read_comes_once(spark: SparkSession, spool: Spool) -> None:
    chunks = [staged(spool, "c-0", T, 1, 2), staged(spool, "c-1", T, 2, 3, dump="d7")]
    window = Window(10, 30, ())
    found = read(spark, spool, *(Emit(window, c) for c in chunks))["t"]
    assert sorted(rows(found.rows, "id", "v")) == [(i, f"v{i}") for i in (1, 2, 3)]


def test_a_column_that_comes_in_mid_batch_is_missing_before(spark: SparkSession, spool: Spool) -> None:
    old = write(spool, "l-1", T, {"id": 1, "v": "a", "_lsn": 10}, {"id": 2, "_op": Op.delete, "_lsn": 11})
    new = write(spool, "l-2", WIDER, {"id": 1, "v": "b", "w.x": 5, "_lsn": 12})
    found = read(spark, spool, Log(Window(10, 30, ((old, new),)), ()))["t"]
    assert found.schema == WIDER
    assert found.incomplete, "rows do name columns in _unchanged"
    assert rows(found.changes, "id", "v", "w.x", "_unchanged", "_schema") == [
        (1, "a", None, ["w.x"], T.version),
        (2, None, None, None, T.version),
        (1, "b", 5, None, WIDER.version),
    ]


def test_a_column_that_goes_in_mid_batch_is_missing_after(spark: SparkSession, spool: Spool) -> None:
    old = write(spool, "l-1", WIDER, {"id": 1, "v": "a", "w.x": 1, "_lsn": 10})
    new = write(spool, "l-2", NARROWER, {"id": 1, "w.x": 5, "_lsn": 12})
    found = read(spark, spool, Log(Window(10, 30, ((old,), (new,))), ()))["t"]
    assert found.schema.names == ("id", "w.x", "v")
    assert found.incomplete
    assert rows(found.changes, "v", "w.x", "_unchanged") == [("a", 1, None), (None, 5, ["v"])]


def test_dump_rows_may_have_a_column_that_the_log_does_not_have_yet(spark: SparkSession, spool: Spool) -> None:
    file = write(spool, "l-1", T, {"id": 1, "v": "a", "_lsn": 10})
    chunk = staged(spool, "c-0", WIDER, 1, 2)
    window = Window(10, 30, ((file,),))
    found = read(spark, spool, Log(window, (chunk,)), Emit(window, chunk))["t"]
    assert found.schema == WIDER
    assert found.incomplete
    assert rows(found.changes, "id", "w.x", "_unchanged") == [(1, None, ["w.x"])]
    assert rows(found.rows, "id", "w.x", "_unchanged") == [(2, 2, None)]


def test_a_value_that_was_left_out_comes_from_the_chunk(spark: SparkSession, spool: Spool) -> None:
    file = write(
        spool,
        "l-1",
        T,
        {"id": 1, "_lsn": 10, "_unchanged": ["v"]},
        {"id": 7, "_lsn": 10, "_seq": 1, "_unchanged": ["v"]},
    )
    chunk = staged(spool, "c-0", T, 1, 2)
    window = Window(10, 30, ((file,),))
    found = read(spark, spool, Log(window, (chunk,)), Emit(window, chunk))["t"]
    assert found.incomplete
    assert rows(found.changes, "id", "v", "_unchanged") == [(1, "v1", None), (7, None, ["v"])]
    assert rows(found.rows, "id") == [(2,)]


def test_a_table_that_is_gone_has_nothing(spark: SparkSession, spool: Spool) -> None:
    """It was dropped before its chunk was selected: there are no rows, and not even columns."""
    gone = TableSchema(T.table, (), ())
    lost = pinned(Chunk("c-0", "initial", T.table, Extent()), spool.stage("c-0", gone, lambda take: None).stamp)
    window = Window(10, 30, ())
    assert read(spark, spool, Emit(window, lost)) == {}
    file = write(spool, "l-1", T, {"id": 1, "v": "a", "_lsn": 10})
    window = Window(10, 30, ((file,),))
    found = read(spark, spool, Log(window, (lost,)), Emit(window, lost))["t"]
    assert found.schema == T
    assert rows(found.changes, "id", "v") == [(1, "a")]


@pytest.mark.parametrize("name", ["_LSN", "_whole", "V", "_dblog_last"])
def test_columns_that_cannot_be_told_apart_are_refused(spark: SparkSession, spool: Spool, name: str) -> None:
    schema = TableSchema(T.table, (ID, V, Column(name, "int", pa.int32())), ("id",))
    with pytest.raises(ConfigError, match=f"column {name!r} of public.t") as refused:
        read(spark, spool, Log(Window(10, 30, ((write(spool, "l-1", schema, {"id": 2, "_lsn": 10}),),)), ()))
    assert "!public.t" in str(refused.value.hint)


def test_a_range_of_a_user_is_refused_and_not_executed(spark: SparkSession, spool: Spool, tmp_path: Path) -> None:
    class MakesFolder:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "made"),)

    data = base64.b64encode(zlib.compress(pickle.dumps(MakesFolder()), 1)).decode()
    for value in (data, "../x"):
        with pytest.raises(AnalysisException, match="ConfigError: option 'range' has the value"):
            spark.read.format("dblog").options(range=value, spool=spool.uri).load()
    assert not (tmp_path / "made").exists()
