"""The spool: first writer wins, lost files are noticed, nothing is left behind."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dblog.capture.spool import Segments, Spool, schema_from_text, schema_to_text
from dblog.core.event import Op, change_schema, truncation
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import SpoolError

T = TableSchema(
    TableName("public", "t"), (Column("id", "bigint", pa.int64()), Column("v", "text", pa.string())), ("id",)
)


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array([f"v{i}" for i in ids])], schema=T.arrow)


def handing(*batches: pa.RecordBatch) -> Callable[[Callable[[pa.RecordBatch], None]], None]:
    """A read of these batches."""

    def read(take: Callable[[pa.RecordBatch], None]) -> None:
        for batch in batches:
            take(batch)

    return read


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool"))


def staged_ids(spool: Spool, chunk_id: str, stamp: str) -> list[int]:
    _, batches = spool.read_chunk(chunk_id, stamp)
    return [i for b in batches for i in b.column("id").to_pylist()]


def test_a_staged_chunk_reads_back_with_its_schema(spool: Spool) -> None:
    staged = spool.stage("c-0", T, handing(rows(1, 2), rows(3)))
    assert (staged.rows, staged.version) == (3, T.version)
    schema, batches = spool.read_chunk("c-0", staged.stamp, ["id"])
    assert schema == T
    assert [b.schema.names for b in batches] == [["id"], ["id"]]
    assert spool.staged("c-0") == staged


def test_the_first_writer_of_a_chunk_wins(spool: Spool) -> None:
    first = spool.stage("c-0", T, handing(rows(1)))
    late = spool.stage("c-0", T, handing(rows(2)))
    assert late.stamp == first.stamp
    assert staged_ids(spool, "c-0", first.stamp) == [1]
    assert len(os.listdir(Path(spool.uri) / "chunk")) == 2, "the loser's file is removed"


def test_a_pinned_chunk_is_not_another_writers_after_it_was_lost(spool: Spool) -> None:
    first = spool.stage("c-0", T, handing(rows(1)))
    spool.remove_chunks({"c-0"})
    assert spool.staged("c-0") is None
    late = spool.stage("c-0", T, handing(rows(2)))
    assert late.stamp != first.stamp
    with pytest.raises(SpoolError, match="missing from the spool") as caught:
        spool.read_chunk("c-0", first.stamp)
    assert "share" in (caught.value.hint or "")


def test_a_truncated_chunk_counts_as_lost(spool: Spool) -> None:
    staged = spool.stage("c-0", T, handing(rows(*range(100))))
    path = Path(spool.chunk_path("c-0", staged.stamp))
    path.write_bytes(path.read_bytes()[:-10])
    assert spool.staged("c-0") is None


def test_an_interrupted_select_publishes_nothing(spool: Spool) -> None:
    def breaks(take: Callable[[pa.RecordBatch], None]) -> None:
        take(rows(1))
        raise RuntimeError("the connection is gone")

    with pytest.raises(RuntimeError):
        spool.stage("c-0", T, breaks)
    assert spool.staged("c-0") is None
    assert os.listdir(Path(spool.uri) / "chunk") == []


def test_log_files_hold_changes_and_count_what_is_incomplete(spool: Spool) -> None:
    writer = spool.log_writer("a-1", T, before=False)
    arrow = change_schema(T.arrow)
    event = {"_op": 1, "_lsn": 5, "_seq": 0, "_txid": 1, "_committed_at": 0, "id": 1, "v": None}
    writer.append(pa.RecordBatch.from_pylist([{**event, "_unchanged": ["v"]}, {**event, "_unchanged": None}], arrow))
    file = writer.close()
    assert (file.rows, file.incomplete, file.table, file.version) == (2, 1, T.table, T.version)
    schema, batches = spool.read_log(file.path, ["_lsn", "id"])
    assert schema == T
    assert next(batches).to_pydict() == {"_lsn": [5, 5], "id": [1, 1]}


def test_an_aborted_log_file_is_removed(spool: Spool) -> None:
    writer = spool.log_writer("a-1", T, before=False)
    writer.abort()
    assert os.listdir(Path(spool.uri) / "log") == []


def test_sweeping_keeps_only_the_chunks_that_are_still_needed(spool: Spool) -> None:
    spool.log_writer("a-1", T, before=False).close()
    kept = spool.stage("c-0", T, handing(rows(1)))
    spool.stage("c-1", T, handing(rows(2)))
    spool.note("c-1", {"rows": 1})
    spool.sweep({"c-0"})
    assert spool.staged("c-0") == kept
    assert spool.staged("c-1") is None
    left = [f for _, _, files in os.walk(spool.uri) for f in files]
    assert sorted(f.split(".")[0] for f in left) == ["c-0", "c-0"]


@pytest.fixture
def planned(spool: Spool) -> Segments:
    """A batch of two segments, noted under the name `one`."""
    files = []
    for n in range(3):
        writer = spool.log_writer(f"a-{n}", T, before=False)
        writer.append(changes(n, Op.truncate if n == 2 else Op.create))
        files.append(writer.close())
    segments = ((files[0], files[1]), (files[2],))
    spool.keep_batch("one", segments)
    return segments


def changes(lsn: int, op: Op) -> pa.RecordBatch:
    schema = change_schema(T.arrow, before=False)
    facts = {"_op": int(op), "_lsn": lsn, "_seq": 0, "id": 1, "v": "x"}
    return pa.RecordBatch.from_pylist([facts], schema=schema)


def test_a_planned_batch_is_found_again_by_its_name_only(spool: Spool, planned: Segments) -> None:
    assert Spool(spool.uri).kept_batch("one") == planned
    assert spool.kept_batch("two") is None
    spool.keep_batch("two", ())
    assert spool.kept_batch("two") == ()
    assert spool.kept_batch("one") is None


def test_sweeping_keeps_the_files_of_the_batch(spool: Spool, planned: Segments) -> None:
    spool.log_writer("b-1", T, before=False).close()
    spool.sweep((), planned)
    assert spool.kept_batch("one") == planned
    assert len(os.listdir(Path(spool.uri) / "log")) == 3
    spool.sweep(())
    assert spool.kept_batch("one") is None


def test_a_planned_batch_that_is_not_whole_is_not_there(spool: Spool, planned: Segments) -> None:
    path, note = Path(planned[1][0].path), Path(spool.uri) / "batch.json"
    whole, text = path.read_bytes(), note.read_text()
    for torn in (whole[:-1], whole + b"x", b"", whole[:-8] + bytes(8)):
        path.write_bytes(torn)
        assert spool.kept_batch("one") is None
    path.write_bytes(whole)
    assert spool.kept_batch("one") == planned
    for torn_note in (text[:-1], "", "[]", "{}", text.replace('"rows"', '"lines"'), text.replace('"a-2', '"a-9')):
        note.write_text(torn_note)
        assert spool.kept_batch("one") is None
    note.write_text(text)
    path.unlink()
    assert spool.kept_batch("one") is None


def test_the_folder_is_private(spool: Spool) -> None:
    spool.stage("c-0", T, handing())
    assert os.stat(spool.uri).st_mode & 0o077 == 0


def test_a_spool_is_pickled_as_its_uri_and_works_on_the_other_side(spool: Spool) -> None:
    staged = spool.stage("c-0", T, handing(rows(7)))
    assert staged_ids(pickle.loads(pickle.dumps(spool)), "c-0", staged.stamp) == [7]


def test_a_file_uri_works_like_a_path(tmp_path: Path) -> None:
    spool = Spool((tmp_path / "s").as_uri())
    first = spool.stage("c-0", T, handing(rows(1)))
    assert spool.stage("c-0", T, handing(rows(2))).stamp == first.stamp


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="as the spool") as caught:
        Spool(str(tmp_path / "file")).stage("c-0", T, handing())
    assert "option spool" in (caught.value.hint or "")


def test_other_threads_find_a_spool_that_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(str(tmp_path / "spool"))
    make = os.makedirs

    def makedirs(*args: object, **options: object) -> None:
        assert spool._fs is None, "it can be used before its folders are there"
        make(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("dblog.capture.storage.os.makedirs", makedirs)
    spool.sweep(())
    assert spool._fs is not None


def test_a_schema_survives_its_text() -> None:
    found = schema_from_text(schema_to_text(T))
    assert (found, found.version) == (T, T.version)


def test_changes_can_be_those_of_a_table_of_another_name(spool: Spool) -> None:
    writer = spool.log_writer("one", replace(T, identity="17"), before=False)
    for lsn in (5, 6):
        writer.append(truncation(T.arrow, lsn, 0, 1, 1))
    file = writer.close()
    other = replace(T, table=TableName("public", "u"))
    labelled = spool.relabelled(file, other.table)
    schema, batches = spool.read_log(labelled.path)
    assert (schema, labelled.table, labelled.version) == (other, other.table, other.version)
    assert [lsn for b in batches for lsn in b.column("_lsn").to_pylist()] == [5, 6]
    assert (labelled.identity, labelled.truncates, labelled.rows) == ("17", ((5, 0), (6, 0)), 2)
    assert spool.read_log(file.path)[0] == T  # the file itself stays
