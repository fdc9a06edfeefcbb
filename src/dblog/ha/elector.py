"""The elector: acquires, renews and releases the lease of a pipeline in the state store, in a thread of its own.

    elector = Elector(open_store, "shop", seconds=10.0)
    elector.start()
    lease = elector.acquire()      # waits until this instance is the leader
    ...                            # ask `elector.lease` before every durable effect
    elector.wait_until_lost()      # returns at the deadline of a lease that cannot be renewed
    elector.release()              # hands over at once

A renewal that fails is tried again until the deadline: a lease is never given up before, and never used after it. The
thread may hang in a call of the store. That does not matter: whether the lease is valid is decided by the clock, when
somebody asks.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any

from dblog.errors import Conflict, DBLogError
from dblog.ha.lease import Election, Lease, Record
from dblog.ha.lease_file import clock
from dblog.state.store import Document, Store

LEASE_SECONDS = 10.0
"""The length of a lease, in seconds."""
JOIN_SECONDS = 5.0
"""How long a release waits for the store at most, in seconds."""


def new_holder() -> str:
    """A name for this instance that no other one has: machine, process, and something random."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def lease_key(pipeline: str) -> str:
    """The key of the lease's document. It is not below the pipeline's own key: the epoch must never begin anew."""
    return "leases/" + urllib.parse.quote(pipeline, safe="")


class Elector:
    """An instance's part in the election. `open_store` opens a handle for the elector's thread; its calls should wait
    for a quarter of the lease at most."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        pipeline: str,
        *,
        seconds: float = LEASE_SECONDS,
        holder: str | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.holder = holder or new_holder()
        self.error: DBLogError | None = None
        """Why the store could not be used the last time; None if it could."""
        self._open_store = open_store
        self._key = lease_key(pipeline)
        self._election = Election(self.holder, seconds)
        self._news = threading.Condition()
        self._tell = changed
        self._wake = threading.Event()
        self._stopping = False
        self._last: Record | None = None
        """The record that a release writes."""
        self._thread = threading.Thread(target=self._run, name="dblog-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def lease(self) -> Lease | None:
        """The lease, if this instance is the leader at this moment."""
        with self._news:
            return self._election.lease(clock())

    @property
    def record(self) -> Record:
        """The lease as the store had it last, whoever holds it."""
        with self._news:
            return self._election.record

    def acquire(self, timeout: float | None = None) -> Lease | None:
        """Wait until this instance is the leader. None if it is not after `timeout` seconds."""
        with self._news:
            self._news.wait_for(lambda: self._election.lease(clock()) is not None or self._stopping, timeout)
            return self._election.lease(clock())

    def wait_until_lost(self, timeout: float | None = None) -> bool:
        """Wait while this instance is the leader. Returns whether it is not any more."""
        until = None if timeout is None else clock() + timeout
        with self._news:
            while (lease := self._election.lease(clock())) is not None:
                left = lease.deadline - clock() if until is None else min(lease.deadline, until) - clock()
                if until is not None and clock() >= until:
                    return False
                self._news.wait(max(left, 0.0))
        return True

    def release(self) -> None:
        """Be the leader no longer, from now on, and let another one take over at once if the store can be reached."""
        with self._news:
            self._stopping = True
            self._last = self._election.release()
            self._news.notify_all()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        store: Store | None = None
        while not self._stopping:
            self._wake.clear()
            try:
                store = store or self._open_store()
                self._step(store)
                self.error = None
            except DBLogError as error:
                with self._news:
                    self._election.failed()
                if not isinstance(error, Conflict):
                    self.error = error
                    _close(store)
                    store = None
            with self._news:
                self._news.notify_all()
                pause = self._election.pause(clock())
            self._tell()
            if not self._stopping:
                self._wake.wait(pause)
        try:
            store = store or self._open_store()
            if self._last is not None:
                store.put(self._key, _value(self._last), version=self._last.version)
        except DBLogError as error:
            self.error = error  # the lease ends by itself
        _close(store)

    def _step(self, store: Store) -> None:
        """Read the record if need be, and write it if this instance wants the lease, or must renew it."""
        if self._election.must_read:
            found = _record(store.get(self._key))
            with self._news:
                self._election.read(found, clock())
        with self._news:
            wanted = None if self._stopping else self._election.wanted(clock())
        if wanted is not None:
            sent = clock()
            version = store.put(self._key, _value(wanted), version=wanted.version)
            with self._news:
                if self._stopping:  # released in the meantime
                    self._last = Record(None, wanted.epoch, wanted.seconds, version)
                else:
                    self._election.written(wanted, version, sent, clock())


def _close(store: Store | None) -> None:
    if store is not None:
        store.close()


def _record(document: Document | None) -> Record:
    if document is None:
        return Record()
    value = document.value
    return Record(value["holder"], value["epoch"], value["seconds"], document.version)


def _value(record: Record) -> dict[str, Any]:
    # The time is for people only: `dblog status` shows how old the renewal is.
    return {"holder": record.holder, "epoch": record.epoch, "seconds": record.seconds, "renewed_at": time.time()}
