"""Create a replication slot: wait for the transactions that block it, report them, and leave no incomplete slot.

A new slot starts when every transaction that was writing has ended. The server waits for these transactions, of all
databases, one after the other. Then it waits for those that began meanwhile, but only a few times: even with writers
that always overlap it takes about three times as long as the longest of them.

Until then the slot belongs to the creating session: the server removes it when the statement is cancelled or the
session ends. While it waits, the server does not notice that its client has died, unless it is told to check
(`CLIENT_CHECK`).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg2

from dblog.databases.postgres.connect import Connection, connect_beside, literal, translating
from dblog.errors import PreconditionFailed, SourceError
from dblog.sources.base import Wait

LOOK_SECONDS = 0.5
"""How often the transactions that block a slot are read, in seconds."""
CLIENT_CHECK = (140000, "1s")
"""The first server version that can check for its client during a statement, and how often it does."""
GRACE_SECONDS = 30
"""How long after our patience has ended the server itself gives up, in seconds."""
QUERY_CHARACTERS = 80
MOST_NAMED = 5
UNKNOWN = "open transactions"
"""The text for blocking transactions that cannot be listed."""

ON_STANDBY = (
    "the primary to log its running transactions, which it does within 15 seconds if anything is written, or at once "
    "with: SELECT pg_log_standby_snapshot();"
)
"""What a slot on a standby waits for. It also waits for the transactions that are writing on the primary."""

# Sessions with a writing transaction, the oldest first. Transactions of the last second are left out, except the one
# that the server waits for: a busy server always has some. Without pg_read_all_stats the server hides age and query of
# others.
_HOLDERS = """
select 'pid ' || pid, usename, extract(epoch from clock_timestamp() - xact_start)::bigint, state, query,
       pg_catalog.age(backend_xid)
from pg_catalog.pg_stat_activity
where backend_xid is not null and pid not in (pg_catalog.pg_backend_pid(), %(creator)s)
  and (pid = any (pg_catalog.pg_blocking_pids(%(creator)s)) or xact_start is null
       or xact_start < clock_timestamp() - interval '1 second')
union all
select 'prepared ' || quote_literal(gid), owner, extract(epoch from clock_timestamp() - prepared)::bigint, null, null,
       pg_catalog.age(transaction)
from pg_catalog.pg_prepared_xacts
order by 6 desc
"""


def create_slot(
    connection: Connection, slot: str, wait: Wait, *, temporary: bool = False, failover: bool = False
) -> None:
    """Create a slot in this session, which is in autocommit mode, and wait for it as long as `wait` allows. With
    `failover`, standbys get it too.

    Raises PreconditionFailed with the blocking transactions when the patience ends, and SourceError when the stream is
    stopped. No slot is left behind after an error."""
    doing = f"creating slot {slot!r}"
    deadline = time.monotonic() + wait.patience
    with _running(connection, slot, _statement(connection, slot, wait.patience, temporary, failover)) as creation:
        if creation.done.wait(LOOK_SECONDS):
            with translating(doing):
                creation.result()
            return
        try:
            with _holders_seen_by(connection) as holders:
                while not creation.done.wait(LOOK_SECONDS):
                    wait.tell(f"the replication slot waits for {holders()}")
                    if wait.stopped.is_set():
                        raise SourceError(f"{doing} was stopped while it waited for {holders()}")
                    if time.monotonic() > deadline:
                        raise PreconditionFailed(
                            f"slot {slot!r} could not be created in {wait.patience:g} s: it waits for {holders()}",
                            hint="end them (SELECT pg_terminate_backend(pid), or ROLLBACK PREPARED) and start again, "
                            "or raise patienceSeconds; for a standby, do so on its primary",
                        )
                with translating(doing):
                    creation.result()
        finally:
            wait.tell(None)


def _statement(connection: Connection, slot: str, patience: float, temporary: bool, failover: bool) -> str:
    """The statements, as one message. The server runs it as one transaction, even on a replication connection."""
    since, every = CLIENT_CHECK
    settings = ["lock_timeout = 0", f"statement_timeout = '{patience + GRACE_SECONDS:.0f}s'"]
    settings += [f"client_connection_check_interval = '{every}'"] * (connection.server_version >= since)
    kind = f"{str(temporary).lower()}{', failover => true' if failover else ''}"
    create = f"SELECT pg_create_logical_replication_slot({literal(slot)}, 'pgoutput', {kind})"
    return "; ".join([*(f"SET LOCAL {setting}" for setting in settings), create])


class _Creation:
    """A statement that runs in a thread, because the driver cannot be interrupted while it waits for an answer."""

    def __init__(self, connection: Connection, statement: str) -> None:
        self._cursor, self._statement = connection.cursor(), statement
        self._error: BaseException | None = None
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run, name="dblog-slot", daemon=True)

    def _run(self) -> None:
        try:
            self._cursor.execute(self._statement)
        except BaseException as error:  # raised again by `result`
            self._error = error
        finally:
            self.done.set()

    @property
    def succeeded(self) -> bool:
        return self.done.is_set() and self._error is None

    def result(self) -> None:
        if self._error is not None:
            raise self._error


@contextmanager
def _running(connection: Connection, slot: str, statement: str) -> Iterator[_Creation]:
    """Run the statement that creates a slot. If the body raises, the statement is cancelled and the slot is removed."""
    creation = _Creation(connection, statement)
    creation.thread.start()
    try:
        yield creation
    except BaseException:
        if not creation.done.is_set():
            with suppress(psycopg2.Error):
                connection.cancel()
        creation.thread.join()
        if creation.succeeded:  # it succeeded just before the cancel
            with connection.cursor() as cursor, suppress(psycopg2.Error):
                cursor.execute(f"SELECT pg_drop_replication_slot({literal(slot)})")
        raise


@contextmanager
def _holders_seen_by(connection: Connection) -> Iterator[Callable[[], str]]:
    """A function that lists the transactions blocking the session, by a second session; `UNKNOWN` if that cannot be
    opened."""
    creator = connection.info.backend_pid
    try:
        beside = connect_beside(connection, application_name="dblog slot")
    except SourceError:
        yield lambda: UNKNOWN
        return
    with closing(beside), beside.cursor() as cursor:

        def holders() -> str:
            try:
                with translating("looking for open transactions"):
                    cursor.execute("select pg_catalog.pg_is_in_recovery()")
                    if cursor.fetchone() == (True,):
                        return ON_STANDBY
                    cursor.execute(_HOLDERS, {"creator": creator})
                    return _described(cursor.fetchall())
            except SourceError:  # the list is only information: go on without it
                return UNKNOWN

        yield holders


def _described(rows: list[tuple[Any, ...]]) -> str:
    if not rows:
        return "transactions that are just ending"
    named = ", ".join(_holder(*row[:5]) for row in rows[:MOST_NAMED])
    more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
    return f"{len(rows)} transaction{'s' * (len(rows) > 1)}: {named}{more}"


def _holder(name: str, user: str, seconds: int | None, state: str | None, query: str | None) -> str:
    facts = [user, *([] if seconds is None else [f"{seconds} s"]), *([state] if state not in (None, "active") else [])]
    told = f": {_shortened(query)}" if query and seconds is not None else ""
    return f"{name} ({', '.join(facts)}{told})"


def _shortened(query: str) -> str:
    """The start of a query, up to its first literal. More people see the status than may read the table, and literals
    can be passwords."""
    text = " ".join(query.split())
    value = re.search(r"['$]|(?<![\w.])\d", text)
    shown = text[: min(QUERY_CHARACTERS, value.start() if value else QUERY_CHARACTERS)]
    return shown if shown == text else shown.rstrip() + ("..." if shown.endswith("(") else " ...")
