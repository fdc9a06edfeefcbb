"""The statements of the transaction that writes a batch: staged rows into their tables, and the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dblog.errors import SinkUnreachable
from dblog.sinks.base import TableBatch
from dblog.sinks.net_effect import signed_key
from dblog.sinks.sql.ledger import OPEN, Known, Ledger, deleted
from dblog.sinks.sql.load import Loading
from dblog.sinks.sql.staged import Inline, Kinds, Order, StagedRows, TableNames
from dblog.sinks.sql.tables import Fitted
from dblog.sinks.sql.target import GONE, Statement, Target


@dataclass
class Share:
    """A batch's rows of one table, on their way to the target."""

    table: TableBatch
    into: Fitted
    loading: Loading
    staged: list[tuple[Inline, Kinds]] = field(default_factory=list)
    """The staged rows, in the order in which they are applied."""
    few: bool = False
    """Whether they are in the statements, and not in staging tables."""
    full: bool = False
    """Whether no more rows of dumps are to be inserted directly."""


class Application:
    """Makes the statements that apply a batch."""

    def __init__(self, target: Target, ledger: Ledger, *, soft: bool) -> None:
        self._target = target
        self._ledger = ledger
        self._soft = soft

    def statements(
        self, shares: Sequence[Share], known: dict[str, Known], shared: set[str], least: int
    ) -> Iterator[Statement]:
        """The statements for all tables. `known` has their entries in the ledger, `shared` the tables that other
        pipelines write too, `least` is the smallest position from which a pipeline may still bring a state."""
        yield from self.of_shares(shares, known, least)
        yield from self._filling(shares, known, shared)

    def of_shares(self, shares: Sequence[Share], known: Mapping[str, Known], least: int) -> Iterator[Statement]:
        """The statements for the rows of tables."""
        for share in shares:
            entry = known.get(share.into.id)
            if entry is None:
                raise SinkUnreachable(f"the ledger has no entry for table {share.into.name} any more")
            doing = f"writing table {share.into.name}"
            yield from (Statement(sql, doing, share.table.source) for sql in self._table(share, entry, least))

    def _table(self, share: Share, known: Known, least: int) -> Iterator[str]:
        into, ledger, emptied = share.into, self._ledger, known.emptied
        if share.table.truncated is not None and share.table.truncated > emptied:
            emptied = share.table.truncated
            yield from self._empty(into, emptied)
        names = self.names(share)
        remembers = known.remembers
        for inline, kinds in share.staged:
            staged = StagedRows(names, inline.source, kinds)
            yield from inline.before
            if not self._soft and kinds.gone:
                yield self._target.deletes(staged)
                if kinds.last_gone >= least:
                    yield self._target.tombstones(staged, least, emptied)
                    remembers = True
            if kinds.live or self._soft:
                alive = staged.alive(emptied, soft=self._soft, remembers=known.remembers)
                yield from self._target.upserts(staged, alive)
            yield from inline.after
        if remembers:
            yield from ledger.forget_deleted(into.id, least)

    def _empty(self, into: Fitted, at: Order) -> Iterator[str]:
        """Delete all rows that are older than the truncate."""
        table = self._target.quoted(*into.name)
        soft = f"update {table} set {GONE} = true, _lsn = {at[0]}, _seq = {at[1]}"
        change = soft if self._soft else f"delete from {table}"
        yield f"{change} where (_lsn, _seq) < ({at[0]}, {at[1]})"
        yield self._ledger.empty(into.id, at)

    def _filling(self, shares: Sequence[Share], known: dict[str, Known], shared: set[str]) -> Iterator[Statement]:
        """Remove the tokens of direct inserts, and end them where they do not help or are not safe any more."""
        open_ended = [s for s in shares if known[s.into.id].filling]
        over = [s.into.id for s in open_ended if s.full or s.table.truncated is not None or s.into.id in shared]
        still = [s.into.id for s in open_ended if s.into.id not in over and known[s.into.id].filling != OPEN]
        for sql in (*self._ledger.set_filling(over, ""), *self._ledger.set_filling(still, OPEN)):
            yield Statement(sql, "writing the ledger")

    def names(self, share: Share) -> TableNames:
        """The names of a share's table and its columns."""
        quoted, into = self._target.quoted, share.into
        return TableNames(
            table=quoted(*into.name),
            deleted=self._ledger.name(deleted(into.id)),
            key=tuple(map(quoted, into.key)),
            signed=tuple(map(quoted, signed_key(share.table.schema))),
            columns=tuple(map(quoted, into.types)),
            plain={quoted(n): n for n in into.types},
            types={quoted(n): kind for n, kind in into.types.items()},
        )


def in_order(shares: Iterable[Share]) -> list[Share]:
    """Always the same order of tables, so that two pipelines cannot deadlock."""
    return sorted(shares, key=lambda share: share.into.id)
