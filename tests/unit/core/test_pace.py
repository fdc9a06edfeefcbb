"""How large chunks and rounds are, and how the time for a round follows the time that batches take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dblog.core.boundaries import AT_ONCE, Boundaries
from dblog.core.dump import INITIAL, Orders, next_round
from dblog.core.offset import Chunk, Cursor, Key
from dblog.core.pace import FIRST_DELAY, LEAST_DELAY, LEAST_SECONDS, QUIET_SECONDS, ROUND_ROWS, Budget, Pace, Ran
from dblog.core.schema import TableName

A, B = TableName("public", "a"), TableName("public", "b")


class Sizes(Boundaries):
    """Tables of so many rows, with the keys 1, 2, 3 ..."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.asked = 0
        self.groups: list[list[str]] = []

    def key(self, table: TableName) -> str:
        return "id integer"

    def last_key(self, table: TableName) -> Key | None:
        size = self.sizes[table.name]
        return (str(size),) if size else None

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        assert count > 0
        self.asked += 1
        at, found = int(after[0]) if after else 0, []
        while at < int(upto[0]) and len(found) < count:
            at = min(at + rows, int(upto[0]))
            found.append((str(at),))
        return found

    def small(self, tables: Sequence[TableName], rows: int) -> dict[TableName, tuple[str, Key | None]]:
        self.groups.append([t.name for t in tables])
        return {t: (self.key(t), self.last_key(t)) for t in tables if self.sizes[t.name] <= rows}


def waiting(sizes: Sizes) -> tuple[Cursor, ...]:
    return tuple(Cursor(INITIAL, TableName("public", name), 20_000) for name in sizes.sizes)


def names(chunks: Sequence[Chunk]) -> list[str]:
    return [c.table.name for c in chunks]


# chunks


def test_a_fixed_chunk_size_does_not_adapt() -> None:
    assert Pace(rows=7).next_rows(100, [(100, 9.0)]) == 7
    assert Pace(rows=7).first_rows == 7


def test_chunks_shrink_at_once_when_selects_are_slow() -> None:
    assert Pace(seconds=0.5).next_rows(10_000, [(10_000, 1.0)]) == 5_000


def test_the_slowest_select_decides() -> None:
    assert Pace(seconds=0.5).next_rows(10_000, [(10_000, 0.1), (10_000, 1.0)]) == 5_000


def test_chunks_grow_in_steps() -> None:
    assert Pace(seconds=0.5).next_rows(10_000, [(10_000, 0.001)]) == 160_000
    assert Pace(seconds=0.5).next_rows(10_000, [(10_000, 0.0)]) == 160_000


def test_chunks_stay_within_bounds() -> None:
    assert Pace().next_rows(2_000, [(2_000, 60.0)]) == Pace.LEAST_ROWS
    assert Pace().next_rows(400_000, [(400_000, 0.001)]) == Pace.most


def test_a_small_rest_says_nothing_about_the_pace() -> None:
    assert Pace().next_rows(10_000, [(3, 5.0), (0, 5.0)]) == 10_000
    assert Pace().next_rows(10_000, []) == 10_000


# rounds


def test_a_round_has_as_many_chunks_as_fit_into_its_time() -> None:
    sizes = Sizes(a=10_000_000)
    cursors = (Cursor(INITIAL, A, 100_000, ("5",), ("10000000",), key="id integer"),)
    pace = Pace(chunks=2, budget=4.0, row_seconds={A: 5e-6})  # a chunk takes half a second
    assert len(next_round(cursors, pace, sizes, "w")[0]) == 8
    assert len(next_round(cursors, replace(pace, row_seconds={A: 50e-6}), sizes, "w")[0]) == 2, "never fewer than tasks"
    assert len(next_round(cursors, replace(pace, budget=0.0), sizes, "w")[0]) == 2
    wide = replace(pace, budget=1000.0, row_seconds={A: 1e-9})
    assert len(next_round(cursors, wide, sizes, "w")[0]) <= ROUND_ROWS / 100_000 + 1, "the spool must hold them"


def test_hundreds_of_small_tables_share_a_round() -> None:
    sizes = Sizes(**{f"t{n}": 100 for n in range(1000)})
    chunks, left = next_round(waiting(sizes), Pace(chunks=2, budget=4.0), sizes, "w")
    assert 300 < len(chunks) < 1000
    assert len(left) == 1000 - len(chunks)
    chunks, _ = next_round(waiting(sizes), Pace(chunks=2), sizes, "w")
    assert len(chunks) == 2, "without a budget the number of chunks counts"


def test_small_tables_are_asked_about_together() -> None:
    sizes = Sizes(**{f"t{n}": 100 * (n % 3) for n in range(70)}, big=5000, last=7)
    chunks, left = next_round(waiting(sizes), Pace(chunks=2, budget=60.0), sizes, "w")
    assert [len(group) for group in sizes.groups] == [AT_ONCE, 72 - AT_ONCE]
    assert sizes.asked == 2, "the boundaries of the large table alone"
    assert names(chunks) == [*(f"t{n}" for n in range(70)), "big", "last"]
    assert [c.extent.upto for c in chunks[1:3]] == [("100",), ("200",)]
    assert chunks[0].extent.empty
    assert left == ()


def test_tables_that_a_round_has_no_time_for_are_not_asked_about() -> None:
    sizes = Sizes(**{f"t{n}": 100 for n in range(1000)})
    chunks, left = next_round(waiting(sizes), Pace(chunks=2, budget=0.2), sizes, "w")
    assert len(chunks) + len(left) == 1000
    assert sum(map(len, sizes.groups)) <= len(chunks) + AT_ONCE


def test_a_single_table_is_not_asked_about_twice() -> None:
    sizes = Sizes(a=100)
    assert len(next_round(waiting(sizes), Pace(chunks=2, budget=1.0), sizes, "w")[0]) == 1
    assert sizes.groups == []


def test_empty_tables_take_the_time_of_a_select() -> None:
    sizes = Sizes(**{f"t{n}": 0 for n in range(1000)})
    chunks, _ = next_round(waiting(sizes), Pace(chunks=2, budget=0.4), sizes, "w")
    assert 50 < len(chunks) < 200


def test_a_table_that_was_never_read_gets_few_chunks() -> None:
    sizes = Sizes(a=10_000_000, b=10)
    chunks, _ = next_round(waiting(sizes), Pace(chunks=3, budget=10.0), sizes, "w")
    assert names(chunks) == ["a", "a", "a", "b"]


def test_large_tables_leave_room_for_no_more_than_fits() -> None:
    sizes = Sizes(a=10_000_000, b=10_000_000)
    pace = Pace(chunks=2, budget=1.0, row_seconds={A: 5e-6, B: 5e-6})
    chunks, left = next_round(waiting(sizes), pace, sizes, "w")
    assert names(chunks) == ["a"] * 10
    assert [c.table for c in left] == [A, B]
    assert sizes.asked == 2, "the keys of a table that gets no chunk are not looked for"


def test_dumps_share_the_time_of_a_round() -> None:
    sizes = Sizes(a=10_000_000, b=10_000_000)
    pace = Pace(chunks=2, budget=1.0, row_seconds={A: 5e-6, B: 5e-6})
    cursors = (Cursor(INITIAL, A, 20_000), Cursor("1-b", B, 20_000))
    assert names(next_round(cursors, pace, sizes, "w")[0]) == ["a"] * 5 + ["b"] * 5
    held = Orders(held=frozenset({"1-b"}))
    assert names(next_round(cursors, pace, sizes, "w", held)[0]) == ["a"] * 10


def test_chunks_of_a_fixed_size_are_no_more_than_the_tasks() -> None:
    sizes = Sizes(a=10_000_000)
    pace = Pace(chunks=3, budget=10.0, rows=5_000, row_seconds={A: 1e-6})
    cursors = (Cursor(INITIAL, A, 5_000),)
    assert len(next_round(cursors, pace, sizes, "w")[0]) == 3
    sizes = Sizes(**{f"t{n}": 100 for n in range(100)})
    cursors = tuple(Cursor(INITIAL, TableName("public", name), 5_000) for name in sizes.sizes)
    assert len(next_round(cursors, pace, sizes, "w")[0]) == 15, "small tables have fewer rows"


# the time of a round


def settled(budget: Budget, cost: float, base: float, *, trigger: float = 0.0, batches: int = 60) -> list[float]:
    """The intervals of batches with a round, each of which takes `base` and `cost` times its selects."""
    intervals, emitted = [], 0.0
    for _ in range(batches):
        selected = budget.seconds(quiet=False)
        interval = max(trigger, base + max(selected, cost * emitted))
        budget.ran(Ran(interval, emitted, selected))
        intervals.append(interval)
        emitted = selected
    return intervals


def idle(seconds: float, max_delay: float | None = None) -> Budget:
    """A budget after batches without a round."""
    budget = Budget()
    budget.max_delay = max_delay
    for _ in range(3):
        budget.ran(Ran(seconds))
    return budget


@pytest.mark.parametrize("cost", [0.2, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("base", [0.05, 0.5])
def test_batches_take_half_more_than_without_a_dump(base: float, cost: float) -> None:
    intervals = settled(idle(base), cost, base)
    least = base + cost * LEAST_SECONDS
    assert max(intervals[10:]) <= 1.11 * max(1.5 * base, 1.2 * least, LEAST_DELAY)
    assert sum(intervals[20:]) / 40 >= 1.3 * base


@pytest.mark.parametrize("cost", [0.2, 1.0, 5.0, 30.0])
def test_a_round_fills_the_time_between_two_triggers(cost: float) -> None:
    intervals = settled(idle(5.0, max_delay=10.0), cost, 0.3, trigger=5.0)
    assert sum(seconds > 1.2 * 5.0 for seconds in intervals) <= 3, "it is found out at once"
    late = intervals[15:]
    assert max(late) < 1.2 * 5.0
    assert sum(late) / len(late) < 1.15 * 5.0


def test_a_round_is_as_long_as_the_delay_that_is_allowed() -> None:
    budget = idle(0.3, max_delay=10.0)
    settled(budget, cost=1.0, base=0.3, trigger=5.0)
    assert 4.0 <= budget.seconds(quiet=False) <= 5.0


def test_an_unknown_trigger_is_found_out() -> None:
    budget = Budget()
    settled(budget, cost=3.0, base=0.3, trigger=5.0, batches=30)
    assert 1.0 <= budget.seconds(quiet=False) <= 3.0


def test_a_sink_that_is_slower_than_the_allowed_delay_does_not_stop_a_dump() -> None:
    budget = idle(6.0, max_delay=2.0)
    intervals = settled(budget, cost=3.0, base=6.0)
    assert 0.7 < budget.seconds(quiet=False) <= 1.0
    assert max(intervals[5:]) < 1.1 * 9.0


def test_a_window_that_takes_long_by_itself_lets_rounds_grow() -> None:
    budget, base = idle(0.05), 0.8  # a watermark and boundaries take most of the time
    intervals = settled(budget, cost=1.0, base=base)
    assert budget.seconds(quiet=False) > 0.1
    assert max(intervals[5:]) < 1.1 * 1.2 * base


def test_a_batch_that_takes_too_long_makes_the_next_round_smaller_in_proportion() -> None:
    budget = idle(1.0, max_delay=8.0)
    budget.ran(Ran(4.0, 1.0, 1.0))
    before = budget.seconds(quiet=False)
    budget.ran(Ran(40.0, before, before))
    assert budget.seconds(quiet=False) == pytest.approx(before / 10)
    budget.ran(Ran(1e9, 1.0, 1.0))
    assert budget.seconds(quiet=False) == LEAST_SECONDS


def test_a_batch_with_much_log_makes_the_next_round_half_as_long_at_most() -> None:
    budget = idle(1.0, max_delay=8.0)
    now = budget.seconds(quiet=False)
    budget.ran(Ran(400.0, now, now, light=False))
    assert budget.seconds(quiet=False) == now / 2


def test_a_round_grows_only_after_one_of_its_size_was_delivered() -> None:
    budget = idle(1.0, max_delay=8.0)
    now = budget.seconds(quiet=False)
    budget.ran(Ran(4.0, 0.0, now))
    assert budget.seconds(quiet=False) == now, "nothing was delivered yet"
    budget.ran(Ran(4.0, now, now, full=False))
    assert budget.seconds(quiet=False) == now, "the dumps had no more to read"
    budget.ran(Ran(4.0, now, now))
    assert budget.seconds(quiet=False) > now


def test_while_the_log_is_quiet_rounds_are_longer_and_learned_apart() -> None:
    budget = idle(0.06)
    assert budget.limit(quiet=False) == pytest.approx(0.09)
    assert budget.limit(quiet=True) == QUIET_SECONDS
    for _ in range(9):
        seconds = budget.seconds(quiet=True)
        budget.ran(Ran(0.1 + seconds, seconds, seconds, quiet=True))
    assert budget.seconds(quiet=True) > 1.0
    assert budget.seconds(quiet=False) < 0.03
    assert idle(0.06, max_delay=10.0).limit(quiet=True) == 5.0


def test_a_sink_that_has_written_few_rows_gets_few_more() -> None:
    budget = idle(0.3, max_delay=10.0)
    assert budget.rows(1000) == 1000
    budget.ran(Ran(4.0, 0.1, 0.1, rows=3000))
    assert budget.rows(1000) == 12_000
    budget.ran(Ran(400.0, 0.1, 0.1, rows=10**6))
    assert budget.rows(1000) == 12_000, "it has taken too long for them"
    budget.ran(Ran(4.0, 0.1, 0.1, rows=10**8))
    assert budget.rows(1000) == ROUND_ROWS


def test_before_any_batch_a_short_delay_is_assumed() -> None:
    assert Budget().limit(quiet=False) == FIRST_DELAY


def test_a_batch_with_much_log_does_not_show_what_a_batch_takes_anyway() -> None:
    budget = idle(0.1)
    budget.ran(Ran(30.0, light=False))
    assert budget.limit(quiet=False) == pytest.approx(0.15)
    budget.ran(Ran(30.0))
    assert budget.limit(quiet=False) == pytest.approx(0.165), "one slow batch is no rule"
