"""What a select sees of what the log shows, and the other way round.

A transaction's commit is in the log some time before selects see it: it must first leave the server's list of running
transactions. And a commit that does not wait for the disk (synchronous_commit = off) is seen before it is flushed,
while only what is flushed is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dblog.core.arrays import Ints

# Up to where the log is written. The server says where the next record begins: at the beginning of a page, that is
# behind the page's header, which no record's end ever is.
INSERTED = """
select lsn - case when lsn % pages.block = 24 then 24 when lsn % pages.segment = 40 then 40 else 0 end
from (select (pg_catalog.pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint) inserted (lsn),
     (select pg_catalog.current_setting('wal_block_size')::bigint, pg_catalog.pg_size_bytes(
          pg_catalog.current_setting('wal_segment_size'))) pages (block, segment)
"""

FLUSH = "select pg_catalog.pg_logical_emit_message(true, 'dblog', '')"
"""The server flushes by itself soon. A message in the log, which needs no privilege and says nothing, makes it do so
now."""


@dataclass(frozen=True)
class Snapshot:
    """Which transactions are over."""

    end: int
    """This one, and all after it, had not begun."""
    running: Ints

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """From `pg_snapshot`'s text."""
        _, end, running = text.split(":")
        return cls(int(end), np.array([int(x) for x in running.split(",") if x], np.int64))

    def hidden(self, xids: Ints) -> tuple[int, ...]:
        """Those that selects do not see. Of a number the log has 32 bits: the rest is that of the nearest number to
        the snapshot's end."""
        full = self.end + ((xids - self.end + (1 << 31)) % (1 << 32)) - (1 << 31)
        hidden = (full >= self.end) | np.isin(full, self.running)
        return tuple(int(x) for x in np.unique(xids[hidden]))
