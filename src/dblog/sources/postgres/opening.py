"""Opening a slot's log: which server is it, where does the stream go on there, and what must be taken back first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from dblog.core.schema import TableName, TableSchema
from dblog.databases.postgres.connect import Address, Connection, connect
from dblog.errors import ConnectionLost, PositionLost, TableLocked
from dblog.sources.base import Run
from dblog.sources.postgres.recent_changes import RecentChanges
from dblog.sources.postgres.resume import Resumption, resume
from dblog.sources.postgres.slot_copy import Ask
from dblog.sources.postgres.stream import lsn
from dblog.sources.postgres.taken_back import Missing, taken_back
from dblog.sources.postgres.timeline import Coordinate, identify

log = logging.getLogger(__name__)


@dataclass
class Opening:
    """How a slot's log is opened."""

    connect: Callable[[], Connection]
    """Opens a replication connection."""
    resumption: Resumption
    recent: RecentChanges = field(default_factory=RecentChanges)
    """Gets the changes that are read."""
    first: Run | None = None
    """What comes before the log."""
    link: Connection | None = None
    """A replication connection that is open already."""

    @property
    def at(self) -> int:
        """The server's position to read from."""
        return self.resumption.at

    @property
    def coordinate(self) -> Coordinate | None:
        return self.resumption.coordinate

    @property
    def shift(self) -> int:
        return 0 if self.coordinate is None else self.coordinate.shift

    def take(self) -> Connection:
        """A replication connection with the server whose log is read. Raises ConnectionLost if the URL leads to another
        one by now."""
        link, self.link = self.link, None
        if link is not None:
            return link
        link = self.connect()
        try:
            if self.coordinate is not None:
                refuse_other(identify(link)[0], self.coordinate)
        except BaseException:
            link.close()
            raise
        return link

    def release(self) -> None:
        """Close the connection if nobody has taken it."""
        if self.link is not None:
            self.link.close()
            self.link = None


def open_at(address: Address, name: str, position: int, known: Coordinate | None, recent: RecentChanges) -> Opening:
    """Connect, and find out where a stream goes on that has captured the log up to `position`."""

    def link() -> Connection:
        return connect(address, replication=True, application_name=name)

    there = link()
    try:
        server, latest = identify(there)
        opening = Opening(link, resume(server, latest, position, known), recent, link=there)
    except BaseException:
        there.close()
        raise
    recent.begin(position)
    return opening


def take_back(
    opening: Opening,
    known: Coordinate,
    names: Mapping[str, TableName],
    ask: Ask,
    describe: Callable[[Collection[TableName]], Mapping[TableName, TableSchema]],
    missing: Missing,
    *,
    before: bool,
) -> Run:
    """The run that takes back what the promoted server lacks of the tables `names`, by OID. Raises PositionLost if a
    table has another name there, so that it cannot be read."""
    lost, server = opening.resumption.lost, opening.coordinate
    assert lost is not None
    assert server is not None
    changes = opening.recent.after(lost[0] + known.shift)
    concerned = {oid: table for oid, table in names.items() if changes is None or table in changes}
    there = describe(list(concerned.values()))
    away = [int(oid) for oid, table in concerned.items() if table not in there]
    if away and (renamed := ask("select oid::regclass::text from pg_catalog.pg_class where oid = any (%s)", away)):
        raise PositionLost(
            f"the promoted server lacks commits between {lsn(lost[0])} and {lsn(lost[1])} that were delivered, and the "
            f"table {renamed[0]} cannot be read again under the name that it is followed by",
            hint="rename the table back, or start with a new checkpoint, which dumps the tables again",
        )
    (xid,) = ask("select (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1) & 4294967295")
    servers = f"timeline {known.timeline} to timeline {server.timeline}"
    try:
        run = taken_back(there, changes, missing, opening.resumption, servers=servers, xid=xid, before=before)
    except TableLocked as error:  # the log is opened again later
        raise ConnectionLost(error.message, hint=error.hint) from error
    assert run.lost is not None
    log.error(
        "the server was promoted (%s) without commits that were delivered, from %s to %s: %s",
        servers,
        run.lost.after,
        run.lost.upto,
        run.lost.described,
    )
    return run


def refuse_other(server: Coordinate, expected: Coordinate) -> None:
    """Raise ConnectionLost unless a server has the history that is expected."""
    if (server.system, server.timeline, server.history) != (expected.system, expected.timeline, expected.history):
        raise ConnectionLost(
            f"the log was opened on timeline {expected.timeline}, but this server is on timeline {server.timeline}",
            hint="a failover is going on; the log is opened again",
        )


def refuse_taken_back(opening: Opening, first: Coordinate, last: Coordinate) -> None:
    """Raise PositionLost unless the server has the batch between two coordinates as it was planned. `opening` is at the
    end of the batch, and is not used any more."""
    opening.release()
    if first.shift != last.shift or opening.shift != last.shift:
        raise PositionLost(
            "a batch must be repeated, but its files on the spool are lost and the promoted server lacks some of its "
            "transactions",
            hint="start with a new checkpoint, which dumps the tables again",
        )
