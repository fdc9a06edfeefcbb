"""Operations on replication slots for the command line: list, drop, and a temporary publication."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from dblog.core.schema import TableName
from dblog.databases.postgres.connect import Connection, identifier, translating
from dblog.errors import NotFound, PreconditionFailed, SourceError
from dblog.sources.family import Slot
from dblog.sources.postgres.slot_copy import copy_names

PASSING = "dblog_events_"
"""Prefix of the names of temporary publications, and of the temporary slots that read them."""

_PASSING_LOCK = 0x64626C6F

_SLOTS = """
select slot_name, plugin, temporary, active, active_pid, wal_status, safe_wal_size,
       (case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end
        - restart_lsn)::bigint as retained_bytes,
       (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint as position
from pg_catalog.pg_replication_slots where database = current_database() order by slot_name
"""

# Tables and partitions without a replica identity: while they are published, the server refuses their updates.
_UNIDENTIFIED = """
select n.nspname, c.relname
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and c.relreplident <> 'f'
  and c.oid in (
    select t.oid from pg_catalog.pg_class t join pg_catalog.pg_namespace s on s.oid = t.relnamespace
    where (s.nspname, t.relname) in %(tables)s
    union all
    select p.relid from pg_catalog.pg_class t join pg_catalog.pg_namespace s on s.oid = t.relnamespace,
         pg_catalog.pg_partition_tree(t.oid) p
    where (s.nspname, t.relname) in %(tables)s)
  and not exists (
    select from pg_catalog.pg_index i
    where i.indrelid = c.oid and i.indisvalid and i.indimmediate
      and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident else false end)
order by 1, 2 limit 1
"""

# The user of a temporary publication holds a lock on its name. If the lock is free, its user was killed.
_LEFT_BEHIND = """
select pubname from pg_catalog.pg_publication
where pubname like %s and pg_has_role(pubowner, 'USAGE') and pg_try_advisory_lock(%s, hashtext(pubname))
"""


_END_READER = """
select pg_catalog.pg_terminate_backend(active_pid) from pg_catalog.pg_replication_slots
where slot_name = any (%s) and database = current_database() and active_pid is not null
"""


def read_slots(connection: Connection) -> list[Slot]:
    """All logical replication slots of this database."""
    with translating("listing the replication slots"), connection.cursor() as cursor:
        cursor.execute(_SLOTS)
        return [Slot(*row) for row in cursor.fetchall()]


def drop_slot(connection: Connection, name: str, publication: str) -> bool:
    """Drop an inactive slot and its publication. Returns whether there was a publication. The slot's log is lost.

    The slot is dropped first: if a session still reads it, that fails and the publication stays."""
    found = {slot.name: slot for slot in read_slots(connection)}
    if name not in found:
        raise NotFound(f"there is no replication slot {name!r} in this database", hint="dblog slots lists them")
    for slot in (found.get(read) for read in (name, *copy_names(name))):
        if slot is not None and slot.active:
            raise SourceError(
                f"replication slot {name!r} is read by the server's process {slot.active_pid}",
                hint="stop the stream that reads it first",
            )
    with connection.cursor() as cursor:
        with translating(f"dropping replication slot {name!r}"):
            cursor.execute("select pg_drop_replication_slot(%s)", (name,))
        return _drop_publication(cursor, publication)


def end_reader(connection: Connection, name: str) -> bool:
    """End the sessions that read a slot or a copy of it. Returns whether there were any. A user may end sessions of
    its own; those of another user need the role `pg_signal_backend`."""
    with translating(f"ending the session that reads replication slot {name!r}"), connection.cursor() as cursor:
        cursor.execute(_END_READER, ([name, *copy_names(name)],))
        return bool(cursor.fetchall())


def check_publication(connection: Connection, name: str) -> None:
    """Raise PreconditionFailed unless the publication exists: PostgreSQL 18 only warns about it, and sends nothing."""
    with translating(f"looking at publication {name!r}"), connection.cursor() as cursor:
        if not _is_published(cursor, name):
            raise PreconditionFailed(
                f"there is no publication {name!r} in this database", hint="pg_publication lists the existing ones"
            )


@contextmanager
def passing_publication(connection: Connection, tables: Collection[TableName]) -> Iterator[str]:
    """Create a temporary publication of these tables, and drop it at the end. Gives its name.

    Also drops temporary publications whose users were killed. Raises PreconditionFailed for a table without a replica
    identity, because its updates would fail while it is published."""
    name = PASSING + uuid.uuid4().hex[:12]
    with connection.cursor() as cursor:
        with translating("looking at the tables"):
            cursor.execute(_UNIDENTIFIED, {"tables": tuple(tuple(t) for t in tables)})
            if bare := cursor.fetchone():
                raise PreconditionFailed(
                    f"table {str(TableName(*bare))!r} has no replica identity: its updates would fail while published",
                    hint="give it a primary key; dblog check shows how",
                )
        _clear(cursor)
        members = ", ".join(identifier(*t) for t in tables)
        with translating("creating a publication"):
            cursor.execute("select pg_advisory_lock(%s, hashtext(%s))", (_PASSING_LOCK, name))
            cursor.execute(
                f"create publication {identifier(name)} for table {members} with (publish_via_partition_root = true)"
            )
        try:
            yield name
        finally:
            _drop_publication(cursor, name)


def _clear(cursor: Any) -> None:
    with translating("looking for publications that were left behind"):
        cursor.execute(_LEFT_BEHIND, (PASSING.replace("_", r"\_") + "%", _PASSING_LOCK))
        left = [name for (name,) in cursor.fetchall()]
    for name in left:
        _drop_publication(cursor, name)


def _drop_publication(cursor: Any, name: str) -> bool:
    with translating(f"dropping publication {name!r}"):
        there = _is_published(cursor, name)
        cursor.execute(f"drop publication if exists {identifier(name)}")
    return there


def _is_published(cursor: Any, name: str) -> bool:
    cursor.execute("select from pg_catalog.pg_publication where pubname = %s", (name,))
    return bool(cursor.rowcount)
