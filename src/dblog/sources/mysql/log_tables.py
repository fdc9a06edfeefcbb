"""The tables that the log of a stream is decoded for, as the catalog and the stream know them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.connect import Connection, translating
from dblog.errors import ConnectionLost, TableLocked
from dblog.sources.mysql import catalog, preflight, xa
from dblog.sources.mysql.codecs import table_schema
from dblog.sources.mysql.statements import Definition
from dblog.sources.mysql.tablemap import TableMap
from dblog.sources.table_failures import about

if TYPE_CHECKING:
    from dblog.sources.mysql.source import MySQL


class LogTables:
    """The tables that the log is decoded for (`table_ids.CapturedTables`)."""

    def __init__(self, source: MySQL, followed: dict[TableName, TableSchema | None]) -> None:
        self._source = source
        self._followed = followed

    def captured(self, table: TableName) -> bool:
        return table in self._followed

    def met(self, table: TableName) -> bool:
        return self._followed.get(table) is not None

    def of_schema(self, schema: str) -> list[TableName]:
        return sorted(name for name in tuple(self._followed) if name.schema == schema)

    def schema(self, mapped: TableMap) -> TableSchema:
        def describe(connection: Connection) -> TableSchema:
            flavor = self._source._flavor(connection)
            types = catalog.read_types(connection, [mapped.table], flavor).get(mapped.table)
            with about(mapped.table):
                return table_schema(mapped, flavor, self._source.types, types)

        if not (captured := self.captured(mapped.table)) and not mapped.key:  # a parent of captured tables
            mapped = replace(mapped, key=(mapped.columns[0].name,))
        with translating(f"reading the schema of {mapped.table}"):
            found = self._source._with(describe, "log")
            found = self._source._narrowed(found) if captured else found
        if captured and not self.met(mapped.table):
            self._followed[mapped.table] = found
        return found

    def completed(self, mapped: TableMap) -> TableMap:
        def read(connection: Connection) -> TableMap | None:
            return catalog.read_map(connection, mapped.table, self._source._flavor(connection))

        with translating(f"reading the schema of {mapped.table}"):
            found = self._source._with(read, "log")
        with about(mapped.table):
            return mapped.completed(found)

    def check(self, said: Definition) -> None:
        def check(connection: Connection) -> None:
            with about(said.table):
                preflight.check_definition(connection, said, self._source.cascades, self._source.types.keys)

        try:
            self._source._with(check, "log")
        except TableLocked as error:  # the statement is read and checked again
            raise ConnectionLost(error.message) from error

    def prepared(self, name: str, before: int) -> list[TableName] | None:
        def find(connection: Connection) -> set[str] | None:
            return xa.find_tables(connection, name, before - self._source._shift)

        with translating(f"looking for the XA transaction {name} in the log"):
            found = self._source._with(find, "log")
        return None if found is None else [table for table in self._followed if str(table) in found]

    def latest(self, table: TableName) -> TableSchema | None:
        found = self._source._describe([table], "log").get(table) or self._followed.get(table)
        if not self.met(table):
            self._followed[table] = found
        return found
