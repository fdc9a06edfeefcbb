"""Lakes stay fast: maintenance beside batches, on real Delta and Iceberg tables. Tasks run in the test's process."""

from __future__ import annotations

import json
import os
import pickle
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from dblog.core.settings import check_settings
from dblog.sinks.base import Batch, SinkContext
from dblog.sinks.folder import Folder
from dblog.sinks.lake import DeltaSink
from dblog.sinks.lake.marks import BatchMark
from dblog.sinks.lake.native import delta, iceberg_chores, maintenance, write, writer
from dblog.sinks.lake.native.delta import DeltaFolder
from dblog.sinks.lake.native.files import Chore, ListedFile
from dblog.sinks.lake.native.iceberg import IcebergCatalog, IcebergTable
from dblog.sinks.lake.native.iceberg_catalog import OpenCatalog
from dblog.sinks.lake.native.maintenance import Maintenance
from dblog.sinks.lake.native.writer import NativeTables, NativeWriter
from tests.sinks.lakes import NAME, Source, change, read

THREAD = "dblog-lake-maintenance"
OLD = time.time() - 40 * 24 * 3600
State = dict[int, tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: Any, works: Sequence[Any], call: Callable[[Any], Any], *__: Any, **___: Any) -> list[Any]:
        return [pickle.loads(pickle.dumps(call(pickle.loads(pickle.dumps(work))))) for work in works]

    monkeypatch.setattr(writer, "run_in_tasks", run)


class Lake:
    """A lake of one format in a folder."""

    def __init__(self, form: str, folder: Path) -> None:
        self.form = form
        self.root = folder
        self.folder = folder / "public.t" if form == "delta" else folder / "public" / "t"
        self.log = self.folder / ("_delta_log" if form == "delta" else "metadata")
        self.data = self.folder if form == "delta" else self.folder / "data"

    def tables(self) -> NativeTables:
        """The tables, as another process opens them."""
        if self.form == "delta":
            return DeltaFolder(Folder(str(self.root)), "p")
        options = {"type": "sql", "uri": f"sqlite:///{self.root}/catalog.db", "warehouse": str(self.root)}
        return IcebergCatalog(OpenCatalog("lake", options, self.root), None, "p")

    def writer(self, mode: str = "current", *, maintain: bool = True) -> NativeWriter:
        return NativeWriter(cast(Any, None), self.tables(), mode, "evolve", maintain=maintain)

    def rows(self) -> list[dict[str, Any]]:
        if self.form == "delta":
            return DeltaTable(str(self.folder)).to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]
        return self.iceberg().scan().to_arrow().to_pylist()  # type: ignore[no-any-return]

    def iceberg(self) -> Table:
        found = self.tables().find(NAME)
        assert isinstance(found, IcebergTable)
        return found._table

    def state(self) -> State:
        rows = self.rows()
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: (row["n"], row["note"]) for row in rows}

    def mark(self) -> BatchMark | None:
        found = self.tables().find(NAME)
        assert found is not None
        return found.last_mark()

    def file_count(self) -> int:
        found = self.tables().find(NAME)
        assert found is not None
        return len(found.listed("id"))

    def plant(self, name: str, *, old: bool) -> Path:
        """A file that a killed task has left."""
        made = self.data / name
        made.write_bytes(b"half a file")
        if old:
            os.utime(made, (OLD, OLD))
        return made

    def age(self) -> None:
        """Let all files be old."""
        for file in self.folder.rglob("*"):
            if file.is_file():
                os.utime(file, (OLD, OLD))


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture
def delta_lake(tmp_path: Path) -> Lake:
    return Lake("delta", tmp_path)


@pytest.fixture
def iceberg_lake(tmp_path: Path) -> Lake:
    return Lake("iceberg", tmp_path)


@pytest.fixture
def batch() -> Source:
    return Source(cast(Any, None))


def send(to: NativeWriter, given: Batch) -> None:
    with to.batch([table.schema.table for table in given.tables]):
        to.write(given, given.tables)


def upkeep(of: NativeWriter) -> Maintenance:
    assert of._maintenance is not None
    return of._maintenance


def everything_is_due(of: NativeWriter) -> None:
    upkeep(of)._done.clear()
    upkeep(of)._began = time.monotonic() - maintenance.FIRST


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def threads() -> list[str]:
    """The threads of maintenance, without those that other tests have left."""
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD and thread not in _LEFT]


_LEFT: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _left() -> None:
    _LEFT.update(threading.enumerate())


# -- beside batches --------------------------------------------------------------------------------------------------


@pytest.fixture
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_chores, "NEWEST", 3)
    monkeypatch.setattr(iceberg_chores, "MORE", 2)
    monkeypatch.setattr(maintenance, "COMMITS", 2)
    monkeypatch.setattr("dblog.sinks.lake.native.delta_chores.COMMITS", 2)
    monkeypatch.setattr(Maintenance, "_due", lambda *_: None)  # the test's own thread does it


@pytest.mark.usefixtures("_eager")
@pytest.mark.parametrize("mode", ["current", "log"])
def test_no_batch_fails_and_no_row_is_lost_beside_maintenance(lake: Lake, batch: Source, mode: str) -> None:
    chance = random.Random(5)
    model: State = {}
    sent: Counter[int] = Counter()
    mine = lake.writer(mode)
    send(mine, batch(*(read(10, key, 0, "first") for key in range(40))))
    model.update(dict.fromkeys(range(40), (0, "first")))
    ended = threading.Event()
    planted: list[Path] = []

    def maintain() -> None:
        while not ended.is_set():
            planted.append(lake.plant(f"part-{len(planted)}.parquet", old=True))
            for file in lake.log.glob("*.json"):  # old entries of Delta's log, and old metadata of Iceberg
                os.utime(file, (OLD, OLD)) if lake.form == "delta" else None
            everything_is_due(mine)
            upkeep(mine).look(NAME)

    beside = threading.Thread(target=maintain)
    beside.start()
    try:
        for number in range(40):
            events = []
            for key in chance.sample(range(60), 4):
                position = 100 + number * 10 + len(events)
                if key in model and chance.random() < 0.3:
                    events.append(change("delete", position, key))
                    del model[key]
                else:
                    model[key] = (number, f"batch {number}")
                    events.append(change("update", position, key, *model[key]))
            send(mine, batch(*events))
            sent.update([number] * len(events))
        wait_for(lambda: len(planted) > 4)
    finally:
        ended.set()
        beside.join()
        mine.close()
    facts = mine.maintenance_facts()
    assert facts.get("error") is None
    if mode == "current":
        assert lake.state() == model
    else:
        assert len(lake.rows()) == 40 + sent.total()
        assert len({(row["id"], row["_lsn"]) for row in lake.rows()}) == 40 + sent.total()
        assert facts["counts"]["compacted"] > 0
        assert lake.file_count() < 40
    assert facts["counts"]["checkpoints" if lake.form == "delta" else "snapshots"] > 0
    assert facts["counts"]["files"] > 0
    assert facts["seconds"] > 0
    assert [path for path in planted[:-3] if path.exists()] == []
    # the mark is found: the last batch comes again, and does nothing
    rows = lake.rows()
    batch.next -= 1
    send(lake.writer(mode, maintain=False), batch(change("update", 100 + 39 * 10 + 3, 1, 9, "twice")))
    assert lake.rows() == rows
    assert lake.mark() is not None


def test_a_chore_waits_for_the_batch_and_the_batch_for_its_commit(lake: Lake, batch: Source) -> None:
    mine = lake.writer()
    send(mine, batch(change("create", 10, 1, 1, "a")))
    order: list[str] = []
    lock = upkeep(mine)._locks[NAME]

    def chore() -> None:
        with maintenance._right(lock) as free:
            order.append(f"chore {free}")

    with upkeep(mine).batch([NAME]):
        beside = threading.Thread(target=chore)
        beside.start()
        order.append("batch")
    beside.join()
    assert order == ["batch", "chore True"]
    mine.close()


def test_a_chore_that_fails_is_told_and_fails_no_batch_and_no_other_chore(
    delta_lake: Lake, batch: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [True]

    def fail(*_: Any) -> int:
        if full:
            raise OSError("the disk is full")
        return 3

    monkeypatch.setattr(Maintenance, "_due", lambda *_: None)  # the test does it
    monkeypatch.setattr(
        delta.DeltaLakeTable, "chores", lambda *_: [Chore("bad", 0, fail), Chore("good", 0, lambda *_: 1)]
    )
    mine = delta_lake.writer()
    send(mine, batch(change("create", 10, 1, 1, "a")))
    upkeep(mine).look(NAME)
    facts = mine.maintenance_facts()
    assert (facts["error"], facts["counts"]) == ("public.t: the disk is full", {"good": 1})
    full.clear()
    upkeep(mine).look(NAME)
    facts = mine.maintenance_facts()
    assert ("error" in facts, facts["counts"]) == (False, {"bad": 3, "good": 2})
    send(mine, batch(change("create", 20, 2, 2, "b")))
    mine.close()
    assert delta_lake.state() == {1: (1, "a"), 2: (2, "b")}


def test_a_table_with_features_that_are_not_known_is_left_alone(
    lake: Lake, batch: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be named in a way that is not known here: they would be taken for files that nothing uses."""
    mine = lake.writer()
    send(mine, batch(change("create", 10, 1, 1, "a")))
    wait_for(lambda: "last" in mine.maintenance_facts())
    for kind in (delta.DeltaLakeTable, IcebergTable):
        monkeypatch.setattr(kind, "unsupported", "it has deletion vectors")
    old = lake.plant("deletion_vector.parquet", old=True)
    for _ in range(2):
        everything_is_due(mine)
        upkeep(mine).look(NAME)
    mine.close()
    assert old.exists()


# -- when ------------------------------------------------------------------------------------------------------------


def test_after_some_commits_the_thread_does_its_work(delta_lake: Lake, batch: Source) -> None:
    mine = delta_lake.writer()
    send(mine, batch(change("update", 9, 1, 0, "a")))
    wait_for(lambda: "last" in mine.maintenance_facts())  # it looks at a table when it is first written
    for number in range(maintenance.COMMITS):
        send(mine, batch(change("update", 10 + number, 1, number, "a")))
    wait_for(lambda: mine.maintenance_facts()["counts"].get("checkpoints", 0) > 0)
    assert (delta_lake.log / "_last_checkpoint").exists()
    assert threads() == [THREAD]
    mine.close()
    assert threads() == []
    facts = mine.maintenance_facts()
    assert abs(facts["last"] - time.time()) < 60
    assert set(facts["counts"]) == {"checkpoints"}  # a pipeline that has just begun does no more


def test_it_can_be_switched_off(lake: Lake, batch: Source) -> None:
    mine = lake.writer(maintain=False)
    for number in range(maintenance.COMMITS * 2):
        send(mine, batch(change("update", 10 + number, 1, number, "a")))
    assert threads() == []
    assert mine.maintenance_facts() == {}
    assert not (lake.log / "_last_checkpoint").exists()
    mine.close()


@pytest.mark.parametrize("said", ["auto", "off"])
def test_the_setting_decides_and_the_sink_ends_it(said: str, tmp_path: Path, batch: Source) -> None:
    given, problems = check_settings("sink", {"path": "lake", "maintain": said}, DeltaSink.settings)
    assert not problems
    sink = DeltaSink(given, SinkContext("p", tmp_path))
    sink.open(cast(Any, None))
    sink.write(batch(change("create", 10, 1, 1, "a")))
    assert threads() == ([THREAD] if said == "auto" else [])
    assert sink.facts().get("maintenance") == ("nothing to do so far" if said == "auto" else None)
    sink.close()
    assert threads() == []


# -- Delta -----------------------------------------------------------------------------------------------------------


def test_without_maintenance_in_time_a_batch_makes_the_checkpoint(
    delta_lake: Lake, batch: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "LATE", 6)
    monkeypatch.setattr(Maintenance, "look", lambda *_: 0.0)
    monkeypatch.setattr(Maintenance, "_due", lambda *_: None)
    mine = delta_lake.writer()
    for number in range(7):
        send(mine, batch(change("update", 10 + number, 1, number, "a")))
    mine.close()
    assert json.loads((delta_lake.log / "_last_checkpoint").read_text())["version"] == 6


def test_vacuum_leaves_what_is_young_and_every_version_that_is_kept(delta_lake: Lake, batch: Source) -> None:
    mine = delta_lake.writer()
    states = []
    for number in range(5):
        send(
            mine,
            batch(change("update", 10 + number, 1, number, "a"), change("create", 20 + number, 2 + number, 0, "b")),
        )
        states.append(delta_lake.state())
    old, young = delta_lake.plant("part-a.parquet", old=True), delta_lake.plant("part-b.parquet", old=False)
    everything_is_due(mine)
    upkeep(mine).look(NAME)
    mine.close()
    assert mine.maintenance_facts()["counts"]["files"] == 1
    assert (old.exists(), young.exists()) == (False, True)
    table = DeltaTable(str(delta_lake.folder))
    for version, state in enumerate(states, 1):
        table.load_as_version(version)
        assert {r["id"]: (r["n"], r["note"]) for r in table.to_pyarrow_table().to_pylist()} == state


def test_a_short_retention_does_not_remove_files_that_are_being_written(delta_lake: Lake, batch: Source) -> None:
    mine = delta_lake.writer()
    send(mine, batch(change("create", 10, 1, 1, "a")))
    DeltaTable(str(delta_lake.folder)).alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    )
    young = delta_lake.plant("part-b.parquet", old=False)
    everything_is_due(mine)
    upkeep(mine).look(NAME)
    mine.close()
    assert young.exists()
    assert "error" not in mine.maintenance_facts()


def test_expired_log_entries_go_and_the_mark_stays(delta_lake: Lake, batch: Source) -> None:
    mine = delta_lake.writer()
    for number in range(30):
        send(mine, batch(change("update", 10 + number, 1, number, "a")))
    wait_for(lambda: mine.maintenance_facts()["counts"].get("checkpoints", 0) > 0)
    DeltaTable(str(delta_lake.folder)).create_checkpoint()
    delta_lake.age()
    before = len(list(delta_lake.log.glob("*.json")))
    everything_is_due(mine)
    upkeep(mine).look(NAME)
    mine.close()
    left = len(list(delta_lake.log.glob("*.json")))
    assert left <= 2 < before
    assert mine.maintenance_facts()["counts"]["log_files"] >= before - left
    assert delta_lake.state() == {1: (29, "a")}
    assert delta_lake.mark() == BatchMark(29, 40)
    # Spark's writer looks for it here
    assert "userMetadata" in DeltaTable(str(delta_lake.folder)).history(5)[0]


def test_log_entries_that_a_batch_has_read_stay_until_it_has_ended(
    delta_lake: Lake, batch: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Maintenance, "_due", lambda *_: None)  # the test does it
    monkeypatch.setattr(maintenance, "PATIENCE", 0.01)
    mine = delta_lake.writer()
    for number in range(maintenance.COMMITS):
        send(mine, batch(change("update", 10 + number, 1, number, "a")))
    delta_lake.age()
    listed = delta.DeltaLakeTable.listed

    def within_the_batch(self: delta.DeltaLakeTable, key: str) -> list[ListedFile]:
        for _ in range(2):  # the first makes a checkpoint
            everything_is_due(mine)
            upkeep(mine).look(NAME)
        return listed(self, key)

    monkeypatch.setattr(delta.DeltaLakeTable, "listed", within_the_batch)
    send(mine, batch(change("update", 90, 1, 9, "b")))
    facts = mine.maintenance_facts()
    assert (facts["counts"]["checkpoints"], facts["counts"]["log_files"]) == (1, 0)
    monkeypatch.setattr(delta.DeltaLakeTable, "listed", listed)
    everything_is_due(mine)
    upkeep(mine).look(NAME)
    assert mine.maintenance_facts()["counts"]["log_files"] > 5
    send(mine, batch(change("update", 91, 1, 10, "c")))
    mine.close()
    assert delta_lake.state() == {1: (10, "c")}


def test_compaction_of_a_log_is_no_change_for_those_who_follow_the_table(delta_lake: Lake, batch: Source) -> None:
    mine = delta_lake.writer("log", maintain=False)
    for number in range(write.SMALL_FILES):
        send(mine, batch(change("create", 10 + number, number, number, "a")))
    table = delta_lake.tables().find(NAME)
    assert table is not None
    assert maintenance.compact(table, Free) == write.SMALL_FILES
    last = sorted(delta_lake.log.glob("*.json"))[-1]
    actions = [json.loads(line) for line in last.read_text().splitlines()]
    moved = [found["dataChange"] for a in actions for kind, found in a.items() if kind in ("add", "remove")]
    assert moved == [False] * (write.SMALL_FILES + 1)
    assert delta_lake.file_count() == 1
    assert len(delta_lake.rows()) == write.SMALL_FILES
    assert delta_lake.mark() == BatchMark(7, 18)


class Free:
    """No batch has the table."""

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None: ...


# -- Iceberg ---------------------------------------------------------------------------------------------------------


def test_compaction_of_a_log_is_a_replacement_in_iceberg(iceberg_lake: Lake, batch: Source) -> None:
    mine = iceberg_lake.writer("log", maintain=False)
    for number in range(write.SMALL_FILES):
        send(mine, batch(change("create", 10 + number, number, number, "a")))
    table = iceberg_lake.tables().find(NAME)
    assert table is not None
    assert maintenance.compact(table, Free) == write.SMALL_FILES
    current = iceberg_lake.iceberg().current_snapshot()
    assert current is not None
    assert current.summary is not None
    assert current.summary.operation == Operation.REPLACE
    assert current.summary.get("total-records") == str(write.SMALL_FILES)
    assert iceberg_lake.file_count() == 1
    assert len(iceberg_lake.rows()) == write.SMALL_FILES
    assert iceberg_lake.mark() == BatchMark(7, 18)


def test_files_of_expired_snapshots_go_the_second_time_and_others_stay(
    iceberg_lake: Lake, batch: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_chores, "NEWEST", 4)
    monkeypatch.setattr(iceberg_chores, "MORE", 2)
    mine = iceberg_lake.writer()
    states: dict[int, State] = {}
    for number in range(12):
        send(
            mine,
            batch(change("update", 10 + number, 1, number, "a"), change("create", 50 + number, 9 + number, 0, "b")),
        )
        states[iceberg_lake.iceberg().metadata.current_snapshot_id or 0] = iceberg_lake.state()
    wait_for(lambda: "last" in mine.maintenance_facts())
    young = iceberg_lake.plant("young.parquet", old=False)
    everything_is_due(mine)
    iceberg_lake.age()
    os.utime(young)
    files = [f for f in iceberg_lake.folder.rglob("*") if f.is_file()]
    upkeep(mine).look(NAME)
    assert [f for f in files if not f.exists()] == []
    everything_is_due(mine)
    upkeep(mine).look(NAME)
    mine.close()
    assert "error" not in mine.maintenance_facts()
    assert len([f for f in files if not f.exists()]) == mine.maintenance_facts()["counts"]["files"] > 8
    assert young.exists()
    table = iceberg_lake.iceberg()
    assert 4 <= len(table.metadata.snapshots) <= 6
    for snapshot in table.metadata.snapshots:
        found = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
        assert {row["id"]: (row["n"], row["note"]) for row in found} == states[snapshot.snapshot_id]
    assert iceberg_lake.mark() == BatchMark(11, 62)


def test_of_older_snapshots_the_last_of_each_hour_stays(iceberg_lake: Lake, batch: Source) -> None:
    send(iceberg_lake.writer(maintain=False), batch(change("create", 10, 1, 1, "a")))
    hour, now = iceberg_chores.HOUR, 1000 * iceberg_chores.HOUR
    made = [(n, now - (300 - n) * hour // 2) for n in range(1, 301)]  # two an hour, for 150 hours

    def snapshot(number: int, when: int) -> Snapshot:
        said = {"dblog-pipeline": "p"} if number == 3 else {}
        summary = Summary(Operation.APPEND, **said)
        return Snapshot(
            snapshot_id=number, sequence_number=number, timestamp_ms=when, manifest_list="", summary=summary
        )

    metadata = iceberg_lake.iceberg().metadata.model_copy(
        update={"snapshots": [snapshot(*one) for one in made], "refs": {}}
    )
    stay = iceberg_chores.kept(metadata, now, lambda summary: summary.get("dblog-pipeline") == "p")
    newest = set(range(301 - iceberg_chores.NEWEST, 301))
    hourly = {number for number, when in made if number % 2 and now - when <= iceberg_chores.DAYS * 24 * hour}
    assert stay == newest | hourly | {3}


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_long_dump_leaves_few_files(lake: Lake, batch: Source) -> None:
    mine = lake.writer(maintain=False)
    for number in range(writer.DUMPED_FILES):
        two = batch(read(10 + number, 2 * number, 0, "a"))
        other = batch(read(10 + number, 2 * number + 1, 0, "a"))
        rows = (*two.tables[0].arrow.dump_rows(), *other.tables[0].arrow.dump_rows())  # type: ignore[union-attr]
        object.__setattr__(two.tables[0].arrow, "_rows", rows)
        send(mine, two)
    assert lake.file_count() < writer.DUMPED_FILES + 4
    assert len(lake.state()) == 2 * writer.DUMPED_FILES


def test_a_batch_writes_a_bounded_part_of_small_files_together() -> None:
    size = write.SMALL_BYTES
    files = [ListedFile(str(n), size, (n, n), None) for n in reversed(range(100))]
    found = write.small_files(files)
    assert [f.name for f in found] == [str(n) for n in range(write.TOGETHER_BYTES // size)]
    assert write.small_files(files[: write.SMALL_FILES - 1]) == []
    assert write.small_files([ListedFile("large", size + 1, None, None)] * 20) == []


def test_files_that_are_written_again_together_are_neighbours() -> None:
    """A batch of scattered changes must not leave files that each have keys of the whole table."""
    size = writer.REWRITE_BYTES // 4
    files = [ListedFile(str(n), size, (n, n + 1), None) for n in range(16)]
    random.Random(1).shuffle(files)
    groups = [sorted(int(f.name) for f in group) for group in writer._groups(files)]
    assert groups == [list(range(n, n + 4)) for n in range(0, 16, 4)]
    unknown = [ListedFile(str(n), size, None, None) for n in range(8)]
    assert [len(group) for group in writer._groups(unknown)] == [4, 4]
