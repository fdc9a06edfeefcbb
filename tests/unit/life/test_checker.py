"""The checker of the random lives finds every way in which a stream can be wrong: each broken history is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.life.checker import Entry, Event, applied, check, check_attempts, check_dump, check_state

K, M = ("1",), ("2",)


def put(version: int, op: str = "update", tx: int = 0, key: tuple[str, ...] = K) -> Entry:
    return Entry(version, tx or version, "t", op, key, {"version": str(version), "n": str(version * 10)})


def change(batch: int, entry: Entry, seq: int = 0) -> Event:
    row = None if entry.op in ("delete", "truncate") else entry.row
    return Event(batch, entry.table, entry.op, (100 * batch + entry.tx, seq), entry.key, row)


def dumped(batch: int, entry: Entry, dump: str = "initial") -> Event:
    return Event(batch, "t", "read", (100 * batch + 99, 10**9), entry.key, entry.row, (), dump)


LEDGER = [
    put(1, "create"),
    put(2, "create", key=M),
    put(3),
    Entry(4, 4, "t", "delete", K),
    put(5, "create"),
    put(6),
    put(7, key=M),
]
GOOD = [
    dumped(0, LEDGER[1]),
    change(1, LEDGER[2]),
    dumped(1, LEDGER[2]),
    change(2, LEDGER[3]),
    change(3, LEDGER[4]),
    change(3, LEDGER[5], 1),
    change(4, LEDGER[6]),
    dumped(4, LEDGER[5], "d1"),
]
"""The stream began behind version 2."""


def wrong(events: list[Event], ledger: list[Entry] = LEDGER, **options: int) -> str:
    return "\n".join(map(str, check(ledger, events, **({"floor": 2} | options))))


def test_a_good_history_is_accepted() -> None:
    assert wrong(GOOD) == ""


def without(n: int) -> Callable[[list[Event]], list[Event]]:
    return lambda events: events[:n] + events[n + 1 :]


def swapped(a: int, b: int) -> Callable[[list[Event]], list[Event]]:
    def swap(events: list[Event]) -> list[Event]:
        events = list(events)
        events[a], events[b] = replace(events[b], at=events[a].at), replace(events[a], at=events[b].at)
        return events

    return swap


def also(place: int, event: Event) -> Callable[[list[Event]], list[Event]]:
    return lambda events: [*events[:place], event, *events[place:]]


def instead(place: int, **values: object) -> Callable[[list[Event]], list[Event]]:
    return lambda events: [*events[:place], replace(events[place], **values), *events[place + 1 :]]  # type: ignore[arg-type]


BROKEN = {
    "a dropped update": (without(1), "lost in front|not have at this place|not in the ledger|is ahead"),
    "a dropped delete": (without(3), "lost in front of version 5"),
    "a dropped last event": (without(6), "never delivered"),
    "swapped order": (swapped(4, 5), "lost in front of version 6"),
    "a delete behind the create": (swapped(3, 4), "lost in front"),
    "a duplicate": (also(2, replace(GOOD[1], at=(150, 0))), "delivered again"),
    "a duplicate delete": (also(4, replace(GOOD[3], at=(250, 0))), "delete that the ledger does not have"),
    "a stale dump row": (also(6, dumped(3, LEDGER[4])), "is stale"),
    "a dump row from before the stream": (also(2, dumped(1, LEDGER[0])), "is stale"),
    "a resurrected key": (also(4, dumped(2, LEDGER[2])), "brings a deleted row back"),
    "a dump row ahead of the log": (also(1, dumped(0, LEDGER[2])), "ahead of the log"),
    "a dump row that never was": (instead(7, row={"version": "99", "n": "1"}), "not in the ledger"),
    "an event that never was": (instead(6, row={"version": "99", "n": "1"}), "not in the ledger"),
    "another value": (instead(5, row={"version": "6", "n": "61"}), "other values"),
    "another value in a dump": (instead(7, row={"version": "6", "n": "61"}), "other values"),
    "a column that is missing": (instead(5, row={"version": "6"}), "has the columns"),
    "another operation": (instead(5, op="create"), "the ledger has update"),
    "a truncate that never was": (also(7, Event(4, "t", "truncate", (480, 0))), "truncate that the ledger"),
    "a row of nobody": (also(1, Event(0, "t", "create", (50, 0), ("9",), {"version": "9"})), "not in the ledger"),
    "a row of another table": (also(1, Event(0, "u", "create", (50, 0), ("9",), {"version": "9"})), "not in the led"),
    "a position that goes back": (instead(6, at=(301, 0)), "goes back to a position"),
    "a position that stands": (instead(5, at=GOOD[4].at), "does not grow"),
    "a row that is delivered after its delete": (lambda e: [*e[:3], e[0], *e[3:]], "does not grow"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_history_is_caught(what: str) -> None:
    mutation, said = BROKEN[what]
    found = wrong(mutation(list(GOOD)))
    assert found
    assert any(part in found for part in said.split("|")), found


def test_two_dumps_may_read_a_row_at_the_same_place() -> None:
    ledger = [put(1, "create")]
    first = dumped(0, ledger[0])
    assert wrong([first, replace(first, dump="d1")], ledger, floor=1) == ""
    assert "does not grow" in wrong([first, first], ledger, floor=1)


def test_a_row_that_no_dump_has_delivered_is_missing() -> None:
    assert "the row is missing" in wrong([], LEDGER[:2])
    assert wrong([dumped(0, LEDGER[0]), dumped(0, LEDGER[1])], LEDGER[:2]) == ""


def test_a_deleted_row_that_stays_is_caught() -> None:
    events = [dumped(0, LEDGER[0]), dumped(0, LEDGER[1])]
    assert "never delivered: delete" in wrong(events, [*LEDGER[:2], Entry(3, 3, "t", "delete", K)])


def test_a_transaction_that_is_torn_or_mixed_is_caught() -> None:
    ledger = [put(1, "create", tx=5), put(2, "create", tx=5, key=M)]
    whole = [Event(0, "t", "create", (7, n), e.key, e.row) for n, e in enumerate(ledger)]
    assert wrong(whole, ledger, floor=0) == ""
    torn = [whole[0], replace(whole[1], batch=1, at=(8, 0))]
    assert "tx 5 is delivered at" in wrong(torn, ledger, floor=0)
    assert "have the position 7" in wrong(whole, [ledger[0], replace(ledger[1], tx=6)], floor=0)


def test_a_delete_may_belong_to_any_transaction_that_deleted_its_key_after_the_stream_may_have_begun() -> None:
    """A delete has no version. Where the log is not delivered to its end, nothing of its key says which one it is."""

    def history(key: tuple[str, ...], first: int, deletes: tuple[int, int]) -> list[Entry]:
        """The key is created, deleted by one transaction, created, and deleted by another one."""
        created = [put(first + n, "create", tx=first + n, key=key) for n in (0, 2)]
        deleted = [Entry(first + n, tx, "t", "delete", key) for n, tx in zip((1, 3), deletes, strict=True)]
        return sorted(created + deleted, key=lambda e: e.version)

    def found(ledger: list[Entry], *places: tuple[int, int], ceiling: int = 8) -> str:
        """The last changes of the keys are delivered at these places (batch, _lsn)."""
        last = list({e.key: e for e in ledger}.values())
        events = [
            Event(batch, "t", e.op, (lsn, n), e.key, None if e.op == "delete" else e.row)
            for n, (e, (batch, lsn)) in enumerate(zip(last, places, strict=True))
        ]
        return wrong(events, ledger, floor=0, ceiling=ceiling, complete=False)

    together, apart = ((0, 500), (0, 500)), ((0, 500), (1, 600))
    beside_a_create = [*history(K, 1, (20, 30)), put(9, "create", tx=30, key=M)]
    assert found(beside_a_create, *together) == ""
    assert "have the position 500" in found([*beside_a_create[:-1], put(9, "create", tx=40, key=M)], *together)
    of_the_other = put(10, "create", tx=20, key=("3",))
    assert "tx 20 and tx 30 have the position 500" in found([*beside_a_create, of_the_other], *together, (0, 500))
    assert found(beside_a_create, *apart) == "", "the first delete may be the one that is delivered"
    assert "tx 30 is delivered at" in found([*history(K, 1, (30, 20)), *beside_a_create[-1:]], *apart, ceiling=1)
    assert found([*history(K, 1, (20, 30)), *history(M, 5, (25, 30))], *together) == "", "only deletes"
    assert "have the position 500" in found([*history(K, 1, (20, 30)), *history(M, 5, (25, 40))], *together)


def test_a_stream_may_begin_between_two_versions_and_nowhere_else() -> None:
    ledger = [put(1, "create"), put(2), put(3)]
    for begin in (1, 2, 3):
        events = [dumped(0, ledger[begin - 1]), *(change(n, ledger[n]) for n in range(begin, 3))]
        assert wrong(events, ledger, floor=1, ceiling=3) == ""
        assert bool(wrong(events, ledger, floor=2, ceiling=2)) == (begin != 2)


def test_a_truncate_takes_all_keys_of_its_table() -> None:
    ledger = [put(1, "create"), put(2, "create", key=M), Entry(3, 3, "t", "truncate"), put(4, "create", key=M)]
    events = [change(n, e) for n, e in enumerate(ledger)]
    assert wrong(events, ledger, floor=0) == ""
    assert "never delivered: truncate" in wrong([*events[:2]], ledger[:3], floor=0)
    assert "lost in front of version 4" in wrong([*events[:2], events[3]], ledger, floor=0)
    late = [*events[:2], events[3], replace(events[2], batch=4, at=(499, 0))]
    assert wrong(late, ledger, floor=0)
    assert wrong(events[2:], ledger, floor=2, delivered=True) == "", "also the keys that have no event of their own"
    again = [*events[:3], replace(events[2], at=(299, 0)), events[3]]
    assert wrong(again, ledger, floor=0) == "", "a table that is empty may be emptied again"


def test_events_may_go_on_from_a_state_that_was_delivered() -> None:
    ledger = [put(1, "create"), put(2)]
    assert wrong([change(1, ledger[1])], ledger, floor=1, delivered=True) == ""
    assert wrong([], ledger[:1], floor=1, delivered=True) == ""
    assert "the row is missing" in wrong([], ledger[:1], floor=1)
    assert "never delivered" in wrong([], ledger, floor=1, delivered=True)


def test_a_table_that_got_other_rows_may_be_emptied_and_dumped_but_never_goes_back() -> None:
    ledger = [put(1, "create"), put(2), put(3), put(4, "create", key=M), Entry(5, 5, "t", "delete", M)]
    emptied = Event(1, "t", "truncate", (150, 0))
    first, last = change(0, ledger[0]), dumped(1, ledger[2], "repair")

    def found(*events: Event) -> str:
        return wrong(list(events), ledger, floor=0, loose={"t"})

    assert found(first, emptied, last) == ""
    assert found(first, last) == ""
    assert "row is missing" in found(first, emptied)
    assert "gone from the source" in found(first, last, change(2, ledger[3]))
    assert "behind version 3" in found(last, change(2, ledger[1]))
    assert "other values" in found(first, replace(last, row={"version": "3", "n": "0"}))
    assert "not in the ledger" in found(first, replace(last, row={"version": "9", "n": "90"}))
    assert "does not grow" in found(first, replace(last, at=(1, 0)))


def test_attempts_of_a_batch_must_be_the_same() -> None:
    assert not check_attempts(GOOD[:4], GOOD[:4])
    assert check_attempts(GOOD[:4], GOOD[:3])
    assert check_attempts(GOOD[:3], GOOD[:4])
    assert check_attempts(GOOD[:2], [GOOD[1], GOOD[0]])
    assert check_attempts(GOOD[:2], [GOOD[0], replace(GOOD[1], at=(1, 1))])
    assert not check_attempts(GOOD[:3], GOOD[:2], staged_lost=True)
    assert check_attempts(GOOD[:3], [GOOD[0], GOOD[2]], staged_lost=True), "the log is never lost"
    elsewhere = [replace(event, at=(event.at[0] + 1, 0)) for event in GOOD[:2]]
    assert check_attempts(GOOD[:2], elsewhere)
    assert check_attempts(GOOD[:2], elsewhere, staged_lost=True)
    assert check_attempts(GOOD[:2], elsewhere, moved=True)
    assert not check_attempts(GOOD[:2], elsewhere, staged_lost=True, moved=True)
    assert check_attempts(GOOD[:2], elsewhere[:1], staged_lost=True, moved=True), "the log is never lost"


def test_a_dump_that_leaves_out_a_row_is_caught() -> None:
    ledger = [put(1, "create"), put(2, "create", key=M), put(3, "create", key=("3",)), put(9, key=("3",))]
    rows = [dumped(5, ledger[0], "d1"), dumped(5, ledger[1], "d1")]
    assert not check_dump(ledger, rows, "d1", "t", asked=5, ended=20)
    (found,) = check_dump(ledger, rows[:1], "d1", "t", asked=5, ended=20)
    assert found.key == M
    assert not check_dump(ledger, rows[:1], "d1", "t", asked=5, ended=20, keys=[K])
    assert len(check_dump(ledger, rows[:1], "d1", "t", asked=5, ended=8)) == 2


def test_states_are_compared_and_unchanged_values_kept() -> None:
    first = Event(0, "t", "create", (1, 0), K, {"version": "1", "big": "x"})
    second = Event(1, "t", "update", (2, 0), K, {"version": "2"}, ("big",))
    assert applied([first, second]) == {("t", K): {"version": "2", "big": "x"}}
    assert applied([second]) == {("t", K): {"version": "2", "big": "<never delivered>"}}
    assert not applied([first, Event(1, "t", "truncate", (2, 0))])
    state = applied([first, second])
    assert not check_state(state, {("t", K): {"version": "2", "big": "x"}})
    assert check_state(state, {("t", K): {"version": "2", "big": "y"}})
    assert not check_state(state, {("t", K): {"version": "2", "big": "y"}}, whole=False)
    assert check_state(state, {})
    assert check_state({}, {("t", K): {"version": "2", "big": "x"}})
