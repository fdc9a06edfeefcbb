"""A term: the time in which one instance leads with one epoch.

    with electing(open_store, "shop", seconds=10.0, folder=work) as candidate:
        term = candidate.wait(0.5)     # a Term, or None if another instance leads
        ...                            # term.check() before every durable effect

A term never begins again: an instance that has lost its lease and gets another one has another term.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dblog.ha.elector import Elector
from dblog.ha.lease import Lease, Record
from dblog.ha.lease_file import EXPIRED, LeaseFile, lost
from dblog.state.store import Store

LOOK_SECONDS = 1.0
"""How often a thread that waits for the deadline looks whether the term has ended in order, in seconds."""


class Term:
    """The right to lead with one epoch."""

    def __init__(self, elector: Elector, lease: Lease, folder: Path, pipeline: str) -> None:
        self.pipeline = pipeline
        self.epoch = lease.epoch
        self.holder = lease.holder
        self.file = LeaseFile(folder / f"lease-{lease.epoch}")
        self._elector = elector
        self._over = threading.Event()
        self.file.write(lease.deadline)

    @property
    def held(self) -> bool:
        """Whether this instance is the leader at this moment."""
        return self._lease() is not None

    def check(self) -> None:
        """Raise LeaseLost unless this instance is the leader at this moment."""
        if self._lease() is None:
            raise lost()

    def watch(self, ended: Callable[[], None]) -> None:
        """Start a thread that calls `ended` at the deadline of the lease, unless the term is over before."""

        def run() -> None:
            while self.held:
                self._elector.wait_until_lost(LOOK_SECONDS)
            if not self._over.is_set():
                ended()

        threading.Thread(target=run, name="dblog-leader", daemon=True).start()

    def renewed(self) -> None:
        """Write the new deadline to the file. Called by the elector after each of its steps."""
        if (lease := self._lease()) is not None:
            self.file.write(lease.deadline)

    def end(self) -> None:
        """Lead no longer. The lease is given back by `electing`."""
        self._over.set()
        self.file.write(EXPIRED)

    def _lease(self) -> Lease | None:
        lease = None if self._over.is_set() else self._elector.lease
        return lease if lease is not None and lease.epoch == self.epoch else None


class Candidate:
    """An instance's part in the election."""

    def __init__(self, open_store: Callable[[], Store], pipeline: str, seconds: float, folder: Path) -> None:
        self._elector = Elector(open_store, pipeline, seconds=seconds, changed=self._changed)
        self._folder = folder
        self._pipeline = pipeline
        self.term: Term | None = None
        self._elector.start()

    @property
    def record(self) -> Record:
        """The lease as the store had it last."""
        return self._elector.record

    @property
    def problem(self) -> str | None:
        """Why the store could not be used the last time; None if it could."""
        return None if self._elector.error is None else self._elector.error.message

    def wait(self, seconds: float) -> Term | None:
        """Wait for the lease at most this long. Returns the term that begins with it."""
        lease = self._elector.acquire(seconds)
        if lease is not None:
            self.term = Term(self._elector, lease, self._folder, self._pipeline)
        return self.term

    def leave(self) -> None:
        """Give the lease back, if this instance has it, and take part in the election no longer."""
        if self.term is not None:
            self.term.end()
        self._elector.release()

    def _changed(self) -> None:
        if (term := self.term) is not None:
            term.renewed()


@contextmanager
def electing(open_store: Callable[[], Store], pipeline: str, *, seconds: float, folder: Path) -> Iterator[Candidate]:
    """Take part in the election while the body runs, and give the lease back at the end. `folder`, a folder of this
    machine, gets the file with the deadline."""
    candidate = Candidate(open_store, pipeline, seconds, folder)
    try:
        yield candidate
    finally:
        candidate.leave()
