"""How much a round reads: the size of its chunks, how many of them there are, and how long all of that may take.

`Pace` is the size of one round. `Budget` decides how long the selects of the next round may take, from how long batches
have taken. Both only calculate: what is measured is an argument.

A change that is committed while a batch runs waits until the next batch is planned. So the time from one plan to the
next is what a round adds to the log's delay. It has the round's selects in it, the delivery of the round before, and
what a batch takes anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dblog.core.schema import TableName

FIRST_DELAY = 0.2
"""How long a batch with a round may take while nothing is known about the batches of the stream, in seconds."""

MORE_THAN_IDLE = 1.5
"""How much longer a batch with a round may take than a batch without one, as a factor. A change waits for half of one
batch on average, and is delivered by the next: so its delay is up to 2.25 times that of a stream without a dump."""

MORE_THAN_LEAST = 1.2
"""How much longer a batch with a round may take than one with the smallest round, as a factor. Where a watermark and
the boundaries of chunks take long, a round would never have more than the fewest chunks otherwise."""

QUIET_SECONDS = 2.0
"""How long a batch with a round may take while the log has no changes to deliver, in seconds. A change that is
committed then waits for it."""

CHUNK_SECONDS = 0.75
"""How long a chunk's select should take at most, in seconds. A longer round has more chunks."""

LEAST_DELAY = 0.08
"""A batch with a round may take at least this time, in seconds, however short batches are without one."""

LEAST_SECONDS = 0.005
"""The least time for the selects of a round, in seconds. A dump always advances."""

ROUND_ROWS = 10_000_000
"""The most rows of a round: they are on the spool until they are delivered."""

SLACK = 1.1
"""A batch that takes longer than it may, by this factor, makes the next round smaller."""


@dataclass(frozen=True)
class Pace:
    """How much a round may read."""

    chunks: int = 2
    """How many chunks the executors select in parallel. A round may have as many, however long their selects take."""
    budget: float = 0.0
    """A round may have more chunks if the selects of all its chunks together are expected to take at most this time, in
    seconds."""
    rows: int | None = None
    """Rows per chunk; None adapts them to `seconds`. A round has no more rows than `chunks` such chunks: of one large
    table, or of many small ones."""
    seconds: float = 0.5
    """How long one chunk's select should take."""
    most: int = 500_000
    """The most rows that a chunk may have."""
    first: int = 20_000
    """Rows of the first chunk of a cursor, before any select was measured."""
    round_rows: int = ROUND_ROWS
    """The most rows of a round that has more than `chunks` chunks."""
    row_seconds: Mapping[TableName, float] = field(default_factory=dict)
    """How long a select has taken per row of each table that was measured, in seconds."""

    LEAST_ROWS = 1_000
    """The fewest rows that the size of chunks is adapted to: smaller selects cost more than they spare. A table that
    has no more rows than this is small."""
    SELECT_SECONDS = 0.004
    """What a select takes beside its rows, in seconds: it locks the table, looks at its columns, and writes a file."""
    ROW_SECONDS = 2e-6
    """What a select is expected to take per row of a table that was not measured yet, in seconds."""

    @property
    def first_rows(self) -> int:
        return min(self.rows or self.first, self.most)

    def next_rows(self, rows: int, measured: Iterable[tuple[int, float]]) -> int:
        """The number of rows of the next chunk, given the rows and the seconds of the last chunks of this cursor."""
        if self.rows is not None:
            return min(self.rows, self.most)
        full = [(read, seconds) for read, seconds in measured if read * 2 >= rows]
        if not full:
            return min(rows, self.most)
        slowest = max(seconds / read for read, seconds in full)
        fitting = int(self.seconds / slowest) if slowest > 0 else self.most
        return min(max(self.LEAST_ROWS, min(fitting, rows * 16)), self.most)

    def expected(self, table: TableName, rows: int) -> float:
        """How much of the budget a chunk of so many rows takes, in seconds."""
        seconds = self.SELECT_SECONDS + rows * self.row_seconds.get(table, self.ROW_SECONDS)
        if self.rows is None and rows <= self.LEAST_ROWS:
            return seconds
        most = self.round_rows if self.rows is None else min(self.round_rows, self.rows * self.chunks)
        return max(seconds, self.budget * rows / max(1, most))

    def fitting(self, table: TableName, rows: int, seconds: float) -> int:
        """How many chunks of so many rows fit into a part of the budget. The last one may exceed it by half."""
        return max(0, math.ceil(seconds / self.expected(table, rows) - 0.5))


@dataclass
class _Rounds:
    """What was learned about rounds under one limit."""

    seconds: float | None = None
    """How long the selects of the next round may take; None before the first round."""
    calm: int = 9
    """How often the time has grown since a batch took too long. The first growths after it are small."""
    changed: bool = False
    """Whether the time has changed since the round was planned that the last batch delivered."""


@dataclass(frozen=True)
class Ran:
    """A batch that has run."""

    interval: float
    """Seconds from its plan to the next."""
    emitted: float = 0.0
    """Seconds that the selects of the round took which the batch has delivered, if they ran one beside the other."""
    selected: float = 0.0
    """The same for the round that was selected while the batch ran."""
    rows: int = 0
    """The rows of the delivered round."""
    full: bool = True
    """Whether the dumps had more to read than the delivered round has."""
    quiet: bool = False
    """Whether the log was quiet when the batch was planned."""
    light: bool = True
    """Whether the batch had few changes of the log."""


class Budget:
    """How long the selects of a round may take, in seconds, if they run one beside the other on all tasks.

    It follows how long batches take, which depends on the sink. It grows while batches stay within their limit, and is
    reduced in proportion when one does not.

    `max_delay` is how long a change may wait until it is delivered, if a user or the trigger says so. It waits for the
    rest of one batch, and for the batch that delivers it. So a batch may take half of that time."""

    def __init__(self) -> None:
        self.max_delay: float | None = None
        self._delivered = 0
        """The most rows of dumps that a batch has delivered within its limit."""
        self._idle: float | None = None
        self._least: float | None = None
        self._quiet, self._busy = _Rounds(), _Rounds()

    def limit(self, *, quiet: bool) -> float:
        """How long a batch with a round may take. If batches take longer without a round, a round may add half of
        that time: without it, a dump would hardly advance."""
        base = self._idle if self._idle is not None else self._least
        limit = FIRST_DELAY if base is None else max(MORE_THAN_IDLE * base, LEAST_DELAY)
        if self._least is not None:
            limit = max(limit, MORE_THAN_LEAST * self._least)
        if self._given is not None:
            limit = self._given if base is None else max(self._given, limit)
        return max(limit, QUIET_SECONDS) if quiet else limit

    def seconds(self, *, quiet: bool) -> float:
        """How long the selects of the next round may take."""
        limit = longest = self.limit(quiet=quiet)
        if self._given is not None:
            longest = max(self._given, QUIET_SECONDS) if quiet else self._given
        known = self._rounds(quiet).seconds
        return max(LEAST_SECONDS, min(limit / 4 if known is None else known, longest))

    def rows(self, first: int) -> int:
        """The most rows of the next round, if the first one has `first` rows. Nothing tells how long a sink takes for a
        row before it has written some."""
        return min(max(first, 4 * self._delivered), ROUND_ROWS)

    def ran(self, batch: Ran) -> None:
        """Note how long a batch took. One with a small log, and without a round or with a very small one, shows what a
        batch takes anyway, unless it may have waited for the trigger."""
        interval, emitted = batch.interval, batch.emitted
        load = max(emitted, batch.selected)
        rounds = self._rounds(batch.quiet)
        smallest = rounds.seconds is not None and rounds.seconds <= LEAST_SECONDS and not rounds.changed
        if batch.light and (smallest or load <= LEAST_SECONDS):
            waited = self._given is not None and interval <= SLACK * self._given
            if load == 0.0:
                self._idle = None if waited else _falling(self._idle, interval)
            else:
                self._least = None if waited else _falling(self._least, interval)
        if load > 0.0:
            self._adapt(batch, load)

    def _adapt(self, batch: Ran, load: float) -> None:
        """Adapt the budget to a batch with a round."""
        interval, emitted, quiet = batch.interval, batch.emitted, batch.quiet
        limit, now, rounds = self.limit(quiet=quiet), self.seconds(quiet=quiet), self._rounds(quiet)
        rounds.seconds, changed, rounds.changed = now, rounds.changed, False
        if interval > SLACK * limit:
            fitting, rounds.changed = load * limit / interval, True
            if not batch.light and fitting < now / 2:  # it was rather the log that took so long
                rounds.seconds = now / 2
            else:
                rounds.seconds, rounds.calm = min(now, fitting), 0
            return
        self._delivered = max(self._delivered, batch.rows)
        if batch.full and not changed and emitted >= 0.4 * now:  # else a round of this time was not delivered yet
            # a batch that has waited for its trigger does not show how much longer it might have taken
            blindly = 1.0 if self._given is None else 1 + 0.05 * 2 ** min(rounds.calm, 9)
            factor = min(max(blindly, limit / interval, 1.0), 4.0 if now <= limit / 64 else 2.0)
            rounds.seconds, rounds.calm, rounds.changed = min(now * factor, limit), rounds.calm + 1, True

    @property
    def _given(self) -> float | None:
        return None if self.max_delay is None else self.max_delay / 2

    def _rounds(self, quiet: bool) -> _Rounds:
        """Both are the same if the limit does not depend on whether the log is quiet."""
        return self._quiet if quiet and self.limit(quiet=False) < QUIET_SECONDS else self._busy


def _falling(known: float | None, found: float) -> float:
    """An estimate that falls at once and rises slowly: a batch may take long for other reasons."""
    return found if known is None else min(found, known * 1.1)
