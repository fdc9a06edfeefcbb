"""Where in a server's log a stream goes on.

On the server whose log the position counts, it goes on at the position. On another server of the cluster the files have
other numbers, and the GTIDs of the coordinate decide: the last file that begins before them is read from its beginning,
and delivered transactions are skipped. The new file numbers are shifted, so that positions go on growing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dblog.databases.mysql.connect import Connection, server, translating
from dblog.databases.mysql.flavor import Flavor
from dblog.databases.mysql.gtid import DIVERGED, Between, Coordinate, DeliveredFilter, GtidPosition, Gtids
from dblog.errors import PositionLost, PreconditionFailed
from dblog.sources.mysql.events import FIRST, file_and_byte, position

RESET = (
    "the log was reset, or the server has lost its end in a crash: start with a new checkpoint, which dumps the tables "
    "again"
)
PURGED = "start with a new checkpoint, which dumps the tables again; to keep more log, raise binlog_expire_logs_seconds"
OTHER = (
    "connect to the server that the stream was started with, or start with a new checkpoint, which dumps the tables "
    "again; with GTIDs (gtid_mode = ON) a stream can go on with another server"
)


@dataclass(frozen=True)
class Resumption:
    """The position to read from, counted as in `coordinate`, and a filter for transactions to skip."""

    position: int
    coordinate: Coordinate
    delivered: DeliveredFilter | None
    first: Gtids | None = None
    """The transactions before the position in this log."""
    until: int = 0
    """The end of the log. All delivered transactions are before it."""


class ServerLog:
    """Queries about a server's log."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._server = server(connection)
        self.flavor: Flavor = self._server.flavor

    @property
    def mariadb(self) -> bool:
        return self.flavor.name == "MariaDB"

    def end(self) -> int:
        """The position of the end of the log: not before the last transaction that selects see."""
        if self.mariadb:  # this query needs no privilege
            said = dict(self._all("show status like 'binlog\\_snapshot\\_%'"))
            name, at = said.get("Binlog_snapshot_file"), said.get("Binlog_snapshot_position", 0)
        else:
            found = self._all(self._server.log_status)
            name, at = found[0][:2] if found else (None, 0)
        if not name:
            raise PreconditionFailed(
                "the server does not write a binary log", hint="set log_bin and restart the server"
            )
        return position(_number(name), int(at))

    def name(self) -> str:
        """A name of the server that no other server of its cluster has."""
        return str(self._one("select @@global.server_id" if self.mariadb else "select @@global.server_uuid"))

    def executed(self) -> str:
        """The GTIDs of all transactions in the log that selects see."""
        if self.mariadb:
            return self.gtids_at(self.end()) or ""
        return "".join(str(self._one("select @@global.gtid_executed") or "").split())

    def state(self) -> str:
        """MariaDB: the last GTID of every domain and server in the log."""
        return str(self._one("select @@global.gtid_binlog_state") or "")

    def gtids_at(self, at: int) -> str | None:
        """MariaDB: the GTID position at a position of the log; None if the log does not have it."""
        file, byte = file_and_byte(at)
        found = self._one("select binlog_gtid_pos(%s, %s)", file_name(self._connection, file), byte)
        return None if found is None else str(found)

    def files(self) -> dict[str, int]:
        """The log's files in order: their names and sizes in bytes."""
        return {str(row[0]): int(row[1]) for row in self._all("show binary logs")}

    def check(self, at: int) -> None:
        """Raise PositionLost unless the log has this position of the server."""
        sizes = {_number(name): size for name, size in self.files().items()}
        file, byte = file_and_byte(at)
        where = f"file {file}, byte {byte}"
        if file < min(sizes):
            raise PositionLost(f"the server's log no longer reaches back to {where}", hint=PURGED)
        if byte > sizes.get(file, 0):
            raise PositionLost(f"the server's log ends before {where}", hint=RESET)

    def first_gtids(self, file: str) -> Gtids:
        """The GTIDs of the transactions before the beginning of a file."""
        events = self._all(f"show binlog events in '{file}' limit 3")
        said = {row[2]: str(row[5]) for row in events}
        if self.mariadb:
            position = str(self._one("select binlog_gtid_pos(%s, %s)", file, FIRST) or "")
            return self.flavor.gtids.parse(position, said.get("Gtid_list", "").strip("[]"))
        return self.flavor.gtids.parse(said.get("Previous_gtids", ""))

    def _one(self, query: str, *values: object) -> Any:
        found = self._all(query, *values)
        return found[0][0] if found else None

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with translating("looking at the log"), self._connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return list(cursor.fetchall())


def begin(log: ServerLog, write: Callable[[], object] | None) -> Resumption:
    """Where a new stream begins.

    On MySQL a transaction is in the log before it is in the server's GTIDs. So the GTIDs are read after the position,
    and the stream skips the transactions after the position that they contain. With `write`, which commits a
    transaction, they are read after that commit, because commits are in order. Without `write` the file is read from
    its beginning."""
    if log.mariadb:
        at = log.end()
        gtids = GtidPosition.begun(log.gtids_at(at) or "", log.state())
        return Resumption(at, Coordinate(str(gtids), log.name(), seen=gtids.seen), None)
    if write is not None:
        at = log.end()
        write()
        return Resumption(at, Coordinate(log.executed(), log.name()), None)
    executed = log.flavor.gtids.parse(log.executed())
    found = _by_gtids(log, 0, Coordinate(str(executed)), executed)
    return replace(
        found,
        position=found.position - position(found.coordinate.shift, 0),
        coordinate=replace(found.coordinate, shift=0),
    )


def resume(log: ServerLog, at: int, known: str | None) -> Resumption:
    """How to go on after a position, given its coordinate, if known. Raises PositionLost when the server cannot."""
    coordinate = Coordinate.parse(known)
    if known is None:
        return Resumption(at, coordinate, None)
    gtids = log.flavor.gtids.parse(coordinate.gtids, coordinate.seen)
    if coordinate.server != log.name():
        return _by_gtids(log, at, coordinate, gtids)
    own = at - position(coordinate.shift, 0)
    if not log.mariadb:
        log.check(own)
        return Resumption(at, coordinate, gtids.delivered() if coordinate.gtids else None, gtids)
    if file_and_byte(own)[0] < _number(next(iter(log.files()))):  # purged: there may be no transaction in between
        return _by_gtids(log, at, coordinate, gtids)
    log.check(own)
    here = log.gtids_at(own)
    if here is None or str(log.flavor.gtids.parse(here)) != coordinate.gtids:
        raise PositionLost(
            f"the server's log does not have exactly the transactions {coordinate.gtids} before the stream's position",
            hint=RESET,
        )
    return Resumption(at, coordinate, None, gtids)


def repeat(log: ServerLog, at: int, start: str | None, end: str | None) -> Resumption | None:
    """How to read exactly the transactions between two offsets again from this log, where they may be at other
    positions. None if the positions of both offsets count this log."""
    found, last = resume(log, at, start), Coordinate.parse(end)
    if found.first is None or found.coordinate.log == Coordinate.parse(start).log == last.log:
        return None
    gtids = log.flavor.gtids.parse(last.gtids, last.seen)
    _check_executed(log, gtids)
    delivered = found.delivered or log.flavor.gtids.parse("").delivered()
    until = log.end() + position(found.coordinate.shift, 0)
    return replace(found, delivered=Between(delivered, gtids.delivered(found.first)), until=until)


def _by_gtids(log: ServerLog, at: int, coordinate: Coordinate, gtids: Gtids) -> Resumption:
    if not coordinate.gtids:
        raise PositionLost(
            "this is not the log that the stream has read so far, and without GTIDs the stream's position cannot be "
            "found in it",
            hint=OTHER,
        )
    _check_executed(log, gtids)
    shift = file_and_byte(at)[0] + 1
    there = replace(coordinate, server=log.name(), shift=shift, created=0)
    until = log.end() + position(shift, 0)
    for file in reversed([*log.files()]):
        first = log.first_gtids(file)
        if first.within(gtids):
            begin = position(_number(file) + shift, FIRST)
            return Resumption(begin, there, gtids.delivered(first, coordinate.server), first, until)
    raise PositionLost(
        f"the server's log no longer reaches back to {coordinate.gtids}: it begins after {first}", hint=PURGED
    )


def _check_executed(log: ServerLog, gtids: Gtids) -> None:
    executed = log.executed()
    if not gtids <= log.flavor.gtids.parse(executed):
        lacks = f"the server does not have all delivered transactions ({gtids})"
        raise PositionLost(f"{lacks}, only {executed or 'none'}", hint=DIVERGED)


def file_name(connection: Connection, number: int) -> str:
    """The name of a file of the log."""
    with translating("looking at the log"), connection.cursor() as cursor:
        cursor.execute("select @@log_bin_basename")
        base = (cursor.fetchone()[0] or "").replace("\\", "/").rpartition("/")[2]
        return f"{base}.{number:06d}"


def _number(file: object) -> int:
    return int(str(file).rpartition(".")[2])
