"""Ends the session in which an earlier leader reads the log."""

from __future__ import annotations

import time

from dblog.errors import ConfigError, SourceError
from dblog.spark.options import Options

RELEASE_SECONDS = 10.0
"""How long to wait until the server has ended the session, in seconds."""
POLL_SECONDS = 0.05


def end_reader(read: Options) -> bool:
    """End the session that reads the stream's replication slot, if there is one. Returns whether there was one.

    A server without replication slots ends the older one of two sessions with the same replica id itself. A server that
    cannot be reached has no effect here: the stream waits for it."""
    try:
        with read.family.slots(read.address) as slots:
            if not slots.end_reader(read.slot):
                return False
            deadline = time.monotonic() + RELEASE_SECONDS
            while slots.end_reader(read.slot) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            return True
    except (ConfigError, SourceError):
        return False
