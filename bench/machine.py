"""The machine everything shares: whether it is at rest."""

from __future__ import annotations

import os
import time
from pathlib import Path

BUSY = 0.05
"""The share of all cores that may be busy in a machine at rest."""
PATIENCE = 60.0


def rest() -> None:
    """Wait until nobody works: a server that has been given millions of changes goes on for a while, and so does the
    disk, and whoever were measured first would pay for it."""
    os.sync()
    deadline = time.monotonic() + PATIENCE
    while _busy(1.0) > BUSY:
        if time.monotonic() > deadline:
            print(f"the machine is still busy after {PATIENCE:.0f} s: figures will be low and uneven")
            return


def _busy(seconds: float) -> float:
    """The share of all cores that is busy now, or waits for the disk."""
    before, begin = _work(), time.monotonic()
    time.sleep(seconds)
    return (_work() - before) / (time.monotonic() - begin) / (os.cpu_count() or 1)


def _work() -> float:
    """Seconds in which a core was not idle."""
    user, nice, system, _idle, waiting, *interrupts = Path("/proc/stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, waiting, *interrupts))) / os.sysconf("SC_CLK_TCK")
