"""Settings as people write them: what is taken, what is refused, and in which words."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog.core.throttle import SETTINGS, Throttle, read_settings
from dblog.errors import ConfigError

NUMBERS = {
    "chunk_rows": (1, 10_000_000),
    "select_seconds": (0.001, 60),
    "chunks": (1, 1000),
    "delay_seconds": (0, 86_400),
    "rows_per_second": (1, 1e9),
    "max_select_seconds": (0.001, 3600),
    "max_lag_seconds": (0.001, 86_400),
    "max_delay_seconds": (0.01, 3600),
    "probe_max": (-1e300, 1e300),
}
WHOLE = {"chunk_rows", "chunks"}


def read(name: str, value: Any) -> Any:
    (result,) = read_settings({name: value}).items()
    assert result[0] == name
    return result[1]


def refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings({name: value})
    assert caught.value.message == f"setting {name!r} has the value {value!r}"
    assert caught.value.hint == "allowed: " + next(s.takes for s in SETTINGS if s.name == name)


def test_the_settings_are_those_of_the_throttle() -> None:
    assert [s.name for s in SETTINGS] == [f.name for f in fields(Throttle)]
    assert set(NUMBERS) | {"paused", "probe"} == {s.name for s in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_what_a_setting_takes_and_its_default_are_what_it_says(setting: Any) -> None:
    default = getattr(Throttle(), setting.name)
    assert setting.default == default
    assert (default is None) == (setting.shown_default in ("auto", "none"))
    if default is not None:
        assert read(setting.name, setting.shown_default) == default
    else:
        assert setting.takes.startswith(setting.shown_default + " or ")
    if setting.name in NUMBERS and setting.name != "probe_max":
        least, most = (float(word) for word in setting.takes.split(" from ")[1].split(" to "))
        assert (least, most) == NUMBERS[setting.name]
        assert ("whole" in setting.takes) == (setting.name in WHOLE)


@pytest.mark.parametrize("name", [s.name for s in SETTINGS])
@pytest.mark.parametrize("word", ["auto", "none", "None", " AUTO ", None])
def test_a_word_takes_a_setting_back_to_its_default(name: str, word: str | None) -> None:
    assert read(name, word) == getattr(Throttle(), name)


@pytest.mark.parametrize(("name", "limits"), NUMBERS.items())
def test_a_number_may_be_as_small_and_as_large_as_its_limits(name: str, limits: tuple[float, float]) -> None:
    kind = int if name in WHOLE else float
    for limit in limits:
        for given_as in (limit, str(limit), f" {limit} "):
            taken = read(name, given_as)
            assert taken == limit
            assert type(taken) is kind
    least, most = limits
    for beyond in (math.nextafter(least, -math.inf), math.nextafter(most, math.inf), least - 1e301, most + 1e301):
        refused(name, beyond)
        refused(name, str(beyond))


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        "nan",
        "inf",
        "-Infinity",
        True,
        False,
        "true",
        "",
        " ",
        "a",
        "1,5",
        "1 s",
        "0x10",
        [],
        [1],
        {},
        {"n": 1},
        10**400,
        "9" * 400,
    ],
    ids=repr,
)
def test_a_number_is_a_number(name: str, value: Any) -> None:
    refused(name, value)


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_whole_number_is_never_rounded(name: str) -> None:
    for value in (1.5, "1.5", 999.9999, 0.5):
        refused(name, value)
    assert read(name, 20.0) == 20
    assert type(read(name, 20.0)) is int


@pytest.mark.parametrize("name", sorted(set(NUMBERS) - WHOLE))
def test_a_fraction_is_kept(name: str) -> None:
    assert read(name, 1.25) == read(name, "1.25") == read(name, "125e-2") == 1.25


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        *((v, True) for v in (True, 1, "true", "TRUE", " on ", "yes", "1")),
        *((v, False) for v in (False, 0, "false", "Off", "no", "0")),
    ],
)
def test_paused_is_a_flag(value: Any, taken: bool) -> None:
    assert read("paused", value) is taken


@pytest.mark.parametrize("value", [2, -1, 0.5, "", "maybe", "truefalse", [], [True], {}, float("nan")])
def test_nothing_else_is_a_flag(value: Any) -> None:
    refused("paused", value)


def test_the_probe_is_a_text() -> None:
    assert read("probe", "  SELECT 1\n") == "SELECT 1"
    assert read("probe", "x" * 4000) == "x" * 4000
    for value in ("", " \n", "x" * 4001, 1, True, 1.5, [], {}, ["SELECT 1"]):
        refused("probe", value)


def test_an_unknown_setting_is_refused_and_the_known_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'chunk_row'") as caught:
        read_settings({"chunks": 1, "chunk_row": 1})
    assert all(s.name in str(caught.value.hint) for s in SETTINGS)


def test_several_are_read_together_or_not_at_all() -> None:
    assert read_settings({}) == {}
    assert read_settings({"chunks": "4", "paused": "on", "probe": None}) == {"chunks": 4, "paused": True, "probe": None}
    with pytest.raises(ConfigError, match="'chunks'"):
        read_settings({"paused": True, "chunks": 0})


Anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2000),
    st.floats(),
    st.text("019.e-_ +nao", max_size=5),
    st.sampled_from(["on", "auto", "SELECT 1", [], {}, [1], 10**30]),
)


@given(st.dictionaries(st.sampled_from([s.name for s in SETTINGS]), Anything))
@settings(deadline=None)
def test_whatever_is_taken_is_a_setting_for_good(given: dict[str, Any]) -> None:
    try:
        taken = read_settings(given)
    except ConfigError:
        return
    assert set(taken) == set(given)
    stored = json.loads(json.dumps(taken, allow_nan=False))
    assert asdict(Throttle(**stored)) == {**asdict(Throttle()), **taken}
    assert read_settings(taken) == taken
