"""What the engine needs from a database. Every family implements these protocols; nothing else knows them.

Three parts of the product use a source, each in its own thread or process, so each has its own face:

* `Source`: the driver's control side (set-up, watermarks, chunk boundaries). Connects lazily, reconnects by itself.
* `LogStream`: the capture thread's reader of the change log.
* `Source.select`: the executors' chunk reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog.core.arrays import Ints
from dblog.core.dump import Boundaries
from dblog.core.offset import Extent, Followed, Key
from dblog.core.schema import TableName, TableSchema


def _none() -> Ints:
    return np.empty(0, np.int64)


def _nobody() -> npt.NDArray[np.object_]:
    return np.empty(0, np.object_)


@dataclass(frozen=True)
class Commits:
    """The transactions that committed in a stretch of the log, in order: one element of each array for each."""

    positions: Ints = field(default_factory=_none)
    """Where each ends; a batch may end there."""
    xids: Ints = field(default_factory=_none)
    """What the visibility barrier knows them by."""
    rows: Ints = field(default_factory=_none)
    """Rows of the stretch up to the end of each."""
    nbytes: Ints = field(default_factory=_none)
    """Bytes of the stretch up to the end of each."""
    origins: npt.NDArray[np.object_] = field(default_factory=_nobody)
    """Whose numbers `numbers` are, where the log names its transactions in a way that other servers know too; '' for
    a transaction without a name."""
    numbers: Ints = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.positions)

    def between(self, start: int, end: int) -> Commits:
        """Those that end in `(start, end]`; rows and bytes still count from the beginning of the stretch."""
        first, last = np.searchsorted(self.positions, [start, end], "right").tolist()
        return Commits(*(getattr(self, f.name)[first:last] for f in fields(Commits)))


def joined(parts: Sequence[Commits]) -> Commits:
    """The commits of consecutive parts of a stretch, whose rows and bytes already count from its beginning."""
    return Commits(*(np.concatenate([_none(), *(getattr(p, f.name) for p in parts)]) for f in fields(Commits)))


@dataclass(frozen=True)
class Run:
    """A stretch of the log: changes in commit order, per table.

    A run with commits ends at the last of them; one without is the beginning or middle of a transaction that is still
    arriving. A watermark always ends its run.
    """

    changes: Sequence[tuple[TableSchema, pa.RecordBatch]] = ()
    commits: Commits = field(default_factory=Commits)
    token: str | None = None
    """The watermark that ends this run."""
    nbytes: int = 0
    """Bytes received from the database for this run."""
    committed_at: int | None = None
    """When the last transaction committed, by the database's clock, in microseconds since 1970."""
    replaced: Sequence[TableName] = ()
    """Tables that have got rows which the log does not show: their changes say that they were emptied, and a dump must
    bring the rows."""

    @property
    def position(self) -> int | None:
        """End position of the last commit; None while the last transaction is still open."""
        return int(self.commits.positions[-1]) if len(self.commits) else None


class LogStream(Protocol):
    """The change log from one position on. Not thread-safe: it belongs to the capture thread."""

    def read(self, timeout: float, *, eager: bool = False) -> list[Run]:
        """What has arrived, waiting at most `timeout` seconds for something to arrive. Raises ConnectionLost.
        `eager` is for when somebody waits for a certain position: do not trust silence, ask the database."""
        ...

    @property
    def heard(self) -> float:
        """When the database was last heard of, on the monotonic clock."""
        ...

    @property
    def coordinate(self) -> str | None:
        """The coordinate that it was opened at, in terms of the server that is read (see `Origin.coordinate`)."""
        ...

    @property
    def passing(self) -> bool:
        """Whether transactions from before the coordinate it was opened at are still to come: another server's log is
        read from further back. No batch may end here."""
        ...

    @property
    def idle_position(self) -> int:
        """The log is known to hold nothing of ours between the last run and this position."""
        ...

    def redefined(self) -> bool:
        """Whether the log has shown another definition of a table, or a new table, since the last call."""
        ...

    def acknowledge(self, position: int) -> None:
        """Let the database forget its log up to `position`. Also serves as the keep-alive: call it on a timer."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Origin:
    """Where the log of a new stream starts."""

    position: int
    suspects: tuple[int, ...]
    """Transactions in progress at that moment: they may be committed before the position and yet not be visible."""
    coordinate: str | None = None
    """The position in terms that another server of the same cluster understands, where the log has such."""


@dataclass(frozen=True)
class Survey:
    """What is true of the tables now."""

    tables: Mapping[TableName, Followed]
    """Those that the patterns name and that can be followed."""
    replaced: Mapping[TableName, str] = field(default_factory=dict)
    """Followed tables that have got or lost rows which the log does not show, and why: they are emptied, and dumped."""
    away: Mapping[TableName, TableName] = field(default_factory=dict)
    """Followed tables whose name no table has, and the name that each has now."""
    gone: frozenset[TableName] = frozenset()
    """Followed tables that do not exist any more, under any name."""
    left_out: Mapping[TableName, str] = field(default_factory=dict)
    """Tables that the patterns name and that cannot be followed, and why."""


@dataclass(frozen=True)
class Admitted:
    """From `position` on, the log has the changes of these tables that are made by transactions other than `running`:
    those had begun before, and the log may lack what they do. A dump sees it when they are over."""

    tables: Mapping[TableName, Followed]
    position: int
    running: tuple[int, ...] = ()


class Selection(Protocol):
    """A read that is open: the table cannot change its schema until the rows have been read."""

    @property
    def schema(self) -> TableSchema: ...

    def read(self, take: Callable[[pa.RecordBatch], None]) -> None:
        """Hand all rows to `take`, batch by batch. Once only."""
        ...


def _silent(what: str | None) -> None:
    pass


@dataclass(frozen=True)
class Wait:
    """How a source waits for its database when a stream starts."""

    patience: float = 300.0
    """How long, in seconds."""
    tell: Callable[[str | None], None] = _silent
    """Takes what is waited for, in words for people, again and again; None when the wait is over."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set when nobody wants the stream any more: the wait ends with a SourceError."""


class Source(Boundaries, Protocol):
    """A source database, seen from the driver and the executors. Picklable; holds no connection when pickled."""

    @property
    def writes(self) -> bool:
        """Whether windows end at watermarks that are written, or without writing anything (`high_watermark`)."""
        ...

    @property
    def default_schema(self) -> str:
        """Where a table is that is named without a schema."""
        ...

    def prepare(self, *, followed: Collection[TableName] | None, wait: Wait | None = None) -> None:
        """Check every precondition, create what is missing and allowed, or raise PreconditionFailed with all of it.

        `followed` are the tables that the stream has followed so far, or None when it is new. A stream that goes on
        needs the log it left behind, of each of these tables (else PositionLost)."""
        ...

    def survey(self, followed: Mapping[TableName, Followed]) -> Survey:
        """Look at the followed tables and at those that the patterns name. Raises PreconditionFailed when the log of a
        followed table is incomplete."""
        ...

    def admit(self, tables: Collection[TableName]) -> Admitted:
        """Make sure that the log has the changes of these tables, and that it is decoded for them. Those that are gone
        by now are left out."""
        ...

    def follow(self, tables: Mapping[TableName, Followed]) -> None:
        """From now on, decode the log in this process for these tables too."""
        ...

    def describe(self, tables: Collection[TableName]) -> Mapping[TableName, TableSchema]:
        """Those of the tables that exist, as the catalog describes them now."""
        ...

    def tables(self) -> Mapping[TableName, TableSchema]:
        """The captured tables as the catalog describes them now."""
        ...

    def origin(self) -> Origin:
        """Where a new stream starts, once `prepare` has made the log readable."""
        ...

    def latest(self) -> int:
        """The position of the end of the database's log now."""
        ...

    def check_position(self, position: int, coordinate: str | None) -> None:
        """Raise PositionLost when the log could not be opened after the position."""
        ...

    def stream(self, position: int, coordinate: str | None) -> LogStream:
        """Open the log after `position`. On another server the `coordinate` finds it, and positions go on growing.
        Raises PositionLost when the log no longer reaches back that far."""
        ...

    def abandon(self) -> None:
        """Remove from the database what it keeps for this stream alone: the stream will never go on."""
        ...

    def coordinate(self, coordinate: str | None, commits: Commits, position: int) -> str | None:
        """The coordinate of `position`, given the coordinate of an earlier one and the transactions in between."""
        ...

    def comparable(self, coordinate: str | None, other: str | None) -> bool:
        """Whether the positions of two coordinates count the same log."""
        ...

    def repeat(self, position: int, coordinate: str | None, end: str | None) -> LogStream | None:
        """Open the log once more for exactly the transactions between two coordinates, up to where `passing` ends. None
        when the log that is read now has them at the positions that they had."""
        ...

    @property
    def decoding(self) -> str:
        """What the rows of a change depend on beside the log: options of the stream."""
        ...

    def write_watermark(self, token: str) -> int:
        """Write `token` to the watermark table; a position at or after its commit. Raises WatermarkError."""
        ...

    def high_watermark(self) -> int:
        """Without writing: a position at or after the commit of all that a select has been able to see until now, and
        that the log is sure to reach."""
        ...

    def invisible(self, xids: Ints, coordinate: str | None) -> tuple[int, ...]:
        """The committed transactions of `xids`, all before `coordinate`, that a select started now might not see yet.
        The source may return fewer of them if they stand for all."""
        ...

    def select(self, table: TableName, extent: Extent, key: str | None) -> Selection:
        """Open a read of an extent's rows. Raises KeyChanged when the table's primary key is not `key`, and
        TableUnreadable when the extent can never be read."""
        ...

    # -- what requests need ----------------------------------------------------------------------------------

    def estimate(self, table: TableName) -> int | None:
        """About how many rows the table has."""
        ...

    def missing(self, table: TableName, keys: Sequence[Key]) -> list[Key]:
        """Those of the keys that no row has now. Raises TableUnreadable when they are no keys of the table."""
        ...

    def check_condition(self, table: TableName, where: str) -> None:
        """Raise TableUnreadable unless the condition can be asked of the table."""
        ...

    def identity(self) -> Mapping[str, str]:
        """Which database this is and which part of its log, for people: no secrets."""
        ...

    def probe(self, query: str) -> float:
        """The number that a user's query gives, a measure of the database's load. Raises SourceError."""
        ...

    def health(self) -> Mapping[str, Any]:
        """How the database keeps our log, for people: `latest` (the end of its log), and how far it is
        acknowledged."""
        ...
