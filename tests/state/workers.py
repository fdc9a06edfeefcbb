"""What other processes do with a store in the tests. A place opens a store and can be sent to another process."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from dblog.errors import Conflict
from dblog.state import open_store
from dblog.state.sqlite import SQLiteStore
from dblog.state.store import Store

PROCESSES = 3
BATCH = 3
FILLING = "x" * 20_000


class Place(Protocol):
    def open(self) -> Store: ...


@dataclass(frozen=True)
class SQLitePlace:
    path: str

    def open(self) -> SQLiteStore:
        return SQLiteStore(Path(self.path))


@dataclass(frozen=True)
class UrlPlace:
    """A store that machines share."""

    url: str
    patience: float = 20.0

    def open(self) -> Store:
        return open_store(self.url, patience=self.patience)


def opened(place: Place, worker: int) -> Store:
    """The store, when all workers have it."""
    store = place.open()
    store.put(f"ready/{worker}", {})
    while len(store.list("ready")) < PROCESSES:
        time.sleep(0.001)
    return store


def increment(place: Place, worker: int, times: int) -> int:
    """Count up one shared document; how often somebody else came first."""
    store, conflicts = opened(place, worker), 0
    for _ in range(times):
        while True:
            seen = store.get("count")
            try:
                n, version = (seen.value["n"], seen.version) if seen else (0, 0)
                store.put("count", {"n": n + 1}, version=version)
            except Conflict:
                conflicts += 1
                continue
            break
    store.close()
    return conflicts


def add(place: Place, worker: int, times: int) -> list[int]:
    """Add documents, and delete every other one; their numbers."""
    store, numbers = opened(place, worker), []
    for n in range(times):
        number = store.add("requests", {"worker": worker, "n": n})
        if n % 2:
            store.delete(f"requests/{number:010d}")
        numbers.append(number)
    store.close()
    return numbers


def append(place: Place, worker: int, times: int) -> None:
    """Append batches of entries to one shared log."""
    store, numbers = opened(place, worker), itertools.count()
    for n in range(times):
        store.append("log", [{"worker": worker, "n": next(numbers)} for _ in range(n % 3 + 1)], keep=100_000)
    store.close()


def create(place: Place, at: float) -> str:
    """Open a store at an instant that others have agreed on too; its id."""
    while time.time() < at:
        pass
    store = place.open()
    store.add("openings", {})
    named = store.id
    store.close()
    return named


def scribble(place: Place, worker: int, told: Connection) -> None:
    """Write until killed, and tell how often all of it was written."""
    store = place.open()
    for n in itertools.count(1):
        store.put(f"{worker}/first", {"n": n, "filling": FILLING})
        store.put(f"{worker}/second", {"n": n})
        store.append("log", [{"worker": worker, "n": n, "part": part} for part in range(BATCH)], keep=100_000)
        store.add("added", {"worker": worker, "n": n})
        told.send(n)
