"""Which tables with foreign keys that act can be followed (`foreign_keys`), and what that needs from the server."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dblog.core.cascades import ForeignKey
from dblog.core.names import select_tables
from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.connect import Connection, translating
from dblog.databases.mysql.flavor import Flavor
from dblog.sources.mysql import catalog, table_checks
from dblog.sources.mysql.foreign_keys import Cascades, gaps, inexact, read_keys
from dblog.sources.problems import Problem

if TYPE_CHECKING:
    from dblog.sources.mysql.source import MySQL

_REASON = "foreign keys change their rows without a record in the log, and these changes cannot be followed"


def unclear_cascades(
    cursor: Any, table: table_checks.Table, settings: Mapping[str, str], flavor: Flavor
) -> Iterator[Problem]:
    """Why the rows that foreign keys change in a table cannot be found by a target."""
    if not table.cascades or not table_checks.silent(settings):
        return
    types = catalog.read_types(cursor.connection, [table.name], flavor).get(table.name, {})
    for key in read_keys(cursor, table.name):
        if (why := inexact(key, types)) is not None:
            yield _problem(table.name, why)


def _problem(table: TableName, why: str) -> Problem:
    fix = "make the foreign key ON DELETE RESTRICT ON UPDATE RESTRICT, or leave the table out"
    what = f"foreign keys change rows of {str(table)!r} without a record in the log, and this cannot be followed: {why}"
    return Problem(what, fix, table=table, reason=_REASON)


def add_gaps(source: MySQL, session: Connection, tables: Collection[TableName], unfit: dict[TableName, Any]) -> None:
    """Add tables to `unfit` whose cascades come through a parent that is not followed."""
    selected = set(select_tables(source.patterns, {*tables, *catalog.candidates(session)}))
    with session.cursor() as cursor:
        known = {table: read_keys(cursor, table) for table in tables}
        parents = {key.parent for keys in known.values() for key in keys} - known.keys()
        known |= {table: read_keys(cursor, table) for table in parents}
    out = unfit.keys() | source._learnt.unfit.keys()
    for table, why in gaps(tables, known, lambda t: t in selected and t not in out).items():
        unfit.setdefault(table, []).append(_problem(table, why))


def cascades_of(source: MySQL, role: str) -> Cascades:
    """The cascade events of a log of the source."""
    with translating("reading the server's settings"):
        settings = source._with(_settings, role)
    return Cascades(
        _SourceTables(source, role), source.cascades, native=table_checks.silent(settings), ignored=source.ignore
    )


def _settings(connection: Connection) -> dict[str, str]:
    with connection.cursor() as cursor:
        return table_checks.read_settings(cursor)


class _SourceTables:
    """The tables of a source (`foreign_keys.KnownTables`)."""

    def __init__(self, source: MySQL, role: str) -> None:
        self._source = source
        self._role = role

    @property
    def followed(self) -> Collection[TableName]:
        return tuple(self._source._learnt.followed)

    def foreign_keys(self, tables: Collection[TableName]) -> dict[TableName, tuple[ForeignKey, ...]]:
        def read(connection: Connection) -> dict[TableName, tuple[ForeignKey, ...]]:
            with connection.cursor() as cursor:
                return {table: read_keys(cursor, table) for table in tables}

        with translating("reading the foreign keys"):
            return self._source._with(read, self._role)

    def describe(self, tables: Collection[TableName]) -> Mapping[TableName, TableSchema]:
        return self._source._describe(tables, self._role)

    def log_end(self) -> int:
        return self._source.latest(self._role)
