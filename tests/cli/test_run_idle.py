"""What a pipeline costs while nothing changes: processor time of all its processes."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil
import pytest

from tests.cli.test_run_file import Shop, on_one, shop
from tests.cli.test_run_operate import START

__all__ = ["shop"]

BATCHES = 60
"""Spark remembers the progress of its last batches, up to a hundred: to read them all is what used to be dear."""
SETTLE_SECONDS, STRETCH_SECONDS = 8.0, 30.0
MOST = 2.0
"""Processor seconds per minute. docs/benchmarks.md has what was measured on a quiet machine, which is a third of it."""


def used(process: psutil.Process) -> dict[int, float]:
    """Processor seconds of a process and all below it. Of those that have ended in between, nothing is counted: their
    parents would count all of their lives."""
    found = {}
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            found[each.pid] = times.user + times.system
    return found


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
@on_one
def test_an_idle_pipeline_costs_little_and_writes_nothing(shop: Shop) -> None:
    shop.write(shop.keep("good"))
    with shop.life() as life:
        life.until(lambda: len(shop.rows("good")) == 300, START)
        for number in range(BATCHES):
            shop.database.execute("update t set n = n + 1 where id = 5")
            life.until(lambda: len(shop.rows("good")) > 300 + number, START)  # noqa: B023
        time.sleep(SETTLE_SECONDS)
        tree, said = psutil.Process(life.process.pid), life.stderr
        before, began = used(tree), time.monotonic()
        time.sleep(STRETCH_SECONDS)
        after, seconds = used(tree), time.monotonic() - began
        assert life.process.poll() is None
        said_since = life.stderr.removeprefix(said)
    spent = {pid: (seconds_used - before.get(pid, 0.0)) * 60 / seconds for pid, seconds_used in after.items()}
    assert sum(spent.values()) < MOST, spent
    assert said_since == "", "nothing has changed, and there is nothing to say"
