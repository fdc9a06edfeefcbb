"""How fast a dump is beside a busy log, and how long changes wait for it: the shipped planner on a simulated clock."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.sim.timing import CHEAP, Costs, Stream

ROWS = 10_000_000
RATES = [5, 100, 2000]
EVERY = 5.0


def dumped(changes: float, trigger: float, costs: Costs, rows: int = ROWS) -> tuple[Stream, float]:
    """A stream that has dumped a table beside so many changes per second, and its rows per second. A trigger brings
    the delay that a pipeline allows with it."""
    stream = Stream({"t": rows}, changes, costs, trigger, max_delay=2 * trigger or None)
    seconds = stream.run()
    assert sum(batch.rows for batch in stream.batches) == rows
    return stream, rows / seconds


@cache
def undisturbed(trigger: float, costs: Costs) -> float:
    return dumped(0, trigger, costs)[1]


@cache
def idle_delay(changes: float, trigger: float, costs: Costs) -> float:
    """The median delay of a stream without a dump."""
    stream = Stream({"t": 1}, changes, costs, trigger, max_delay=2 * trigger or None, dump=False)
    stream.run(until=lambda: stream.clock > 60)
    return float(np.median(stream.delays()))


@pytest.mark.parametrize("changes", RATES)
@pytest.mark.parametrize("costs", [Costs(), CHEAP], ids=["database", "cheap"])
def test_beside_changes_a_dump_is_as_fast_as_without(changes: float, costs: Costs) -> None:
    stream, speed = dumped(changes, EVERY, costs)
    assert speed >= 0.9 * undisturbed(EVERY, costs)
    assert max(stream.intervals()) < 2 * EVERY
    assert max(stream.intervals(after=30.0), default=0.0) < 1.35 * EVERY
    assert stream.delays(after=30.0).max(initial=0.0) < 1.3 * 2 * EVERY


@pytest.mark.parametrize("costs", [Costs(), CHEAP], ids=["database", "cheap"])
def test_a_dump_uses_the_time_between_two_triggers(costs: Costs) -> None:
    fastest = costs.cores / (costs.selected_row + costs.row)
    stream = dumped(100, EVERY, costs)[0]
    late = [batch for batch in stream.batches if batch.planned > 30.0][:-1]
    if late:
        speed = sum(batch.rows for batch in late) / (late[-1].planned + EVERY - late[0].planned)
        assert speed > 0.7 * fastest


@pytest.mark.parametrize("changes", RATES)
@pytest.mark.parametrize("costs", [Costs(), CHEAP], ids=["database", "cheap"])
def test_without_a_trigger_changes_wait_little_longer_than_without_a_dump(changes: float, costs: Costs) -> None:
    stream, speed = dumped(changes, 0.0, costs)
    assert np.median(stream.delays()) <= 2.6 * idle_delay(changes, 0.0, costs)
    assert speed > 0.3 * undisturbed(0.0, costs)


def test_an_explicit_delay_counts_more_than_the_batches() -> None:
    stream = Stream({"t": ROWS}, 100, CHEAP, max_delay=2.0)
    stream.run()
    assert stream.delays().max() < 1.35 * 2.0
    assert max(stream.intervals()) > 0.8


def test_a_change_that_comes_into_a_quiet_dump_waits_for_a_short_round() -> None:
    stream, _ = dumped(0, 0.0, CHEAP)
    assert 1.0 < max(stream.intervals()) < 3.0


@pytest.mark.parametrize("trigger", [0.0, EVERY])
def test_a_log_that_takes_most_of_the_time_does_not_starve_a_dump(trigger: float) -> None:
    """Of each second, 0.8 s go into the log."""
    stream, speed = dumped(0.8 / Costs.change, trigger, Costs(), rows=1_000_000)
    assert speed > 500
    assert max(stream.intervals(after=60.0)) < 40


def test_a_burst_of_changes_comes_first_and_the_dump_goes_on_after_it() -> None:
    def log(at: float) -> int:
        """Three million changes within a second, after a minute."""
        return int(100 * at + 3_000_000 * min(max(at - 60.0, 0.0), 1.0))

    stream = Stream({"t": 2 * ROWS}, log, Costs(), EVERY, max_delay=2 * EVERY)
    stream.run()
    burst = next(n for n, b in enumerate(stream.batches) if b.changes > 1_000_000)
    assert stream.batches[burst + 1].rows == 0, "no round is opened while the log is far behind"
    before, after = stream.batches[burst - 1], stream.batches[burst + 10]
    assert after.rows > 0.8 * before.rows


def test_a_slow_sink_is_noticed_after_its_first_rows() -> None:
    """A sink that takes a millisecond per row holds up the log once, and then no more."""
    stream = Stream({"t": 1_000_000}, 5, Costs(row=2e-3), EVERY, max_delay=2 * EVERY)
    stream.run()
    long = [seconds for seconds in stream.intervals() if seconds > 1.5 * EVERY]
    assert len(long) <= 2
    assert max(stream.intervals(after=300.0)) < 1.2 * EVERY


@pytest.mark.parametrize("trigger", [0.0, EVERY])
def test_a_thousand_small_tables_take_a_few_rounds(trigger: float) -> None:
    sizes = {f"t{n}": 100 for n in range(1000)}
    stream = Stream(sizes, 5, Costs(table=0.002), trigger, max_delay=2 * trigger or None)
    seconds = stream.run()
    assert seconds < 25
    if trigger:
        assert len(stream.batches) <= 6


def test_many_tables_of_some_size_are_read_at_the_speed_of_one() -> None:
    tables = {f"t{n}": 40_000 for n in range(100)}
    stream = Stream(tables, 100, Costs(), EVERY, max_delay=2 * EVERY)
    assert 4_000_000 / stream.run() > 0.6 * dumped(100, EVERY, Costs(), rows=4_000_000)[1]
