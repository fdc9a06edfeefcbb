"""Places by GTIDs: sets of MySQL, positions of MariaDB."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog.core.arrays import Ints
from dblog.databases.mysql.gtid import (
    AHEAD,
    AHEAD_OF_OTHERS,
    Between,
    Coordinate,
    DeliveredFilter,
    GtidPosition,
    GtidSet,
    Names,
)
from dblog.errors import PositionLost

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "7a2c0001-0000-0000-0000-000000000000:report"


def arrays(transactions: Iterable[tuple[str, int]]) -> tuple[Names, Ints]:
    found = list(transactions)
    return np.array([o for o, _ in found], np.object_), np.array([n for _, n in found], np.int64)


def told(delivered: DeliveredFilter, found: list[tuple[str, int]]) -> str:
    """`d` for what was delivered, a dot for what is new; what was not delivered although it is in front of that: `a`,
    or `o` if it is only in front of what other domains have."""
    letters = {"": ".", AHEAD: "a", AHEAD_OF_OTHERS: "o"}
    return "".join(
        "d" if was else letters[mark]
        for was, mark in zip(*map(np.ndarray.tolist, delivered(*arrays(found))), strict=True)
    )


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
    assert {t for t, was in zip(everything, found.has(*arrays(everything)), strict=True) if was} == held
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
    assert told(delivered, [("0-1", 6), ("9-1", 1), ("0-1", 7), ("0-1", 8)]) == "dod."
    assert delivered.awaits
    assert told(delivered, [("0-1", 3), ("5-2", 1), ("5-2", 2)]) == ".d."
    assert not delivered.awaits


def test_what_a_log_begins_after_is_not_waited_for() -> None:
    place = GtidPosition.parse("0-1-7,5-2-1")
    delivered = place.delivered(GtidPosition.parse("0-1-7,9-1-1"))
    assert told(delivered, [("0-1", 8), ("5-2", 1), ("0-2", 9)]) == ".d."


def test_a_log_that_passes_the_last_transaction_without_it_is_another_one() -> None:
    delivered = GtidPosition.parse("0-1-7").delivered()
    with pytest.raises(PositionLost, match="0-1-7"):
        delivered(*arrays([("0-1", 6), ("0-1", 8)]))


def test_what_another_server_has_written_in_front_of_delivered_transactions_is_told_from_them() -> None:
    """By its number it would be one of them: MariaDB's position has only the last number of a domain."""
    place = GtidPosition.begun("0-1-90", "0-3-50,0-1-90").after(*arrays([("0-1", n) for n in range(91, 101)]))
    delivered = place.delivered(GtidPosition.parse("0-1-94", "0-3-50,0-1-94"))
    assert told(delivered, [("0-1", 95), ("0-2", 96), ("0-1", 96), ("0-3", 51), ("0-1", 100), ("0-2", 101)]) == "dadad."


def test_what_was_before_the_stream_is_not_taken_for_another_servers() -> None:
    """A server that was made from a copy does not know in its log who wrote what the copy had."""
    place = GtidPosition.begun("0-1-90", "0-1-90").after(*arrays([("0-1", 91)]))
    assert told(place.delivered(), [("0-2", 86), ("0-1", 88), ("0-2", 91), ("0-1", 91)]) == "ddad"
    known = GtidPosition.begun("0-1-90", "0-2-80,0-1-90")
    assert told(known.delivered(), [("0-2", 80), ("0-2", 86), ("0-5", 79), ("0-5", 86), ("0-1", 90)]) == "dadad"
    old = GtidPosition.parse("0-1-90")  # in an offset of an earlier version
    assert told(old.after(*arrays([("0-1", 91)])).delivered(), [("0-2", 86), ("0-2", 91), ("0-1", 91)]) == "dad"


def test_other_domains_may_be_ahead_by_what_their_own_servers_wrote() -> None:
    """By the server that wrote the domain last, and by the one that the stream was read from."""
    place = GtidPosition.parse("0-1-7,5-2-1", "0-1-7,0-3-6,5-2-1,5-3-1")
    log = [("5-2", 1), ("5-2", 2), ("5-4", 3), ("5-3", 3), ("9-4", 1), ("9-3", 2), ("0-1", 7), ("9-3", 3), ("5-3", 4)]
    assert told(place.delivered(server="4"), log) == "d..o.od.."
    assert told(place.delivered(), log) == "d.ooood.."


def test_a_place_has_what_was_passed_over_in_other_domains_as_the_server_does() -> None:
    place = GtidPosition.parse("0-1-7,5-2-1", "0-1-7,5-2-1").after(*arrays([("++9-3", 4), ("++5-3", 2), ("+0-3", 9)]))
    assert str(place) == "0-1-7,5-3-2,9-3-4"
    assert place.seen == "0-3-9,5-2-1"
    assert GtidPosition.parse("0-1-7,9-3-4", "0-3-9,0-1-7,9-3-4").within(place)


def test_a_file_that_begins_behind_another_servers_transaction_is_not_within_the_place() -> None:
    place = GtidPosition.begun("0-1-90", "0-1-90").after(*arrays([("0-1", 100)]))
    assert GtidPosition.parse("0-1-95", "0-1-95").within(place)
    assert not GtidPosition.parse("0-1-98", "0-2-96,0-1-98").within(place)
    assert GtidPosition.parse("0-1-98", "0-2-96,0-1-98").within(place.after(*arrays([("+0-2", 96)])))
    assert str(place.after(*arrays([("+0-2", 96)]))) == "0-1-100"


C = "9f0c0001-0000-0000-0000-000000000000"


def test_a_set_tells_what_only_this_server_has_in_front_of_delivered_transactions() -> None:
    delivered = GtidSet.parse(f"{A}:1-9,{C}:1").delivered(GtidSet.parse(f"{A}:1-5,{C}:1"))
    assert told(delivered, [(A, 6), (B, 1), (A, 7)]) == "dad"
    assert told(delivered, [(B, 2), (A, 10), (C, 2)]) == "a.a"  # what the same server wrote later came in its order
    assert told(delivered, [(A, 8), (B, 3), (A, 9), (B, 4), (A, 11)]) == "dad.."
    assert not delivered.awaits
    assert told(delivered, [(B, 5), (A, 9)]) == ".d"


@pytest.mark.parametrize(
    ("start", "end", "log", "picked"),
    [
        # the domains come in another order than the batch had: 0-1-5, 1-1-7 | 0-1-6, 1-1-8
        ("0-1-4,1-1-6", "0-1-5,1-1-7", "0-1-4 1-1-6 1-1-7 1-1-8 0-1-5 0-1-6", "..x.x."),
        ("0-1-4,1-1-6", "0-1-5,1-1-7", "1-1-6 0-1-4 0-1-5 0-1-6 0-1-7 1-1-7 1-1-8", "..x..x."),
        # one domain begins in the batch, another has nothing in it
        ("0-1-4,2-1-9", "0-1-5,1-1-1,2-1-9", "2-1-9 1-1-1 1-1-2 2-1-10 0-1-4 0-1-5", ".x...x"),
        # the server wrote something itself
        ("0-1-4", "0-1-6", "0-1-4 0-1-5 0-2-6 0-1-6 0-2-7", ".x.x."),
        (f"{A}:1-4", f"{A}:1-4:6,{C}:1", f"{A}:1 {A}:2 {A}:3 {A}:4 {A}:5 {C}:1 {C}:2 {A}:6 {A}:7", ".....x.x."),
    ],
)
def test_a_batch_is_exactly_the_transactions_between_its_places(start: str, end: str, log: str, picked: str) -> None:
    kind = GtidSet if len(start) > 36 else GtidPosition
    words = [word.rpartition(":" if kind is GtidSet else "-") for word in log.split()]
    places = [kind.parse(text, text if kind is GtidPosition else "") for text in (start, end)]
    for step in (1, 2, 10):
        between = Between(*(place.delivered(kind.parse("")) for place in places))
        found = ""
        for at in range(0, len(words), step):
            assert between.awaits or "x" not in picked[at:]
            passed, _ = between(*arrays([(o, int(n)) for o, _, n in words[at : at + step]]))
            found += "".join(".x"[not gone] for gone in passed.tolist())
        assert found == picked
        assert not between.awaits


@given(st.sampled_from(["", "0-1-7", f"{A}:1-5,{B}:1"]), st.sampled_from(["", A]), st.integers(0, 9))
def test_a_place_is_read_as_it_was_written(gtids: str, server: str, shift: int) -> None:
    place = Coordinate(gtids, server, shift)
    assert Coordinate.parse(str(place)) == place


def test_a_place_moves_on_in_the_terms_of_its_server() -> None:
    assert str(Coordinate("0-1-7", shift=3).after(*arrays([("0-1", 8)]))) == "gtid=0-1-8 shift=3 seen=0-0-7"
    assert str(Coordinate("0-1-7", seen="0-2-3").after(*arrays([("0-2", 8)]))) == "gtid=0-2-8 seen=0-1-7"
    assert str(Coordinate("", A).after(*arrays([(A, 1), (A, 2)]))) == f"gtid={A}:1-2 server={A}"
    assert Coordinate("0-1-7").after(*arrays([("", 0)])) == Coordinate("0-1-7")
    assert str(Coordinate(f"{A}:1").after(*arrays([("+", 0), (f"+{C}", 4), (A, 2)]))) == f"gtid={A}:1-2,{C}:4"
