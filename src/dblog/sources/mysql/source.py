"""MySQL and MariaDB as a source (`sources.base.Source`): connections, preflight, log, chunks and watermarks."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from dblog.core.arrays import Ints
from dblog.core.names import Pattern, select_tables
from dblog.core.offset import Extent, Followed
from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.connect import Address, Connection, connect, identifier, server, translating
from dblog.databases.mysql.flavor import Flavor
from dblog.databases.mysql.gtid import Coordinate
from dblog.errors import (
    KeyChanged,
    PreconditionFailed,
    SchemaChanged,
    WatermarkError,
)
from dblog.sources.base import Admitted, Commits, Origin, Survey, Wait
from dblog.sources.family import digest
from dblog.sources.mysql import cascade_tables, catalog, chunks, preflight, resume
from dblog.sources.mysql.column_types import TypeOptions
from dblog.sources.mysql.decoder import Decoder
from dblog.sources.mysql.events import file_and_byte, position
from dblog.sources.mysql.log_tables import LogTables
from dblog.sources.mysql.resume import Resumption, ServerLog
from dblog.sources.mysql.selection import MySQLSelection
from dblog.sources.mysql.stream import MySQLLog
from dblog.sources.mysql.table_checks import FOLLOW, SKIP
from dblog.sources.problems import Problem, left_out, why
from dblog.sources.relational import LOCK_SECONDS, PEOPLE_SECONDS, WATERMARK, Chunks, Relational
from dblog.sources.table_failures import TableFailure, TableFailures

ABSENT = "it did not exist when the stream started: its delivered rows stay until a table has its name again"

CHECKED_TABLES = 20
"""How many tables one survey checks. The next survey goes on with the others."""


@dataclass
class _Learnt:
    """What a stream has learned from its log. It belongs to the source object, not to the process."""

    followed: dict[TableName, TableSchema | None] = field(default_factory=dict)
    """The tables that the log is decoded for, with the schema that each had at first; None for a table that did not
    exist yet. For a table that is added later, the log is decoded from then on."""
    failures: TableFailures = field(default_factory=TableFailures)
    files: dict[int, int] = field(default_factory=dict)
    """The creation time of each log file that was read."""
    shift: int = 0
    """What is added to the server's file numbers in the stream's positions."""
    checked: int = 0
    """How many tables the surveys have checked."""
    ignored: int = 0
    """How many cascade events were not delivered."""
    unfit: dict[TableName, str] = field(default_factory=dict)
    """The tables that could not be followed at the last survey, and why. The next checks the first of them again."""


@dataclass(frozen=True)
class MySQL(Relational[Connection]):
    """A MySQL or MariaDB server and the tables to follow. Each process opens its connections when it needs them.

    The server makes commits visible in the order of its log. So a select that begins after a watermark was written sees
    everything that the log has before it.
    """

    address: Address
    patterns: tuple[Pattern, ...]
    server_id: int
    columns: tuple[str, ...] | None = None
    """The columns to capture of every table, beside the key; None for all."""
    types: TypeOptions = field(default_factory=TypeOptions)
    before: bool = False
    writes: bool = True
    """Whether watermarks are written. Otherwise windows end without writing anything."""
    skips: bool = True
    """Whether tables that a pattern brings and that cannot be followed are left out, not refused."""
    cascades: str = SKIP
    """What to do when a foreign key changes rows without a record in the log: follow, skip, stop or ignore."""
    _learnt: _Learnt = field(default_factory=_Learnt, repr=False, compare=False)

    # -- set-up ----------------------------------------------------------------------------------------------

    @property
    def default_schema(self) -> str:
        return self.address.database

    def prepare(
        self, *, followed: Collection[TableName] | None, aside: Collection[TableName] = (), wait: Wait | None = None
    ) -> None:
        setup = self.setup(followed=followed, aside=aside)
        self._with(lambda connection: preflight.prepare(connection, setup))

    def setup(
        self, *, followed: Collection[TableName] | None = None, aside: Collection[TableName] = ()
    ) -> preflight.Setup:
        """What the preflight checks; `followed` is None for a new stream. Tables that are set aside are not checked."""
        demanded, unfit = self._demanded(followed, aside=aside)
        return replace(self._setup_of(demanded), left_out=left_out(unfit))

    def _unfit(
        self, session: Connection, tables: Sequence[TableName], *, rights: bool = False
    ) -> dict[TableName, list[Problem]]:
        with translating("listing the tables"):
            kinds = catalog.candidates(session)
        there = tuple(table for table in tables if table in kinds)  # others were dropped after they were listed
        found = preflight.unfit(session, self._setup_of(there), kinds, rights=rights)
        if self.cascades == FOLLOW:
            cascade_tables.add_gaps(self, session, there, found)
        return found

    def _setup_of(self, tables: tuple[TableName, ...]) -> preflight.Setup:
        return preflight.Setup(tables, self.server_id, self.columns, self.writes, self.cascades, self.types.keys)

    @property
    def decoding(self) -> str:
        return f"{super().decoding} {self.cascades}"

    def ignore(self, events: int) -> None:
        """Count cascade events that are not delivered."""
        self._learnt.ignored += events

    def _check_some(self, tables: Collection[TableName]) -> dict[TableName, PreconditionFailed]:
        """The tables that cannot be followed any more. A few are checked at a time: each needs several queries."""
        names = sorted(tables)
        at = self._learnt.checked % max(len(names), 1)
        some = (names[at:] + names[:at])[:CHECKED_TABLES]
        found = self._with(lambda connection: preflight.altered(connection, some, self.cascades, self.types.keys))
        self._learnt.checked = at + len(some)
        return found

    def survey(self, followed: Mapping[TableName, Followed]) -> Survey:
        """Finds new tables. The log has the changes of all tables, and shows what happens to the followed ones."""
        unfit = self._check_some(followed)
        with translating("listing the tables"):
            there = self._with(self._candidates)
        new = select_tables(self.patterns, (t for t in there if t not in followed))
        wrong = self._look_at_new(new)
        kept = select_tables(self.patterns, followed)
        absent = {t: ABSENT for t in kept if not there.get(t) and self._learnt.followed.get(t) is None}
        tables = {t: self._known(t) for t in (*kept, *new) if t not in wrong}
        rekeyed = {t: "its promised key has changed" for t in kept if tables[t].state != followed[t].state}
        return Survey(tables, rekeyed, left_out={**wrong, **absent}, unfit=unfit)

    def _known(self, table: TableName) -> Followed:
        """What the table is known by: its name, and the key that is promised for it."""
        key = self.types.keys.of(table)
        return Followed(state=digest(*key) if key else "")

    def _look_at_new(self, new: Sequence[TableName]) -> dict[TableName, str]:
        """The tables that are not followed and cannot be, and why. Of those that could not be followed at the last
        survey only a few are checked again: each needs several queries."""
        known = {t: why for t, why in self._learnt.unfit.items() if t in new}
        known = {**dict(list(known.items())[CHECKED_TABLES:])}
        again = [t for t in new if t not in known]
        found = self._with(lambda connection: self._unfit(connection, again, rights=True)) if again else {}
        self._learnt.unfit = {**known, **{t: why(problems) for t, problems in found.items()}}
        return self._learnt.unfit

    def admit(self, tables: Collection[TableName]) -> Admitted:
        known = {table: self._known(table) for table in tables}
        self.follow(known)
        return Admitted(known, self.latest())

    def follow(self, tables: Mapping[TableName, Followed], *, since: int | None = None) -> None:
        if since is not None:
            self._learnt.failures.begin(tables, since)
        known = self._learnt.followed
        known.update({table: known.get(table) for table in tables} | self._describe(tables))

    def failures(self) -> Mapping[TableName, TableFailure]:
        return self._learnt.failures.found

    def _candidates(self, session: Connection) -> dict[TableName, bool]:
        return {table: kind in catalog.TABLES for table, kind in catalog.candidates(session).items()}

    def _read_tables(self, session: Connection, names: Collection[TableName]) -> dict[TableName, TableSchema]:
        return catalog.read_tables(session, names, self._flavor(session), self.types)

    def _flavor(self, connection: Connection) -> Flavor:
        return server(connection).flavor

    # -- the log ---------------------------------------------------------------------------------------------

    def origin(self) -> Origin:
        def look(connection: Connection) -> Origin:
            write = (lambda: self._write(connection, uuid.uuid4().hex)) if self.writes else None
            found = resume.begin(ServerLog(connection), write)
            return Origin(found.position, (), str(found.coordinate))

        return self._with(look)

    def latest(self, role: str = "control") -> int:
        return self._with(lambda connection: ServerLog(connection).end(), role) + self._shift

    @property
    def _shift(self) -> int:
        """The difference of the stream's positions to the server's own."""
        return position(self._learnt.shift, 0)

    def check_position(self, position: int, coordinate: str | None) -> None:
        """Raise PositionLost unless the server's log still reaches back to the position."""
        self._with(lambda connection: resume.resume(ServerLog(connection), position, coordinate))

    def abandon(self) -> None:
        """MySQL and MariaDB keep nothing for a stream."""

    def stream(self, position: int, coordinate: str | None) -> MySQLLog:
        # called by the capture thread, so it needs its own connection
        followed = self._learnt.followed
        if not followed:
            followed.update(self._describe(self._demanded(None, "log")[0], "log"))
        found = self._with(lambda connection: resume.resume(ServerLog(connection), position, coordinate), "log")
        self._learnt.shift = found.coordinate.shift
        return self._log(found, followed, self._learnt.files, "log")

    def repeat(self, position: int, coordinate: str | None, end: str | None, upto: int) -> MySQLLog | None:
        followed = self._learnt.followed or {**self.tables()}
        found = self._with(lambda connection: resume.repeat(ServerLog(connection), position, coordinate, end))
        return None if found is None else self._log(found, followed, {}, "control")

    def _log(
        self, found: Resumption, followed: dict[TableName, TableSchema | None], files: dict[int, int], role: str
    ) -> MySQLLog:
        decoder = Decoder(
            LogTables(self, followed),
            self._with(self._flavor, role),
            found.position,
            watermark=WATERMARK,
            before=self.before,
            failures=self._learnt.failures,
            shift=found.coordinate.shift,
            delivered=found.delivered,
            files=files,
            created=found.coordinate.created,
            lower_case=self._ask("select @@lower_case_table_names = 1", role=role) == (1,),
            cascades=None if self.cascades == SKIP else cascade_tables.cascades_of(self, role),
        )
        return MySQLLog(
            self.address,
            found.position,
            decoder,
            server_id=self.server_id,
            coordinate=found.coordinate,
            until=found.until,
            check=lambda at: self._with(lambda connection: ServerLog(connection).check(at), role),
        )

    def coordinate(self, coordinate: str | None, commits: Commits, position: int) -> str:
        there = Coordinate.parse(coordinate).after(commits.origins, commits.numbers)
        created = self._learnt.files.get(file_and_byte(position)[0], 0)
        return str(replace(there, created=created))

    def comparable(self, coordinate: str | None, other: str | None) -> bool:
        return Coordinate.parse(coordinate).log == Coordinate.parse(other).log

    # -- watermarks and visibility ---------------------------------------------------------------------------

    def write_watermark(self, token: str) -> int:
        try:
            self._with(lambda connection: self._write(connection, token))
        except (SchemaChanged, PreconditionFailed) as error:
            raise WatermarkError(
                f"cannot write a watermark: {error.message}", hint=" ".join(preflight.WATERMARK_SQL)
            ) from error
        return self.latest()

    def _write(self, connection: Connection, token: str) -> None:
        with translating("writing a watermark"), connection.cursor() as cursor:
            if cursor.execute("update dblog.watermark set token = %s where id = 1", (token,)) != 1:
                raise WatermarkError(
                    f"the table {WATERMARK} has no row to write a watermark to",
                    hint=f"insert into {WATERMARK} (id, token) values (1, '')",
                )

    def high_watermark(self) -> int:
        return self.latest()

    def invisible(self, xids: Ints, coordinate: str | None) -> tuple[int, ...]:
        """Commits become visible in the order of the log. So after a watermark was written, everything before it is
        visible. Without watermarks the server is asked: MariaDB for the visible position, MySQL for the visible
        GTIDs."""
        if self.writes:
            return ()

        def look(connection: Connection) -> bool:
            log = ServerLog(connection)
            if log.mariadb:
                return log.end() + self._shift >= int(xids.max())
            gtids = log.flavor.gtids
            return gtids.parse(Coordinate.parse(coordinate).gtids) <= gtids.parse(log.executed())

        return () if self._with(look) else (int(xids.max()),)

    # -- chunks ----------------------------------------------------------------------------------------------

    def select(self, table: TableName, extent: Extent, key: str | None) -> MySQLSelection:
        def open_(connection: Connection) -> TableSchema:
            with connection.cursor() as cursor:
                # the first statement of a transaction takes the lock that protects the table's definition
                cursor.execute("start transaction read only")
                cursor.execute(f"select 1 from {identifier(*table)} limit 0")
            if key is not None and chunks.key_text(connection, table, self.types.keys.of(table)) != key:
                raise KeyChanged(f"the key of table {table} has changed: it was {key}")
            return catalog.read_tables(connection, [table], self._flavor(connection), self.types)[table]

        self._session("chunks")  # raises if we cannot connect, which is not an error of the table
        with self._reading(f"reading table {table}"):
            return MySQLSelection(self, self._narrowed(self._with(open_, "chunks")), extent)

    # -- for users -------------------------------------------------------------------------------------------

    def identity(self) -> Mapping[str, str]:
        return {"source": str(self.address), "server_id": str(self.server_id)}

    def health(self) -> Mapping[str, Any]:
        return {"latest": self.latest("health"), "active": True, "cascades_ignored": self._learnt.ignored}

    # -- connections -----------------------------------------------------------------------------------------

    @property
    def _chunks(self) -> Chunks[Connection]:
        return chunks

    def _translating(self, doing: str) -> AbstractContextManager[None]:
        return translating(doing)

    def _open(self, role: str) -> Connection:
        connection = connect(self.address, program=f"dblog {role}")
        with translating("preparing the session"), connection.cursor() as cursor:
            cursor.execute(
                f"set session lock_wait_timeout = {LOCK_SECONDS}, session innodb_lock_wait_timeout = {LOCK_SECONDS}"
            )
        return connection

    def _read_only_begin(self, session: Connection) -> Sequence[str]:
        limit = self._flavor(session).time_limit.format(PEOPLE_SECONDS)
        return (f"set session {limit}", "start transaction read only")

    def _alive(self, session: Connection) -> bool:
        return bool(session.open)

    def _close(self, session: Connection) -> None:
        session._force_close()
