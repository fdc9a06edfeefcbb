"""A running stream whose state store is away: it goes on, and writes later what it could not write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest

from dblog.core.offset import Offset
from dblog.planning import state_sync
from dblog.planning.state_sync import StateSync
from dblog.state import open_store
from dblog.state.pipeline import Pipeline
from dblog.state.requests import Request, TableProgress
from tests.conftest import Database
from tests.proxy import Proxy

pytestmark = [pytest.mark.server, pytest.mark.parametrize("postgres", ["pg18"], indirect=True)]


@pytest.fixture
def people(database: Database) -> Iterator[Pipeline]:
    """The pipeline, by another connection."""
    store = open_store(database.url)
    yield Pipeline(store, "shop")
    store.close()


@pytest.fixture
def sync(database: Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateSync]:
    monkeypatch.setattr(state_sync, "AWAY_SECONDS", 0.05)
    monkeypatch.setattr(state_sync, "ADMIT_SECONDS", 0.5)
    opened = partial(open_store, proxy.through(database.url), patience=1.0)
    made = StateSync(opened, "shop", lambda: {"waiting": None}, patience=0.1)
    made.start()
    made.exchange(30.0)
    yield made
    made.close()


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_a_stream_goes_on_while_its_store_is_away(sync: StateSync, people: Pipeline, proxy: Proxy, how: str) -> None:
    first = people.submit(Request("public.t"))
    sync.exchange(30.0)
    assert [d.id for d in sync.inbox().requests] == [first.id]
    if how == "refused":
        proxy.refuse()
        proxy.cut()
    else:
        proxy.pause()
    began = time.monotonic()
    sync.tell("table_left_out", table="public.u", reason="for the test")
    sync.admitted(first.id, {"public.t": TableProgress(total=7)})
    sync.delivered(Offset(1), ())
    time.sleep(1.5)  # many attempts, and more than the stream's patience
    assert [d.id for d in sync.inbox().requests] == [first.id], "planning has failed or waits"
    assert time.monotonic() - began < 20
    second = people.submit(Request("public.u"))
    proxy.cut()
    proxy.resume()
    proxy.accept()
    deadline = time.monotonic() + 30
    while [d.id for d in sync.inbox().requests] != [first.id, second.id]:
        assert time.monotonic() < deadline, "the store is not read again"
        time.sleep(0.02)
    sync.exchange(30.0)
    assert [e["table"] for _, e in people.events() if e["kind"] == "table_left_out"] == ["public.u"]
    assert people.dump(first.id).progress.tables["public.t"].total == 7
    assert people.status()["state"] == "running"
