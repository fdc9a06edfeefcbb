"""PostgreSQL as a source (`sources.base.Source`): composes connections, preflight, log, chunks and watermarks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from dblog.core.arrays import Ints
from dblog.core.names import Pattern, select_tables
from dblog.core.offset import Extent, Followed, Key
from dblog.core.schema import TableName, TableSchema
from dblog.databases.postgres.connect import Address, Connection, connect, translating
from dblog.errors import (
    KeyChanged,
    PositionLost,
    PreconditionFailed,
    SchemaChanged,
    TableUnreadable,
    WatermarkError,
)
from dblog.sources.base import Admitted, Commits, Origin, Survey, Wait
from dblog.sources.postgres import chunks, preflight, slots, survey, visibility
from dblog.sources.postgres.catalog import Unidentified, read_tables, relation_schema
from dblog.sources.postgres.column_types import TypeOptions
from dblog.sources.postgres.deferrable import refuse_deferrable_keys
from dblog.sources.postgres.log import SlotLog
from dblog.sources.postgres.pgoutput import Decoder, Relation
from dblog.sources.postgres.preflight import Setup
from dblog.sources.postgres.slot_copy import SlotState, copy_names, slot_state
from dblog.sources.postgres.visibility import Snapshot
from dblog.sources.problems import Problem, left_out
from dblog.sources.relational import LOCK_SECONDS, PEOPLE_SECONDS, WATERMARK, Chunks, Relational
from dblog.sources.table_failures import TableFailure, TableFailures, about

SEARCH_PATH = 'search_path = "$user", public'
"""The search path for users' conditions and probes: PostgreSQL's default. Our own statements qualify all names."""

# What a pattern can bring: ordinary and partitioned tables, but not their partitions; and views and foreign tables,
# which cannot be captured.
_CANDIDATES = """
select n.nspname, c.relname, c.relkind in ('r', 'p') and c.relpersistence = 'p'
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and not c.relispartition
  and n.nspname not in ('pg_catalog', 'information_schema', 'dblog') and n.nspname not like 'pg\\_%'
"""

_HEALTH = """
select (pg_catalog.pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint, s.active or c.copied, s.wal_status,
       (pg_catalog.pg_current_wal_flush_lsn() - s.restart_lsn)::bigint, s.safe_wal_size,
       case when c.copied then 'catch-up' when s.active then 'stream' end
from (values (%s)) v (slot) left join pg_catalog.pg_replication_slots s on s.slot_name = v.slot,
     lateral (select exists (select from pg_catalog.pg_replication_slots o where o.slot_name = any (%s)) copied) c
"""


@dataclass
class _Learnt:
    """What a stream has learned. It belongs to the source object, not to the process."""

    names: Mapping[str, TableName] = field(default_factory=dict)
    """The names under which tables are followed, by OID. It is replaced, never modified, because the capture thread
    reads it."""
    failures: TableFailures = field(default_factory=TableFailures)
    calls_refused: bool = False
    """Whether the server did not let us read the log by calls."""

    def refuse_calls(self) -> None:
        self.calls_refused = True


@dataclass(frozen=True)
class Postgres(Relational[Connection]):
    """A PostgreSQL database, its slot, and the tables to follow. Each process opens its connections when it needs
    them."""

    address: Address
    patterns: tuple[Pattern, ...]
    slot: str
    publication: str
    columns: tuple[str, ...] | None = None
    """The columns to capture of every table, beside the key; None for all."""
    types: TypeOptions = field(default_factory=TypeOptions)
    before: bool = False
    writes: bool = True
    """Whether watermarks are written. Otherwise windows end without writing anything."""
    catch_up: bool = True
    """Whether the log may be read by calls while the stream is far behind."""
    in_progress: str | None = None
    """The folder for files of transactions in progress; None if the server must send no transaction before its
    commit."""
    skips: bool = True
    """Whether tables that a pattern brings and that cannot be followed are left out, not refused."""
    _learnt: _Learnt = field(default_factory=_Learnt, repr=False, compare=False)

    # -- set-up ----------------------------------------------------------------------------------------------

    @property
    def default_schema(self) -> str:
        return "public"

    def setup(self, *, followed: Collection[TableName] | None = None, aside: Collection[TableName] = ()) -> Setup:
        """What the preflight checks; `followed` is None for a new stream. Tables that are set aside are not checked."""
        demanded, unfit = self._demanded(followed, aside=aside)
        if followed is not None:  # `survey` looks for a missing followed table by its OID
            there = {name for name, fit in self._with(self._candidates).items() if fit}
            demanded = tuple(name for name in demanded if name in there or name not in followed)
        setup = self._setup_of(demanded)
        return replace(setup, fresh=followed is None, followed=frozenset(followed or ()), left_out=left_out(unfit))

    def _unfit(self, session: Connection, tables: Sequence[TableName]) -> dict[TableName, list[Problem]]:
        return preflight.unfit(session, self._setup_of(tables))

    def _setup_of(self, tables: Sequence[TableName]) -> Setup:
        setup = Setup(self.slot, self.publication, tuple(tables), fresh=False, writes=self.writes)
        return replace(setup, keys=self.types.keys)

    def prepare(
        self,
        *,
        followed: Collection[TableName] | None,
        aside: Collection[TableName] = (),
        wait: Wait | None = None,
    ) -> None:
        setup = self.setup(followed=followed, aside=aside)
        self._with(lambda connection: preflight.prepare(connection, setup, wait=wait))

    def survey(self, followed: Mapping[TableName, Followed]) -> Survey:
        return self._with(lambda connection: survey.survey(connection, self._setup_of, self.patterns, followed))

    def admit(self, tables: Collection[TableName]) -> Admitted:
        """The log lacks transactions that wrote to a table before it was published and commit later: see
        `Admitted.running`."""
        setup = self._setup_of(tuple(tables))
        self._with(lambda connection: survey.publish(connection, setup))
        if not self.writes:
            self._ask(visibility.FLUSH)  # otherwise the log of an idle database stays where it is
        running = self._running()
        found = self._with(lambda connection: survey.states(connection, setup))
        self.follow(found)
        return Admitted(found, self.latest(), running)

    def follow(self, tables: Mapping[TableName, Followed], *, since: int | None = None) -> None:
        if since is not None:
            self._learnt.failures.begin(tables, since)
        known = {f.identity: table for table, f in tables.items()}
        self._learnt.names = {**self._learnt.names, **known}

    def failures(self) -> Mapping[TableName, TableFailure]:
        return self._learnt.failures.found

    def _candidates(self, session: Connection) -> dict[TableName, bool]:
        with session.cursor() as cursor:
            cursor.execute(_CANDIDATES)
            return {TableName(schema, name): is_table for schema, name, is_table in cursor.fetchall()}

    def _read_tables(self, session: Connection, names: Collection[TableName]) -> dict[TableName, TableSchema]:
        with session.cursor() as cursor:
            return read_tables(cursor, tuple(names), self.types)

    # -- the log ---------------------------------------------------------------------------------------------

    def origin(self) -> Origin:
        slot = self._slot()
        return Origin(slot.confirmed, self._running())

    def latest(self) -> int:
        (position,) = self._ask("select pg_catalog.pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
        return int(position)

    def check_position(self, position: int, coordinate: str | None = None) -> None:
        """Raise PositionLost unless the slot still has the log after the position."""
        slot = self._slot()
        if slot.confirmed > position:
            raise PositionLost(
                f"slot {self.slot!r} was read up to {slot.confirmed}, but the checkpoint is only at {position}",
                hint="another reader used the slot, or the checkpoint is an old copy; the log in between is lost: "
                "drop the slot and start with a new checkpoint, which dumps the tables again",
            )

    def abandon(self) -> None:
        """Drop the slot and the publication of a stream that will never go on."""

        def drop(connection: Connection) -> None:
            preflight.await_release(connection, self.slot)
            slots.drop_slot(connection, self.slot, self.publication)

        self._with(drop)

    def stream(self, position: int, coordinate: str | None = None) -> SlotLog:
        self.check_position(position, coordinate)

        def resolve(relation: Relation) -> TableSchema | None:
            """A followed table keeps the name it is followed by, even after a rename."""
            table = self._learnt.names.get(str(relation.oid))
            if table is None and not select_tables(self.patterns, [TableName(relation.schema, relation.name)]):
                return None

            def schema(connection: Connection) -> TableSchema:
                with translating(f"reading the schema of {relation.name}"), connection.cursor() as cursor:
                    with about(table or TableName(relation.schema, relation.name)):
                        refuse_deferrable_keys(cursor, [relation.oid], self.slot)
                    return relation_schema(cursor, relation, self.types, table)

            self._session("log")  # raises if we cannot connect, which is not an error of the table
            try:
                return self._narrowed(self._with(schema, "log"))
            except PreconditionFailed:
                # a table that is not followed is ignored; a followed one must be dumped again
                found = None if table is None else self._describe([table], "log").get(table)
                return found and Unidentified(found.table, found.columns, found.key, str(relation.oid))

        failures = self._learnt.failures
        decoder = Decoder(resolve, watermark=WATERMARK, before=self.before, failures=failures)
        return SlotLog(
            self.address,
            self.slot,
            self.publication,
            position,
            decoder,
            ask=partial(self._ask, role="log"),
            calls=self.catch_up and not self._learnt.calls_refused,
            in_progress=self.in_progress,
            refused=self._learnt.refuse_calls,
        )

    def coordinate(self, coordinate: str | None, commits: Commits, position: int) -> None:
        """None: a slot belongs to one server."""

    def comparable(self, coordinate: str | None, other: str | None) -> bool:
        return True

    def repeat(self, position: int, coordinate: str | None, end: str | None) -> None:
        """None: the slot's log has the batch at its positions."""

    def _slot(self) -> SlotState:
        return slot_state(self._ask, self.slot)

    # -- watermarks and visibility ---------------------------------------------------------------------------

    def write_watermark(self, token: str) -> int:
        def write(connection: Connection) -> int:
            with translating("writing a watermark"), connection.cursor() as cursor:
                cursor.execute(f"update {WATERMARK} set token = %s where id = 1", (token,))
                if cursor.rowcount != 1:
                    raise WatermarkError(
                        f"the table {WATERMARK} has no row to write a watermark to",
                        hint=f"insert into {WATERMARK} (id, token) values (1, '')",
                    )
                cursor.execute("select (pg_catalog.pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
                return int(cursor.fetchone()[0])

        try:
            return self._with(write)
        except (SchemaChanged, PreconditionFailed) as error:
            raise WatermarkError(
                f"cannot write a watermark: {error.message}", hint=f"create the table {WATERMARK}; see docs/postgres.md"
            ) from error

    def high_watermark(self) -> int:
        (bound,) = self._ask(visibility.INSERTED)
        if self.latest() < bound:
            self._ask(visibility.FLUSH)
        return int(bound)

    def invisible(self, xids: Ints, coordinate: str | None) -> tuple[int, ...]:
        return self._snapshot().hidden(xids)

    def _running(self) -> tuple[int, ...]:
        return tuple(int(x) & 0xFFFFFFFF for x in self._snapshot().running)

    def _snapshot(self) -> Snapshot:
        return Snapshot.parse(*self._ask("select pg_catalog.pg_current_snapshot()::text"))

    # -- chunks ----------------------------------------------------------------------------------------------

    def small(self, tables: Sequence[TableName], rows: int) -> Mapping[TableName, tuple[str, Key | None]]:
        def look(session: Connection) -> dict[TableName, tuple[str, Key | None]]:
            keys = {table: key for table, key in chunks.key_texts(session, tables).items() if key is not None}
            last = chunks.small(session, list(self._read_tables(session, keys).values()), rows) if keys else {}
            return {table: (keys[table], key) for table, key in last.items()}

        try:
            with self._reading("looking at small tables"):
                return self._with(look)
        except TableUnreadable:
            return {}  # one of them was dropped, for example: each is looked at alone

    def select(self, table: TableName, extent: Extent, key: str | None) -> PostgresSelection:
        connection = self._session("chunks")
        try:
            with self._reading(f"reading table {table}"), connection.cursor() as cursor:
                cursor.execute("begin read only")
                cursor.execute(chunks.touch(connection, table))
                if key is not None and chunks.key_text(connection, table, self.types.keys.of(table)) != key:
                    raise KeyChanged(f"the key of table {table} has changed: it was {key}")
                schema = self._narrowed(read_tables(cursor, [table], self.types)[table])
                if extent.where is not None:
                    cursor.execute(f"set local {SEARCH_PATH}")
        except BaseException:
            self._forget("chunks")
            raise
        return PostgresSelection(self, schema, extent)

    # -- for users -------------------------------------------------------------------------------------------

    def identity(self) -> Mapping[str, str]:
        return {"source": str(self.address), "slot": self.slot, "publication": self.publication}

    def health(self) -> Mapping[str, Any]:
        found = self._ask(_HEALTH, self.slot, copy_names(self.slot), role="health")
        names = ("latest", "active", "wal_status", "retained_bytes", "safe_bytes", "read_by")
        return dict(zip(names, found, strict=True))

    # -- connections -----------------------------------------------------------------------------------------

    @property
    def _chunks(self) -> Chunks[Connection]:
        return chunks

    def _translating(self, doing: str) -> AbstractContextManager[None]:
        return translating(doing)

    def _open(self, role: str) -> Connection:
        connection = connect(self.address, application_name=f"dblog {role}")
        with translating("preparing the session"), connection.cursor() as cursor:
            # the commit of a watermark need not wait for a standby: it only has to reach the log
            cursor.execute("set synchronous_commit = local")
            cursor.execute(f"set lock_timeout = '{LOCK_SECONDS}s'")
        return connection

    def _read_only_begin(self, session: Connection) -> Sequence[str]:
        # after its first query a read-only transaction cannot be made writable
        return ("begin read only", f"set local statement_timeout = '{PEOPLE_SECONDS}s'", f"set local {SEARCH_PATH}")

    def _alive(self, session: Connection) -> bool:
        return not session.closed

    def _close(self, session: Connection) -> None:
        session.close()


@dataclass(frozen=True)
class PostgresSelection:
    """The read of a chunk, in one transaction. The lock of its first statement, which every select takes, protects the
    schema until the rows are read."""

    _source: Postgres
    schema: TableSchema
    _extent: Extent

    def read(self, take: Callable[[pa.RecordBatch], None]) -> None:
        def read(connection: Connection) -> None:
            own = self._extent.where is not None or bool(self._extent.keys)
            with self._source._reading(f"reading table {self.schema.table}", everything=own):
                if self.schema.promised:
                    chunks.check_promise(connection, self.schema, self._extent)
                chunks.select(connection, self.schema, self._extent, take)
                connection.cursor().execute("rollback")  # undoes settings that a condition may have changed

        self._source._with(read, "chunks")
