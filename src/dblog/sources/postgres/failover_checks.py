"""Failover: does a standby get the slot, and does it have what was delivered when it is promoted?

From PostgreSQL 17 on a standby can keep copies of a primary's slots (`FAILOVER`). What else that needs is advice: a
stream works without it, until the server fails over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

from psycopg2.extras import NamedTupleCursor

from dblog.databases.postgres.connect import Address, Connection, connect, connect_beside, identifier, translating
from dblog.errors import SourceError
from dblog.sources.problems import Problem

log = logging.getLogger(__name__)

SINCE = 17_00_00
"""The version from which on slots can be synchronized to standbys."""
STANDBY_SINCE = 16_00_00
"""The version from which on the log of a standby can be decoded."""
CONNECT_SECONDS = "3"
"""How long `dblog check` waits for each of several hosts, in seconds."""

_PRIMARY = """
    SELECT (SELECT array_agg(slot_name::text ORDER BY slot_name) FROM pg_replication_slots
            WHERE slot_type = 'physical' AND active AND NOT temporary) AS slots,
           current_setting('synchronized_standby_slots', true) AS synchronized,
           (SELECT count(*) FROM pg_stat_replication r WHERE coalesce(state, 'streaming') = 'streaming'
            AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid)) AS without_slot
"""
_STANDBY = """
    SELECT pg_is_in_recovery() AS standby, current_setting('wal_level') AS wal_level,
           current_setting('hot_standby_feedback') AS feedback, current_setting('primary_slot_name') AS slot_name,
           current_setting('sync_replication_slots', true) AS sync,
           (SELECT setting FROM pg_settings WHERE name = 'primary_conninfo') AS conninfo,
           (SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = %s) AS slot
"""


class SlotWanted(Protocol):
    """What of a set-up matters here."""

    @property
    def slot(self) -> str: ...
    @property
    def failover(self) -> bool: ...
    @property
    def fresh(self) -> bool: ...


def with_failover(connection: Connection, setup: SlotWanted) -> bool:
    """Whether the slot of a stream gets the property FAILOVER on this server."""
    if not setup.failover or connection.server_version < SINCE:
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_is_in_recovery()")
        return not next(iter(cursor.fetchone()))


def enable_failover(connection: Connection, slot: str) -> None:
    """Give an existing slot the property FAILOVER, if it lacks it. If that fails, a warning says so."""
    try:
        with translating(f"looking at slot {slot!r}"), connection.cursor() as cursor:
            cursor.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s AND NOT failover", (slot,))
            if not cursor.rowcount:
                return
        beside = connect_beside(connection, application_name="dblog slot", replication=True)
        with closing(beside), translating(f"changing slot {slot!r}"), beside.cursor() as cursor:
            cursor.execute(f"ALTER_REPLICATION_SLOT {identifier(slot)} ( FAILOVER true )")
    except SourceError as error:
        log.warning("slot %s is not synchronized to standbys: %s", slot, error.message)


def primary_problems(cursor: Any, slot: str) -> Iterator[Problem]:
    """Advice about the standbys of a primary, as far as the primary knows them."""
    cursor.execute(_PRIMARY)
    found = cursor.fetchone()
    if found.without_slot:
        many = "1 standby follows" if found.without_slot == 1 else f"{found.without_slot} standbys follow"
        yield Problem(
            f"{many} this server without a replication slot, and cannot get the slot {slot!r} for a failover",
            "SELECT pg_create_physical_replication_slot('standby1');  -- one for each standby\n"
            "ALTER SYSTEM SET primary_slot_name = 'standby1';  -- on the standby, then: SELECT pg_reload_conf();",
            fatal=False,
        )
    if found.slots and not found.synchronized:
        names = ", ".join(found.slots)
        yield Problem(
            "synchronized_standby_slots is empty: commits may be delivered that a standby lacks when it is promoted; "
            "the rows that they changed are read again then",
            f"ALTER SYSTEM SET synchronized_standby_slots = '{names}';  -- of the standbys that may be promoted\n"
            "SELECT pg_reload_conf();  -- the stream then waits while one of them is down",
            fatal=False,
        )


def standby_problems(address: Address, setup: SlotWanted) -> Iterator[Problem]:
    """Advice about the standbys among several hosts of a URL. Connects to each of them."""
    if len(address.hosts) < 2:
        return
    for host, one in _each(address):
        try:
            connection = connect(one, application_name="dblog check")
        except SourceError as error:
            yield Problem(
                f"host {host} cannot be checked: {error.message}", "start it, or correct the URL", fatal=False
            )
            continue
        with closing(connection), translating(f"checking {host}"):
            with connection.cursor(cursor_factory=NamedTupleCursor) as cursor:
                cursor.execute(_STANDBY, (setup.slot,))
                found = cursor.fetchone()
            if found.standby:
                for what, fix in _of_standby(found, connection.server_version, setup):
                    yield Problem(f"standby {host}: {what}", fix, fatal=False)


def _each(address: Address) -> Iterator[tuple[str, Address]]:
    """Each host of an address, with an address of its own."""
    given, hosts = dict(address.parameters), address.hosts
    ports = given.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    addresses = given.get("hostaddr", "").split(",")
    for number, (host, port) in enumerate(zip(hosts, ports, strict=True)):
        own = {**given, "host": host, "port": port, "target_session_attrs": "any", "connect_timeout": CONNECT_SECONDS}
        if "hostaddr" in given:
            own["hostaddr"] = addresses[number] if len(addresses) == len(hosts) else addresses[0]
        own = {name: value for name, value in own.items() if value}
        yield f"{host}:{port}" if port else host, replace(address, parameters=tuple(sorted(own.items())))


def _of_standby(found: Any, version: int, setup: SlotWanted) -> Iterator[tuple[str, str]]:
    if version < SINCE:
        yield "before PostgreSQL 17 it does not get the slot: no stream can go on there", "upgrade to 17 or later"
        return
    if not setup.failover:
        yield "it does not get the slot, because the option failover is off", "set failover to auto"
        return
    if found.wal_level != "logical":
        fix = "ALTER SYSTEM SET wal_level = 'logical';  -- then restart the standby"
        yield f"wal_level is {found.wal_level!r}, so that its log cannot be decoded after a promotion", fix
    wrong = {"sync_replication_slots": found.sync, "hot_standby_feedback": found.feedback}
    for name in (name for name, value in wrong.items() if value != "on"):
        fix = f"ALTER SYSTEM SET {name} = on;\nSELECT pg_reload_conf();"
        yield f"{name} is off, so that it does not get the slot", fix
    if not found.slot_name:
        fix = "ALTER SYSTEM SET primary_slot_name = '...';  -- a physical slot of the primary\nSELECT pg_reload_conf();"
        yield "primary_slot_name is empty, so that it does not get the slot", fix
    if found.conninfo and "dbname" not in found.conninfo:
        fix = "add dbname=postgres to primary_conninfo, then: SELECT pg_reload_conf();"
        yield "primary_conninfo has no dbname, so that it does not get the slot", fix
    if not setup.fresh and (found.slot is None or not found.slot.get("synced") or found.slot.get("temporary")):
        fix = "wait, and look at the standby's log if it stays so"
        yield f"it does not have the slot {setup.slot!r} yet", fix


def standby_source_problems(connection: Connection, *, writes: bool) -> Iterator[Problem]:
    """What a standby needs to be a source."""
    if writes or connection.server_version < STANDBY_SINCE:
        fix = (
            "connect to the primary; from PostgreSQL 16 on a standby can be read with the option watermark set to none"
        )
        yield Problem("the server is a standby", fix)
        return
    if "," in connection.info.dsn_parameters.get("host", ""):
        what = "the server is a standby and the URL has several hosts: one standby may be behind another"
        yield Problem(what, "name only the host of the standby to read")
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('hot_standby_feedback')")
        (feedback,) = cursor.fetchone()
    if feedback != "on":
        what = "hot_standby_feedback is off: the primary may remove rows that decoding needs, and the slot is lost then"
        yield Problem(what, "ALTER SYSTEM SET hot_standby_feedback = on;\nSELECT pg_reload_conf();", fatal=False)
