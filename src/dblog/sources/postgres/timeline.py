"""Timelines: which history a server's log has, and how a stream's positions relate to the server's own.

A server that is promoted begins a new timeline, at the end of the log that it had received. Its log and that of the
earlier primary are the same up to that position, and different after it. A server knows all timelines before its own
(its history). Two servers may have chosen the same number for different timelines, so whole histories are compared.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psycopg2

from dblog.databases.postgres.connect import Connection, translating
from dblog.errors import ConnectionLost
from dblog.sources.base import Commits

NEVER = (1 << 63) - 1
"""The position at which equal histories differ."""

_SERVER = """
select system_identifier::text, pg_catalog.pg_is_in_recovery(), case when not pg_catalog.pg_is_in_recovery() then
       pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8) end
from pg_catalog.pg_control_system()
"""


@dataclass(frozen=True)
class Server:
    """The server that a session is connected to."""

    system: str = ""
    """The identifier of the cluster, which a copy of it has too. Empty if the server does not tell it."""
    standby: bool = False
    timeline: int | None = None
    """None on a standby."""

    def refuse_other(self, coordinate: Coordinate | None) -> None:
        """Raise ConnectionLost if the log is read from a server with another history."""
        if coordinate is None or not self.system:
            return
        if self.system == coordinate.system and self.timeline in (None, coordinate.timeline):
            return
        raise ConnectionLost(
            f"this session is with a server on timeline {self.timeline}, but the log is read on timeline "
            f"{coordinate.timeline}",
            hint="a failover is going on; if it persists, two servers are primaries: stop the old one",
        )


@dataclass(frozen=True)
class Coordinate:
    """A position in terms that all servers of a cluster share. The stream's position is the server's plus `shift`."""

    system: str
    timeline: int
    history: tuple[tuple[int, int], ...] = ()
    """The timelines before this one, and where each ended."""
    shift: int = 0
    """Positions go on growing when a server is promoted that lacks the end of the log."""
    last: int = 0
    """Where the last commit before the position that has changes ended, as the server counts."""

    @staticmethod
    def parse(text: str | None) -> Coordinate | None:
        if text is None:
            return None
        said = dict(part.split("=", 1) for part in text.split())
        history = (pair.split(":") for pair in said.get("history", "").split(",") if pair)
        return Coordinate(
            said["system"],
            int(said["timeline"]),
            tuple((int(timeline), int(end)) for timeline, end in history),
            int(said.get("shift", 0)),
            int(said.get("last", 0)),
        )

    def __str__(self) -> str:
        history = ",".join(f"{timeline}:{end}" for timeline, end in self.history)
        said = {"system": self.system, "timeline": self.timeline, "history": history, "shift": self.shift}
        return " ".join(f"{name}={value}" for name, value in {**said, "last": self.last}.items() if value)

    @property
    def log(self) -> Coordinate:
        """What positions of the same log have in common."""
        return replace(self, last=0)

    def after(self, commits: Commits) -> Coordinate:
        """The coordinate after these further commits."""
        with_changes = np.flatnonzero(np.diff(commits.rows, prepend=0) > 0)
        return replace(self, last=int(commits.positions[with_changes[-1]]) - self.shift) if len(with_changes) else self

    def fork(self, other: Coordinate) -> int:
        """Up to which position, as servers count, two histories are the same."""
        common = 0
        ours, theirs = ([*each.history, (each.timeline, NEVER)] for each in (self, other))
        for (timeline, end), (their_timeline, their_end) in zip(ours, theirs, strict=False):
            if timeline != their_timeline:
                return common
            common = min(end, their_end)
            if end != their_end:
                break
        return common


def server_of(connection: Connection) -> Server:
    """The server of a session, in autocommit mode. Services that hide their log (Aurora) tell nothing."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(_SERVER)
            system, standby, timeline = cursor.fetchone()
            return Server(system, standby, None if timeline is None else int(timeline, 16))
    except (psycopg2.ProgrammingError, psycopg2.NotSupportedError):
        return Server()


def identify(link: Connection) -> tuple[Coordinate, int]:
    """The history of the server that a replication connection is with, and the end of its log."""
    with translating("asking for the server's history"), link.cursor() as cursor:
        cursor.execute("IDENTIFY_SYSTEM")
        system, timeline, latest, *_ = cursor.fetchone()
        history: Any = b""
        if int(timeline) > 1:
            with suppress(psycopg2.ProgrammingError, psycopg2.OperationalError):  # a service may not have the file
                cursor.execute(f"TIMELINE_HISTORY {int(timeline)}")
                history = cursor.fetchone()[1]
    high, low = str(latest).split("/")
    return Coordinate(str(system), int(timeline), _read_history(history)), (int(high, 16) << 32) + int(low, 16)


def _read_history(content: Any) -> tuple[tuple[int, int], ...]:
    """The timelines and their ends in the content of a history file."""
    text = content if isinstance(content, str) else bytes(content).decode(errors="replace")
    found = re.findall(r"^\s*(\d+)\s+([0-9A-F]+)/([0-9A-F]+)", text, re.MULTILINE | re.IGNORECASE)
    return tuple((int(timeline), (int(high, 16) << 32) + int(low, 16)) for timeline, high, low in found)
