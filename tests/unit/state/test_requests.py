"""Requests, their progress, and how the two are seen together with the wish of their owner."""

from __future__ import annotations

import json
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog.core.names import parse_table
from dblog.errors import ConfigError
from dblog.state.requests import (
    MOST_KEYS,
    MOST_TEXT,
    Dump,
    Progress,
    Request,
    State,
    TableProgress,
    Wish,
    read_request,
)

Text = st.text("ab0 .\"'%\\ä🙂\x00\ud800", min_size=1, max_size=8)
Keys = st.lists(st.lists(Text | st.just(""), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple)
Requests = st.builds(Request, st.none() | Text, Keys, st.none() | Text)
Counts = st.integers(0, 2**60)
Times = st.none() | st.floats(0, 1e10)
Tables = st.builds(
    TableProgress,
    state=st.sampled_from(State),
    read=Counts,
    emitted=Counts,
    dropped=Counts,
    total=st.none() | Counts,
    reason=st.none() | Text,
    missing=Keys,
    missed=Counts,
)
Progresses = st.builds(
    Progress,
    state=st.sampled_from(State),
    reason=st.none() | Text,
    started_at=Times,
    finished_at=Times,
    active_seconds=st.floats(0, 1e9),
    tables=st.dictionaries(Text, Tables, max_size=3),
)


def through_json(data: Any) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


@given(Requests)
@settings(deadline=None)
def test_a_request_is_what_was_written(request: Request) -> None:
    assert Request.from_json(through_json(request.to_json())) == request
    # in the store there is more beside it
    assert Request.from_json({**through_json(request.to_json()), "created_at": 1.5, "salt": "abcd"}) == request


@given(Progresses)
@settings(deadline=None)
def test_progress_is_what_was_written(progress: Progress) -> None:
    assert Progress.from_json(through_json(progress.to_json())) == progress


# -- reading a request -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "read", "kind"),
    [
        ({}, Request(), "all"),
        ({"tables": "public.*, !public.tmp_*"}, Request("public.*, !public.tmp_*"), "table"),
        ({"tables": "t", "keys": [1, "a"]}, Request("t", (("1",), ("a",))), "keys"),
        ({"tables": '"a.b"."c d"', "keys": [["a", 1], ("", True)]}, None, "keys"),
        ({"tables": "t", "where": " id > 5\n"}, Request("t", (), "id > 5"), "where"),
        ({"tables": "t", "keys": []}, Request("t"), "table"),
        ({"tables": "t", "where": "x" * MOST_TEXT}, Request("t", (), "x" * MOST_TEXT), "where"),
        ({"tables": "t", "keys": list(range(MOST_KEYS))}, None, "keys"),
    ],
)
def test_a_request_is_read(given: dict[str, Any], read: Request | None, kind: str) -> None:
    request = read_request(**given)
    assert request.kind == kind
    assert read is None or request == read


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-(2**63), "-9223372036854775808"),
        (1.5, "1.5"),
        (True, "true"),
        (False, "false"),
        ("", ""),
        (" a ", " a "),
        (Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_a_key_is_the_text_of_its_values(value: Any, text: str) -> None:
    assert read_request("t", [value]).keys == ((text,),)
    assert read_request("t", [[value, 7]]).keys == ((text, "7"),)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"keys": [1]}, "needs a table"),
        ({"where": "id > 5"}, "needs a table"),
        ({"tables": "t", "keys": [1], "where": "id > 5"}, "both keys and a condition"),
        ({"tables": ""}, "'tables' with the value '' is empty"),
        ({"tables": " "}, "is empty"),
        ({"tables": "a b"}, "'a b' has two names"),
        ({"tables": "a.b.c"}, "'a.b.c' has a name of more than two parts"),
        ({"tables": "t" * (MOST_TEXT + 1)}, f"the text of the tables has {MOST_TEXT + 1} characters"),
        ({"tables": "a, b", "keys": [1]}, "'a, b' must name exactly one table"),
        ({"tables": "a*", "keys": [1]}, "'a*' must name exactly one table"),
        ({"tables": "!a", "where": "id > 5"}, "'!a' must name exactly one table"),
        ({"tables": "t", "where": ""}, "the condition has 0 characters"),
        ({"tables": "t", "where": " \n"}, "the condition has 2 characters"),
        ({"where": ""}, "the condition has 0 characters"),
        ({"tables": "t", "where": "x" * (MOST_TEXT + 1)}, f"the condition has {MOST_TEXT + 1} characters"),
        ({"tables": "t", "keys": list(range(MOST_KEYS + 1))}, f"{MOST_KEYS + 1} keys are too many"),
        ({"tables": "t", "keys": [1, None]}, "None is not a key"),
        ({"tables": "t", "keys": [[]]}, "[] is not a key"),
        ({"tables": "t", "keys": [[1, None]]}, "[1, None] is not a key"),
        ({"tables": "t", "keys": [[[1]]]}, "[[1]] is not a key"),
        ({"tables": "t", "keys": [{"id": 1}]}, "{'id': 1} is not a key"),
        ({"tables": "t", "keys": [b"a"]}, "b'a' is not a key"),
        ({"tables": "t", "keys": "123"}, "the keys are a text"),
        ({"tables": "t", "keys": [1, [2, 3]]}, "some keys have more values than others"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_request(**given)
    assert problem in caught.value.message
    assert caught.value.hint


Scalars = st.integers() | st.floats(allow_nan=False) | st.booleans() | Text
SomeKeys = st.integers(1, 3).flatmap(
    lambda width: st.lists(
        st.lists(Scalars, min_size=width, max_size=width).map(lambda k: k if len(k) > 1 else k[0]), max_size=4
    )
)


@given(
    st.none() | st.sampled_from(["t", "public.t", "a*, !ab", '"t"""', "", "a.b.c", '"']) | Text,
    SomeKeys | st.lists(st.none() | st.just([]) | st.integers(), max_size=2),
    st.none() | Text,
)
@settings(deadline=None)
def test_whatever_is_read_can_be_carried_out(tables: str | None, keys: list[Any], where: str | None) -> None:
    try:
        request = read_request(tables, keys, where)
    except ConfigError:
        return
    assert len(request.keys) == len(keys)
    assert Request.from_json(through_json(request.to_json())) == request
    if request.keys or request.where:
        assert request.tables is not None
        parse_table(request.tables)
        assert not (request.keys and request.where)
    assert read_request(request.tables, request.keys, request.where) == request


# -- a dump as people see it -------------------------------------------------------------------------------------

SEEN = {
    # progress: wish run, pause, cancel
    State.queued: (State.queued, State.paused, State.cancelled),
    State.running: (State.running, State.paused, State.running),
    State.paused: (State.paused, State.paused, State.paused),
    State.completed: (State.completed,) * 3,
    State.cancelled: (State.cancelled,) * 3,
    State.failed: (State.failed,) * 3,
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("wish", Wish)
def test_a_state_is_seen_through_the_wish(state: State, wish: Wish) -> None:
    dump = Dump("1-abcd", Request(), wish=wish, progress=Progress(state))
    assert dump.state == SEEN[state][list(Wish).index(wish)]
    assert dump.state.ended == (dump.state in ("completed", "cancelled", "failed"))


def dump_of(*tables: TableProgress, state: State = State.running, active: float = 10) -> Dump:
    progress = Progress(state, active_seconds=active, tables={f"t{n}": t for n, t in enumerate(tables)})
    return Dump("1-abcd", Request(), progress=progress)


def test_rows_are_counted_over_tables() -> None:
    dump = dump_of(TableProgress(read=10, emitted=7, dropped=3), TableProgress(read=5, emitted=5))
    assert (dump.read, dump.emitted, dump.dropped) == (15, 12, 3)


@pytest.mark.parametrize(
    ("tables", "total", "left"),
    [
        ([], None, None),
        ([TableProgress(State.running, read=20, total=100)], 100, 40),
        ([TableProgress(State.running, read=20, total=None)], None, None),
        ([TableProgress(State.running, read=20, total=100), TableProgress(total=None)], None, None),
        ([TableProgress(State.running, read=120, total=100)], 120, 0),  # the estimate was too low
        ([TableProgress(State.completed, read=20, total=100), TableProgress(total=60)], 80, 30),
        ([TableProgress(State.completed, read=20, total=None), TableProgress(total=60)], 80, 30),
        ([TableProgress(total=60)], 60, None),  # nothing to work a rate out of
        ([TableProgress(total=0)], 0, None),
    ],
)
def test_what_is_left_is_estimated(tables: list[TableProgress], total: int | None, left: float | None) -> None:
    dump = dump_of(*tables)
    assert dump.total == total
    assert dump.seconds_left == left


@pytest.mark.parametrize("state", [s for s in State if s.ended])
def test_nothing_is_left_of_what_has_ended(state: State) -> None:
    assert dump_of(TableProgress(read=20, total=None), state=state).seconds_left == 0


@given(Requests, Progresses, st.sampled_from(Wish))
@settings(deadline=None)
def test_every_dump_can_be_shown(request: Request, progress: Progress, wish: Wish) -> None:
    dump = Dump("7-abcd", request, 1.5, wish, progress)
    shown = through_json(dump.to_json())
    assert shown["state"] == dump.state
    assert shown["kind"] == request.kind
    assert (shown["read"], shown["total"]) == (dump.read, dump.total)
    assert dump.total is None or dump.total >= dump.read
    assert shown["seconds_left"] is None or (shown["seconds_left"] >= 0 and math.isfinite(shown["seconds_left"]))
    assert Request.from_json(shown) == request
    assert shown["progress"] == through_json({name: t.to_json() for name, t in progress.tables.items()})


@pytest.mark.parametrize("own", ["initial", "repair"])
def test_dumps_that_nobody_requested_say_so(own: str) -> None:
    assert Dump(own, Request()).to_json()["kind"] == own
