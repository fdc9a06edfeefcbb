"""Others work on the lake while the native writer writes to it: their commits and ours are all there in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyiceberg.exceptions import CommitFailedException

from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import SinkUnreachable
from dblog.sinks.base import Batch, Sink
from dblog.sinks.lake.native import writer
from dblog.sinks.lake.native.delta import DeltaLakeTable
from tests.lakes.native_lakes import LAKES, in_this_process, opened
from tests.sinks.lakes import ID, NAME, NOTE, Lake, NativeDelta, NativeIceberg, Source, T, change, read

BATCHES = 12
PAUSE = 0.3
"""Seconds between two commits of the other writer. Without a pause a batch would be tried again for ever."""
RETRIES = CommitProperties(max_commit_retries=50)
FIRST_THEIRS = 1000
"""Keys from here on are of the other writer."""


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


def written(sink: Sink, batch: Batch) -> int:
    """Write a batch as a pipeline does: again while the sink cannot be reached. Returns how often that was so."""
    for tried in range(100):
        try:
            sink.write(batch)
            return tried
        except SinkUnreachable:
            time.sleep(0.01 * tried)
    raise AssertionError("the batch is never written")


def theirs(lake: Lake, number: int) -> pa.Table:
    """A row of the other writer."""
    key = FIRST_THEIRS + number
    columns = {"id": [key], "n": [number], "note": ["theirs"], "_lsn": [1], "_seq": [0]}
    found: Any = lake.opened()  # type: ignore[attr-defined]
    kinds = pa.schema(found.schema().to_arrow() if isinstance(lake, NativeDelta) else found.schema().as_arrow())
    return pa.table({name: pa.array(values, kinds.field(name).type) for name, values in columns.items()}, schema=kinds)


def append(lake: Lake, number: int) -> None:
    found: Any = lake.opened()  # type: ignore[attr-defined]
    if isinstance(lake, NativeDelta):
        write_deltalake(
            found, theirs(lake, number), mode="append", commit_properties=CommitProperties(max_commit_retries=50)
        )
    else:
        found.append(theirs(lake, number))


def maintain(lake: Lake) -> None:
    """Compact and vacuum a Delta table; expire snapshots of an Iceberg table, for which pyiceberg has no compaction."""
    found: Any = lake.opened()  # type: ignore[attr-defined]
    if isinstance(lake, NativeDelta):
        found.optimize.compact()
        found.vacuum(dry_run=False)
        found.create_checkpoint()
    else:
        old = [s.snapshot_id for s in found.snapshots()[:-3]]
        found.maintenance.expire_snapshots().by_ids(old).commit()


@contextmanager
def neighbour(*works: Callable[[int], None]) -> Iterator[list[int]]:
    """Does works in a thread, one after the other and again, until the block has ended. Those that lose against another
    commit are left out."""
    stop, done = threading.Event(), [0] * len(works)

    def run() -> None:
        for number in range(10_000):
            if stop.is_set():
                return
            for index, work in enumerate(works):
                try:
                    work(number)
                except (CommitFailedError, CommitFailedException):
                    continue
                done[index] += 1
                stop.wait(PAUSE)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield done
        finally:
            stop.set()
        running.result()


@pytest.mark.parametrize("mode", ["current", "log"])
@pytest.mark.parametrize("kind", list(LAKES))
def test_nothing_is_lost_beside_another_writer(kind: str, mode: str, tmp_path: Path) -> None:
    lake, source = LAKES[kind](tmp_path, None), Source(None)  # type: ignore[arg-type]
    sink = opened(lake, mode=mode)
    sink.write(source(*(read(10, key, 0, "ours") for key in range(10))))
    appended: list[int] = []

    def another(number: int) -> None:
        append(lake, number)
        appended.append(FIRST_THEIRS + number)

    if mode == "log":
        works: tuple[Callable[[int], None], ...] = (lambda _: maintain(lake),)
    else:
        works = (another, lambda _: maintain(lake))
    with neighbour(*works) as done:
        for number in range(BATCHES):
            lsn = 20 + 10 * number
            given = source(
                change("update", lsn, number % 10, number, "changed"), change("create", lsn + 1, 100 + number, 0, "new")
            )
            written(sink, given)
            if number % 3 == 0:
                written(opened(lake, mode=mode), given)
        deadline = time.monotonic() + 60
        while 0 in done:
            assert time.monotonic() < deadline, done
            time.sleep(0.01)
    found = lake.all()
    if mode == "log":
        assert len(found) == 10 + 2 * BATCHES
        return
    ours = {row["id"]: row["n"] for row in found if row["id"] < FIRST_THEIRS}
    last = {key: max(n for n in range(BATCHES) if n % 10 == key) for key in range(10)}
    assert ours == {**last, **{100 + n: 0 for n in range(BATCHES)}}
    assert sorted(row["id"] for row in found if row["id"] >= FIRST_THEIRS) == appended


@pytest.mark.parametrize("work", ["append", "maintain"])
@pytest.mark.parametrize("kind", list(LAKES))
def test_a_commit_between_the_files_and_ours_is_not_undone(
    kind: str, work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, source = LAKES[kind](tmp_path, None), Source(None)  # type: ignore[arg-type]
    sink = opened(lake)
    for number in range(4):
        sink.write(source(read(10 + number, number, 0, "ours")))
    append(lake, 0)  # so that there are files to be compacted
    real = writer.run_in_tasks

    def interrupted(*given: Any) -> Any:
        done = real(*given)
        monkeypatch.setattr(writer, "run_in_tasks", real)
        append(lake, 1) if work == "append" else maintain(lake)
        return done

    monkeypatch.setattr(writer, "run_in_tasks", interrupted)
    second = source(change("update", 20, 1, 1, "changed"), change("delete", 21, 2))
    again = written(sink, second)
    assert again == (0 if (kind, work) == ("iceberg", "maintain") else 1), "to expire snapshots changes no row"
    wanted = {0: "ours", 1: "changed", 3: "ours", FIRST_THEIRS: "theirs"}
    if work == "append":
        wanted[FIRST_THEIRS + 1] = "theirs"
    assert {row["id"]: row["note"] for row in lake.all()} == wanted


@pytest.mark.parametrize("mode", ["current", "history", "log"])
@pytest.mark.parametrize("kind", list(LAKES))
def test_a_batch_that_two_processes_write_at_once_is_there_once(
    kind: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a process that was taken for dead still writes."""
    lake, source = LAKES[kind](tmp_path, None), Source(None)  # type: ignore[arg-type]
    sink = opened(lake, mode=mode)
    sink.write(source(read(10, 1, 0, "ours")))
    second = source(change("create", 20, 2, 1, "new"))
    real = writer.run_in_tasks

    def interrupted(*given: Any) -> Any:
        done = real(*given)
        monkeypatch.setattr(writer, "run_in_tasks", real)
        opened(lake, mode=mode).write(second)
        return done

    monkeypatch.setattr(writer, "run_in_tasks", interrupted)
    assert written(sink, second) == 1
    assert sorted(row["id"] for row in lake.all()) == [1, 2]


@pytest.mark.parametrize("mode", ["current", "log"])
@pytest.mark.parametrize("kind", list(LAKES))
def test_a_batch_that_another_process_has_written_in_between_is_known(kind: str, mode: str, tmp_path: Path) -> None:
    """As when a process that was taken for dead goes on: it has written the batches before itself."""
    lake, source = LAKES[kind](tmp_path, None), Source(None)  # type: ignore[arg-type]
    first, second = opened(lake, mode=mode), opened(lake, mode=mode)
    batches = [source(change("create", 10 + number, number, 0, "a")) for number in range(5)]
    first.write(batches[0])
    first.write(batches[1])
    for batch in batches[:4]:
        second.write(batch)
    for batch in batches[2:]:
        first.write(batch)
    assert sorted(row["id"] for row in lake.all()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", list(LAKES))
def test_two_pipelines_write_to_tables_of_one_lake(kind: str, tmp_path: Path) -> None:
    lake = LAKES[kind](tmp_path, None)

    def run(pipeline: str) -> int:
        """A pipeline with a table of its own, and marks of its own."""
        schema = TableSchema(TableName("public", pipeline), T.columns, ("id",))
        source = Source(None)  # type: ignore[arg-type]
        tried = 0
        for number in range(BATCHES):
            sink = lake.make(lake.folder)
            sink.context = type(sink.context)(pipeline, lake.folder)
            sink.open(None)  # type: ignore[arg-type]
            given = source(change("create", 10 + number, number, 0, pipeline), schema=schema)
            tried += written(sink, given) + written(sink, given)
        return tried

    with ThreadPoolExecutor(2) as pool:
        assert [made.result() for made in [pool.submit(run, name) for name in ("one", "two")]] == [0, 0]
    for name in ("one", "two"):
        found = lake.all(TableName("public", name))
        assert sorted((row["id"], row["note"]) for row in found) == [(n, name) for n in range(BATCHES)]
    assert lake.all(NAME) == []
    assert isinstance(lake, (NativeDelta, NativeIceberg))


@pytest.mark.parametrize("work", ["append", "maintain"])
def test_a_commit_while_a_delta_table_gets_a_wider_type_is_not_undone(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, source = NativeDelta(tmp_path, None), Source(None)  # type: ignore[arg-type]
    sink = opened(lake)
    for number in range(3):
        sink.write(source(read(10 + number, number, 0, "ours")))
    real = DeltaLakeTable.listed

    def interrupted(*given: Any) -> Any:
        monkeypatch.setattr(DeltaLakeTable, "listed", real)
        found = real(*given)
        append(lake, 1) if work == "append" else maintain(lake)
        return found

    monkeypatch.setattr(DeltaLakeTable, "listed", interrupted)
    wide = TableSchema(NAME, (ID, Column("n", "bigint", pa.int64()), NOTE), ("id",))
    assert written(sink, source(change("update", 20, 1, 5_000_000_000, "wide"), schema=wide)) == 1
    wanted = {0: "ours", 1: "wide", 2: "ours", **({FIRST_THEIRS + 1: "theirs"} if work == "append" else {})}
    assert {row["id"]: row["note"] for row in lake.all()} == wanted
    assert len(lake.all()) == len(wanted)
