"""Where in a server's log a stream goes on, after the server was restarted or another one was promoted.

same history                               at the position
promoted, with all that was delivered      at the position: both logs are the same up to there
promoted, without the end of the log       where the histories separate. The stream's positions are shifted, so that
                                           they go on growing; what was delivered after that point is taken back
                                           (`taken_back`)
another cluster, a restored server         PositionLost
an older timeline                          ConnectionLost: it is not the primary any more
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dblog.errors import ConnectionLost, PositionLost
from dblog.sources.postgres.stream import lsn
from dblog.sources.postgres.timeline import Coordinate

GAP = 8
"""Positions that are left free before a shifted log, for the run that takes back what is lost."""

ANEW = "connect to the server that the stream has read, or start with a new checkpoint, which dumps the tables again"


@dataclass(frozen=True)
class Resumption:
    """Where to read on."""

    position: int
    """The stream's position: everything before it was captured."""
    at: int
    """The server's position to read from."""
    coordinate: Coordinate | None
    """How positions are counted from here on."""
    lost: tuple[int, int] | None = None
    """The server's positions between which delivered commits do not exist any more."""


def resume(server: Coordinate, latest: int, position: int, known: Coordinate | None) -> Resumption:
    """Where a stream goes on that has captured the log up to `position`, on a server whose log ends at `latest`."""
    if known is None:  # a new stream, or an offset of an earlier version
        return Resumption(position, position, server)
    refuse_other_system(known, server.system)
    if server.timeline < known.timeline:
        raise ConnectionLost(
            f"the server is on timeline {server.timeline}, but the stream has read timeline {known.timeline}",
            hint="this server is not the primary any more: stop it, or name the current primary in the URL",
        )
    at, fork = position - known.shift, known.fork(server)
    if not fork:
        raise PositionLost("the server's log has no history in common with the log that was read", hint=ANEW)
    if at <= fork:
        if known.log == replace(server, shift=known.shift):
            refuse_ahead(at, latest)
        return Resumption(position, at, replace(server, shift=known.shift, last=known.last))
    lost = (fork, at) if known.last > fork else None
    shift = position + GAP - fork
    return Resumption(position, fork, replace(server, shift=shift, last=min(known.last, fork)), lost)


def refuse_other_system(known: Coordinate, system: str) -> None:
    """Raise PositionLost if the server does not belong to the cluster that the stream has read."""
    if system != known.system:
        raise PositionLost(
            f"the server's system identifier is {system}, but the stream has read a server with {known.system}: "
            "it is another cluster, or one that was upgraded with pg_upgrade or restored as a new one",
            hint=ANEW,
        )


def refuse_ahead(at: int, latest: int) -> None:
    """Raise PositionLost if the server's log ends before a position of it that was delivered."""
    if at > latest:
        raise PositionLost(
            f"the server's log ends at {lsn(latest)}, but it was delivered up to {lsn(at)}: the server was restored "
            "from an older copy, or has lost the end of its log in a crash",
            hint=ANEW,
        )
