"""Problems of a pipeline's replication slot, and the SQL that creates or drops it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from dblog.databases.postgres.connect import literal
from dblog.sources.problems import Problem

# Only PostgreSQL 17 and later have the column `invalidation_reason`. A stream that is far behind reads copies.
SLOT = """
    SELECT *, to_jsonb(s) ->> 'invalidation_reason' AS why, coalesce(active_pid, (
        SELECT c.active_pid FROM pg_replication_slots c WHERE c.slot_name = ANY (%s) LIMIT 1)) AS reader
    FROM pg_replication_slots s WHERE slot_name = %s
"""


def slot_sql(slot: str, *, failover: bool) -> str:
    more = ", failover => true" if failover else ""
    return f"SELECT pg_create_logical_replication_slot({literal(slot)}, 'pgoutput'{more});"


def _drop_sql(slot: str) -> str:
    return f"SELECT pg_drop_replication_slot({literal(slot)});  -- then start anew, with a new checkpoint"


def slot_problems(
    name: str,
    slot: Any,
    *,
    create: str,
    fresh: bool,
    database: str,
    reader: tuple[str | None, str | None],
    lost: Sequence[str],
) -> Iterator[Problem]:
    """The problems of a slot (a row of `pg_replication_slots`, or None).

    A `fresh` pipeline may create the slot, with the statement `create`. `reader` is the application and client of the
    session that reads it. `lost` has reasons why changes may be missing from it."""
    if not re.fullmatch(r"[a-z0-9_]{1,63}", name):
        yield Problem(f"{name!r} is not a valid slot name", "use up to 63 lower case letters, digits, underscores")
    elif slot is None and fresh:
        yield Problem(f"slot {name!r} does not exist", create, fatal=False, creatable=True)
    elif slot is None:
        fix = (
            "start anew, with a new checkpoint and a full dump: the log since the checkpoint is gone; after a "
            "promotion, a server has the slot only if it was synchronized (docs/high-availability.md)"
        )
        yield Problem(f"slot {name!r} does not exist, but a checkpoint needs its log", fix, lost=True)
    if slot is None:
        return
    if slot.slot_type != "logical" or slot.plugin != "pgoutput" or slot.temporary:
        kind = f"{'temporary ' if slot.temporary else ''}{slot.slot_type}, plugin {slot.plugin!r}"
        yield Problem(f"slot {name!r} is {kind}, not a permanent pgoutput slot", "choose another slot name")
        lost = ()  # it is not ours, so we do not suggest to drop it
    elif slot.database != database:
        yield Problem(f"slot {name!r} belongs to database {slot.database!r}", "choose another slot name")
        lost = ()
    if slot.wal_status == "unreserved":
        what = f"slot {name!r} will soon be lost: the server's next checkpoint may remove log that it needs"
        fix = "ALTER SYSTEM SET max_slot_wal_keep_size = -1;\nSELECT pg_reload_conf();"
        yield Problem(what, fix, fatal=False)
    if pid := slot.reader:
        app, client = reader
        holder = f"pid {pid} (application {app or 'unknown'!r}, client {client or 'unknown'})"
        fix = f"stop it, or: SELECT pg_terminate_backend({pid});"
        yield Problem(f"slot {name!r} is read by {holder}", fix, passing=True)
    gone = f" ({slot.why})" if slot.why else ""
    removed = [f"slot {name!r} is lost{gone}: log that it needs was removed"]
    fix = _drop_sql(name)
    for what in (*(removed if slot.why or slot.wal_status == "lost" else ()), *lost):
        yield Problem(what, fix, lost=not fresh)
        fix = "drop the slot, as above"
