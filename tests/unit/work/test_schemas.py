"""Schemas of a batch's files: each is read once, whatever the number of files that have it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dblog.capture.spool import LogFile, Spool
from dblog.core.event import Op, change_schema
from dblog.core.offset import Chunk, Extent, pinned
from dblog.core.schema import Column, TableName, TableSchema
from dblog.work import schemas
from dblog.work.schemas import Schemas
from dblog.work.tasks import Emit, Window

ID, V = Column("id", "bigint", pa.int64()), Column("v", "text", pa.string())
T = TableSchema(TableName("public", "t"), (ID,), ("id",))
WIDER = TableSchema(T.table, (ID, V), ("id",))


class CountingSpool(Spool):
    """A spool that counts the Arrow files that are opened."""

    opened = 0

    def _read(self, path, columns):  # type: ignore[no-untyped-def]
        self.opened += 1
        return super()._read(path, columns)


@pytest.fixture
def spool(tmp_path: Path) -> CountingSpool:
    return CountingSpool(str(tmp_path / "spool"))


def log_file(spool: Spool, name: str, schema: TableSchema) -> LogFile:
    writer = spool.log_writer(name, schema, before=False)
    change = {"_op": Op.delete, "_lsn": 1, "_seq": 0, "id": 1}
    writer.append(pa.RecordBatch.from_pylist([change], change_schema(schema.arrow)))
    return writer.close()


def emit(spool: Spool, name: str, schema: TableSchema) -> Emit:
    rows = pa.RecordBatch.from_pylist([{"id": 1}], schema.arrow)
    staged = spool.stage(name, schema, lambda take: take(rows))
    return Emit(Window(0, 9, ()), pinned(Chunk(name, "initial", schema.table, Extent()), staged.stamp))


def test_the_schemas_of_a_log_come_the_oldest_first_and_are_read_once(spool: CountingSpool) -> None:
    known = Schemas()
    files = [log_file(spool, f"l-{n}", schema) for n, schema in enumerate((T, WIDER, T, WIDER))]
    assert known.of_log(spool, files) == [T, WIDER]
    assert known.of_log(spool, files[:1]) == [T]
    assert spool.opened == 2


def test_a_chunk_s_file_is_not_opened_for_a_known_schema(spool: CountingSpool) -> None:
    known = Schemas()
    emits = [emit(spool, f"c-{n}", WIDER) for n in range(3)]
    for one in emits:
        found = known.of_chunk(spool, one)
        assert found.schema == WIDER
        size = Path(spool.chunk_path(one.chunk.id, one.chunk.stamp or "")).stat().st_size
        assert found.size == size
    assert spool.opened == 1
    assert known.of_log(spool, [log_file(spool, "l-1", WIDER)]) == [WIDER]
    assert spool.opened == 1, "log and chunks share the schemas"


def test_a_chunk_whose_marker_is_of_another_file_is_read_itself(spool: CountingSpool) -> None:
    one = emit(spool, "c-0", WIDER)
    marker = Path(spool.chunk_path("c-0", "x")).with_name("c-0.json")
    marker.write_text(marker.read_text().replace(one.chunk.stamp or "", "other"))
    found = Schemas().of_chunk(spool, one)
    assert (found.schema, found.size) == (WIDER, None)


def test_no_more_schemas_are_kept_than_allowed(spool: CountingSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MOST_KNOWN", 1)
    known = Schemas()
    for schema in (T, WIDER, T):
        known.of_log(spool, [log_file(spool, f"l-{spool.opened}", schema)])
    assert spool.opened == 3
