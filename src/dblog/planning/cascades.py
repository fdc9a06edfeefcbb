"""What the cascades of a batch (`core.cascades`) mean for the dumps that run beside them.

A row that was read in the window of a cascade is delivered with an order before the window's log, and the cascade acts
on it. That is exact, with three exceptions, in which rows are read again:

* Cascades that give rows values which earlier cascades of the window have taken from others (`ambiguous`): the chunks
  of the window are read again.
* Cascades through a table that is still being dumped (`stale`): the target may not have the rows of that table through
  which the cascade went on. The tables below it are emptied, and dumped again.
* Cascades that change keys of a table that is still being dumped: a row that was not read yet may have got a key that
  the dump has already passed. The dump of the table begins again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from dblog.capture.segments import Segment
from dblog.capture.spool import LogFile, Spool
from dblog.core.cascades import DELETED, Rules, ambiguous, child_of, from_text, reach, stale
from dblog.core.dump import OWN, Staged
from dblog.core.offset import Cursor, Offset
from dblog.core.schema import TableName
from dblog.core.window import Mark
from dblog.planning.following import Change


@dataclass(frozen=True)
class Cascades:
    """The cascades of a batch."""

    rules: tuple[Rules, ...] = ()
    mixed: bool = False
    """Whether they are ambiguous for rows that were read among them."""
    emptied: frozenset[TableName] = frozenset()
    """The tables that must be emptied and dumped again."""
    restarted: frozenset[TableName] = frozenset()
    """The tables whose dump must begin again."""

    @classmethod
    def of(
        cls,
        segments: Iterable[Segment],
        spool: Spool,
        start: Offset,
        end: int,
        followed: Collection[TableName],
        aside: Collection[TableName] = (),
    ) -> Cascades:
        """The cascades of the log from the offset to `end`. Those of tables that are set `aside` count too: through
        them, other tables have changed."""
        assert start.position is not None
        files = [f for s in segments for f in s.files if child_of(f.table) in {*followed, *aside}]
        files = [f for f in files if f.first < end and start.position <= f.last]
        if not files:
            return cls()
        found = list(_events(files, spool, start.position, end))
        rules = {text: from_text(text) for text, _, _ in found}
        moves = {text for text, _, batch in found if not pc.all(batch.column(DELETED)).as_py()}
        # 1. tables whose rows the target may lack
        unread = {cursor.table for cursor in start.dumps if cursor.dump in OWN}
        unread |= {chunk.table for chunk in (*start.read, *start.emit) if chunk.dump in OWN}
        unread |= set(followed).difference(start.tables).union(aside)
        # 2. what this means for those below them, and for those whose rows have got other keys
        kept = set(start.tables).difference(aside)
        emptied = stale(rules.values(), unread) & set(followed) & kept
        rekeyed = {table for text in moves for table in reach(rules[text], deleted=False).rekeyed}
        return cls(
            tuple(rules.values()),
            bool(moves) and ambiguous((width, batch) for _, width, batch in found),
            frozenset(emptied),
            frozenset(emptied | (rekeyed & unread & kept)),
        )

    def clear(self, start: Offset, staged: Mapping[str, Staged]) -> Mapping[str, Staged]:
        """The staged chunks without those that must be read again."""
        if not self.mixed:
            return staged
        tables = {table for rules in self.rules for table in rules.tables}
        again = {chunk.id for chunk in start.read if chunk.table in tables}
        return {chunk: found for chunk, found in staged.items() if chunk not in again or found.failed is not None}

    def change(self, change: Change) -> Change:
        """The change of the followed tables at the end of the batch, with the tables that are emptied."""
        more = tuple(sorted(self.emptied.difference(change.emptied)))
        return replace(change, emptied=(*change.emptied, *more), replaced=(*change.replaced, *more)) if more else change

    def mark(self, mark: Mark) -> Mark:
        """The end of the batch, with the tables that must be dumped."""
        return replace(mark, holes={**mark.holes, **dict.fromkeys(self.restarted)}) if self.restarted else mark

    def start(self, start: Offset) -> Offset:
        """The offset in which the stream's own dumps of these tables begin again."""
        again = (replace(c, after=None, upto=None, again=()) if self._restarts(c) else c for c in start.dumps)
        return replace(start, dumps=tuple(again)) if self.restarted else start

    def _restarts(self, cursor: Cursor) -> bool:
        return cursor.table in self.restarted and cursor.dump in OWN and cursor.where is None


def _events(files: Iterable[LogFile], spool: Spool, start: int, end: int) -> Iterable[tuple[str, int, pa.RecordBatch]]:
    """The rules, the number of referenced columns, and the events of each batch."""
    for file in files:
        schema, batches = spool.read_log(file.path)
        for batch in batches:
            lsn = batch.column("_lsn")
            mine = batch.filter(pc.and_(pc.greater_equal(lsn, start), pc.less(lsn, end)))
            if mine.num_rows:
                yield schema.cascade, (len(schema.columns) - 1) // 2, mine
