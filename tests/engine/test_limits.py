"""Very large transactions, and disks that are full."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dblog.capture import capture
from dblog.errors import SpoolError
from tests.engine.conftest import MakeQuery, check, on_families, rows_of
from tests.engine.query import Query
from tests.families import AnyDatabase

pytestmark = [pytest.mark.server, on_families]

MILLION = 1_000_000


class Memory:
    """The greatest resident size of this process while the block runs, above what it was before."""

    def __enter__(self) -> Memory:
        process = psutil.Process()
        self.before = self.peak = process.memory_info().rss
        self._stop = threading.Event()

        def watch() -> None:
            while not self._stop.wait(0.02):
                self.peak = max(self.peak, process.memory_info().rss)

        self._thread = threading.Thread(target=watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self.peak - self.before


def count_batch(stream: Query) -> int:
    """Run the planned batch and count its rows without keeping them."""
    rows = sum(batch.num_rows for lane in stream.work() for batch in stream.reader.read(lane))
    stream.done += 1
    return rows


@pytest.mark.slow
def test_a_transaction_of_a_million_rows_costs_disk_and_not_memory(database: AnyDatabase, query: MakeQuery) -> None:
    database.execute("create table t (id int primary key, n int, note text)")
    stream = query(dump="never")
    stream.step()
    database.execute("insert into t values (0, 0, 'a small one')", "update t set n = 1")  # everything is loaded by now
    stream.until(lambda: bool(stream.history.events))
    database.execute(
        f"insert into t select i, 0, concat('a note of about a hundred bytes ', repeat('x', 70)) "
        f"from {database.series(1, MILLION)}"
    )
    rows = 0
    with Memory() as memory:
        deadline = time.monotonic() + 120
        while rows < MILLION:
            assert time.monotonic() < deadline
            if stream.plan():
                rows += count_batch(stream)
    assert rows == MILLION, "a transaction is delivered whole"
    assert memory.growth < 300 << 20


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=False).returncode
    ):
        pytest.skip("no right to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("what", ["log", "chunk"])
def test_a_full_disk_ends_the_stream_with_the_reason_and_it_goes_on_when_there_is_room(
    database: AnyDatabase, query: MakeQuery, tiny: Path, what: str
) -> None:
    database.execute("create table t (id int primary key, n int, note text)")
    large = f"insert into t select i, 0, repeat({database.noise('i')}, 100) from {database.series(1, 2000)}"
    stream = query(spool=str(tiny / "spool"), chunkRows=10_000)
    if what == "log":
        stream.catch_up()
    database.execute(large)
    with pytest.raises(SpoolError, match="is full") as caught:
        stream.catch_up()
    assert "free disk space" in str(caught.value)
    stream.stop()
    subprocess.run(["mount", "-o", "remount,size=64m", tiny], check=True)
    stream.restart()
    stream.catch_up()
    stream.history.check_state(rows_of(database))


def test_a_spool_that_cannot_be_written_is_named(database: AnyDatabase, query: MakeQuery, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match=r"cannot use .* as the spool"):
        query(spool=str(tmp_path / "file" / "spool")).catch_up()


def test_a_stream_that_is_late_takes_much_at_once(
    database: AnyDatabase, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LATE_ROWS": 100_000, "LATE_WAIT": 30.0, "RUSH_BYTES": -1}.items():
        monkeypatch.setattr(capture, name, value)
    database.execute("create table t (id int primary key, n int, note text)")
    stream = query(dump="never")
    stream.step()
    stream.stop()
    for first in range(0, 150_000, 10_000):
        database.execute(
            f"insert into t select i, 0, repeat('x', 70) from {database.series(first + 1, first + 10_000)}"
        )
    time.sleep(capture.LATE_SECONDS + 0.2)
    while not stream.plan():
        pass
    assert count_batch(stream) >= 100_000


def test_a_transaction_larger_than_the_read_ahead_does_not_stop_the_stream(
    table: AnyDatabase, query: MakeQuery
) -> None:
    """Spark commits a batch only when it has planned the next: what was delivered last is still on the spool."""
    stream = query(readAheadBytes=100)
    stream.catch_up()
    for n in (1, 2):
        table.execute(f"update t set n = {n}")
        stream.until(lambda: stream.history.count("update") == 60 * n, seconds=10)  # noqa: B023
    check(stream, table)
