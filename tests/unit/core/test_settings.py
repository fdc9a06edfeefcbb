"""Settings: every wrong one is named, with what is allowed, and no secret is shown; kinds read values and texts."""

from __future__ import annotations

from typing import Any

import pytest

from dblog.core.settings import (
    Kind,
    Setting,
    choice,
    flag,
    mapping,
    number,
    optional,
    read_settings,
    size,
    text,
    texts,
)
from dblog.errors import ConfigError
from dblog.sinks.settings import SCHEMA_CHANGES

KNOWN = (
    Setting("path", "where to", text()),
    Setting("size", "how large", number(1, 10), default=5),
    Setting("password", "of the user", text(), default=None, secret=True),
    SCHEMA_CHANGES,
)


def test_every_setting_gets_a_value() -> None:
    given = {"path": "/a", "size": 7}
    expected = {"path": "/a", "size": 7, "password": None, "schema_changes": "evolve"}
    assert read_settings("sink 1", given, KNOWN) == expected


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({}, "sink 1 needs the setting 'path': where to", "allowed: a text"),
        ({"path": ""}, "setting 'sink 1.path' has the value ''", "allowed: a text"),
        (
            {"path": "a", "sise": 1},
            "sink 1 has no setting 'sise'",
            "did you mean 'size'? the settings are path, size, password, schema",
        ),
        ({"path": "a", "size": 11}, "setting 'sink 1.size' has the value 11", "allowed: a whole number from 1 to 10"),
        (
            {"path": "a", "schema_changes": "ignored"},
            "setting 'sink 1.schema_changes' has the value 'ignored'",
            "allowed: evolve or ignore or fail",
        ),
        (
            {"path": "a", "password": 1234},
            "setting 'sink 1.password' has a value that is not shown",
            "allowed: a text",
        ),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        read_settings("sink 1", given, KNOWN)
    assert message in wrong.value.message
    assert wrong.value.hint is not None
    assert wrong.value.hint.startswith(hint)
    assert "1234" not in str(wrong.value)
    assert wrong.value.__cause__ is None


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (text(), ["a"], ["", 1, True, None, ["a"]]),
        (choice("a", "b"), ["a"], ["A", "", 1, None, ["a"], {"a": "b"}]),
        (number(1, 10), [1, 10], [0, 11, 1.5, 5.0, True, "5", None]),
        (number(0.1, 10.0), [1, 0.1, 10.0], [0.0, 10.1, float("nan"), True, "5"]),
        (flag(), [True, False], [0, 1, "true", None]),
        (texts(), [["a", "b"], []], ["a", [1], [""], ("a",), None]),
        (mapping(), [{"a": "b"}, {}], ["a", ["a"], {"a": 1}, {"a": ""}, None]),
    ],
)
def test_a_kind_takes_what_it_says(kind: Kind, good: list[Any], bad: list[Any]) -> None:
    known = [Setting("s", "", kind)]
    for value in good:
        read = read_settings("sink", {"s": value}, known)["s"]
        assert read == (tuple(value) if isinstance(value, list) else value)
    for value in bad:
        with pytest.raises(ConfigError, match=r"'sink\.s' has"):
            read_settings("sink", {"s": value}, known)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (text(), {"a": "a", " a ": " a "}, [""]),
        (choice("a", "b"), {"a": "a", "B": "b"}, ["c", "", " a "]),
        (number(1, 10), {"1": 1, " 10 ": 10, "+5": 5}, ["0", "11", "1.5", "5.0", "", "five", "1_0", "0x5"]),
        (number(0.1, 10.0), {"1": 1.0, "0.1": 0.1, "1e1": 10.0}, ["0", "10.1", "nan", "inf", "", "five"]),
        (flag(), {"true": True, " ON ": True, "no": False, "0": False}, ["", "maybe", "2"]),
        (size(), {"64m": 64 << 20, "1 GB": 1 << 30, "7": 7, "2k": 2048}, ["0", "-1", "1t", "", "1.5m"]),
        (texts(), {"a": ("a",), "a, b": ("a", "b")}, ["", "a,,b"]),
        (optional(number(1, 10), "auto"), {"auto": None, " AUTO ": None, "3": 3}, ["none", "", "11"]),
    ],
)
def test_a_kind_reads_texts(kind: Kind, good: dict[str, Any], bad: list[str]) -> None:
    for given, value in good.items():
        assert kind.parse(given) == value
        assert type(kind.parse(given)) is type(value)
    for given in bad:
        with pytest.raises((ValueError, TypeError)):
            kind.parse(given)


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (Setting("s", "", text()), ""),
        (Setting("s", "", text(), None), ""),
        (Setting("s", "", flag(), False), "false"),
        (Setting("s", "", number(0.0, 9.0), 3.0), "3"),
        (Setting("s", "", optional(number(1, 9), "auto"), None), "auto"),
        (Setting("s", "", text(), None, computed="from the tables"), "from the tables"),
    ],
)
def test_a_default_is_shown_as_a_user_would_write_it(setting: Setting, shown: str) -> None:
    assert setting.shown_default == shown


def test_a_number_without_bounds_that_people_would_read_is_described_in_words() -> None:
    assert number(-1e300, 1e300, "a number").takes == "a number"
    assert number(0.0, 86_400.0).takes == "a number from 0 to 86400"
    assert optional(number(1, 9)).takes == "none or a whole number from 1 to 9"
