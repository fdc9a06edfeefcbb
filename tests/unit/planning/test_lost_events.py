"""A stream that has more events than it can write says how many are missing."""

from __future__ import annotations

from dblog.planning.state_sync import MOST_EVENTS, StateSync
from dblog.state import open_store


def told(count: int) -> StateSync:
    sync = StateSync(open_store, "shop", dict)
    for number in range(count):
        sync.tell("offset_committed", position=number, events=number)
    return sync


def test_events_are_taken_in_order() -> None:
    sync = told(3)
    assert [e["position"] for e in sync._new_events()] == [0, 1, 2]
    assert sync._new_events() == []


def test_events_that_were_dropped_are_counted() -> None:
    sync = told(MOST_EVENTS + 7)
    first, *others = sync._new_events()
    assert (first["kind"], first["events"]) == ("events_lost", 7)
    assert [e["position"] for e in others] == list(range(7, MOST_EVENTS + 7))
    sync.tell("offset_committed", position=1, events=1)
    assert len(sync._new_events()) == 1
