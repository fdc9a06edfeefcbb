"""When the next round of a dump may open."""

from __future__ import annotations

import pytest

from dblog.core.throttle import MOST_PENALTY_SECONDS, Governor, Load, Throttle

NOTHING = Load()


def test_without_settings_a_round_may_always_open() -> None:
    governor = Governor()
    governor.opened(0.0)
    governor.read(Throttle(), 1.0, rows=10**9, slowest=3600.0)
    assert governor.waits(Throttle(), 1.0, Load(lag_seconds=3600.0)) is None


def test_nothing_opens_while_it_is_paused() -> None:
    assert Governor().waits(Throttle(paused=True), 0.0, NOTHING) == "paused"


def test_a_delay_counts_from_the_end_of_the_round() -> None:
    governor, throttle = Governor(), Throttle(delay_seconds=5)
    governor.read(throttle, 10.0, 1, 0.1)
    assert governor.waits(throttle, 14.9, NOTHING) == "delay of 5 s"
    assert governor.waits(throttle, 15.0, NOTHING) is None
    assert governor.waits(Throttle(), 14.9, NOTHING) is None, "a setting that is taken back holds nothing back"


def test_rows_per_second_hold_on_average() -> None:
    governor, throttle = Governor(), Throttle(rows_per_second=100)
    now, rows = 1000.0, 0
    while rows < 10_000:
        if governor.waits(throttle, now, NOTHING) is None:
            governor.opened(now)
            governor.read(throttle, now + 0.2, 150, 0.2)
            rows += 150
        now += 0.1
    assert rows / (now - 1000.0) == pytest.approx(100, rel=0.05)


def test_rows_that_were_not_read_earlier_are_no_credit() -> None:
    governor, throttle = Governor(), Throttle(rows_per_second=100)
    governor.opened(1000.0)
    governor.read(throttle, 1000.1, 100, 0.1)
    governor.opened(5000.0)
    governor.read(throttle, 5000.1, 100, 0.1)
    assert governor.waits(throttle, 5000.5, NOTHING) == "limit of 100 rows per second"


def test_slow_selects_are_answered_with_longer_and_longer_waits() -> None:
    governor, throttle = Governor(), Throttle(max_select_seconds=1)
    waits, now = [], 0.0
    for _ in range(9):
        governor.read(throttle, now, 1, 2.5)
        began = now
        while (why := governor.waits(throttle, now, NOTHING)) is not None:
            assert why == "a select took 2.5 s, over 1 s"
            now += 0.5
        waits.append(now - began)
    assert waits == [1, 2, 4, 8, 16, 32, *[MOST_PENALTY_SECONDS] * 3]
    governor.read(throttle, now, 1, 0.5)
    assert governor.waits(throttle, now, NOTHING) is None
    governor.read(throttle, now, 1, 2.5)
    assert governor.waits(throttle, now + 1, NOTHING) is None, "after a quick one it begins anew"


def test_lag_holds_back() -> None:
    throttle = Throttle(max_lag_seconds=2)
    assert Governor().waits(throttle, 0.0, Load(lag_seconds=2.5)) == "lag of 2.5 s is over 2 s"
    assert Governor().waits(throttle, 0.0, Load(lag_seconds=2.0)) is None
    assert Governor().waits(throttle, 0.0, NOTHING) is None


def test_a_probe_holds_back_also_when_it_cannot_be_asked() -> None:
    throttle = Throttle(probe="select 1", probe_max=3)
    assert Governor().waits(throttle, 0.0, Load(probe=4)) == "probe returns 4, over 3"
    assert Governor().waits(throttle, 0.0, Load(probe=3)) is None
    assert Governor().waits(throttle, 0.0, Load(trouble="no such table")) == "the probe failed: no such table"
    assert Governor().waits(Throttle(probe="select 1"), 0.0, Load(probe=4)) is None
