"""The difference between what the log has shown and what a select sees.

A commit is in the log some time before selects see it: the transaction must first leave the server's list of running
transactions. On the other hand, selects see a commit with synchronous_commit = off before it is flushed, and the server
sends only flushed log.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dblog.core.arrays import Ints

# The end of the written log. The server returns the start of the next record. At the start of a page that is after the
# page's header, where no record can end, so the header is subtracted.
# On a standby it is what was received of the log: a select may see a commit before its position counts as replayed.
INSERTED = """
select lsn - case when lsn % pages.block = 24 then 24 when lsn % pages.segment = 40 then 40 else 0 end
from (select (case when pg_catalog.pg_is_in_recovery()
                  then greatest(pg_catalog.pg_last_wal_receive_lsn(), pg_catalog.pg_last_wal_replay_lsn())
                  else pg_catalog.pg_current_wal_insert_lsn() end - '0/0'::pg_lsn)::bigint) inserted (lsn),
     (select pg_catalog.current_setting('wal_block_size')::bigint, pg_catalog.pg_size_bytes(
          pg_catalog.current_setting('wal_segment_size'))) pages (block, segment)
"""

FLUSHED = """(case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
      else pg_catalog.pg_current_wal_flush_lsn() end - '0/0'::pg_lsn)::bigint"""
"""The end of the log that the server can decode: on a standby, what is replayed."""

SENDABLE = f"""least({FLUSHED}, (
    select min(standby.restart_lsn - '0/0'::pg_lsn)::bigint from pg_catalog.pg_replication_slots standby
    where standby.slot_name = any (pg_catalog.regexp_split_to_array(
        pg_catalog.current_setting('synchronized_standby_slots', true), '[\\s,"]+'))))"""
"""The end of the log that the server sends. With `synchronized_standby_slots` these standbys must have it. The server
does not look after that for copies of a slot, so we do."""

FLUSH = """
select case when not pg_catalog.pg_is_in_recovery() then pg_catalog.pg_logical_emit_message(true, 'dblog', '') end
"""
"""Makes the server flush its log now, by an empty message in the log, which needs no privilege."""


@dataclass(frozen=True)
class Snapshot:
    """The server's `pg_snapshot`: which transactions have ended."""

    end: int
    """The first transaction number that had not begun."""
    running: Ints

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read the text of a `pg_snapshot`."""
        _, end, running = text.split(":")
        return cls(int(end), np.array([int(x) for x in running.split(",") if x], np.int64))

    def hidden(self, xids: Ints) -> tuple[int, ...]:
        """The transactions that selects do not see yet. The log has only the lower 32 bits of a number; the upper bits
        are those that bring it nearest to the snapshot's end."""
        full = self.end + ((xids - self.end + (1 << 31)) % (1 << 32)) - (1 << 31)
        hidden = (full >= self.end) | np.isin(full, self.running)
        return tuple(int(x) for x in np.unique(xids[hidden]))
