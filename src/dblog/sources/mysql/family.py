"""MySQL and MariaDB in the registry of families (`sources.family.Family`). The rest of the folder is imported when it
is needed: `dblog status` only needs `shown`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from dblog.core.names import qualified
from dblog.core.option_values import OptionValues
from dblog.core.schema import TableName
from dblog.errors import ConfigError
from dblog.sources.family import Family, Preflight, Slots, SourceOptions, slot_name

if TYPE_CHECKING:
    from dblog.databases.families import Address as AnyAddress
    from dblog.databases.mysql.connect import Address
    from dblog.sources.mysql.source import MySQL
    from dblog.sources.mysql.stream import MySQLLog


class MySQLFamily:
    """MySQL 8.0 and later, MariaDB 10.5 and later."""

    def parse(self, url: str) -> Address:
        from dblog.databases.mysql.connect import parse

        return parse(url)

    def default_schema(self, address: AnyAddress) -> str:
        return address.database

    def slot(self, address: AnyAddress, table: TableName | None, tables: str) -> str:
        """The name of the stream. No server has a slot of this name, so `orders` and `shop.orders` can share one."""
        return slot_name(address.database, qualified(tables, address.database) if table is None else str(table))

    def own_options(self, values: OptionValues, address: AnyAddress, slot: str) -> Mapping[str, Any]:
        return {
            "server_id": values.read("serverId") or _server_id(address, slot),
            "dates": values.read("dates"),
            "cascades": values.read("cascades") or "skip",
        }

    def source(self, options: SourceOptions) -> MySQL:
        from dblog.sources.mysql.column_types import TypeOptions
        from dblog.sources.mysql.source import MySQL

        return MySQL(
            address=cast("Address", options.address),
            patterns=options.patterns,
            server_id=options.own["server_id"],
            columns=options.columns,
            types=TypeOptions(
                options.decimals,  # type: ignore[arg-type]
                options.own["dates"],
                options.values,
                options.keys,
            ),
            before=options.before,
            writes=options.writes,
            skips=options.skips,
            cascades=options.own["cascades"],
        )

    @contextmanager
    def preflight(
        self, options: SourceOptions, *, followed: Collection[TableName] | None = None
    ) -> Iterator[Preflight]:
        from dblog.databases.mysql.connect import connect
        from dblog.sources.mysql import preflight

        source = self.source(options)
        setup = source.setup(followed=followed)
        with closing(connect(source.address, program="dblog check")) as connection:
            yield Preflight(
                {"server_id": setup.server_id},
                setup.tables,
                lambda: preflight.check(connection, setup),
                lambda: preflight.admin_sql(setup, preflight.user(connection), preflight.check(connection, setup)),
            )

    @contextmanager
    def temporary_stream(self, options: SourceOptions, publication: str | None) -> Iterator[MySQLLog]:
        """Read with a server id of its own: two readers with the same id end each other's sessions."""
        if publication is not None:
            raise ConfigError("--publication is for PostgreSQL", hint="leave it out")
        source = self.source(options)
        source.prepare(followed=None)
        reader = replace(source, server_id=1 << 31 | time.time_ns() & 0x7FFFFFFF)
        with closing(reader.stream(source.latest(), None)) as log:
            yield log

    def all_tables(self, options: SourceOptions) -> str:
        """The pattern for all tables of the database in the URL; without one, of all databases except `dblog`."""
        from dblog.sources.relational import WATERMARK

        named = options.address.database
        names = () if named else self.source(options).names()
        schemas = {named} if named else {table.schema for table in names if table.schema != WATERMARK.schema}
        return ", ".join('"' + schema.replace('"', '""') + '".*' for schema in sorted(schemas))

    def shown(self, position: int) -> str:
        """The number at the end of the log file's name, and the byte in the file: 000003:1234. After a failover the
        file numbers are the stream's, not the server's."""
        from dblog.sources.mysql.events import file_and_byte

        file, byte = file_and_byte(position)
        return f"{file:06d}:{byte}"

    def slots(self, address: AnyAddress) -> AbstractContextManager[Slots]:
        raise ConfigError(
            "MySQL and MariaDB have no replication slots: they keep their log for a fixed time",
            hint="dblog check shows whether that time is long enough",
        )


def _server_id(address: AnyAddress, slot: str) -> int:
    """The default server id: always the same for the same stream, and in a range that nobody uses by hand."""
    return (1 << 31) | int(hashlib.sha256("\0".join((*address.endpoint, slot)).encode()).hexdigest()[:7], 16)


FAMILY: Family = MySQLFamily()
