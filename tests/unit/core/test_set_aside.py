"""What an offset says of a table that is set aside."""

from __future__ import annotations

import json
import pickle

import pytest

from dblog.core.offset import Offset
from dblog.core.schema import TableName
from dblog.core.set_aside import DEFINITION, MOST_TEXT, MOST_VALUE, VALUE, SetAside, set_aside
from dblog.errors import DecodeError, PositionLost, PreconditionFailed, ValueRefused

T = TableName("s", "t")
REFUSED = ValueRefused("it is NaN", table="s.t", column="n", value="NaN", key={"id": "7"}, position=3)


def test_an_offset_keeps_it() -> None:
    found = set_aside(REFUSED, 41, 1.5)
    assert found == SetAside(41, VALUE, "it is NaN", 1.5, "n", "NaN", {"id": "7"})
    offset = Offset(50, aside={T: found})
    data = json.loads(json.dumps(offset.to_json()))
    assert data["v"] == 3
    assert Offset.from_json(data) == offset
    assert "aside" not in Offset(50).to_json()


def test_a_later_version_is_refused() -> None:
    with pytest.raises(PositionLost, match="version 4"):
        Offset.from_json({"v": 4})


def test_long_texts_are_cut() -> None:
    found = set_aside(ValueRefused("x" * 9999, column="n", value="y" * 9999, key={"id": "z" * 9999}), 1, 0.0)
    assert len(found.message) <= MOST_TEXT
    assert found.value is not None
    assert found.key is not None
    assert max(len(found.value), len(found.key["id"])) <= MOST_VALUE


def test_the_reason_follows_from_the_error() -> None:
    assert set_aside(DecodeError("no", hint="do"), 1, 0.0).message == "no (do)"
    found = set_aside(PreconditionFailed("no key", hint="start anew"), 1, 0.0)
    assert (found.reason, found.message, found.value) == (DEFINITION, "no key", None)


def test_a_refused_value_can_be_sent_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(REFUSED))
    assert vars(again) == vars(REFUSED)
