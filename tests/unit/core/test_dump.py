from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dblog.core.boundaries import Boundaries
from dblog.core.dump import (
    INITIAL,
    NO_ROWS,
    REPAIR,
    REPAIR_LIMIT,
    Orders,
    next_round,
    of_keys,
    ordered,
    read_again,
    repaired,
)
from dblog.core.offset import Chunk, Cursor, Extent, Key
from dblog.core.pace import Pace
from dblog.core.schema import TableName
from dblog.errors import TableUnreadable

A, B = TableName("public", "a"), TableName("public", "b")
PACE = Pace(chunks=2, rows=2)
KEY = "id integer"


class Keys(Boundaries):
    """Tables as sorted lists of numbers."""

    def __init__(self, **tables: Sequence[int]) -> None:
        self.tables = tables

    def key(self, table: TableName) -> str:
        if table.name not in self.tables:
            raise TableUnreadable(f"table {table} does not exist")
        return KEY

    def last_key(self, table: TableName) -> Key | None:
        return (str(max(self.tables[table.name])),) if self.tables[table.name] else None

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        low = int(after[0]) if after else -1
        keys = [k for k in self.tables[table.name] if low < k <= int(upto[0])]
        found: list[Key] = [(str(k),) for k in keys[rows - 1 :: rows][:count]]
        return found if len(found) == count else [*(f for f in found if f != upto), upto]


def ranges(chunks: Sequence[Chunk]) -> list[tuple[str, Key | None, Key | None]]:
    return [(c.table.name, c.extent.after, c.extent.upto) for c in chunks]


# requests


def test_every_wanted_table_is_dumped_once() -> None:
    cursors, known = ordered((), (A,), Orders(wanted=(A, B)), PACE)
    assert cursors == (Cursor(INITIAL, B, 2),)
    assert known == (A, B)
    assert ordered(cursors, known, Orders(wanted=(A, B)), PACE) == (cursors, known)


def test_a_table_that_is_not_wanted_any_more_stays_known() -> None:
    assert ordered((), (A,), Orders(), PACE) == ((), (A,))


# rounds


def test_a_dump_goes_from_the_first_key_to_the_greatest_of_its_beginning() -> None:
    keys = Keys(a=[1, 2, 3, 4, 5])
    first, left = next_round((Cursor(INITIAL, A, 2),), PACE, keys, "w1")
    assert ranges(first) == [("a", None, ("2",)), ("a", ("2",), ("4",))]
    assert [c.id for c in first] == ["w1-0", "w1-1"]
    keys.tables["a"] = [1, 2, 3, 4, 5, 6, 7, 8]
    second, left = next_round(left, PACE, keys, "w2")
    assert ranges(second) == [("a", ("4",), ("5",))]
    assert left == ()


def test_an_empty_table_is_dumped_by_a_chunk_that_tells_its_columns() -> None:
    (chunk,), left = next_round((Cursor(INITIAL, A, 2),), PACE, Keys(a=[]), "w")
    assert chunk == Chunk("w-0", INITIAL, A, Extent(where=NO_ROWS), KEY)
    assert left == ()
    lost = read_again(left, [chunk], PACE)
    (again,), left = next_round(lost, PACE, Keys(a=[7]), "x")  # rows that came later come by the log
    assert (again.extent, left) == (chunk.extent, ())


def test_an_empty_table_does_not_keep_the_next_one_waiting() -> None:
    cursors = (Cursor(INITIAL, A, 2), Cursor(INITIAL, B, 2))
    chunks, left = next_round(cursors, Pace(chunks=1, rows=2), Keys(a=[], b=[1]), "w")
    assert ranges(chunks) == [("a", None, None), ("b", None, ("1",))]
    assert left == ()


def test_no_chunks_at_all_means_none_for_empty_tables_either() -> None:
    cursor = Cursor(INITIAL, A, 2)
    assert next_round((cursor,), Pace(chunks=0), Keys(a=[]), "w") == ((), (cursor,))


def test_a_range_whose_rows_are_gone_still_comes_to_its_end() -> None:
    cursor = Cursor(INITIAL, A, 2, ("2",), ("5",))
    chunks, left = next_round((cursor,), PACE, Keys(a=[1, 2]), "w")
    assert ranges(chunks) == [("a", ("2",), ("5",))]
    assert left == ()


def test_small_tables_share_a_round() -> None:
    chunks, left = next_round((Cursor(INITIAL, A, 2), Cursor(INITIAL, B, 2)), PACE, Keys(a=[1], b=[1, 2, 3]), "w")
    assert ranges(chunks) == [("a", None, ("1",)), ("b", None, ("2",))]
    assert left == (Cursor(INITIAL, B, 2, ("2",), ("3",), key=KEY),)


def test_a_full_round_leaves_the_other_cursors_as_they_are() -> None:
    waiting = Cursor(INITIAL, B, 2)
    _, left = next_round((Cursor(INITIAL, A, 1), waiting), PACE, Keys(a=[1, 2, 3], b=[1]), "w")
    assert left == (Cursor(INITIAL, A, 1, ("2",), ("3",), key=KEY), waiting)


# chunks of one round do not overlap


def test_a_repair_does_not_share_a_round_with_the_dump_of_its_table() -> None:
    dump = Cursor(INITIAL, A, 2, ("1",), ("5",))
    dumps = repaired((dump,), {A: [("2",)]}, PACE)
    first, dumps = next_round(dumps, Pace(chunks=3, rows=2), Keys(a=[1, 2, 3, 4, 5]), "w1")
    assert {c.dump for c in first} == {INITIAL}
    second, dumps = next_round(dumps, Pace(chunks=3, rows=2), Keys(a=[1, 2, 3, 4, 5]), "w2")
    assert [c.extent for c in second] == [Extent(keys=(("2",),))]


def test_a_long_dump_and_the_repairs_of_its_table_take_turns() -> None:
    dumps: tuple[Cursor, ...] = (Cursor(INITIAL, A, 1),)
    served = []
    for n in range(6):
        dumps = repaired(dumps, {A: [("1",)]} if n else {}, PACE)
        chunks, dumps = next_round(dumps, PACE, Keys(a=range(100)), f"w{n}")
        served.append({c.dump for c in chunks})
    assert served == [{INITIAL}, {INITIAL}, {REPAIR}, {INITIAL}, {REPAIR}, {INITIAL}]


def test_a_repair_does_not_wait_for_the_dump_of_another_table() -> None:
    dumps = repaired((Cursor(INITIAL, A, 2),), {B: [("2",)]}, PACE)
    chunks, left = next_round(dumps, PACE, Keys(a=[1], b=[2]), "w")
    assert [c.dump for c in chunks] == [INITIAL, REPAIR]
    assert left == ()


def test_a_row_that_is_repaired_twice_is_read_once() -> None:
    dumps = repaired((), {A: [("2",), ("3",), ("2",)]}, PACE)
    dumps = repaired(dumps, {A: [("3",), ("4",)]}, PACE)
    chunks, left = next_round(dumps, PACE, Keys(a=[2, 3, 4]), "w")
    assert [c.extent for c in chunks] == [Extent(keys=(("2",), ("3",), ("4",)))]
    assert left == ()


def test_a_lost_range_of_a_finished_repair_is_not_read_beside_single_rows() -> None:
    lost = Chunk("w-0", REPAIR, A, Extent(("1",), ("5",)))
    dumps = read_again(repaired((), {A: [("2",)]}, PACE), [lost], PACE)
    rounds = []
    while dumps:
        chunks, dumps = next_round(dumps, PACE, Keys(a=[2]), f"w{len(rounds)}")
        rounds.append([c.extent for c in chunks])
    assert rounds == [[Extent(keys=(("2",),))], [lost.extent]]


# lost chunks and repairs


@pytest.mark.parametrize("dumps", [(), (Cursor(INITIAL, A, 2, ("4",), ("5",)),)])
def test_a_lost_chunk_is_read_again_and_nothing_else_twice(dumps: tuple[Cursor, ...]) -> None:
    lost = Chunk("w-0", INITIAL, A, Extent(("1",), ("2",)))
    queue = read_again(dumps, [lost], PACE)
    read = []
    while queue:
        chunks, queue = next_round(queue, PACE, Keys(a=[1, 2, 3, 4, 5]), f"w{len(read)}")
        read += [c.extent for c in chunks]
    assert sorted(read, key=str) == sorted([lost.extent, *(Extent(("4",), ("5",)) for _ in dumps)], key=str)


def test_nothing_lost_changes_nothing() -> None:
    dumps = (Cursor(INITIAL, A, 2),)
    assert read_again(dumps, [], PACE) == dumps
    assert repaired(dumps, {A: []}, PACE) == dumps


@pytest.mark.parametrize("holes", [None, [(str(n),) for n in range(REPAIR_LIMIT + 1)]])
def test_a_table_with_very_many_incomplete_rows_is_dumped_whole(holes: list[Key] | None) -> None:
    assert repaired((), {A: holes}, PACE) == (Cursor(REPAIR, A, 2),)


def test_a_whole_dump_that_has_not_begun_is_not_queued_twice() -> None:
    dumps = repaired((), {A: None}, PACE)
    assert repaired(dumps, {A: None}, PACE) == dumps


def test_a_whole_dump_that_has_begun_does_not_count_for_later_holes() -> None:
    begun = Cursor(REPAIR, A, 2, ("3",), ("9",))
    assert repaired((begun,), {A: None}, PACE) == (begun, Cursor(REPAIR, A, 2))


# requests


def dumps_of(chunks: Sequence[Chunk]) -> list[str]:
    return [c.dump for c in chunks]


def test_requests_become_cursors_and_what_is_cancelled_is_gone() -> None:
    mine, other = Cursor("1-a", A, 2), Cursor("2-b", B, 2)
    assert ordered((mine,), (), Orders(new=(other,)), PACE) == ((mine, other), ())
    assert ordered((mine,), (), Orders(new=(other,), cancelled=frozenset({"1-a"})), PACE) == ((other,), ())


def test_every_dump_gets_its_share_of_a_round() -> None:
    dumps = (Cursor(INITIAL, A, 1), Cursor("1-a", B, 1))
    chunks, _ = next_round(dumps, Pace(chunks=4, rows=1), Keys(a=range(9), b=range(9)), "w")
    assert dumps_of(chunks) == [INITIAL, INITIAL, "1-a", "1-a"]


def test_what_one_dump_does_not_need_goes_to_another() -> None:
    dumps = (Cursor(INITIAL, A, 1), Cursor("1-a", B, 1))
    chunks, _ = next_round(dumps, Pace(chunks=4, rows=1), Keys(a=range(9), b=[1]), "w")
    assert sorted(dumps_of(chunks)) == ["1-a", INITIAL, INITIAL, INITIAL]
    assert [c.extent.upto for c in chunks if c.dump == INITIAL] == [("0",), ("1",), ("2",)]


def test_more_dumps_than_chunks_take_turns() -> None:
    names = "abcde"
    dumps = tuple(Cursor(n, TableName("public", n), 1) for n in names)
    keys = Keys(**{n: range(9) for n in names})
    served: list[str] = []
    for n in range(5):
        chunks, dumps = next_round(dumps, PACE, keys, f"w{n}")
        served += dumps_of(chunks)
    assert sorted(served) == sorted(names * 2)


def test_a_dump_that_is_held_waits_and_keeps_its_place() -> None:
    held = Cursor("1-a", A, 1, ("1",), ("5",), key=KEY)
    chunks, left = next_round(
        (held, Cursor(INITIAL, B, 2)), PACE, Keys(a=range(6), b=[1]), "w", Orders(held=frozenset({"1-a"}))
    )
    assert dumps_of(chunks) == [INITIAL]
    assert left == (held,)


def test_many_keys_are_read_in_portions() -> None:
    keys: list[Key] = [(str(n),) for n in range(2500)]
    dumps: tuple[Cursor, ...] = (of_keys("1-a", A, keys, KEY, PACE),)
    read: list[Key] = []
    while dumps:
        chunks, dumps = next_round(dumps, PACE, Keys(a=range(9)), f"w{len(read)}")
        assert all(len(c.extent.keys) <= 1000 for c in chunks)
        read += [k for c in chunks for k in c.extent.keys]
    assert read == keys


def test_the_condition_of_a_dump_is_that_of_its_chunks_also_when_they_are_read_again() -> None:
    chunks, left = next_round((Cursor("1-a", A, 2, where="n > 1"),), Pace(chunks=1), Keys(a=[1, 2, 3]), "w1")
    assert [c.extent.where for c in chunks] == ["n > 1"]
    for dumps in (left, ()):
        again, _ = next_round(read_again(dumps, chunks, PACE), PACE, Keys(a=[1, 2, 3]), "w2")
        assert again[0].extent == chunks[0].extent


def test_a_table_that_is_gone_fails_its_dump_and_no_other() -> None:
    chunks, left = next_round((Cursor("1-a", A, 2), Cursor("2-b", B, 2)), PACE, Keys(b=[1]), "w")
    assert dumps_of(chunks) == ["2-b"]
    assert [(c.dump, c.failed) for c in left] == [("1-a", "table public.a does not exist")]


def test_a_table_with_another_key_is_dumped_from_its_beginning() -> None:
    old = Cursor(INITIAL, A, 2, ("x", "y"), ("z", "z"), again=(Extent(("a", "b"), ("c", "d")),), key="a text, b text")
    chunks, _ = next_round((old,), PACE, Keys(a=[1, 2, 3]), "w")
    assert ranges(chunks) == [("a", None, ("2",)), ("a", ("2",), ("3",))]
    assert {c.key for c in chunks} == {KEY}


def test_keys_that_are_asked_for_are_of_no_use_when_the_table_has_another_key() -> None:
    chunks, (failed,) = next_round((of_keys("1-a", A, [("x",)], "a text", PACE),), PACE, Keys(a=[1]), "w")
    assert not chunks
    assert failed.failed is not None
    assert "has changed since the dump was requested" in failed.failed
    chunks, _ = next_round((of_keys(REPAIR, A, [("x",)], "a text", PACE),), PACE, Keys(a=[1]), "w")
    assert ranges(chunks) == [("a", None, ("1",))], "a repair reads the whole table then"


# requests that share a pass


FIRST, SECOND = Cursor("1-a", A, 2), Cursor("2-b", A, 2)


def read(
    cursors: Sequence[Cursor], keys: Keys, pace: Pace = PACE
) -> list[tuple[tuple[str, ...], Key | None, Key | None]]:
    """What the cursors read until all is read: for which dumps, and the range."""
    found: list[tuple[tuple[str, ...], Key | None, Key | None]] = []
    while cursors:
        chunks, cursors = next_round(cursors, pace, keys, "w")
        assert chunks
        found += [(c.dumps, c.extent.after, c.extent.upto) for c in chunks]
    return found


def test_requests_for_a_table_that_have_not_begun_are_one_pass() -> None:
    cursors, _ = ordered((), (A,), Orders(new=(FIRST, SECOND)), PACE)
    both = ("1-a", "2-b")
    assert read(cursors, Keys(a=[1, 2, 3])) == [(both, None, ("2",)), (both, ("2",), ("3",))]


def test_a_request_joins_the_rest_of_a_pass_and_reads_the_other_rows_by_itself() -> None:
    keys = Keys(a=[1, 2, 3, 4, 5, 6])
    _, begun = next_round((FIRST,), Pace(chunks=1, rows=2), keys, "w")
    keys.tables["a"] = [1, 2, 3, 4, 5, 6, 7]  # which the first one never reads
    cursors, _ = ordered(begun, (A,), Orders(new=(SECOND,)), PACE)
    both, own = ("1-a", "2-b"), ("2-b",)
    assert sorted(read(cursors, keys), key=str) == [
        (both, ("2",), ("4",)), (both, ("4",), ("6",)), (own, ("6",), ("7",)), (own, None, ("2",)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        replace(FIRST, where="n > 1"),
        of_keys("1-a", A, [("1",)], KEY, PACE),
        replace(FIRST, failed="gone"),
        replace(FIRST, after=("3",), upto=("3",), again=(Extent(None, ("1",)),)),
        replace(FIRST, table=B),
    ],
    ids=["condition", "keys", "failed", "lost chunks only", "other table"],
)
def test_a_request_shares_only_the_pass_over_a_whole_table(other: Cursor) -> None:
    cursors, _ = ordered((other,), (A,), Orders(new=(SECOND,)), PACE)
    assert SECOND in cursors
    assert other in cursors
    conditional, _ = ordered((FIRST,), (A,), Orders(new=(replace(SECOND, where="n > 1"),)), PACE)
    assert conditional == (FIRST, replace(SECOND, where="n > 1"))


def test_a_pass_goes_on_for_those_that_are_not_cancelled() -> None:
    cursors, _ = ordered((), (A,), Orders(new=(FIRST, SECOND)), PACE)
    assert ordered(cursors, (A,), Orders(cancelled=frozenset({"1-a"})), PACE)[0] == (SECOND,)
    assert ordered(cursors, (A,), Orders(cancelled=frozenset({"2-b"})), PACE)[0] == (FIRST,)
    assert ordered(cursors, (A,), Orders(cancelled=frozenset({"1-a", "2-b"})), PACE)[0] == ()


def test_a_pass_is_held_when_all_that_share_it_are() -> None:
    cursors, _ = ordered((), (A,), Orders(new=(FIRST, SECOND)), PACE)
    keys = Keys(a=[1])
    assert next_round(cursors, PACE, keys, "w", Orders(held=frozenset({"1-a", "2-b"}))) == ((), cursors)
    assert next_round(cursors, PACE, keys, "w", Orders(held=frozenset({"1-a"})))[0]


def test_a_lost_chunk_of_a_pass_is_read_again_for_all() -> None:
    chunk = Chunk("c", "1-a", A, Extent(None, ("2",)), KEY, also=("2-b",))
    (cursor,) = read_again((), [chunk], PACE)
    assert (cursor.dumps, cursor.again) == (("1-a", "2-b"), (chunk.extent,))


def test_a_table_that_cannot_be_read_ends_all_that_share_its_pass() -> None:
    keys = Keys(a=[1, 2, 3, 4])
    _, begun = next_round((FIRST,), Pace(chunks=1, rows=2), keys, "w")
    cursors, _ = ordered(begun, (A,), Orders(new=(SECOND,)), PACE)
    del keys.tables["a"]
    chunks, left = next_round(cursors, PACE, keys, "x")
    assert not chunks
    assert len(left) == 3
    assert all("does not exist" in (c.failed or "") for c in left)


@pytest.mark.parametrize("other", [replace(SECOND, after=("4",), key=KEY), of_keys(REPAIR, A, [("1",)], KEY, PACE)])
def test_a_repair_of_a_whole_table_trusts_only_a_pass_that_has_not_begun(other: Cursor) -> None:
    assert Cursor(REPAIR, A, 2) in repaired((other,), {A: None}, PACE)
    first = Cursor(INITIAL, A, 2)
    assert repaired((first,), {A: None}, PACE) == (first,)
    assert repaired((SECOND,), {A: None}, PACE) != (SECOND,)  # a request may be cancelled
