"""Runs: stretches of the log as a source returns them, with the transactions that committed in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog.core.arrays import Ints
from dblog.core.offset import Key
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
class Loss:
    """Commits that were delivered and that the server does not have: it was promoted without them."""

    after: str
    """The log up to here, as the database writes positions, is the same as before."""
    upto: str
    """The log up to here was delivered."""
    servers: str
    """From which server to which the stream has changed."""
    tables: Mapping[TableName, int | None]
    """The tables with lost changes: how many rows are read again; None for all rows."""

    @property
    def described(self) -> str:
        """The tables and how many rows of each are read again, in words."""
        counts = {table: "all rows" if rows is None else f"{rows} rows" for table, rows in self.tables.items()}
        told = ", ".join(f"{count} of {table}" for table, count in counts.items())
        return f"{told} are read again" if told else "no followed table had changes in them"


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
    reread: Mapping[TableName, Sequence[Key]] = field(default_factory=dict)
    """Keys of rows that a dump must read again."""
    lost: Loss | None = None
    """What this run takes back."""

    @property
    def position(self) -> int | None:
        """End position of the last commit; None while the last transaction is still open."""
        return int(self.commits.positions[-1]) if len(self.commits) else None
