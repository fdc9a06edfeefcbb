"""XA transactions: their names in the log, and the tables that one has changed.

An XA transaction is in the log in two parts, each with its own GTID. The first part has the rows and ends with an
XA_PREPARE event. The second part, perhaps much later, is the statement that commits or rolls it back. A name is written
as in the server's statements: X'61',X'62',1 for global part, branch and format. An XA transaction that is committed in
one phase is in the log once, like any other transaction.
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
    """The prepared XA transactions that have not ended, with the captured tables that each has changed.

    `find` searches the log before a position for the tables of a transaction that this reader has not seen."""

    def __init__(self, find: Callable[[str, int], Collection[TableName] | None]) -> None:
        self._find = find
        self._tables: dict[str, Collection[TableName]] = {}

    def prepare(self, body: bytes, touched: Collection[TableName], *, passed: bool) -> None:
        """Handle an XA_PREPARE event. Raises DecodeError if its transaction has changed captured tables and is not
        skipped (`passed`): it is unknown whether and when it will be committed."""
        name = _prepared(body)
        if name is None:
            return
        if touched and not passed:
            raise DecodeError(
                f"the log has a prepared XA transaction that changes {_listed(touched)}: it may be committed later, or "
                "never",
                hint="change captured tables without XA, or commit in one phase; once it is committed or rolled back, "
                + _AGAIN,
            )
        self._tables[name] = touched

    def end(self, name: str, position: int, *, commits: bool) -> None:
        """Handle the end of a prepared transaction: a commit, or a rollback or skipped commit. Raises PositionLost if
        it commits changes of captured tables, because their rows are before the start of this stream."""
        touched = self._tables.pop(name, None)
        if not commits:
            return
        if touched is None:
            touched = self._find(name, position)
        if touched is None:
            raise PositionLost(
                f"the log commits the XA transaction {name}, but no longer has its changes: its tables are unknown",
                hint=_AGAIN,
            )
        if touched:
            raise PositionLost(
                f"the log commits an XA transaction that changes {_listed(touched)} and was prepared before the "
                f"stream's start: the stream cannot deliver its rows",
                hint=_AGAIN,
            )


def _listed(tables: Collection[TableName]) -> str:
    return ", ".join(sorted(map(str, tables)))


def _prepared(body: bytes) -> str | None:
    """The name of the transaction that an XA_PREPARE event prepares; None if the event commits it in one phase."""
    try:
        one_phase, number, first, second = unpack_from("<BiII", body)
    except StructError as error:
        raise DecodeError(f"an XA transaction in the log cannot be read: {error}") from error
    branch = body[13 : 13 + first], body[13 + first : 13 + first + second]
    return None if one_phase else written(f"X'{branch[0].hex()}',X'{branch[1].hex()}',{number}")


def written(name: str) -> str:
    """A transaction's name in one fixed spelling."""
    return "".join(name.split()).lower()


def find_tables(connection: Connection, name: str, before: int) -> set[str] | None:
    """The tables (`schema.table`) that the last XA transaction of this name before a position has changed. None if the
    log does not reach back to it. The position is one of the server's own."""
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
    """Position, kind and description of the events of a file, one at a time: there may be millions."""
    with connection.cursor(pymysql.cursors.SSCursor) as cursor:
        cursor.execute(f"show binlog events in '{file}'")
        row: tuple[Any, ...]
        for row in cursor:
            yield int(row[1]), str(row[2]), str(row[5])
