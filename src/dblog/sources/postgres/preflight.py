"""The preflight: is the server set up for capture? One read-only inspection finds every problem, each with its fix.

`check` changes nothing. `prepare` raises if a problem is fatal. Otherwise it creates what is missing, with the
statements that `check` prints as the fix, in this order:

1. the watermark table and its row, because the publication names it;
2. the publication, of the captured tables and the watermark table only: a published table without a usable replica
   identity makes its owner's own updates fail, so `FOR ALL TABLES` is never an option;
3. the slot, last: decoding reads the publication from the catalog as it was at that position of the log.

The single checks are in `preflight_checks`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from psycopg2.extras import NamedTupleCursor

from dblog.core.schema import TableName
from dblog.databases.postgres.connect import Connection, translating
from dblog.sources.base import Wait
from dblog.sources.postgres import preflight_checks
from dblog.sources.postgres.failover_checks import enable_failover, with_failover
from dblog.sources.postgres.setup import Setup
from dblog.sources.postgres.slot_copy import copy_names
from dblog.sources.postgres.slot_creation import create_slot
from dblog.sources.postgres.slot_problems import slot_sql
from dblog.sources.problems import Problem, for_later, refuse
from dblog.sources.relational import WATERMARK

__all__ = ["Problem", "Setup", "admin_sql", "check", "prepare", "unfit"]

OLDEST_SERVER = 130000
RELEASE_SECONDS = 10.0
_ADVISORY_LOCK = 0x64626C6F67
"""The number of the lock ("dblog" in ASCII) that a pipeline holds during its set-up, so that two do not run at once."""


def check(connection: Connection, setup: Setup) -> list[Problem]:
    """Find every problem, in the order in which to fix them. Changes nothing."""
    version: int = connection.server_version
    if version < OLDEST_SERVER:  # the queries below would fail
        return [Problem(f"the server's version number is {version}", "upgrade to PostgreSQL 13 or later")]
    with translating("checking the server"), connection.cursor(cursor_factory=NamedTupleCursor) as cur:
        return [*preflight_checks.Inspection(cur, setup).problems(), *setup.left_out]


def unfit(connection: Connection, setup: Setup) -> dict[TableName, list[Problem]]:
    """The tables of the set-up that cannot be followed, and why."""
    if connection.server_version < OLDEST_SERVER or not setup.tables:
        return {}
    with translating("looking at the tables"), connection.cursor(cursor_factory=NamedTupleCursor) as cur:
        inspection = preflight_checks.Inspection(cur, setup)
        found = {TableName(t.schema, t.name): inspection.unfit(t) for t in inspection.tables}
    return {table: wrong for table, wrong in found.items() if wrong}


def prepare(
    connection: Connection, setup: Setup, *, patience: float = RELEASE_SECONDS, wait: Wait | None = None
) -> None:
    """Create what is missing, if the role may; raise PreconditionFailed (or PositionLost) with every fatal problem.

    `connection` is in autocommit mode. If an ending process still reads the slot, wait for it up to `patience` seconds.
    If open transactions block the creation of a slot, wait for them as `wait` says.
    """
    await_release(connection, setup.slot, patience)
    with translating("setting up the server"), connection, connection.cursor() as cur:
        cur.execute("SET LOCAL lock_timeout = '10s'")
        cur.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        problems = check(connection, setup)
        refuse(problems)
        creatable, failover = [p.fix for p in problems if p.creatable], with_failover(connection, setup)
        slot = slot_sql(setup.slot, failover=failover)
        for fix in creatable:
            if fix != slot:
                cur.execute(fix)  # steps 1 and 2
    if slot in creatable:  # step 3, after the commit: the slot must begin after the publication
        create_slot(connection, setup.slot, wait or Wait(), failover=failover)
    elif failover:
        enable_failover(connection, setup.slot)


def admin_sql(setup: Setup, role: str, problems: Sequence[Problem] | None = None) -> str:
    """Return the whole set-up as a script for an administrator. Afterwards `role` needs no further privilege. With
    `problems`, which `check` has found for the role, it has only what is missing; without, it is for a new server."""
    rights = [
        preflight_checks.grant("USAGE", schema, role) for schema in dict.fromkeys(t.schema for t in setup.published)
    ]
    rights += [
        preflight_checks.grant("SELECT, UPDATE" if t == WATERMARK else "SELECT", t, role) for t in setup.published
    ]
    watermark = preflight_checks.WATERMARK_SQL if setup.writes else ()
    script = [preflight_checks.replication_sql(role), *watermark, *rights]
    rest = [preflight_checks.publication_sql(setup)]
    if problems is not None:
        needed = [statement for p in problems if p.fatal or p.creatable for statement in p.statements]
        others = {*script, *(slot_sql(setup.slot, failover=each) for each in (True, False))}
        rest = [statement for statement in needed if statement not in others]
    return "\n".join([*script, *rest, *for_later(problems or ())]) + "\n"


def await_release(connection: Connection, slot: str, patience: float = RELEASE_SECONDS) -> None:
    """Wait until no session reads the slot or a copy of it, at most `patience` seconds."""
    deadline = time.monotonic() + patience
    with translating("looking at the slot"), connection.cursor() as cur:
        while True:
            names = [slot, *copy_names(slot)]
            cur.execute("SELECT FROM pg_replication_slots WHERE slot_name = ANY (%s) AND active", (names,))
            if cur.rowcount == 0 or time.monotonic() > deadline:
                return
            time.sleep(0.2)
