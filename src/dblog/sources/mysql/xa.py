"""XA transactions: their names in the log, and the tables that one has changed.

The log has an XA transaction in two parts, each with a GTID of its own: the rows, which end with an XA_PREPARE event,
and, perhaps much later, the statement that commits it or rolls it back. A name is written as the server writes it in
statements: X'61',X'62',1 for the global part, the branch and the format. One that is committed in one phase is in the
log only once, and is a transaction like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from struct import error as StructError  # noqa: N812
from struct import unpack_from
from typing import Any

import pymysql.cursors

from dblog.core.schema import TableName
from dblog.databases.mysql.connect import Connection
from dblog.errors import DecodeError, PositionLost
from dblog.sources.mysql.events import file_and_byte
from dblog.sources.mysql.resume import ServerLog, file_name

_START = re.compile(r"XA START (X'[0-9a-f]*',X'[0-9a-f]*',\d+)", re.IGNORECASE)
_TABLE = re.compile(r"table_id: \d+ \((.*)\)", re.DOTALL)


_AGAIN = "start with a new checkpoint, which dumps the tables again"


class PreparedTransactions:
    """The XA transactions that are prepared and not ended, with the captured tables that each has changed.

    `find` looks in the log in front of a position for the tables of one that this reader has not seen."""

    def __init__(self, find: Callable[[str, int], Collection[TableName] | None]) -> None:
        self._find = find
        self._tables: dict[str, Collection[TableName]] = {}

    def prepare(self, body: bytes, touched: Collection[TableName], *, passed: bool) -> None:
        """An XA_PREPARE event. Raises DecodeError when its transaction has changed captured tables and is not `passed`
        over: whether and when it is committed is not known, and so not what to deliver."""
        name = _prepared(body)
        if name is None:
            return
        if touched and not passed:
            raise DecodeError(
                f"the log has an XA transaction that changes {_listed(touched)} and is committed later, or never",
                hint="change captured tables without XA, or commit in one phase; once it is committed or rolled back, "
                + _AGAIN,
            )
        self._tables[name] = touched

    def end(self, name: str, position: int, *, commits: bool) -> None:
        """A prepared transaction is committed, or else rolled back or passed over. Raises PositionLost when it commits
        changes of captured tables: they are in front of what this stream delivers."""
        touched = self._tables.pop(name, None)
        if not commits:
            return
        if touched is None:
            touched = self._find(name, position)
        if touched is None:
            raise PositionLost(
                f"the log commits the XA transaction {name} and no longer shows which tables it has changed",
                hint=_AGAIN,
            )
        if touched:
            raise PositionLost(
                f"the log commits an XA transaction that was prepared before the stream's start and changes "
                f"{_listed(touched)}: its rows are not delivered",
                hint=_AGAIN,
            )


def _listed(tables: Collection[TableName]) -> str:
    return ", ".join(sorted(map(str, tables)))


def _prepared(body: bytes) -> str | None:
    """The transaction that an XA_PREPARE event prepares; None when the event commits it, in one phase."""
    try:
        one_phase, number, first, second = unpack_from("<BiII", body)
    except StructError as error:
        raise DecodeError(f"an XA transaction in the log cannot be read: {error}") from error
    branch = body[13 : 13 + first], body[13 + first : 13 + first + second]
    return None if one_phase else written(f"X'{branch[0].hex()}',X'{branch[1].hex()}',{number}")


def written(name: str) -> str:
    """A transaction's name, equal for all ways in which it may be written."""
    return "".join(name.split()).lower()


def find_tables(connection: Connection, name: str, before: int) -> set[str] | None:
    """The tables, as `schema.table`, that the last transaction of this name has changed whose rows the log has in front
    of a position of the server's; None when the log does not reach back to it."""
    number, byte = file_and_byte(before)
    last = file_name(connection, number)
    files = list(ServerLog(connection).files())
    for file in reversed(files[: files.index(last) + 1] if last in files else []):
        found = _in_file(connection, file, name, byte if file == last else None)
        if found is not None:
            return found
    return None


def _in_file(connection: Connection, file: str, name: str, before: int | None) -> set[str] | None:
    found: set[str] | None = None
    mine = False
    for begin, kind, told in _events(connection, file):
        if before is not None and begin >= before:
            break
        if kind in ("Gtid", "Query") and (start := _START.search(told)):
            mine = written(start[1]) == name
            found = set() if mine else found
        elif kind == "XA_prepare":
            mine = False
        elif mine and kind == "Table_map" and (table := _TABLE.match(told)):
            assert found is not None
            found.add(table[1])
    return found


def _events(connection: Connection, file: str) -> Iterator[tuple[int, str, str]]:
    """Position, kind and description of the events of a file, as they come: there may be millions."""
    with connection.cursor(pymysql.cursors.SSCursor) as cursor:
        cursor.execute(f"show binlog events in '{file}'")
        row: tuple[Any, ...]
        for row in cursor:
            yield int(row[1]), str(row[2]), str(row[5])
