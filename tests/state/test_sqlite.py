"""The state store in a SQLite file: what every store does, and what is special about a file."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from dblog.errors import StateError
from dblog.state.sqlite import FORMAT, SQLiteStore
from dblog.state.store import Document
from tests.state import workers
from tests.state.suite import StoreSuite
from tests.state.workers import PROCESSES, Place, SQLitePlace


class TestSQLite(StoreSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return SQLitePlace(str(tmp_path / "a folder" / "state?#%20.db"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@contextlib.contextmanager
def opened(path: Path, patience: float = 10) -> Iterator[SQLiteStore]:
    store = SQLiteStore(path, patience=patience)
    try:
        yield store
    finally:
        store.close()


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with opened(tmp_path / "new" / "folder" / "state.db") as store:
            store.put("a", {})
            modes = [stat.S_IMODE(file.stat().st_mode) for file in store.path.parent.iterdir()]
    finally:
        os.umask(before)
    assert modes == [0o600] * 3  # the database, its log and its index
    assert stat.S_IMODE((tmp_path / "new" / "folder").stat().st_mode) == 0o700


def test_processes_that_create_it_at_once_have_one_store(tmp_path: Path, processes: ProcessPoolExecutor) -> None:
    list(processes.map(time.sleep, [0.2] * PROCESSES))  # all of them have started
    for n in range(10):
        place, at = SQLitePlace(str(tmp_path / str(n) / "state.db")), time.time() + 0.05
        working = [processes.submit(workers.create, place, at) for _ in range(PROCESSES)]
        assert len({each.result(30) for each in working}) == 1
        with opened(Path(place.path)) as store:
            assert len(store.list("openings")) == PROCESSES


def test_threads_that_create_it_at_once_have_one_store(path: Path) -> None:
    barrier = threading.Barrier(8)
    names: list[str] = []

    def create() -> None:
        barrier.wait()
        with opened(path) as store:
            store.add("openings", {})
            names.append(store.id)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 8
    assert len(set(names)) == 1
    with opened(path) as store:
        assert len(store.list("openings")) == 8


# -- what can be wrong with the file -----------------------------------------------------------------------------


def refused(path: Path, patience: float = 10) -> str:
    with pytest.raises(StateError) as caught:
        SQLiteStore(path, patience=patience)
    assert repr(str(path)) in caught.value.message
    assert caught.value.hint
    return str(caught.value)


def test_a_newer_format_is_refused(path: Path) -> None:
    with opened(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    assert f"has the format {FORMAT + 1}" in refused(path)
    assert "newer dblog" in refused(path)


def test_the_database_of_another_program_is_left_alone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE bookmarks (url)")
    before = path.read_bytes()
    assert "another program's" in refused(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    path.write_text("important notes, more than a hundred bytes of them\n" * 3)
    before = path.read_bytes()
    assert "not a state store" in refused(path)
    assert path.read_bytes() == before


def test_a_damaged_file_is_an_error(path: Path) -> None:
    with opened(path) as store:
        for n in range(100):
            store.put(f"a/{n}", {"n": n, "filling": "x" * 1000})
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(StateError, match="malformed") as caught, opened(path) as store:
        store.list("a")
    assert "move the file" in str(caught.value.hint)


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error(path: Path) -> None:
    path.write_text("a file")
    assert "cannot be created" in refused(path / "state.db")


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """As a user to whom permissions apply."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_permissions_are_named() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        folder.chmod(0o755)
        with opened(folder / "state.db") as store:
            store.put("a", {})
        (folder / "state.db").chmod(0o444)
        folder.chmod(0o555)
        with as_nobody():
            assert "make the file and its folder writable" in refused(folder / "state.db")
            assert "Permission denied" in refused(folder / "another.db")
            assert "Permission denied" in refused(folder / "new" / "state.db")
        folder.chmod(0o755)


def test_a_full_disk_is_an_error_and_passes(path: Path) -> None:
    with opened(path) as store:
        store.put("a", {"n": 1})
        with store._reading() as db:
            db.execute("PRAGMA max_page_count = 1")  # as many as there are
        with pytest.raises(StateError, match="full") as caught:
            store.put("a", {"n": 2, "text": "x" * 100_000})
        assert "free space" in str(caught.value.hint)
        assert store.get("a") == Document({"n": 1}, 1)
        assert store.put("a", {"n": 3, "text": "x" * 100_000}) == 2


def test_a_lock_that_is_held_too_long_is_an_error_and_passes(path: Path) -> None:
    with opened(path, patience=0.1) as store, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        store.put("a", {"n": 1})
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError, match=r"locked for more than 0\.1 s") as caught:
            store.put("a", {"n": 2})
        assert "fuser" in str(caught.value.hint)
        assert store.get("a") == Document({"n": 1}, 1)  # readers do not wait
        other.execute("ROLLBACK")
        assert store.put("a", {"n": 3}) == 2


def test_a_new_file_that_is_locked_too_long_is_an_error(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "locked for more than 0.1 s" in refused(path, patience=0.1)


@contextlib.contextmanager
def held(path: Path, seconds: float) -> Iterator[None]:
    """Somebody else writes for some time; what is done meanwhile has to wait."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    released = threading.Timer(seconds, other.close)
    began = time.monotonic()
    released.start()
    yield
    waited = time.monotonic() - began
    released.join()
    assert waited > seconds / 2


def test_a_writer_waits_for_another(path: Path) -> None:
    with opened(path) as store, held(path, 0.2):
        assert store.put("a", {}) == 1


def test_opening_waits_for_a_writer(path: Path) -> None:
    with opened(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")  # as between the two steps of creating it
    with held(path, 0.2), opened(path) as store:
        assert store.put("a", {}) == 1


def test_a_file_that_was_removed_is_a_new_store(path: Path) -> None:
    with opened(path) as store, opened(path) as other:
        store.put("a", {})
        before = store.id
        for file in path.parent.iterdir():
            file.unlink()
        assert other.get("a") is None
        other.put("b", {"n": 1})
        assert store.get("b") == Document({"n": 1}, 1)
        assert store.get("a") is None
        assert store.id == other.id != before


# -- forks -------------------------------------------------------------------------------------------------------


def forked(act: Callable[[], object]) -> int:
    """A child that does one thing and is gone, with a code that says whether it went well."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def test_a_forked_child_has_a_connection_of_its_own(path: Path) -> None:
    store = SQLiteStore(path)
    store.put("a", {"n": 1})
    read, write = os.pipe()
    child = forked(lambda: (os.read(read, 1), store.put("a", {"n": 2})))
    store.put("a", {"n": 1})
    store.close()  # the last one to close takes the log with it: it must see that the child has it too
    with opened(path) as another:
        another.put("b", {})
    os.write(write, b".")
    assert os.waitpid(child, 0)[1] == 0
    with opened(path) as again:
        assert again.get("a") == Document({"n": 2}, 3)
    os.close(read)
    os.close(write)


def test_forks_wait_for_other_threads(path: Path) -> None:
    """A child must neither find a lock that nobody will release nor half a transaction."""
    stop = threading.Event()
    store = SQLiteStore(path)

    def write() -> None:
        while not stop.is_set():
            store.add("added", {})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            child = forked(lambda: store.add("children", {}))
            overdue = threading.Timer(20, os.kill, (child, signal.SIGKILL))
            overdue.start()
            _, code = os.waitpid(child, 0)
            overdue.cancel()
            assert code == 0
    finally:
        stop.set()
        writer.join()
    assert len(store.list("children")) == 10
    given = [int(name) for name in store.list("added")]
    assert given == list(range(1, len(given) + 1))
    store.close()
