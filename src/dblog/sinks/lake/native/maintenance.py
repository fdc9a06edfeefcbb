"""Keeps tables fast between batches: checkpoints of logs, expiry, small files, files that nothing refers to.

One thread of the driver does the chores of one table at a time. A table is looked at after every few commits, and once
an hour. The thread rests nine times as long as it has worked.

Who waits: a batch holds the locks of its tables from beginning to end. A chore that commits prepares its commit beside
the batch, waits until the batch has ended, and holds the lock for the commit alone: the next batch may wait for some
milliseconds. Other chores change nothing that a batch reads, and need no lock.

A chore that fails is done again later. It never fails a batch, and no other chore.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from dblog.core.schema import TableName
from dblog.sinks.lake.native.files import Chore, Commit, LakeTable
from dblog.sinks.lake.native.write import small_files

COMMITS = 10
"""After this many commits a table is looked at."""
SECONDS = 3600.0
"""A table is looked at this often at least."""
FIRST = 600.0
"""A pipeline that has run for fewer seconds does no chores that are done once an hour or less often."""
REST = 9.0
"""The rest after a chore, as a multiple of its time: chores take a tenth of the time at most."""
PATIENCE = 5.0
"""How many seconds a chore waits for a batch to end, before it gives up."""
WAIT = 10.0
"""How many seconds `close` waits for a chore to end."""


class Maintenance:
    """Does the chores of a lake's tables in a thread of its own."""

    def __init__(self, find: Callable[[TableName], LakeTable | None], mode: str) -> None:
        """`find` opens a table. The object that it returns is used by no other thread."""
        self._find = find
        self._mode = mode
        self._locks: dict[TableName, threading.Lock] = {}
        self._commits: Counter[TableName] = Counter()
        """Commits since a table was looked at."""
        self._looked: dict[TableName, float] = {}
        self._done: dict[tuple[TableName, str], float] = {}
        """When a chore of a table was done last."""
        self._memory: dict[tuple[TableName, str], Any] = {}
        self._began = time.monotonic()
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._using = threading.Lock()
        self._thread: threading.Thread | None = None
        self._counts: Counter[str] = Counter()
        self._facts: dict[str, Any] = {}
        self._errors: dict[tuple[TableName, str], str] = {}

    # -- for batches -----------------------------------------------------------------------------------------------

    @contextmanager
    def batch(self, tables: Sequence[TableName]) -> Iterator[None]:
        """Keep chores away from the commits of these tables."""
        with self._using:
            locks = [self._locks.setdefault(table, threading.Lock()) for table in tables]
        for lock in locks:
            lock.acquire()
        try:
            yield
        finally:
            for lock in locks:
                lock.release()
        with self._using:
            self._commits.update(tables)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dblog-lake-maintenance", daemon=True)
            self._thread.start()
        self._woken.set()

    def facts(self) -> dict[str, Any]:
        """What was done: `counts` by kind, `last` (the time, seconds since 1970), `seconds` in all, and the `error` of
        a chore that has not succeeded since."""
        with self._using:
            errors = list(self._errors.values())[-1:]
            return {"counts": dict(self._counts), **self._facts, **({"error": errors[0]} if errors else {})}

    def close(self) -> None:
        """End the thread. A chore that has begun is waited for, for some seconds."""
        self._stopping.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(WAIT)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.wait(60.0)
            self._woken.clear()
            while (table := self._due()) is not None:
                took = self.look(table)
                if self._stopping.wait(took * REST):
                    return

    def _due(self) -> TableName | None:
        """The table that has waited longest, of those that are to be looked at."""
        now = time.monotonic()
        with self._using:
            due = [
                table
                for table in self._locks
                if table not in self._looked or self._commits[table] >= COMMITS or now - self._looked[table] >= SECONDS
            ]
            return min(due, key=lambda table: self._looked.get(table, 0.0)) if due else None

    def look(self, table: TableName) -> float:
        """Do the chores of a table that are due. Returns the seconds that it took."""
        begin = time.monotonic()
        with self._using:
            lock = self._locks.setdefault(table, threading.Lock())
            self._commits.pop(table, None)
            self._looked[table] = begin
        with self._failing(table, "open"):
            found = self._find(table)
            # With features that are not known here, files that are in use may look as if nothing used them.
            chores = [] if found is None or found.unsupported is not None else found.chores(self._mode)
            for chore in chores:
                if self._stopping.is_set():
                    break
                if self._is_due(table, chore):
                    with self._failing(table, chore.kind):
                        memory = self._memory.setdefault((table, chore.kind), {})
                        self._count(chore.kind, chore.run(partial(_right, lock), memory))
        took = time.monotonic() - begin
        with self._using:
            self._facts |= {"last": time.time(), "seconds": self._facts.get("seconds", 0.0) + took}
        return took

    def _is_due(self, table: TableName, chore: Chore) -> bool:
        """Whether it is time for a chore. Takes note that it is done."""
        now, key = time.monotonic(), (table, chore.kind)
        if chore.every and now - self._done.get(key, self._began - chore.every + FIRST) < chore.every:
            return False
        self._done[key] = now
        return True

    @contextmanager
    def _failing(self, table: TableName, kind: str) -> Iterator[None]:
        """Keep an error until the same succeeds."""
        try:
            yield
        except Exception as error:
            with self._using:
                self._errors[table, kind] = f"{table}: {error}"
        else:
            with self._using:
                self._errors.pop((table, kind), None)

    def _count(self, kind: str, number: int) -> None:
        with self._using:
            self._counts[kind] += number


@contextmanager
def _right(lock: threading.Lock) -> Iterator[bool]:
    """The right to commit to the table of the lock: see `Commit`."""
    free = lock.acquire(timeout=PATIENCE)
    try:
        yield free
    finally:
        if free:
            lock.release()


def compact(table: LakeTable, commit: Commit) -> int:
    """Write small files of a table to which rows are only appended into one. Returns how many. Where rows are replaced,
    batches do this themselves."""
    small = small_files(table.listed("_lsn"))
    if not small:
        return 0
    files = table.files()
    made = files.write(files.read(file, files.schema.names) for file in small)
    with commit() as free:
        if not free:
            return 0
        table.refresh()
        table.replace(made, small)
    return len(small)
