"""PostgreSQL as a source (`sources.base.Source`): composes connections, preflight, log, chunks and watermarks."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from dblog.core.names import Pattern, select_tables
from dblog.core.offset import Extent, Key
from dblog.core.schema import TableName, TableSchema
from dblog.errors import (
    ConfigError,
    ConnectionLost,
    DecodeError,
    KeyChanged,
    PositionLost,
    PreconditionFailed,
    SchemaChanged,
    SourceError,
    TableLocked,
    TableUnreadable,
    WatermarkError,
)
from dblog.sources.base import Commits, Ints, Origin
from dblog.sources.postgres import chunks, preflight, visibility
from dblog.sources.postgres.catalog import read_tables, relation_schema
from dblog.sources.postgres.connect import Address, Connection, connect, translating
from dblog.sources.postgres.kinds import TypeOptions
from dblog.sources.postgres.pgoutput import Decoder, Relation
from dblog.sources.postgres.preflight import WATERMARK, Setup
from dblog.sources.postgres.stream import PostgresLog
from dblog.sources.postgres.visibility import Snapshot

_T = TypeVar("_T")

PEOPLE_SECONDS = 5
"""How long a statement that people wrote may run."""

SEARCH_PATH = 'search_path = "$user", public'
"""Where the names in conditions and probes are looked up, as people expect; our own statements qualify all names."""

LOCK_SECONDS = 1
"""How long a statement waits for somebody's exclusive lock before it lets the log go on and is tried again later."""

# Everything that could be captured: ordinary and partitioned tables, but not partitions of their own.
_CANDIDATES = """
select n.nspname, c.relname
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence = 'p'
  and n.nspname not in ('pg_catalog', 'information_schema', 'dblog') and n.nspname not like 'pg\\_%'
"""

# A table that exists but is not published: dropped and made again, or taken out of the publication.
_LEFT = """
select n.nspname, c.relname
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and array[n.nspname::text, c.relname::text] = any (
    select array[t ->> 0, t ->> 1] from pg_catalog.json_array_elements(%s::json) t)
  and not exists (select from pg_catalog.pg_publication_tables p
                  where p.pubname = %s and p.schemaname = n.nspname and p.tablename = c.relname)
limit 1
"""


_HEALTH = """
select (pg_catalog.pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint, s.active, s.wal_status,
       (pg_catalog.pg_current_wal_flush_lsn() - s.restart_lsn)::bigint, s.safe_wal_size
from (values (%s)) v (slot) left join pg_catalog.pg_replication_slots s on s.slot_name = v.slot
"""


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL database, a slot on it, and the tables to follow. Connections are per process, made when needed."""

    address: Address
    patterns: tuple[Pattern, ...]
    slot: str
    publication: str
    columns: tuple[str, ...] | None = None
    """Only these columns (and the key) of every table; None for all."""
    types: TypeOptions = field(default_factory=TypeOptions)
    before: bool = False
    writes: bool = True
    """Watermarks are written; otherwise windows end without writing anything."""

    # -- set-up ----------------------------------------------------------------------------------------------

    @property
    def default_schema(self) -> str:
        return "public"

    def setup(self, *, followed: Collection[TableName] | None = None) -> Setup:
        """What the preflight looks at; `followed` is None for a new stream."""
        known = frozenset(followed or ())
        return Setup(self.slot, self.publication, self._names(), followed is None, known, self.writes)

    def prepare(self, *, followed: Collection[TableName] | None) -> None:
        setup = self.setup(followed=followed)
        self._with(lambda connection: preflight.prepare(connection, setup))

    def check_followed(self, tables: Collection[TableName]) -> None:
        left = self._ask(_LEFT, json.dumps([list(t) for t in tables]), self.publication) if tables else None
        if left is not None:
            raise PositionLost(
                f"table {TableName(*left)} has left publication {self.publication!r}: its changes are not in the log",
                hint="was it dropped and made again, or taken out? start with a new slot and a new checkpoint, "
                "which dumps the tables again",
            )

    def tables(self) -> Mapping[TableName, TableSchema]:
        return self._describe(self._names())

    def _names(self) -> tuple[TableName, ...]:
        """The tables that the patterns name. A table named without wildcards is kept even if it does not exist: the
        preflight says so."""

        def candidates(connection: Connection) -> list[TableName]:
            with translating("listing the tables"), connection.cursor() as cursor:
                cursor.execute(_CANDIDATES)
                return [TableName(*row) for row in cursor.fetchall()]

        named = {p.literal for p in self.patterns if p.literal is not None and not p.exclude}
        names = select_tables(self.patterns, {*self._with(candidates), *named})
        if not names:
            raise ConfigError(
                f"no table of the database matches {self.patterns[0].text!r}",
                hint="the option tables takes patterns like public.* or sales.orders, separated by commas",
            )
        return names

    def _describe(self, names: tuple[TableName, ...]) -> dict[TableName, TableSchema]:
        def describe(connection: Connection) -> dict[TableName, TableSchema]:
            with translating("reading the tables' schemas"), connection.cursor() as cursor:
                return read_tables(cursor, names, self.types)

        return {name: self._narrowed(schema) for name, schema in self._with(describe).items()}

    def _narrowed(self, schema: TableSchema) -> TableSchema:
        """The schema with only the columns that are wanted."""
        if self.columns is None:
            return schema
        wanted = {*self.columns, *schema.key}
        return TableSchema(schema.table, tuple(c for c in schema.columns if c.name in wanted), schema.key)

    # -- the log ---------------------------------------------------------------------------------------------

    def origin(self) -> Origin:
        slot = self._slot()
        return Origin(slot["confirmed"], tuple(int(x) & 0xFFFFFFFF for x in self._snapshot().running))

    def latest(self) -> int:
        (position,) = self._ask("select pg_catalog.pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
        return int(position)

    def stream(self, position: int, place: str | None = None) -> PostgresLog:
        slot = self._slot()
        if slot["confirmed"] > position:
            raise PositionLost(
                f"slot {self.slot!r} has been read up to {slot['confirmed']}, beyond the checkpoint's {position}",
                hint="another reader used the slot, or the checkpoint is an old copy: changes in between are lost to "
                "this stream; drop the slot and start with a new checkpoint, which dumps the tables again",
            )
        names = set(self._names())

        def resolve(relation: Relation) -> TableSchema | None:
            if TableName(relation.schema, relation.name) not in names:
                return None

            def schema(connection: Connection) -> TableSchema:
                with translating(f"reading the schema of {relation.name}"), connection.cursor() as cursor:
                    return relation_schema(cursor, relation, self.types)

            return self._narrowed(self._with(schema, "log"))

        decoder = Decoder(resolve, watermark=WATERMARK, before=self.before)
        return PostgresLog(self.address, self.slot, self.publication, position, decoder)

    def place(self, place: str | None, commits: Commits) -> None:
        """A slot is one server's."""

    def comparable(self, place: str | None, other: str | None) -> bool:
        return True

    def covers(self, place: str | None, other: str | None) -> bool:
        raise NotImplementedError

    def _slot(self) -> dict[str, Any]:
        found = self._ask(
            "select (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, wal_status from pg_catalog.pg_replication_slots "
            "where slot_name = %s and database = current_database()",
            self.slot,
        )
        if found is None or found[0] is None or found[1] == "lost":
            raise PositionLost(
                f"replication slot {self.slot!r} is gone" if found is None else f"slot {self.slot!r} has lost its log",
                hint="start with a new checkpoint, which dumps the tables again; "
                "to keep more log for a stopped stream raise max_slot_wal_keep_size",
            )
        return {"confirmed": found[0]}

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

    def invisible(self, xids: Ints, place: str | None) -> tuple[int, ...]:
        return self._snapshot().hidden(xids)

    def _snapshot(self) -> Snapshot:
        return Snapshot.parse(*self._ask("select pg_catalog.pg_current_snapshot()::text"))

    # -- chunks ----------------------------------------------------------------------------------------------

    def key(self, table: TableName) -> str:
        with translating(f"looking at the key of {table}"):
            return self._with(lambda connection: chunks.primary_key(connection, table))

    def last_key(self, table: TableName) -> Key | None:
        schema = self._keyed(table)
        with _reading(f"looking for the last key of {table}"):
            return self._with(lambda connection: chunks.last_key(connection, schema))

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        schema = self._keyed(table)
        with _reading(f"looking for chunk boundaries of {table}"):
            return self._with(lambda connection: chunks.cuts(connection, schema, Extent(after, upto), rows, count))

    def select(self, table: TableName, extent: Extent, key: str | None) -> Select:
        connection = self._connection("chunks")
        try:
            with _reading(f"reading table {table}"), connection.cursor() as cursor:
                cursor.execute("begin read only")
                cursor.execute(chunks.touch(connection, table))
                if key is not None and chunks.primary_key(connection, table) != key:
                    raise KeyChanged(f"the primary key of table {table} is not {key} any more")
                schema = self._narrowed(read_tables(cursor, [table], self.types)[table])
                if extent.where is not None:
                    cursor.execute(f"set local {SEARCH_PATH}")
        except BaseException:
            self._forget("chunks")
            raise
        return Select(self, schema, extent)

    def _keyed(self, table: TableName) -> TableSchema:
        """The table's schema, of which only the key must be true now."""
        at = (os.getpid(), self, table, self.key(table))
        if at not in _KEYED:
            _KEYED.clear()  # there are never many at work
            _KEYED[at] = self._describe((table,))[table]
        return _KEYED[at]

    # -- requests --------------------------------------------------------------------------------------------

    def estimate(self, table: TableName) -> int | None:
        with translating(f"estimating the size of {table}"):
            return self._with(lambda connection: chunks.estimate(connection, table))

    def missing(self, table: TableName, keys: Sequence[Key]) -> list[Key]:
        schema = self._keyed(table)
        for key in keys:
            if len(key) != len(schema.key):
                raise TableUnreadable(
                    f"the key {list(key)!r} has {len(key)} values; that of {table} has {len(schema.key)}: "
                    + ", ".join(schema.key)
                )
        with _reading(f"looking for keys of {table}", everything=True):
            return self._with(lambda connection: chunks.missing(connection, schema, keys))

    def check_condition(self, table: TableName, where: str) -> None:
        with _reading(f"checking the condition for {table}", everything=True):
            self._with(lambda connection: chunks.explain(connection, table, where), "people")

    def identity(self) -> Mapping[str, str]:
        return {"source": str(self.address), "slot": self.slot, "publication": self.publication}

    def probe(self, query: str) -> float:
        found = self._ask(query, role="probe")
        try:
            (value,) = found
            return float(value)
        except (TypeError, ValueError):
            raise SourceError(f"the probe gave {found!r}", hint="it must give one row with one number") from None

    def health(self) -> Mapping[str, Any]:
        found = self._ask(_HEALTH, self.slot, role="health")
        return dict(zip(("latest", "active", "wal_status", "retained_bytes", "safe_bytes"), found, strict=True))

    # -- connections -----------------------------------------------------------------------------------------

    def _ask(self, query: str, *parameters: object, role: str = "control") -> Any:
        def ask(connection: Connection) -> Any:
            with translating("asking the database"), connection.cursor() as cursor:
                cursor.execute(query, parameters or None)
                return cursor.fetchone()

        return self._with(ask, role)

    def _with(self, use: Callable[[Connection], _T], role: str = "control") -> _T:
        """Use this process's connection for a role; one that fails is closed, so that the next use opens a new one."""
        connection = self._connection(role)
        try:
            return use(connection)
        except BaseException:
            self._forget(role)
            raise

    def _connection(self, role: str) -> Connection:
        at = (os.getpid(), self.address, role)
        connection = _CONNECTIONS.get(at)
        if connection is None or connection.closed:
            connection = connect(self.address, application_name=f"dblog {role}")
            with translating("preparing the session"), connection.cursor() as cursor:
                # a watermark must not wait for a standby: it only has to reach the log
                cursor.execute("set synchronous_commit = local")
                cursor.execute(f"set lock_timeout = '{LOCK_SECONDS}s'")
                if role in ("people", "probe"):
                    cursor.execute(f"set statement_timeout = '{PEOPLE_SECONDS}s'")
                    cursor.execute(f"set default_transaction_read_only = on; set {SEARCH_PATH}")
            _CONNECTIONS[at] = connection
        return connection

    def _forget(self, role: str) -> None:
        connection = _CONNECTIONS.pop((os.getpid(), self.address, role), None)
        if connection is not None:
            connection.close()


@dataclass(frozen=True)
class Select:
    """A chunk read, one transaction: the lock that its first statement took, the one every select takes, keeps the
    schema as it is until the rows are read."""

    _source: Postgres
    schema: TableSchema
    _extent: Extent

    def read(self, take: Callable[[pa.RecordBatch], None]) -> None:
        def read(connection: Connection) -> None:
            own = self._extent.where is not None or bool(self._extent.keys)
            with _reading(f"reading table {self.schema.table}", everything=own):
                chunks.select(connection, self.schema, self._extent, take)
                connection.cursor().execute("commit")

        self._source._with(read, "chunks")


@contextlib.contextmanager
def _reading(doing: str, *, everything: bool = False) -> Iterator[None]:
    """Tell apart what concerns only the table, or with `everything` the part of it that somebody asked for."""
    try:
        with translating(doing):
            yield
    except (ConnectionLost, TableLocked, KeyChanged, TableUnreadable, DecodeError):
        raise
    except (SchemaChanged, PreconditionFailed) as error:
        raise TableUnreadable(error.message, hint=error.hint) from error
    except SourceError as error:
        if not everything:
            raise
        raise TableUnreadable(error.message, hint=error.hint) from error


_KEYED: dict[tuple[int, Postgres, TableName, str], TableSchema] = {}

_CONNECTIONS: dict[tuple[int, Address, str], Connection] = {}
"""Connections of this process. Spark's workers live on between tasks, and so do these."""
