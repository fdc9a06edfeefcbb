"""Files on the spool: after each kind of life, only files that a later batch needs are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog.capture.storage import Storage
from dblog.core.offset import Followed
from dblog.core.schema import TableName
from dblog.state.requests import State
from dblog.work.handover import read_range
from dblog.work.lanes import Work
from dblog.work.tasks import Emit, Select, stage
from tests.engine.conftest import MakeQuery, on_families, on_postgres, wait_for
from tests.engine.control import Control
from tests.engine.ddl import alter
from tests.engine.query import Query
from tests.families import AnyDatabase, OnPostgres

pytestmark = pytest.mark.server


def files_of(stream: Query) -> set[str]:
    """The files on the spool, but `batch.json`."""
    spool = Path(stream.given["spool"])
    return {str(p.relative_to(spool)) for p in spool.rglob("*") if p.is_file()} - {"batch.json"}


def commit_all(stream: Query, database: AnyDatabase) -> None:
    """Go on until each batch that delivered something is committed: Spark commits one when the next is planned."""
    stream.catch_up()
    for _ in range(2):
        done = stream.done
        database.execute(f"create table other{stream.done} (id int)")  # the log goes on
        stream.until(lambda: stream.done > done)  # noqa: B023


def check_needed(stream: Query) -> None:
    """Each file belongs to a chunk of the last offsets, or to a segment of the log that is not released."""
    chunks = {c["id"] for o in stream.offsets[-2:] for c in (*o.get("emit", ()), *o.get("read", ()))}
    capture = stream.engine._capture
    assert capture is not None
    log = {Path(f.path).name for segment in capture._segments for f in segment.files}
    names = {f: Path(f).name for f in files_of(stream)}
    needed = {f for f, name in names.items() if name in log or name.split(".")[0] in chunks}
    assert names.keys() == needed


@on_families
def test_a_chunk_that_a_change_of_its_table_made_useless_is_removed(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute("alter table t add touched int")
    stream = query(tables="t", parallelism=2, heartbeatSeconds=1)
    stream.open_window()
    dropped = {c["id"] for c in stream.committed["read"]}
    alter(table, "add")
    table.execute("update t set n = 1 where id = 5")
    assert stream.plan()
    assert not dropped & {c["id"] for c in stream.offsets[-1].get("emit", ())}, "the chunks were dropped"
    stream.finish()
    assert stream.step()
    stream.step()  # the rest of the dump, if it did not fit into one round
    check_needed(stream)
    commit_all(stream, table)
    assert files_of(stream) == set()


@on_families
def test_the_marker_of_a_chunk_that_could_not_be_read_is_removed(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute("create table u (id int primary key, n int)", "insert into u values (1, 0), (2, 0)")
    stream = query(tables="t, u", key=("_table", "id"), parallelism=2, heartbeatSeconds=1)
    stream.catch_up()
    control = Control(stream)
    bad = control.ask("t", where="(select n from u where u.n <= t.n) = 1")
    assert control.finish(bad).state is State.failed
    commit_all(stream, table)
    assert files_of(stream) == set()


@on_families
def test_files_of_tasks_that_finish_late_are_removed(
    table: AnyDatabase, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dblog.capture.chunk_removal.SWEEP_SECONDS", 0.0)
    stream = query(parallelism=2, heartbeatSeconds=1)
    stream.open_window()
    assert stream.plan()
    lanes = stream.work()
    stream.finish()
    commit_all(stream, table)
    assert files_of(stream) == set()
    source, spool = stream.engine._source, stream.engine._spool
    for work in (w for lane in lanes for w in lane.work):
        if isinstance(work, Select):  # a task that was taken for lost
            stage(source, spool, work.chunk)
        elif isinstance(work, Emit):  # the last thing that a second attempt of a task does
            spool.note(work.chunk.id, {"rows": 1, "dropped": 0})
    for name in ("gone-0.0123456789ab.arrow", "gone-0.json.01234567"):  # tasks that were killed while they wrote
        Path(stream.given["spool"], "chunk", name).write_bytes(b"half")
    assert {Path(f).parent.name for f in files_of(stream)} == {"chunk", "note"}
    commit_all(stream, table)
    assert files_of(stream) == set()


@on_families
def test_work_that_is_handed_over_is_removed_when_its_batch_is_committed(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query(tables="t", deliver="ranges", parallelism=1)
    spool = stream.engine._spool
    handed: list[Work] = []

    def deliver() -> bool:
        if stream.plan():
            for part in stream.reader.partitions(stream.committed, stream.offsets[-1]):
                (row,) = (row for batch in stream.reader.read(part) for row in batch.to_pylist())
                handed.extend(read_range(spool, row["range"]).lane(0))
            assert len([f for f in files_of(stream) if f.startswith("range/")]) <= 1
            stream.done += 1
        return stream.dumped

    wait_for(deliver)
    assert len([w for w in handed if isinstance(w, Select)]) == 6
    stream.reader.commit(stream.committed)
    assert not [f for f in files_of(stream) if f.startswith("range/")]


@on_families
def test_no_batch_waits_for_a_listing_of_the_spool(
    table: AnyDatabase, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be remote storage, where a listing takes long."""
    stream = query(parallelism=2, state="off")
    stream.open_window()
    listed: list[str] = []
    monkeypatch.setattr(Storage, "_list", lambda _, folder: listed.append(folder) or [])
    stream.catch_up()
    assert listed == []


@on_postgres
def test_copies_of_the_log_of_a_renamed_table_are_made_once_and_removed(table: OnPostgres, query: MakeQuery) -> None:
    """Capture has read the log of a table under a name that is not the one under which it is followed by then."""
    stream = query(heartbeatSeconds=1)
    commit_all(stream, table)
    capture, start = stream.engine._capture, stream.committed["pos"]
    assert capture is not None
    table.execute("update t set n = 1 where id in (1, 2)")
    stream.wait_captured()
    ((_, _, identity, _),) = stream.committed["followed"]
    followed = {TableName("public", "other"): Followed(identity)}
    (file,) = (f for s in capture.between(start, capture.position, followed) for f in s.files)
    assert (file.table.name, file.rows, Path(file.path).exists()) == ("other", 2, True)
    written = Path(file.path).stat().st_mtime_ns
    (again,) = (f for s in capture.between(start, capture.position, followed) for f in s.files)
    assert again == file
    assert Path(file.path).stat().st_mtime_ns == written, "a task may be reading it"
    capture.release(capture.position)
    assert files_of(stream) == set()
