"""The deadline of a lease in a file, for the other processes of the leader's machine.

Spark starts the source process beside the driver. It must stop reading the log at the deadline of the lease even if the
process with the elector hangs or is stopped. So the elector writes the deadline to a file after each renewal, and the
source process compares it with the clock of the machine, which all its processes share.

A file belongs to one epoch: an instance that gets the lease again has another file.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from dblog.errors import LeaseLost

LOOK_SECONDS = 0.1
"""How often a process looks whether its lease was given back, in seconds."""
EXPIRED = 0.0
"""The deadline of a lease that was given back."""


def clock() -> float:
    """Seconds of a clock that is never set, and that goes on while the machine sleeps. All processes of the machine
    read the same value."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseFile:
    """The file with the deadline of one lease."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, deadline: float) -> None:
        """Replace the deadline. Readers see the old or the new one."""
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text(repr(deadline))
        os.replace(new, self.path)

    def left(self) -> float:
        """How many seconds the lease is still valid; not positive if it is over, or if there is no such file."""
        try:
            deadline = float(self.path.read_text())
        except (OSError, ValueError):
            deadline = EXPIRED
        return deadline - clock()

    def check(self) -> None:
        """Raise LeaseLost if the lease is over."""
        if self.left() <= 0:
            raise lost()

    def end_process(self) -> None:
        """Start a thread that ends this process, without any clean-up, when the lease is over."""

        def watch() -> None:
            while (left := self.left()) > 0:
                time.sleep(min(left, LOOK_SECONDS))  # it may be given back before its deadline
            os._exit(1)

        threading.Thread(target=watch, name="dblog-lease-end", daemon=True).start()


def lost() -> LeaseLost:
    """The error of an instance that is the leader no longer."""
    return LeaseLost(
        "this instance is the leader no longer: its lease could not be renewed in time",
        hint="start it again, as a supervisor does: it becomes a standby, and goes on when it gets the lease",
    )
