"""A process that wants to be the leader: `python -m tests.ha.candidate URL SECONDS FILE`.

It says on standard output when it becomes the leader, loses the lease, or cannot reach the store. While it is the
leader, it writes to the file, a few hundred times per second: the time of this machine's clock, and its epoch. SIGTERM
releases the lease.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from functools import partial
from typing import Any

from dblog.ha.elector import Elector
from dblog.ha.lease_file import clock
from dblog.state import open_store

PIPELINE = "shop"


def main(url: str, seconds: float, file: str) -> None:
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    elector = Elector(partial(open_store, url, patience=seconds / 4), PIPELINE, seconds=seconds)
    elector.start()
    work = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    epoch, failing = 0, False
    while not ending.wait(0.005):
        now = clock()  # before the question: whoever was the leader afterwards was it now
        lease = elector.lease
        if lease is not None:
            os.write(work, f"{now!r} {lease.epoch} {os.getpid()}\n".encode())
        if (lease.epoch if lease else 0) != epoch:
            say("leader" if lease else "lost", epoch=lease.epoch if lease else epoch)
            epoch = lease.epoch if lease else 0
        if (elector.error is not None) != failing:
            failing = elector.error is not None
            say("error" if failing else "reached", text=str(elector.error))
    elector.release()
    say("released", epoch=epoch)


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
