"""What the engine needs from a database. Every family implements these protocols; nothing else knows them.

`sources.simple` has defaults for all members but the abstract ones: a new source writes those, and others if it can.

Three parts of the product use a source, each in its own thread or process, so each has its own face:

* `Source`: the driver's control side (set-up, watermarks, chunk boundaries). Connects lazily, reconnects by itself.
* `LogStream`: the capture thread's reader of the change log.
* `Source.select`: the executors' chunk reads.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from dblog.core.arrays import Ints
from dblog.core.boundaries import Boundaries
from dblog.core.offset import Extent, Followed, Key
from dblog.core.schema import TableName, TableSchema
from dblog.errors import SourceError
from dblog.sources.runs import Commits as Commits
from dblog.sources.runs import Loss as Loss
from dblog.sources.runs import Run as Run
from dblog.sources.runs import joined as joined
from dblog.sources.table_failures import TableFailure


class LogStream(Protocol):
    """The change log from one position on. Not thread-safe: the capture thread opens, reads and closes it."""

    @abstractmethod
    def read(self, timeout: float, *, eager: bool = False) -> list[Run]:
        """Return what has arrived, in commit order; wait at most `timeout` seconds for something to arrive. `eager`: a
        caller waits for a certain position, so ask the database how far its log is instead of waiting for news.
        Raises ConnectionLost (the log is opened again after the last commit), PositionLost, DecodeError."""
        ...

    @property
    def heard(self) -> float:
        """When the database was last heard of, on the monotonic clock. A stream that hears nothing for long fails."""
        ...

    @property
    def coordinate(self) -> str | None:
        """The coordinate that it was opened at, in terms of the server that is read (see `Origin.coordinate`)."""
        ...

    @property
    def passing(self) -> bool:
        """Whether transactions from before the opening position may still come: the log of another server is read from
        further back than that position. No batch may end here. False where the log is one server's."""
        ...

    @property
    def idle_position(self) -> int:
        """The log is known to hold nothing of ours between the last run and this position. So an idle stream moves on.
        0, or any position that was passed, where nothing is known."""
        ...

    def redefined(self) -> bool:
        """Whether the log has shown another definition of a table since the last call or, where it shows such, a new
        table. True makes the driver call `Source.survey` soon."""
        ...

    def acknowledge(self, position: int) -> None:
        """Let the database forget its log up to `position`: Spark has committed it. Called several times a second, with
        0 or the same position too, so it also serves as the keep-alive. Raises ConnectionLost."""
        ...

    def close(self) -> None:
        """Close the connection. Raises nothing."""
        ...


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
    unfit: Mapping[TableName, SourceError] = field(default_factory=dict)
    """Followed tables that cannot be followed any more: they are set aside, or the stream stops with the error."""


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
    def schema(self) -> TableSchema:
        """The table as it is while the rows are read."""
        ...

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
    """A source database and the tables to follow, seen from the driver and the executors.

    Threads: the driver's planner calls every member unless another caller is named, one call at a time. The capture
    thread calls `stream` and `coordinate`, the status thread `identity`, `health` and `probe`, and executors call
    `select`. Calls of different threads may overlap, so each needs its own connection.

    Errors: any member that asks the database may raise ConnectionLost or TableLocked. The caller then tries again for
    the option `patienceSeconds`. Every other error ends the stream, unless the member says what else it means.

    Picklable; holds no connection when pickled. Positions are whole numbers from 0 to 2**63 - 1 that grow with the log.
    A transaction lies between two positions: its changes have a `_lsn` at or after the first and before the second,
    which is its commit's position. Members of `Boundaries`, which order the keys of a table, belong to it too.
    """

    # -- set-up ----------------------------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """Whether windows end at watermarks that are written (`write_watermark`), or without writing anything to the
        database (`high_watermark`). The option `watermark` says which."""
        ...

    @property
    @abstractmethod
    def default_schema(self) -> str:
        """The schema of a table that is named without one. Opens no connection."""
        ...

    def prepare(
        self, *, followed: Collection[TableName] | None, aside: Collection[TableName] = (), wait: Wait | None = None
    ) -> None:
        """Check every precondition, but not of tables that are set aside (`aside`), and create what is missing and
        allowed. Called first, at each start of a stream.

        `followed` are the tables that the stream has followed so far, or None when it is new. Raises PreconditionFailed
        with all problems, each with its fix, and PositionLost when the log that a stream left behind is gone. A table
        that a pattern brings to a new stream and that cannot be followed is no problem: it is left out."""
        ...

    def abandon(self) -> None:
        """Remove from the database what it keeps for this stream alone: the stream will never go on. Called when a new
        stream failed before it delivered anything. Raises NotFound when there is nothing to remove."""
        ...

    # -- tables ----------------------------------------------------------------------------------------------

    def tables(self) -> Mapping[TableName, TableSchema]:
        """The tables that a new stream follows, as the catalog describes them now: those that the patterns name,
        without those that are left out because they cannot be followed. Raises ConfigError without any."""
        ...

    def describe(self, tables: Collection[TableName]) -> Mapping[TableName, TableSchema]:
        """Those of the tables that exist, as the catalog describes them now. The schema must equal the one that the log
        and `select` give for the same definition of the table."""
        ...

    def survey(self, followed: Mapping[TableName, Followed]) -> Survey:
        """Look at the followed tables and at those that the patterns name. Called after the start, every
        `heartbeatSeconds`, and soon after `LogStream.redefined`. A followed table whose log is incomplete, so that rows
        would be missed, is `unfit`. Raises PreconditionFailed if that concerns all tables."""
        ...

    def unfit(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """Those of the followed tables that cannot be followed as they are now, and why. Called at a start."""
        ...

    @abstractmethod
    def admit(self, tables: Collection[TableName]) -> Admitted:
        """Make sure that the log has the changes of these tables, and that it is decoded for them, from the returned
        position on. Called for the tables of a new stream and for tables that come later. Those that are gone by now
        are left out. Raises TableLocked: it is tried again later, and the stream goes on meanwhile."""
        ...

    def follow(self, tables: Mapping[TableName, Followed], *, since: int | None = None) -> None:
        """From now on, decode the log in this process for these tables too: they were admitted in an earlier life of
        the stream, before `stream` was called. With `since`, only from this position on, whatever failed before it."""
        ...

    def failures(self) -> Mapping[TableName, TableFailure]:
        """The tables whose log could not be decoded from a transaction on, known before `LogStream.read` returns it."""
        ...

    # -- the log ---------------------------------------------------------------------------------------------

    @abstractmethod
    def origin(self) -> Origin:
        """Where a new stream starts: everything that is committed later comes after this position. Called once per
        stream, after `prepare`."""
        ...

    @abstractmethod
    def latest(self) -> int:
        """The position of the end of the database's log now: at or after every commit until now."""
        ...

    @abstractmethod
    def check_position(self, position: int, coordinate: str | None) -> None:
        """Raise PositionLost unless the log can be opened after the position. `coordinate` is that of the position."""
        ...

    @abstractmethod
    def stream(self, position: int, coordinate: str | None) -> LogStream:
        """Open the log after `position`. The first run begins with the first transaction whose commit's position is
        greater. On another server the `coordinate` finds the transaction, and positions go on growing. Called by the
        capture thread, again after each ConnectionLost. Raises PositionLost when the log no longer reaches back."""
        ...

    def coordinate(self, coordinate: str | None, commits: Commits, position: int) -> str | None:
        """The coordinate of `position`, given the coordinate of an earlier position and the commits in between. Asks
        nobody. None where positions mean something to one server only."""
        ...

    def comparable(self, coordinate: str | None, other: str | None) -> bool:
        """Whether the positions of two coordinates count the same log. False after a failover: selects of the window
        are read again. Asks nobody."""
        ...

    def repeat(self, position: int, coordinate: str | None, end: str | None, upto: int) -> LogStream | None:
        """Open the log once more for exactly the transactions between two coordinates, up to where `passing` ends.
        Called at a start, for a batch that was planned up to the position `upto` and whose files are gone. None when
        the log that is read now has the batch at the positions that it had: then `stream` brings it. Raises
        PositionLost if the server does not have all of them."""
        ...

    @property
    def decoding(self) -> str:
        """What the rows of a change depend on beside the log: options of the stream, such as chosen columns. Files of a
        batch that were written under another text are not used again."""
        ...

    # -- watermarks and visibility ---------------------------------------------------------------------------

    @abstractmethod
    def write_watermark(self, token: str) -> int:
        """Commit `token` to the watermark table, so that it comes back as `Run.token`; return a position at or after
        its commit. A select that begins after the return sees all that the log has before the token, but for
        `invisible`. Raises WatermarkError when it cannot be written."""
        ...

    def high_watermark(self) -> int:
        """Without writing: a position at or after the commit of all that a select has been able to see until now. The
        log must reach it by itself, on an idle database too (`LogStream.idle_position`)."""
        ...

    @abstractmethod
    def invisible(self, xids: Ints, coordinate: str | None) -> tuple[int, ...]:
        """The committed transactions of `xids` (`Commits.xids`), all before `coordinate`, that a select started now
        might not see yet. The source may return fewer of them if they stand for all. () where commits become visible
        in the order of the log, before they can be read from it. No chunk is selected while there are any."""
        ...

    @abstractmethod
    def select(self, table: TableName, extent: Extent, key: str | None) -> Selection:
        """Open a read of the rows of an extent. Called by executors, and by the planner for a chunk that none has read.
        The rows must be those of one moment after the call began: none if `extent.empty`, which is a condition for
        SQL. Raises KeyChanged when the table's primary key is not `key` (as `Boundaries.key` names it), TableLocked,
        and TableUnreadable when the extent can never be read."""
        ...

    # -- what requests need ----------------------------------------------------------------------------------

    def estimate(self, table: TableName) -> int | None:
        """About how many rows the table has, for people; must be quick. None where nobody knows."""
        ...

    def missing(self, table: TableName, keys: Sequence[Key]) -> list[Key]:
        """Those of the keys that no row has now. Raises TableUnreadable when they are no keys of the table."""
        ...

    def check_condition(self, table: TableName, where: str) -> None:
        """Raise TableUnreadable unless `Extent.where` may be this condition, which a user wrote."""
        ...

    # -- for people ------------------------------------------------------------------------------------------

    def identity(self) -> Mapping[str, str]:
        """Which database this is and how the stream is called there, without secrets: `source` is the masked URL. Asks
        nobody."""
        ...

    def probe(self, query: str) -> float:
        """The number that a user's query gives, a measure of the database's load. Must change nothing and end soon.
        Raises SourceError, which people are told; the stream goes on."""
        ...

    def health(self) -> Mapping[str, Any]:
        """How the database keeps our log, for people: `latest` (the end of its log), and what the database says of the
        reader's coordinate in it. Raises SourceError; the stream goes on."""
        ...
