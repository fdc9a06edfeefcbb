"""PostgreSQL in the registry of families (`sources.family.Family`). The rest of the folder is imported when it is
needed: `dblog status` only needs `shown`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, cast

from dblog.core.option_values import OptionValues
from dblog.core.schema import TableName
from dblog.errors import PreconditionFailed
from dblog.sources.family import Family, Preflight, Slot, SourceOptions, slot_name

if TYPE_CHECKING:
    from dblog.core.schema import TableSchema
    from dblog.databases.families import Address as AnyAddress
    from dblog.databases.postgres.connect import Address, Connection
    from dblog.sources.postgres.catalog import Relation
    from dblog.sources.postgres.source import Postgres
    from dblog.sources.postgres.stream import PostgresLog


class PostgresFamily:
    """PostgreSQL 13 and later."""

    def parse(self, url: str) -> Address:
        from dblog.databases.postgres.connect import parse

        return parse(url)

    def default_schema(self, address: AnyAddress) -> str:
        return "public"

    def slot(self, address: AnyAddress, table: TableName | None, tables: str) -> str:
        """The default name of the slot, made from the unchanged text of `tables`: servers have slots of such names."""
        return slot_name(address.database, tables if table is None else str(table))

    def own_options(self, values: OptionValues, address: AnyAddress, slot: str) -> Mapping[str, Any]:
        return {
            "publication": values.read("publication") or slot,
            "arrays": values.read("arrays"),
            "years": values.read("years") or "all",
            "catch_up": values.read("catchUp") == "auto",
            "stream_in_progress": values.read("streamInProgress"),
            "failover": values.read("failover") == "auto",
        }

    def source(self, options: SourceOptions) -> Postgres:
        from dblog.sources.postgres.column_types import TypeOptions
        from dblog.sources.postgres.source import Postgres

        return Postgres(
            address=cast("Address", options.address),
            patterns=options.patterns,
            slot=options.slot,
            publication=options.own["publication"],
            columns=options.columns,
            types=TypeOptions(
                options.decimals,  # type: ignore[arg-type]
                options.own["arrays"],
                options.values,
                options.keys,
                options.own["years"],
            ),
            before=options.before,
            writes=options.writes,
            catch_up=options.own["catch_up"],
            in_progress=(options.folder or tempfile.gettempdir()) if options.own["stream_in_progress"] else None,
            skips=options.skips,
            failover=options.own["failover"],
        )

    @contextmanager
    def preflight(
        self, options: SourceOptions, *, followed: Collection[TableName] | None = None
    ) -> Iterator[Preflight]:
        from dblog.databases.postgres.connect import connect
        from dblog.sources.postgres import preflight
        from dblog.sources.postgres.failover_checks import standby_problems

        source = self.source(options)
        setup = source.setup(followed=followed)
        with closing(connect(source.address, application_name="dblog check")) as connection:
            yield Preflight(
                {"slot": setup.slot, "publication": setup.publication},
                setup.tables,
                lambda: [*preflight.check(connection, setup), *standby_problems(source.address, setup)],
                lambda: preflight.admin_sql(setup, connection.info.user, preflight.check(connection, setup)),
            )

    @contextmanager
    def temporary_stream(self, options: SourceOptions, publication: str | None) -> Iterator[PostgresLog]:
        """Read through a temporary replication slot. Without `publication`, a temporary publication is created too."""
        from contextlib import ExitStack

        from dblog.databases.postgres.connect import connect, translating
        from dblog.sources.postgres.catalog import relation_schema
        from dblog.sources.postgres.pgoutput import Decoder
        from dblog.sources.postgres.slots import PASSING, check_publication, passing_publication
        from dblog.sources.postgres.stream import PostgresLog
        from dblog.sources.relational import WATERMARK

        source = self.source(options)
        schemas = source.tables()
        if bare := [t for t, schema in schemas.items() if not schema.key]:
            raise PreconditionFailed(f"table {str(bare[0])!r} has no primary key", hint="dblog check shows what to do")
        with ExitStack() as stack:
            control = stack.enter_context(closing(connect(source.address, application_name="dblog events")))
            if publication is not None:
                check_publication(control, publication)
            else:
                publication = stack.enter_context(passing_publication(control, list(schemas)))

            def resolve(relation: Relation) -> TableSchema | None:
                if (relation.schema, relation.name) not in schemas:
                    return None
                with translating(f"reading the schema of {relation.name}"), control.cursor() as cursor:
                    return relation_schema(cursor, relation, source.types)

            slot = PASSING + f"{time.time_ns():x}"
            decoder = Decoder(resolve, watermark=WATERMARK)
            place = source.address, slot, publication, 0
            log = PostgresLog(*place, decoder, in_progress=source.in_progress, temporary=True)
            yield stack.enter_context(closing(log))

    def all_tables(self, options: SourceOptions) -> str:
        return "*.*"

    def shown(self, position: int) -> str:
        """The position in PostgreSQL's form: 0/16B3748."""
        return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"

    @contextmanager
    def slots(self, address: AnyAddress) -> Iterator[_Slots]:
        from dblog.databases.postgres.connect import connect

        with closing(connect(cast("Address", address), application_name="dblog slots")) as connection:
            yield _Slots(connection)


class _Slots:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def database(self) -> str:
        return str(self._connection.info.dbname)

    def list(self) -> list[Slot]:
        from dblog.sources.postgres.slots import read_slots

        return read_slots(self._connection)

    def drop(self, name: str, publication: str) -> bool:
        from dblog.sources.postgres.slots import drop_slot

        return drop_slot(self._connection, name, publication)

    def end_reader(self, name: str) -> bool:
        from dblog.sources.postgres.slots import end_reader

        return end_reader(self._connection, name)

    def drop_sql(self, name: str) -> str:
        return f"select pg_drop_replication_slot('{name}')"


FAMILY: Family = PostgresFamily()
