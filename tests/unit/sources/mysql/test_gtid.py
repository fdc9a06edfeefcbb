"""Places by GTIDs: sets of MySQL, positions of MariaDB."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog.errors import PositionLost
from dblog.sources.columns import Ints
from dblog.sources.mysql.gtid import GtidPosition, GtidSet, Names, Place

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "7a2c0001-0000-0000-0000-000000000000:report"


def arrays(transactions: Iterable[tuple[str, int]]) -> tuple[Names, Ints]:
    found = list(transactions)
    return np.array([o for o, _ in found], np.object_), np.array([n for _, n in found], np.int64)


transactions = st.lists(st.tuples(st.sampled_from([A, B, ""]), st.integers(1, 40)))


@pytest.mark.parametrize(
    "text", ["", f"{A}:1", f"{A}:1-5", f"{A}:1-5:8:10-12", f"{A}:1-5,{B}:7", f"{A}:3,{A[:-1]}0:1-9"]
)
def test_a_set_is_written_as_mysql_writes_it(text: str) -> None:
    assert sorted(str(GtidSet.parse(text)).split(",")) == sorted(text.split(","))


def test_a_set_is_read_as_mysql_shows_it() -> None:
    """With upper case, line ends, overlaps, and tags after an origin that they share."""
    shown = f"{A.upper()}:1-3:2-6:9:abc:4-5:def:1,\n{A}:7"
    assert str(GtidSet.parse(shown)) == f"{A}:1-7:9,{A}:abc:4-5,{A}:def:1"


@given(transactions, transactions)
def test_a_set_holds_what_was_added_and_nothing_else(first: list[tuple[str, int]], more: list[tuple[str, int]]) -> None:
    found = GtidSet().after(*arrays(first)).after(*arrays(more))
    held = {t for t in (*first, *more) if t[0]}
    everything = [(origin, n) for origin in (A, B, "") for n in range(42)]
    assert {t for t, was in zip(everything, found.delivered()(*arrays(everything)), strict=True) if was} == held
    assert str(GtidSet.parse(str(found))) == str(found)


@given(transactions, transactions)
def test_one_set_is_within_another_if_all_its_transactions_are(
    first: list[tuple[str, int]], second: list[tuple[str, int]]
) -> None:
    within = GtidSet().after(*arrays(first)) <= GtidSet().after(*arrays(second))
    assert within == ({t for t in first if t[0]} <= set(second))


def test_a_position_has_the_last_transaction_of_each_domain() -> None:
    found = GtidPosition.parse("0-1-7").after(*arrays([("0-1", 8), ("5-2", 1), ("0-3", 9), ("", 100)]))
    assert str(found) == "0-3-9,5-2-1"
    assert GtidPosition.parse("0-1-9") <= found
    assert not GtidPosition.parse("0-3-10") <= found
    assert not GtidPosition.parse("6-1-1") <= found


def test_what_comes_up_to_the_last_transaction_of_its_domain_was_delivered() -> None:
    delivered = GtidPosition.parse("0-1-7,5-2-1").delivered()
    assert delivered(*arrays([("0-1", 6), ("9-1", 1), ("0-1", 7), ("0-1", 8)])).tolist() == [True, False, True, False]
    assert delivered(*arrays([("0-1", 3), ("5-2", 1), ("5-2", 2)])).tolist() == [False, True, False]


def test_what_a_log_begins_after_is_not_waited_for() -> None:
    place = GtidPosition.parse("0-1-7,5-2-1")
    delivered = place.delivered(GtidPosition.parse("0-1-7,9-1-1"))
    assert delivered(*arrays([("0-1", 8), ("5-2", 1), ("0-2", 9)])).tolist() == [False, True, False]
    with pytest.raises(PositionLost, match="0-1-7"):
        place.delivered(GtidPosition.parse("0-2-7"))(*arrays([("0-2", 8)]))


def test_a_log_that_passes_the_last_transaction_without_it_is_another_one() -> None:
    delivered = GtidPosition.parse("0-1-7").delivered()
    with pytest.raises(PositionLost, match="0-1-7"):
        delivered(*arrays([("0-1", 6), ("0-2", 7), ("0-2", 8)]))


@given(st.sampled_from(["", "0-1-7", f"{A}:1-5,{B}:1"]), st.sampled_from(["", A]), st.integers(0, 9))
def test_a_place_is_read_as_it_was_written(gtids: str, server: str, shift: int) -> None:
    place = Place(gtids, server, shift)
    assert Place.parse(str(place)) == place


def test_a_place_moves_on_in_the_terms_of_its_server() -> None:
    assert str(Place("0-1-7", shift=3).after(*arrays([("0-1", 8)]))) == "gtid=0-1-8 shift=3"
    assert str(Place("", A).after(*arrays([(A, 1), (A, 2)]))) == f"gtid={A}:1-2 server={A}"
    assert Place("0-1-7").after(*arrays([("", 0)])) == Place("0-1-7")
