"""The lease: who is the leader, until when, and when another may be. No clock, no network: times are arguments.

The state store has one document, the record: holder, epoch, length of the lease. Every change is a write under the
condition that the document still has the version that was read. Three rules make sure that the validities of two leases
never overlap:

1. A holder is the leader until `deadline`: the length of the lease, less a margin, after the moment BEFORE it sent the
   last write that succeeded, by its own clock.
2. Another takes the lease only after it has seen the same version of the record for the whole length of the lease, by
   its own clock, counted from the moment AFTER it had received it. If the holder has renewed, the version is another
   one, and the write fails.
3. Each new lease has a greater epoch than all before, also for the same holder. A lease that was lost is never valid
   again.

Clocks are compared with themselves only, and never set: it does not matter what time they show, on which machine. They
must run at nearly the same rate: `MARGIN` is how much two of them may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MARGIN = 0.1
"""The part of a lease that its holder does not use."""
RENEW = 0.25
"""The part of a lease after which the holder renews it."""


@dataclass(frozen=True)
class Lease:
    """The right to be the leader."""

    holder: str
    epoch: int
    deadline: float
    """From this moment of the holder's clock on it is not the leader any more."""


@dataclass(frozen=True)
class Record:
    """The lease as the state store has it."""

    holder: str | None = None
    """None: it was released, or there never was one."""
    epoch: int = 0
    seconds: float = 0.0
    version: int = 0
    """The version of the document; 0 if it does not exist."""


class Election:
    """What one instance knows of the lease, and what it may do."""

    def __init__(self, me: str, seconds: float) -> None:
        self._me = me
        """The name of this instance. No other instance ever has it: not even after a restart."""
        self._seconds = seconds
        self._seen: Record | None = None
        """The record as it was read or written last; None if it must be read before the next write."""
        self._known = Record()
        self._since = 0.0
        """When `_known` was first seen."""
        self._lease: Lease | None = None
        self._renew_at = 0.0
        self._epoch = 0
        """The greatest epoch seen."""
        self._last_epoch = 0
        """The epoch of the last lease of this instance."""

    @property
    def record(self) -> Record:
        """The record as it was seen last."""
        return self._known

    @property
    def must_read(self) -> bool:
        """Whether the record must be read: always, but for the holder whose last write succeeded."""
        return self._seen is None or self._lease is None

    def lease(self, now: float) -> Lease | None:
        """The lease, if this instance is the leader now."""
        if self._lease is not None and now >= self._lease.deadline:
            self._lease = None
        return self._lease

    def read(self, record: Record, now: float) -> None:
        """The store has answered with this record."""
        if record != self._known:
            self._known, self._since = record, now
        self._seen = record
        self._epoch = max(self._epoch, record.epoch)
        if self._lease is not None and (record.holder, record.epoch) != (self._me, self._lease.epoch):
            self._lease = None  # somebody has removed the record

    def wanted(self, now: float) -> Record | None:
        """The record to write now, under the condition that the document has its version; None for nothing."""
        seen, lease = self._seen, self.lease(now)
        if seen is None:
            return None
        if lease is not None:
            return replace(seen, seconds=self._seconds) if now >= self._renew_at else None
        if seen.holder in (None, self._me) or now >= self._since + seen.seconds:
            return Record(self._me, self._epoch + 1, self._seconds, seen.version)
        return None

    def written(self, record: Record, version: int, sent: float, now: float) -> None:
        """The store has written a wanted record. `sent` is a moment before the write was sent."""
        held = self.lease(now)
        self._seen = self._known = replace(record, version=version)
        self._since, self._epoch = now, max(self._epoch, record.epoch)
        if record.epoch > self._last_epoch or (held is not None and held.epoch == record.epoch):
            self._last_epoch = record.epoch
            self._lease = Lease(self._me, record.epoch, sent + record.seconds * (1 - MARGIN))
            self._renew_at = sent + record.seconds * RENEW

    def failed(self) -> None:
        """A write was refused, or it is unknown whether it was done: the record must be read."""
        self._seen = None

    def release(self) -> Record | None:
        """Be the leader no longer. Returns the record to write, so that another need not wait; None for nothing."""
        lease, self._lease = self._lease, None
        if lease is None or self._seen is None or self._seen.holder != self._me:
            return None
        return replace(self._seen, holder=None)

    def pause(self, now: float) -> float:
        """How long nothing needs to be done, in seconds."""
        if self._seen is None:
            return self._seconds / 20
        if self.lease(now) is not None:
            return max(0.0, self._renew_at - now)
        waits = self._since + self._known.seconds - now
        return max(0.0, min(waits, self._seconds / 10))
