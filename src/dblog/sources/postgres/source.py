"""PostgreSQL as a source (`sources.base.Source`): composes connections, preflight, log, chunks and watermarks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from dblog.core.arrays import Ints
from dblog.core.names import Pattern, select_tables
from dblog.core.offset import Extent, Followed, Key
from dblog.core.schema import TableName, TableSchema
from dblog.databases.postgres.connect import Address, Connection, connect, translating
from dblog.errors import (
    ConnectionLost,
    KeyChanged,
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
from dblog.sources.postgres.opening import Opening, open_at, refuse_taken_back, take_back
from dblog.sources.postgres.pgoutput import Decoder, Relation
from dblog.sources.postgres.recent_changes import RecentChanges
from dblog.sources.postgres.relations import CANDIDATES
from dblog.sources.postgres.resume import refuse_ahead, refuse_other_system
from dblog.sources.postgres.selection import PostgresSelection
from dblog.sources.postgres.setup import Setup
from dblog.sources.postgres.slot_copy import HEALTH, SlotState, copy_names, refuse_gap, slot_state
from dblog.sources.postgres.timeline import Coordinate, Server, server_of
from dblog.sources.postgres.visibility import Snapshot
from dblog.sources.problems import Problem, left_out
from dblog.sources.relational import LOCK_SECONDS, PEOPLE_SECONDS, WATERMARK, Chunks, Relational
from dblog.sources.table_failures import TableFailure, TableFailures, about

SEARCH_PATH = 'search_path = "$user", public'
"""The search path for users' conditions and probes: PostgreSQL's default. Our own statements qualify all names."""

_SERVERS: WeakKeyDictionary[Connection, Server] = WeakKeyDictionary()
"""The server of each session. A session with a primary stays with its timeline."""


@dataclass
class _Learnt:
    """What a stream has learned. It belongs to the source object, not to the process."""

    names: Mapping[str, TableName] = field(default_factory=dict)
    """The names under which tables are followed, by OID. It is replaced, never modified, because the capture thread
    reads it."""
    failures: TableFailures = field(default_factory=TableFailures)
    calls_refused: bool = False
    """Whether the server did not let us read the log by calls."""
    log: Coordinate | None = None
    """Which server's log is read, and how its positions are counted. None before the log is opened."""
    recent: RecentChanges = field(default_factory=RecentChanges)

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
    failover: bool = True
    """Whether standbys get the slot, where the server can do that."""
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
        named = self.slot, self.publication, tuple(tables)
        return Setup(*named, fresh=False, writes=self.writes, failover=self.failover, keys=self.types.keys)

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
            cursor.execute(CANDIDATES)
            return {TableName(schema, name): is_table for schema, name, is_table in cursor.fetchall()}

    def _read_tables(self, session: Connection, names: Collection[TableName]) -> dict[TableName, TableSchema]:
        with session.cursor() as cursor:
            return read_tables(cursor, tuple(names), self.types)

    # -- the log ---------------------------------------------------------------------------------------------

    def origin(self) -> Origin:
        slot = self._slot()
        return Origin(slot.confirmed, self._running())

    def latest(self) -> int:
        (position,) = self._ask(f"select {visibility.FLUSHED}")
        return int(position) + self._shift

    @property
    def _shift(self) -> int:
        """The difference of the stream's positions to the server's own."""
        return 0 if (log := self._learnt.log) is None else log.shift

    def check_position(self, position: int, coordinate: str | None = None) -> None:
        """Raise PositionLost unless the slot still has the log after the position. After a promotion only `stream` can
        tell."""
        known, slot = Coordinate.parse(coordinate), self._slot()
        if known is not None:
            server = server_of(self._session("control"))
            if server.system:
                refuse_other_system(known, server.system)
            if server.timeline not in (None, known.timeline):
                return
            refuse_ahead(position - known.shift, *self._ask(f"select {visibility.FLUSHED}"))
        refuse_gap(self.slot, slot, position - (known.shift if known else 0))

    def abandon(self) -> None:
        """Drop the slot and the publication of a stream that will never go on."""

        def drop(connection: Connection) -> None:
            preflight.await_release(connection, self.slot)
            slots.drop_slot(connection, self.slot, self.publication)

        self._with(drop)

    def stream(self, position: int, coordinate: str | None = None) -> SlotLog:
        opening = self._opening(position, coordinate)

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
        decoder = Decoder(resolve, watermark=WATERMARK, before=self.before, failures=failures, shift=opening.shift)
        return SlotLog(
            self.address,
            self.slot,
            self.publication,
            opening,
            decoder,
            ask=partial(self._ask, role="log"),
            calls=self.catch_up and not self._learnt.calls_refused,
            in_progress=self.in_progress,
            refused=self._learnt.refuse_calls,
        )

    def _opening(self, position: int, coordinate: str | None) -> Opening:
        """Where the log is opened. From here on, all sessions must be with the same server."""
        known, ask = Coordinate.parse(coordinate), partial(self._ask, role="log")
        opening = open_at(self.address, f"dblog {self.slot}", position, known, self._learnt.recent)
        try:
            self._learnt.log = opening.coordinate
            refuse_gap(self.slot, slot_state(ask, self.slot), opening.at)
            if opening.resumption.lost is not None and known is not None:
                describe, names = partial(self._describe, role="log"), dict(self._learnt.names)
                opening.first = take_back(opening, known, names, ask, describe, self._absent, before=self.before)
        except BaseException:
            opening.release()
            raise
        return opening

    def _absent(self, schema: TableSchema, keys: Sequence[Key]) -> list[Key]:
        with self._reading(f"looking for keys of {schema.table}", everything=True):
            return self._with(lambda session: chunks.missing(session, schema, keys), "log")

    def coordinate(self, coordinate: str | None, commits: Commits, position: int) -> str | None:
        known = Coordinate.parse(coordinate)
        return None if known is None else str(known.after(commits))

    def comparable(self, coordinate: str | None, other: str | None) -> bool:
        known, theirs = Coordinate.parse(coordinate), Coordinate.parse(other)
        return known is None or theirs is None or known.log == theirs.log

    def repeat(self, position: int, coordinate: str | None, end: str | None, upto: int) -> None:
        """None: the slot's log has the batch at its positions. Raises PositionLost if it does not."""
        first, last = Coordinate.parse(coordinate), Coordinate.parse(end)
        if first is not None and last is not None:
            refuse_taken_back(open_at(self.address, f"dblog {self.slot}", upto, last, RecentChanges()), first, last)

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
                return int(cursor.fetchone()[0]) + self._shift

        try:
            return self._with(write)
        except (SchemaChanged, PreconditionFailed) as error:
            if self._ask("select pg_catalog.pg_is_in_recovery()") == (True,):
                raise ConnectionLost(
                    "cannot write a watermark: the server is a standby now", hint=error.hint
                ) from error
            raise WatermarkError(
                f"cannot write a watermark: {error.message}", hint=f"create the table {WATERMARK}; see docs/postgres.md"
            ) from error

    def high_watermark(self) -> int:
        (bound,) = self._ask(visibility.INSERTED)
        if self.latest() < bound + self._shift:
            self._ask(visibility.FLUSH)
        return int(bound) + self._shift

    def invisible(self, xids: Ints, coordinate: str | None) -> tuple[int, ...]:
        """Transactions of an earlier server are visible on a promoted one, or do not exist there."""
        log = self._learnt.log
        if log is not None and not self.comparable(coordinate, str(log)):
            return ()
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
        latest, *found = self._ask(HEALTH, self.slot, copy_names(self.slot), role="health")
        names = ("active", "wal_status", "retained_bytes", "safe_bytes", "read_by")
        return {"latest": latest + self._shift, **dict(zip(names, found, strict=True))}

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
        _SERVERS[connection] = server_of(connection)
        return connection

    def _session(self, role: str) -> Connection:
        """The process's session for a role, with the server whose log is read."""
        session = super()._session(role)
        try:
            _SERVERS[session].refuse_other(self._learnt.log)
        except ConnectionLost:  # it was opened before a failover, or the log was
            self._forget(role)
            session = super()._session(role)
            _SERVERS[session].refuse_other(self._learnt.log)
        return session

    def _read_only_begin(self, session: Connection) -> Sequence[str]:
        # after its first query a read-only transaction cannot be made writable
        return ("begin read only", f"set local statement_timeout = '{PEOPLE_SECONDS}s'", f"set local {SEARCH_PATH}")

    def _alive(self, session: Connection) -> bool:
        return not session.closed

    def _close(self, session: Connection) -> None:
        session.close()
