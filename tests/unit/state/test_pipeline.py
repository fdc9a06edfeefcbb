"""A pipeline seen through the store, by people and by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog.core.throttle import Throttle
from dblog.errors import ConfigError, NotFound, StateError
from dblog.state import pipeline as module
from dblog.state.pipeline import SILENT_SECONDS, Pipeline, only_pipeline, pipelines, request_id, request_number
from dblog.state.requests import Progress, Request, State, TableProgress, Wish
from dblog.state.sqlite import SQLiteStore

NAMES = ["orders", "a/b", "..", "%2F", "with space", "ä日本🙂", "a", "pipelines/orders/status", "x" * 300]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    opened = SQLiteStore(tmp_path / "state.db")
    yield opened
    opened.close()


@pytest.fixture
def pipeline(store: SQLiteStore) -> Pipeline:
    opened = Pipeline(store, "orders")
    opened.open()
    return opened


@pytest.fixture
def other(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The same pipeline in somebody else's hands."""
    store = SQLiteStore(pipeline.store.path)  # type: ignore[attr-defined]
    yield Pipeline(store, pipeline.name)
    store.close()


def meanwhile(monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, act: Any) -> None:
    """Let something happen between what the pipeline's next write has read and the write itself."""
    put = pipeline.store.put

    def late(*args: Any, **options: Any) -> int:
        monkeypatch.undo()
        act()
        return put(*args, **options)

    monkeypatch.setattr(pipeline.store, "put", late)


# -- names -------------------------------------------------------------------------------------------------------


def test_pipelines_of_any_name_are_kept_apart(store: SQLiteStore) -> None:
    for name in NAMES:
        opened = Pipeline(store, name)
        opened.open()
        opened.say({"own": name})
        opened.submit(Request(name))
        opened.tell([{"own": name}])
    assert sorted(pipelines(store)) == sorted(NAMES)
    for name in NAMES:
        opened = only_pipeline(store, name)
        assert opened.name == opened.status()["pipeline"] == opened.status()["own"] == name
        assert [d.request.tables for d in opened.dumps()] == [name]
        assert [event["own"] for _, event in opened.events()] == [name]
    Pipeline(store, NAMES[0]).forget()
    assert sorted(pipelines(store)) == sorted(NAMES[1:])
    for name in NAMES[1:]:
        assert Pipeline(store, name).dumps()
        assert Pipeline(store, name).events()


def test_the_only_pipeline_needs_no_name(store: SQLiteStore) -> None:
    with pytest.raises(NotFound, match="no pipeline has used this state store yet") as caught:
        only_pipeline(store)
    assert "dblog run" in str(caught.value.hint)
    with pytest.raises(NotFound, match="no pipeline has used"):
        only_pipeline(store, "a")
    Pipeline(store, "a").open()
    assert only_pipeline(store).name == only_pipeline(store, "a").name == "a"
    Pipeline(store, "b/c").open()
    with pytest.raises(NotFound, match="several") as caught:
        only_pipeline(store)
    assert caught.value.hint == "name one of a, b/c"
    with pytest.raises(NotFound, match="no pipeline 'c'") as caught:
        only_pipeline(store, "c")
    assert caught.value.hint == "name one of a, b/c"


def test_opening_again_changes_nothing(pipeline: Pipeline, other: Pipeline) -> None:
    before = pipeline.store.list("pipelines")
    assert list(before) == ["orders"]
    other.open()
    assert other.store.list("pipelines") == before


def test_nothing_is_left_of_what_is_forgotten(pipeline: Pipeline) -> None:
    first = pipeline.submit(Request())
    pipeline.wish(first.id, Wish.pause)
    pipeline.mirror(first.id, Progress(State.running))
    pipeline.say({"state": "running"})
    pipeline.tell([{"kind": "round_opened"}])
    pipeline.saw_schema("ab12", {})
    pipeline.change({"chunks": 3})
    pipeline.forget()
    assert pipelines(pipeline.store) == []
    pipeline.open()
    assert (pipeline.dumps(), pipeline.schemas(), list(pipeline.events())) == ([], {}, [])
    assert pipeline.settings() == Throttle()
    assert pipeline.status() == {"pipeline": "orders", "state": "never started"}
    assert request_number(pipeline.submit(Request()).id) > request_number(first.id)


# -- dumps -------------------------------------------------------------------------------------------------------


def test_a_request_is_queued_until_the_pipeline_takes_it(pipeline: Pipeline, other: Pipeline) -> None:
    before = time.time()
    first = pipeline.submit(Request("public.t", (("1",), ("2",))))
    second = other.submit(Request("public.t", (), "id > 5"))
    assert request_number(first.id) < request_number(second.id)
    assert first.state == State.queued
    assert before <= (first.created_at or 0) <= time.time()
    assert pipeline.dumps() == other.dumps() == [first, second]
    pipeline.mirror(first.id, Progress(State.running, active_seconds=7.0, tables={"public.t": TableProgress(read=1)}))
    assert other.dump(first.id).state == State.running
    assert other.dump(first.id).read == 1
    assert other.dump(second.id) == second


def test_requests_of_equal_numbers_have_different_ids(tmp_path: Path) -> None:
    ids = set()
    for n in range(5):
        store = SQLiteStore(tmp_path / str(n))
        ids.add(Pipeline(store, "p").submit(Request()).id)
        store.close()
    assert {request_number(each) for each in ids} == {1}
    assert len(ids) > 1
    assert request_number(request_id(12, "ab1d")) == 12


def test_dumps_come_in_the_order_of_their_numbers(pipeline: Pipeline) -> None:
    submitted = [pipeline.submit(Request()).id for _ in range(12)]
    pipeline.mirror("repair", Progress(State.running))
    pipeline.mirror("initial", Progress(State.completed))
    assert [d.id for d in pipeline.dumps()] == ["initial", "repair", *submitted]


def test_a_dump_is_found_by_its_id_or_number(pipeline: Pipeline) -> None:
    submitted = [pipeline.submit(Request()) for _ in range(11)]
    for n, dump in enumerate(submitted, 1):
        assert pipeline.dump(dump.id) == pipeline.dump(str(n)) == dump
    for wrong in ("12", "1-", "", "-", "initial", submitted[0].id.upper() + "x"):
        with pytest.raises(NotFound, match="in pipeline 'orders'"):
            pipeline.dump(wrong)
    pipeline.mirror("initial", Progress(State.running))
    assert pipeline.dump("initial").created_at is None


# -- wishes ------------------------------------------------------------------------------------------------------


def test_a_dump_is_paused_and_resumed(pipeline: Pipeline, other: Pipeline) -> None:
    dump = pipeline.submit(Request())
    for state in (State.queued, State.running):
        pipeline.mirror(dump.id, Progress(state))
        assert pipeline.wish(dump.id, Wish.pause).state == other.dump(dump.id).state == State.paused
        assert pipeline.wish(dump.id, Wish.pause).wish == Wish.pause
        assert other.wish("1", Wish.run).state == pipeline.dump(dump.id).state == state


def test_a_cancel_is_final(pipeline: Pipeline) -> None:
    dump = pipeline.submit(Request())
    assert pipeline.wish(dump.id, Wish.cancel).state == State.cancelled  # it had not begun
    pipeline.mirror(dump.id, Progress(State.running))  # the pipeline had taken it already
    assert pipeline.wish(dump.id, Wish.cancel) == pipeline.dump(dump.id)
    for wish in (Wish.run, Wish.pause):
        with pytest.raises(StateError, match=f"{dump.id} is cancelled already"):
            pipeline.wish(dump.id, wish)
    assert pipeline.dump(dump.id).wish == Wish.cancel


@pytest.mark.parametrize("wish", [Wish.run, Wish.pause])
@pytest.mark.parametrize("earlier", [None, Wish.pause])
def test_a_cancel_is_not_overwritten_by_a_wish_of_the_same_moment(
    pipeline: Pipeline, other: Pipeline, monkeypatch: pytest.MonkeyPatch, wish: Wish, earlier: Wish | None
) -> None:
    dump = pipeline.submit(Request())
    if earlier:
        pipeline.wish(dump.id, earlier)
    meanwhile(monkeypatch, pipeline, lambda: other.wish(dump.id, Wish.cancel))
    with pytest.raises(StateError, match="is cancelled already"):
        pipeline.wish(dump.id, wish)
    assert other.dump(dump.id).wish == Wish.cancel


def test_of_two_wishes_the_later_one_counts(
    pipeline: Pipeline, other: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = pipeline.submit(Request())
    meanwhile(monkeypatch, pipeline, lambda: other.wish(dump.id, Wish.pause))
    assert pipeline.wish(dump.id, Wish.cancel).wish == Wish.cancel
    assert other.dump(dump.id).wish == Wish.cancel


@pytest.mark.parametrize("state", [s for s in State if s.ended])
@pytest.mark.parametrize("wish", Wish)
def test_nothing_can_be_wished_of_what_has_ended(pipeline: Pipeline, state: State, wish: Wish) -> None:
    dump = pipeline.submit(Request())
    pipeline.mirror(dump.id, Progress(state))
    if (state, wish) == (State.cancelled, Wish.cancel):
        assert pipeline.wish(dump.id, wish).state == State.cancelled
    else:
        with pytest.raises(StateError, match=f"is {state} already") as caught:
            pipeline.wish(dump.id, wish)
        assert not isinstance(caught.value, NotFound)
    assert pipeline.dump(dump.id).wish == Wish.run


def test_the_first_dump_can_be_paused_too(pipeline: Pipeline) -> None:
    with pytest.raises(NotFound, match="'initial'"):
        pipeline.wish("initial", Wish.pause)
    pipeline.mirror("initial", Progress(State.running))
    assert pipeline.wish("initial", Wish.pause).state == State.paused
    assert [d.id for d in pipeline.dumps()] == ["initial"]


# -- settings ----------------------------------------------------------------------------------------------------


def test_settings_are_changed_one_by_one(pipeline: Pipeline, other: Pipeline) -> None:
    assert pipeline.settings() == Throttle()
    assert pipeline.change({"chunks": "4"}) == Throttle(chunks=4)
    assert other.change({"paused": True, "chunk_rows": 10}) == Throttle(chunks=4, paused=True, chunk_rows=10)
    assert pipeline.change({"chunks": "auto"}) == other.settings() == Throttle(paused=True, chunk_rows=10)
    assert pipeline.change({}) == Throttle(paused=True, chunk_rows=10)


def test_a_wrong_setting_changes_nothing(pipeline: Pipeline) -> None:
    pipeline.change({"chunks": 4})
    with pytest.raises(ConfigError):
        pipeline.change({"chunks": 5, "select_seconds": float("nan")})
    assert pipeline.settings() == Throttle(chunks=4)


@pytest.mark.parametrize("earlier", [{}, {"delay_seconds": 2.5}])
def test_settings_changed_at_the_same_moment_are_both_changed(
    pipeline: Pipeline, other: Pipeline, monkeypatch: pytest.MonkeyPatch, earlier: dict[str, Any]
) -> None:
    if earlier:
        pipeline.change(earlier)
    meanwhile(monkeypatch, pipeline, lambda: other.change({"paused": True}))
    assert pipeline.change({"chunks": 4}) == Throttle(paused=True, chunks=4, **earlier)
    assert other.settings() == Throttle(paused=True, chunks=4, **earlier)


# -- status ------------------------------------------------------------------------------------------------------


def test_a_pipeline_that_falls_silent_is_lost(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pipeline.running
    pipeline.say({"state": "running", "events": 7})
    now = time.time()
    assert pipeline.status() == {
        "pipeline": "orders",
        "state": "running",
        "events": 7,
        "updated_at": pytest.approx(now, abs=5),
    }
    assert pipeline.running
    monkeypatch.setattr(module.time, "time", lambda: now + SILENT_SECONDS - 1)
    assert pipeline.running
    monkeypatch.setattr(module.time, "time", lambda: now + SILENT_SECONDS + 1)
    assert pipeline.status()["state"] == "lost"
    assert not pipeline.running


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_pipeline_that_said_goodbye_is_not_lost(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    pipeline.say({"state": state})
    now = time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 1000)
    assert pipeline.status()["state"] == state
    assert not pipeline.running


def test_a_pipeline_that_starts_has_a_state(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.say({"host": "a"})
    assert pipeline.status()["state"] == "running"
    assert pipeline.running
    now = time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 1000)
    assert pipeline.status()["state"] == "lost"


# -- the rest ----------------------------------------------------------------------------------------------------


def test_schemas_are_kept_as_first_seen(pipeline: Pipeline, other: Pipeline) -> None:
    pipeline.saw_schema("ab12", {"n": 1})
    other.saw_schema("ab12", {"n": 2})
    other.saw_schema("cd34", {"n": 3})
    assert pipeline.schemas() == {"ab12": {"n": 1}, "cd34": {"n": 3}}


def test_events_are_followed(pipeline: Pipeline, other: Pipeline) -> None:
    pipeline.tell([{"n": n} for n in range(5)])
    seen = other.events(limit=2)
    assert [event["n"] for _, event in seen] == [3, 4]
    pipeline.tell([{"n": 5}])
    assert [event["n"] for _, event in other.events(after=seen[-1][0])] == [5]


def test_events_are_not_kept_for_ever(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_EVENTS", 10)
    for n in range(50):
        pipeline.tell([{"n": n}])
    kept = [event["n"] for _, event in pipeline.events()]
    assert kept == list(range(50 - len(kept), 50))
    assert 10 <= len(kept) <= 20


def test_the_oldest_of_what_has_ended_is_forgotten(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_ENDED", 2)
    states = [
        State.completed,
        State.running,
        State.failed,
        State.queued,
        State.cancelled,
        State.paused,
        State.completed,
        State.completed,
    ]
    pipeline.mirror("initial", Progress(State.completed))
    pipeline.mirror("repair", Progress(State.completed))
    ids = [pipeline.submit(Request()).id for _ in states]
    for each, state in zip(ids, states, strict=True):
        if state is not State.queued:
            pipeline.mirror(each, Progress(state))
    pipeline.wish(ids[5], Wish.pause)
    cancelled = pipeline.submit(Request()).id
    pipeline.wish(cancelled, Wish.cancel)
    pipeline.prune()
    left = [ids[1], ids[3], ids[5], ids[7], cancelled]
    assert [d.id for d in pipeline.dumps()] == ["initial", "repair", *left]
    assert set(pipeline.store.list("pipelines/orders/progress")) == {"initial", "repair", ids[1], ids[5], ids[7]}
    assert set(pipeline.store.list("pipelines/orders/wishes")) == {ids[5], cancelled}
    pipeline.prune()
    assert [d.id for d in pipeline.dumps()][2:] == left
    assert request_number(pipeline.submit(Request()).id) == 10


def test_what_has_ended_long_ago_is_forgotten(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    old, late, unknown = (pipeline.submit(Request()).id for _ in range(3))
    now = time.time()
    pipeline.mirror(old, Progress(State.completed, finished_at=now - module.KEEP_ENDED_SECONDS - 60))
    pipeline.mirror(late, Progress(State.completed, finished_at=now - module.KEEP_ENDED_SECONDS + 60))
    pipeline.mirror(unknown, Progress(State.failed))
    pipeline.prune()
    assert [d.id for d in pipeline.dumps()] == [late, unknown]


def test_progress_and_wishes_without_a_request_are_forgotten(pipeline: Pipeline) -> None:
    there = pipeline.submit(Request()).id
    for each in (there, "99-abcd", "initial"):
        pipeline.mirror(each, Progress(State.running))
        pipeline.store.put(f"pipelines/orders/wishes/{each}", {"wish": "pause"})
    pipeline.prune()
    for kind in ("progress", "wishes"):
        assert set(pipeline.store.list(f"pipelines/orders/{kind}")) == {there, "initial"}


def test_few_that_have_ended_are_all_kept(pipeline: Pipeline) -> None:
    ids = [pipeline.submit(Request()).id for _ in range(3)]
    for each in ids:
        pipeline.mirror(each, Progress(State.completed))
    pipeline.prune()
    assert [d.id for d in pipeline.dumps()] == ids


def test_the_status_names_the_leader_of_a_pipeline_with_standbys(pipeline: Pipeline) -> None:
    delivery = {"state": "running", "since": None, "reason": None, "restarts": 0, "unready_after": 60.0}
    pipeline.deliver(delivery)
    assert "ha" not in pipeline.status()
    pipeline.deliver({**delivery, "lease": "leases/shop"})
    lease = {"holder": "b:1", "epoch": 4, "seconds": 10.0, "renewed_at": time.time() - 5}
    pipeline.store.put("leases/shop", lease)
    found = pipeline.status()["ha"]
    assert found.pop("lease_age") == pytest.approx(5, abs=4)
    assert found == {"leader": "b:1", "epoch": 4, "lease_seconds": 10.0}
