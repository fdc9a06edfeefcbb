"""The events that the decoder handles at once, divided into transactions, and their changes cut into runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Ints, Mask
from dblog.core.event import Op
from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.gtid import AHEAD, Names, unmarked
from dblog.errors import DecodeError, PositionLost
from dblog.sources.base import Commits, Run
from dblog.sources.mysql.events import Events
from dblog.sources.mysql.table_ids import Destination


@dataclass(frozen=True)
class Transaction:
    """A transaction in progress between two calls."""

    lsn: int = 0
    committed_at: int = 0
    xid: int = 0
    origin: str = ""
    delivered: bool = False
    changes: int = 0
    several: bool = False
    """Whether it is more than a single statement."""
    token: str | None = None
    maps: dict[int, Destination] = field(default_factory=dict)
    touched: frozenset[TableName] = frozenset()
    """The captured tables that its table maps have named so far."""


@dataclass(frozen=True, eq=False)
class Feed:
    """Events and their transactions. Transaction 0 is the one already in progress."""

    events: Events
    commits: Ints
    """The events that end a transaction."""
    transaction: Ints
    """The number of each event's transaction."""
    first: Ints
    """The first event of each transaction."""
    lsn: Ints
    committed_at: Ints
    xid: Ints
    origin: Names
    delivered: Mask
    """Which transactions were already delivered: the log is read from further back than the stream goes on."""
    open: bool
    several: bool
    """Whether the last transaction is more than a single statement."""
    stated: list[tuple[int, TableName, bool]]
    """For each statement that empties tables: its event, the table, and whether the table gets other rows."""
    tokens: dict[int, str] = field(default_factory=dict)


def check_origins(feed: Feed, changes: Ints) -> None:
    """Raise PositionLost if a transaction that only this server has changed captured tables before delivered
    transactions: it is unknown whether its rows still exist."""
    for number in np.unique(feed.transaction[changes]).tolist():
        if feed.origin[number].startswith(AHEAD):
            who = unmarked(feed.origin[number])
            gtid = f"{who}{'-' if who.count('-') == 1 else ':'}{feed.xid[number]}" if who else "without a GTID"
            raise PositionLost(
                f"transaction {gtid} changed captured tables on this server only: the server that the stream read "
                "before does not have it, and later transactions were already delivered",
                hint="somebody wrote to a replica: make the servers equal, then start with a new checkpoint, which "
                "dumps the tables again",
            )


def tokens_of(batch: pa.RecordBatch, transaction: Ints) -> Iterable[tuple[int, str]]:
    """The transaction's number and the `token` of each watermark."""
    if "token" not in batch.schema.names:
        raise DecodeError("the watermark table has no column 'token'")
    for number, op, token in zip(
        transaction.tolist(), batch.column("_op").to_pylist(), batch.column("token").to_pylist(), strict=True
    ):
        if op != Op.delete and token is not None:
            yield number, token if isinstance(token, str) else token.decode()


def cut_runs(
    feed: Feed,
    batches: list[tuple[TableSchema, pa.RecordBatch, Ints]],
    rows: Ints,
    replaced: list[tuple[int, TableName]],
) -> Iterator[Run]:
    """The runs. A run ends after each watermark's transaction and after the last commit; an open transaction is its own
    run. `rows` has the number of rows before each event; `replaced` has replaced tables and the events that replaced
    them."""
    size = np.append(0, np.cumsum(feed.events.size))
    number = feed.transaction[feed.commits]
    marked = np.flatnonzero(np.isin(number, list(feed.tokens)))
    stops = sorted({*marked.tolist(), *range(len(feed.commits))[-1:]})
    first = begin = 0
    cuts: list[tuple[int, Run]] = []
    for last in stops:
        mine = slice(first, last + 1)
        ends = feed.commits[mine] + 1
        commits = Commits(
            feed.events.after[feed.commits[mine]],
            feed.events.after[feed.commits[mine]],
            rows[ends] - rows[begin],
            size[ends] - size[begin],
            np.where(feed.delivered[number[mine]], "", feed.origin[number[mine]]),
            feed.xid[number[mine]],
        )
        nbytes = int(size[ends[-1]] - size[begin])
        committed_at = int(feed.committed_at[number[last]])
        cuts.append((int(ends[-1]), Run((), commits, feed.tokens.get(int(number[last])), nbytes, committed_at)))
        first, begin = last + 1, int(ends[-1])
    if feed.open:
        cuts.append((len(feed.events), Run(nbytes=int(size[-1] - size[begin]))))
    begin = 0
    for end, run in cuts:
        changes = []
        for schema, batch, event in batches:
            # Cut where a table is emptied, so that changes stay before or after the truncate.
            low, high = np.searchsorted(event, [begin, end])
            emptied = np.clip(np.searchsorted(event, [number for number, _, _ in feed.stated]), low, high)
            for first, last in pairwise(sorted({int(low), *emptied.tolist(), int(high)})):
                changes.append((int(event[first]), schema, batch[first:last]))
        in_order = tuple(change[1:] for change in sorted(changes, key=lambda change: change[0]))
        yield replace(run, changes=in_order, replaced=tuple(t for number, t in replaced if begin <= number < end))
        begin = end
