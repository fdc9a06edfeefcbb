"""The exchange of a stream with its store after very many requests: it reads what is new and forgets what has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog.core.offset import Offset, Taken
from dblog.planning.state_sync import StateSync
from dblog.state import open_store, pipeline
from dblog.state.pipeline import Pipeline
from dblog.state.requests import Progress, Request, State, Wish
from dblog.state.sqlite import SQLiteStore

DONE = Progress(State.completed, finished_at=time.time())


class Counting(SQLiteStore):
    """Counts the documents that are read."""

    documents = 0

    def get(self, key: str) -> Any:
        type(self).documents += 1
        return super().get(key)

    def list(self, prefix: str) -> Any:
        found = super().list(prefix)
        type(self).documents += len(found)
        return found


@pytest.fixture
def people(tmp_path: Path) -> Pipeline:
    """The pipeline, seen through a second handle of the store."""
    return Pipeline(open_store(str(tmp_path / "state.db")), "shop")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], StateSync]]:
    made: list[StateSync] = []

    def run() -> StateSync:
        made.append(StateSync(lambda: Counting(tmp_path / "state.db"), "shop", lambda: {"waiting": None}))
        made[-1].start()
        made[-1].exchange(10.0)
        return made[-1]

    yield run
    for sync in made:
        sync.close()


def end_one(sync: StateSync, people: Pipeline) -> str:
    """Request a dump that is taken and over with the next batch."""
    dump = people.submit(Request("public.t"))
    sync.exchange(10.0)
    assert [d.id for d in sync.inbox().requests] == [dump.id]
    number = pipeline.request_number(dump.id)
    sync.delivered(Offset(number, taken=Taken(people.store.id, number)), ())
    sync.exchange(10.0)
    return dump.id


def test_requests_that_have_ended_are_not_read_again(people: Pipeline, start: Callable[[], StateSync]) -> None:
    for _ in range(300):
        people.mirror(people.submit(Request("public.t")).id, DONE)
    waits = people.submit(Request("public.t"))
    sync = start()
    assert [d.id for d in sync.inbox().requests] == [waits.id]
    Counting.documents = 0
    other = Pipeline(people.store, "other")
    for n in range(10):  # another stream of the same store
        other.say({"state": "running", "n": n})
        sync.exchange(10.0)
    assert Counting.documents <= 10 * 2, "the settings, and what the status needs"
    people.wish(waits.id, Wish.pause)
    late = people.submit(Request("public.u"))
    sync.exchange(10.0)
    assert [d.id for d in sync.inbox().requests] == [waits.id, late.id]
    assert sync.inbox().held == {waits.id}
    assert Counting.documents <= 40


def test_what_has_ended_is_forgotten_while_the_stream_runs(
    people: Pipeline, start: Callable[[], StateSync], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "KEEP_ENDED", 5)
    sync = start()
    ids = [end_one(sync, people) for _ in range(20)]
    found = {d.id: d.state for d in people.dumps()}
    assert list(found) == ids[-len(found) :]
    assert 5 <= len(found) <= 7
    assert set(found.values()) == {State.completed}
    assert set(people.store.list("pipelines/shop/progress")) == found.keys()
    assert len(sync._progress) <= 2, "the stream itself needs only what runs"


def test_a_request_that_is_gone_gets_no_progress(people: Pipeline, start: Callable[[], StateSync]) -> None:
    sync = start()
    dump = people.submit(Request("public.t"))
    sync.exchange(10.0)
    people.forget()
    sync.exchange(10.0)
    assert sync.inbox().requests == ()
    for n in (1, 2):
        sync.delivered(Offset(n, taken=Taken(people.store.id, n)), ())
        sync.exchange(10.0)
    assert set(people.store.list("pipelines/shop/progress")) == set()
    assert [e["kind"] for _, e in people.events() if e.get("dump") == dump.id] == []


def test_a_store_that_is_replaced_by_another_is_read_anew(
    people: Pipeline, start: Callable[[], StateSync], tmp_path: Path
) -> None:
    sync = start()
    end_one(sync, people)
    first = people.submit(Request("public.t"))
    sync.exchange(10.0)
    other = Pipeline(open_store(str(tmp_path / "other.db")), "shop")
    ids = [other.submit(Request("public.u")).id for _ in range(2)]
    other.store.close()  # with it, everything is in the file
    people.store.close()
    for part in ("", "-wal", "-shm"):  # they belong together
        (tmp_path / f"state.db{part}").rename(tmp_path / f"away.db{part}")
    (tmp_path / "other.db").replace(tmp_path / "state.db")
    sync.exchange(10.0)
    assert first.id not in ids
    assert [d.id for d in sync.inbox().requests] == ids
