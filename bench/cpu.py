"""Processor seconds of process trees: of a side's own processes, and of the servers that it works with.

A tree's seconds are those of its live processes and of the children that these have waited for, so that a backend of
the server or a worker of Spark counts when it has ended too. What the last processes of a tree use after the last
sample is lost: a command is sampled while it runs.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

from bench.figures import Cpu

SAMPLE_SECONDS = 0.5
"""A sample reads /proc/*/stat, which takes some milliseconds."""


def tree_seconds(root: int) -> float:
    """Processor seconds of a process and all below it, so far; 0 if it is gone."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(root)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


class Metering:
    """What trees have used since the metering began. A tree that was empty at first counts from its start."""

    def __init__(self, roots: Sequence[int]) -> None:
        self._begin = {root: tree_seconds(root) for root in roots}
        self._most = dict(self._begin)

    def add(self, root: int) -> None:
        """Meter a process that was started after the metering began."""
        self._begin[root], self._most[root] = 0.0, tree_seconds(root)

    def sample(self) -> None:
        for root in list(self._most):
            self._most[root] = max(self._most[root], tree_seconds(root))

    @property
    def seconds(self) -> float:
        return sum(most - self._begin[root] for root, most in self._most.items())


class Sides:
    """The processor seconds of a round, by side."""

    def __init__(
        self, own: Sequence[int], source: Sequence[int], target: Sequence[int], *, here: bool, waited: bool
    ) -> None:
        self._own, self._source, self._target = Metering(own), Metering(source), Metering(target)
        self._here, self._waited = here, waited
        self._begin = self._now = self._process()

    def add(self, process: int) -> None:
        """Count a process that was just started for the side itself."""
        self._own.add(process)

    def sample(self) -> None:
        for metering in (self._own, self._source, self._target):
            metering.sample()
        self._now = self._process()

    @property
    def used(self) -> Cpu:
        here = self._now - self._begin
        return Cpu(self._own.seconds + here, self._source.seconds, self._target.seconds)

    def _process(self) -> float:
        """Seconds of this process, and of the children that it has waited for, as far as they count."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        children = ended.ru_utime + ended.ru_stime if self._waited else 0.0
        return children + (time.process_time() if self._here else 0.0)


@contextmanager
def metered(
    *,
    own: Sequence[int] = (),
    source: Sequence[int] = (),
    target: Sequence[int] = (),
    here: bool = False,
    waited: bool = False,
    sampling: bool = False,
) -> Iterator[Sides]:
    """Meter trees while the block runs, by their root processes. `here` adds this process to the side itself, without
    its children, `waited` the children that end within the block and are waited for. `sampling`: some of the trees end
    within the block."""
    sides, stop = Sides(own, source, target, here=here, waited=waited), threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            sides.sample()

    thread = threading.Thread(target=sample, daemon=True)
    if sampling:
        thread.start()
    try:
        yield sides
    finally:
        stop.set()
        if sampling:
            thread.join()
        sides.sample()
