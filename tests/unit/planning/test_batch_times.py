"""When batches without a round are planned."""

from __future__ import annotations

import pytest

from dblog.capture.effects import Effects
from dblog.planning.batch_times import POLL_SECONDS, BatchTimes


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.effects = Effects(monotonic=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def seconds_until_due(times: BatchTimes, clock: Clock) -> float:
    begin = clock.now
    while times.early():
        assert clock.now - begin < 3600, "it is never due"
    return clock.now - begin


def test_the_first_batch_is_due_at_once() -> None:
    clock = Clock()
    assert seconds_until_due(BatchTimes(5.0, clock.effects), clock) == 0.0


def test_the_next_batch_is_due_after_the_interval() -> None:
    clock = Clock()
    times = BatchTimes(5.0, clock.effects)
    times.planned(full=False)
    clock.now += 1.2  # the batch runs
    assert seconds_until_due(times, clock) == pytest.approx(3.8)


def test_a_full_batch_is_followed_at_once() -> None:
    clock = Clock()
    times = BatchTimes(5.0, clock.effects)
    times.planned(full=True)
    assert seconds_until_due(times, clock) == 0.0


def test_spark_is_answered_every_now_and_then() -> None:
    clock = Clock()
    times = BatchTimes(3600.0, clock.effects)
    times.planned(full=False)
    begin = clock.now
    assert times.early()
    assert clock.now - begin == POLL_SECONDS
