"""The elector in one process. `tests/ha` has what happens between processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblog.errors import StateError
from dblog.ha.elector import Elector, lease_key
from dblog.ha.lease_file import clock
from dblog.state.sqlite import SQLiteStore
from dblog.state.store import Document, Store, Value

Make = Callable[..., Elector]


class Breakable(SQLiteStore):
    """A store that fails, or hangs, when a test says so."""

    failing = False
    hanging: threading.Event | None = None

    def put(self, key: str, value: Value, *, version: int | None = None) -> int:
        self._suffer()
        return super().put(key, value, version=version)

    def get(self, key: str) -> Document | None:
        self._suffer()
        return super().get(key)

    def _suffer(self) -> None:
        if self.hanging is not None:
            self.hanging.wait(60)
        if self.failing:
            raise StateError("the store is away")


@pytest.fixture
def stores(tmp_path: Path) -> list[Breakable]:
    """Every handle that an elector has opened, the newest last."""
    return []


@pytest.fixture
def make(tmp_path: Path, stores: list[Breakable]) -> Iterator[Make]:
    made: list[Elector] = []

    def opened() -> Store:
        store = Breakable(tmp_path / "state.db")
        store.failing = bool(stores) and stores[-1].failing
        stores.append(store)
        return store

    def start(seconds: float = 20.0) -> Elector:
        made.append(Elector(opened, "a shop/1", seconds=seconds))
        made[-1].start()
        return made[-1]

    yield start
    for elector in made:
        elector.release()


def test_the_lease_is_acquired_held_and_handed_over(make: Make) -> None:
    first = make()
    lease = first.acquire(30)
    assert lease is not None
    assert (lease.holder, lease.epoch) == (first.holder, 1)
    assert clock() < lease.deadline <= clock() + 18
    assert first.wait_until_lost(0.1) is False
    second = make()
    assert second.acquire(0.3) is None
    assert second.record.holder == first.holder
    first.release()
    assert first.lease is None
    assert first.wait_until_lost() is True
    taken = second.acquire(15)
    assert taken is not None
    assert taken.epoch == 2
    first.release()  # once more does nothing
    assert second.lease is not None


def test_a_holder_whose_store_fails_leads_until_its_deadline(make: Make, stores: list[Breakable]) -> None:
    elector = make(seconds=2.0)
    lease = elector.acquire(30)
    assert lease is not None
    for store in stores:
        store.failing = True
    assert elector.wait_until_lost(30) is True
    assert clock() >= lease.deadline
    assert isinstance(elector.error, StateError)
    for store in stores:
        store.failing = False
    again = elector.acquire(30)
    assert again is not None
    assert again.epoch > lease.epoch


def test_a_call_of_the_store_that_hangs_prolongs_nothing(make: Make, stores: list[Breakable]) -> None:
    elector = make(seconds=2.0)
    lease = elector.acquire(30)
    assert lease is not None
    stores[-1].hanging = threading.Event()
    assert elector.wait_until_lost(30) is True
    assert elector.lease is None
    stores[-1].hanging.set()


def test_the_document_outlives_release_and_pipeline(make: Make, tmp_path: Path) -> None:
    elector = make()
    assert elector.acquire(30) is not None
    elector.release()
    store = SQLiteStore(tmp_path / "state.db")
    store.delete("pipelines")
    found = store.get(lease_key("a shop/1"))
    assert found is not None
    assert (found.value["holder"], found.value["epoch"]) == (None, 1)
    store.close()
