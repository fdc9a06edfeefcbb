"""The rows of a table in a batch, whole and in parts."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from dblog.capture.spool import LogFile, Spool
from dblog.core.event import Op, change_schema
from dblog.core.offset import Chunk, Extent
from dblog.core.schema import Column, TableName, TableSchema
from dblog.sinks.route import Route
from dblog.sinks.routed import RoutedRows
from dblog.work.rows import Typed
from dblog.work.table_rows import CHUNK_WEIGHT, TableRows
from dblog.work.tasks import Emit, Log, Window

SCHEMA = TableSchema(TableName("public", "t"), (Column("id", "integer", pa.int32()),), ("id",))


def written(spool: Spool, name: str, lsn: int) -> LogFile:
    writer = spool.log_writer(name, SCHEMA, before=False)
    row = {"_op": int(Op.create), "_lsn": lsn, "_seq": 0, "id": lsn}
    writer.append(pa.RecordBatch.from_pylist([row], change_schema(SCHEMA.arrow, before=False)))
    return writer.close()


def staged(spool: Spool, name: str, *keys: int) -> Chunk:
    rows = pa.record_batch([pa.array(keys, pa.int32())], schema=SCHEMA.arrow)
    stamp = spool.stage(name, SCHEMA, lambda take: take(rows)).stamp
    return Chunk(name, "initial", SCHEMA.table, Extent(), stamp=stamp)


def given(tmp_path: Path) -> tuple[TableRows, list[LogFile]]:
    """A log of three parts and three chunks, in two lanes."""
    spool = Spool(str(tmp_path))
    files = [written(spool, f"l{n}", n) for n in (1, 2, 3)]
    window = Window(0, 10, tuple((f,) for f in files))
    emits = [Emit(window, staged(spool, f"c{n}", 100 * n, 100 * n + 1)) for n in (1, 2, 3)]
    log = tuple((Log(Window(0, 10, ((f,),)), ()),) for f in files)
    lanes = ((emits[0], emits[2]), (emits[1],))
    sizes = {e.chunk.id: facts[1] for e in emits if (facts := spool.chunk_facts(e.chunk.id, e.chunk.stamp or ""))}
    return TableRows(spool, Typed(SCHEMA, before=False), log, lanes, chunk_bytes=sizes), files


def ids(rows: object, kind: str) -> list[int]:
    return [key for batch in getattr(rows, kind)() for key in batch.column("id").to_pylist()]


def test_the_parts_of_the_log_follow_each_other_and_those_of_dumps_are_their_lanes(tmp_path: Path) -> None:
    whole, files = given(tmp_path)
    route = Route.__new__(Route)  # never asked for its names here
    for rows in (whole, pickle.loads(pickle.dumps(whole)), RoutedRows(whole, route, SCHEMA)):
        log, dumped = rows.log_parts(), rows.dump_parts()
        assert [p.weight for p in log] == [f.size for f in files]
        assert rows.weight == sum(p.weight for p in [*log, *dumped])
    assert [ids(p, "changes") for p in whole.log_parts()] == [[1], [2], [3]]
    assert [ids(p, "dump_rows") for p in whole.dump_parts()] == [[100, 101, 300, 301], [200, 201]]
    apart = replace(whole, overlapping=True)
    assert [ids(p, "dump_rows") for p in apart.dump_parts()] == [[100, 101], [300, 301], [200, 201]]
    assert [ids(p, "dump_rows") for p in whole.log_parts()] == [[], [], []]
    assert [ids(p, "changes") for p in whole.dump_parts()] == [[], []]


def test_a_chunk_weighs_what_its_file_does_or_much_if_that_is_not_known(tmp_path: Path) -> None:
    rows, _ = given(tmp_path)
    (file,) = (tmp_path / "chunk").glob("c2.*.arrow")
    assert rows.dump_parts()[1].weight == file.stat().st_size
    assert replace(rows, chunk_bytes={}).dump_parts()[1].weight == CHUNK_WEIGHT
