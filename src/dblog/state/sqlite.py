"""The state store in one SQLite file, for pipelines and commands on one machine.

Readers never wait. Writers take turns; each write takes well under a millisecond. If a process is killed, the file has
everything that the process has committed, and nothing else. Only the file's owner may read it, because it contains
table names and conditions.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from dblog.errors import StateError
from dblog.state.keys import checked, conflict, split, text
from dblog.state.store import Document, Value

PATIENCE = 10.0
"""How long to wait for another writer, in seconds."""

FORMAT = 1
"""The version of the file's tables. A file with a higher number is refused."""
APPLICATION = 0x44424C47
"""A number in the file's header ("DBLG" in ASCII). A database without it belongs to another program and is refused."""

_TABLES = (
    "CREATE TABLE store (id TEXT NOT NULL)",
    "CREATE TABLE document (parent TEXT, name TEXT, version INTEGER NOT NULL, value TEXT NOT NULL,"
    " PRIMARY KEY (parent, name))",
    "CREATE TABLE entry (log TEXT, number INTEGER, value TEXT NOT NULL, PRIMARY KEY (log, number)) WITHOUT ROWID",
    # The last number given for each key. It stays when documents are deleted, so no number is given twice.
    "CREATE TABLE counter (kind TEXT, key TEXT, last INTEGER NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID",
)

_HINTS = {
    "SQLITE_BUSY": "find out which process holds the file (fuser FILE) and end it, or try again",
    "SQLITE_NOTADB": "name another file: this one is not a state store",
    "SQLITE_CORRUPT": "move the file and its -wal and -shm files away: streams go on, requests and settings are lost",
    "SQLITE_FULL": "free space on its disk",
    "SQLITE_IOERR": "check its disk; the file must be on a local disk, not on a network file system",
    "SQLITE_PROTOCOL": "check its disk; the file must be on a local disk, not on a network file system",
    "SQLITE_READONLY": "make the file and its folder writable for this user, or name another file with DBLOG_STATE",
    "SQLITE_CANTOPEN": "make the file and its folder writable for this user, or name another file with DBLOG_STATE",
}


class SQLiteStore:
    """A `Store` in a SQLite file. The connection is opened when it is first needed. It is opened again after a fork,
    after an error, and when the file was replaced."""

    def __init__(self, path: Path, *, patience: float = PATIENCE) -> None:
        self.path = path.absolute()
        self._patience = patience
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._id = ""
        self._opened = 0
        """How many connections were opened. It is part of `stamp`, because `data_version` counts the writes of other
        connections separately for each connection."""
        self._lock = threading.RLock()
        _STORES.add(self)
        with self._reading():
            pass

    @property
    def id(self) -> str:
        with self._reading():
            return self._id

    def stamp(self) -> str:
        with self._reading() as db:
            return f"{self._id} {self._opened} {db.execute('PRAGMA data_version').fetchone()[0]}"

    def get(self, key: str) -> Document | None:
        with self._reading() as db:
            row = db.execute("SELECT value, version FROM document WHERE parent = ? AND name = ?", split(key)).fetchone()
        return Document(json.loads(row[0]), row[1]) if row else None

    def list(self, prefix: str) -> dict[str, Document]:
        with self._reading() as db:
            found = db.execute(
                "SELECT name, value, version FROM document WHERE parent = ? ORDER BY name", [checked(prefix)]
            ).fetchall()
        return {name: Document(json.loads(value), version) for name, value, version in found}

    def versions(self, prefix: str) -> dict[str, int]:
        with self._reading() as db:
            return dict(db.execute("SELECT name, version FROM document WHERE parent = ?", [checked(prefix)]).fetchall())

    def put(self, key: str, value: Value, *, version: int | None = None) -> int:
        parent, name = split(key)
        content = text(value)
        with self._writing() as db:
            row = db.execute("SELECT version FROM document WHERE parent = ? AND name = ?", (parent, name)).fetchone()
            present: int = row[0] if row else 0
            if version is not None and version != present:
                raise conflict(key, present, version)
            db.execute("INSERT OR REPLACE INTO document VALUES (?, ?, ?, ?)", (parent, name, present + 1, content))
        return present + 1

    def add(self, prefix: str, value: Value) -> int:
        content = text(value)
        split(prefix)
        with self._writing() as db:
            number = _count(db, "add", prefix, 1)
            db.execute("INSERT INTO document VALUES (?, ?, 1, ?)", (prefix, f"{number:010d}", content))
        return number

    def delete(self, key: str) -> None:
        parent, name = split(key)
        below = (key, key + "/", key + "0")  # "0" comes right after "/"
        with self._writing() as db:
            db.execute("DELETE FROM document WHERE parent = ? AND name = ?", (parent, name))
            db.execute("DELETE FROM document WHERE parent = ? OR (parent > ? AND parent < ?)", below)
            db.execute("DELETE FROM entry WHERE log = ? OR (log > ? AND log < ?)", below)

    def append(self, log: str, values: Sequence[Value], *, keep: int) -> None:
        texts = [text(value) for value in values]
        if not texts:
            return
        split(log)
        step = max(1, keep // 10)
        with self._writing() as db:
            last = _count(db, "log", log, len(texts))
            before = last - len(texts)
            db.executemany("INSERT INTO entry VALUES (?, ?, ?)", [(log, before + n, t) for n, t in enumerate(texts, 1)])
            if last // step > before // step:
                db.execute("DELETE FROM entry WHERE log = ? AND number <= ?", (log, last - keep))

    def tail(self, log: str, *, after: int | None = None, limit: int = 1000) -> Sequence[tuple[int, Value]]:
        split(log)
        newest_first = after is None
        order = "DESC" if newest_first else "ASC"
        with self._reading() as db:
            found = db.execute(
                f"SELECT number, value FROM entry WHERE log = ? AND number > ? ORDER BY number {order} LIMIT ?",
                (log, 0 if after is None else after, max(limit, 0)),
            ).fetchall()
        return [(number, json.loads(value)) for number, value in (reversed(found) if newest_first else found)]

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    # -- the connection --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Give the connection to the body. Errors of SQLite become StateError."""
        with self._lock:
            try:
                if self._db is not None and self._file != _identity(self.path):
                    self.close()
                yield self._db or self._open()
            except sqlite3.Error as error:
                self.close()
                raise self._told(error) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Run the body in a transaction that holds the write lock from its start."""
        with self._reading() as db, _transaction(db, "IMMEDIATE"):
            yield db

    def _open(self) -> sqlite3.Connection:
        deadline = time.monotonic() + self._patience
        while True:
            with _OPENING:
                self._create_file()
                db = sqlite3.connect(
                    self.path.as_uri() + "?mode=rw",
                    uri=True,
                    timeout=self._patience,
                    isolation_level=None,
                    check_same_thread=False,
                )
            try:
                self._prepare(db)
                self._id = db.execute("SELECT id FROM store").fetchone()[0]
            except BaseException as error:
                db.close()
                # SQLite's own timeout does not cover the switch to the write-ahead log, so it is retried here.
                if _kind(error) == "SQLITE_BUSY" and time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                raise
            self._db, self._file = db, _identity(self.path)
            self._opened += 1
            return db

    def _create_file(self) -> None:
        """Create the file if it does not exist. SQLite itself would make it readable for everybody."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except OSError as error:
            raise StateError(
                f"the state store {str(self.path)!r} cannot be created: {error.strerror}",
                hint=_HINTS["SQLITE_CANTOPEN"],
            ) from error
        if self.path.is_dir():
            raise StateError(f"the state store {str(self.path)!r} is a folder, not a file", hint="name a file in it")

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Check that the database is a state store of a known format. Create the tables if the file is new."""
        with _transaction(db, "DEFERRED"):
            new = self._is_new(db)
        if new:
            with _transaction(db, "IMMEDIATE"):
                if self._is_new(db):  # still: another process may have created the tables in the meantime
                    for statement in _TABLES:
                        db.execute(statement)
                    db.execute("INSERT INTO store VALUES (?)", [uuid.uuid4().hex])
                    db.execute(f"PRAGMA application_id = {APPLICATION}")
                    db.execute(f"PRAGMA user_version = {FORMAT}")
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StateError(
                f"the state store {str(self.path)!r} cannot be shared between processes", hint=_HINTS["SQLITE_IOERR"]
            )
        db.execute("PRAGMA synchronous = NORMAL")

    def _is_new(self, db: sqlite3.Connection) -> bool:
        application, version, tables = (
            db.execute(sql).fetchone()[0]
            for sql in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if (application, version, tables) == (0, 0, 0):
            return True
        if application != APPLICATION:
            raise StateError(
                f"the state store {str(self.path)!r} is another program's database", hint="name another file"
            )
        if version > FORMAT:
            raise StateError(
                f"the state store {str(self.path)!r} has the format {version}; this dblog reads formats up to {FORMAT}",
                hint="a newer dblog has written it: install the same version here, or name another file",
            )
        return False

    def _told(self, error: sqlite3.Error) -> StateError:
        kind = _kind(error)
        what = f"is locked for more than {self._patience:g} s" if kind == "SQLITE_BUSY" else f"cannot be used: {error}"
        return StateError(f"the state store {str(self.path)!r} {what}", hint=_HINTS.get(kind))


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection, kind: str) -> Iterator[None]:
    db.execute(f"BEGIN {kind}")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _kind(error: BaseException) -> str:
    """SQLite's primary name of an error: SQLITE_BUSY for SQLITE_BUSY_RECOVERY."""
    return "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])


def _count(db: sqlite3.Connection, kind: str, key: str, numbers: int) -> int:
    """Take the next `numbers` numbers of a counter; return the last of them."""
    row = db.execute("SELECT last FROM counter WHERE kind = ? AND key = ?", (kind, key)).fetchone()
    last: int = (row[0] if row else 0) + numbers
    db.execute("INSERT OR REPLACE INTO counter VALUES (?, ?, ?)", (kind, key, last))
    return last


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# On POSIX, closing any descriptor of a file releases all locks of this process on the file. So no thread may connect
# while another one creates the file.
_OPENING = threading.Lock()

# In a forked child SQLite would wrongly believe that it holds its parent's locks. So all connections are closed before
# a fork.
_STORES: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()
_forking: list[SQLiteStore] = []


def _before_fork() -> None:
    for store in list(_STORES):
        store._lock.acquire()
        _forking.append(store)
        store.close()


def _after_fork() -> None:
    while _forking:
        _forking.pop()._lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
