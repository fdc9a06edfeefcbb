"""How the sink writes a batch.

1. Tasks of one Spark job load the rows into staging tables (`load`). Changes come as their net effect, in windows. Rows
   of a first dump go into the table itself. Tables with few rows are left to the driver: it puts their rows into the
   statements.
2. The driver applies all rows and records the batch, in one transaction (`apply`) of few round trips. So a batch is
   written completely and once, or not at all; only rows of a first dump are there before, in the state of the batch.

Every row of the target has the order (`_lsn`, `_seq`) of its last change, and only a newer state replaces it. So
several pipelines of one source can write to one table, and a batch can come again, without a row going back in time.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dblog.core.settings import Setting, choice, text
from dblog.databases.families import entries, entry_of, import_object
from dblog.errors import ConfigError, SinkError, SinkUnreachable
from dblog.sinks.base import APPLIED, Batch, Sink, SinkContext, TableBatch
from dblog.sinks.net_effect import net
from dblog.sinks.settings import SCHEMA_CHANGES
from dblog.sinks.sql.apply import Application, Share, in_order
from dblog.sinks.sql.cascades import Cascading, cascading, without_rows
from dblog.sinks.sql.ledger import Ledger
from dblog.sinks.sql.load import Loaded, Loading, Part, explained, load_frame, load_part, load_windows
from dblog.sinks.sql.rows import TableShape, change_windows, dump_windows
from dblog.sinks.sql.staged import STAGED, Inline
from dblog.sinks.sql.tables import Fitted, TargetTables
from dblog.sinks.sql.target import Session, Statement, Target, about_table
from dblog.sinks.sql.text import Refused
from dblog.sinks.task_job import run_in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW_BYTES, FEW_BYTES_IN_ALL = 128 << 10, 8 << 20
"""Rows of a table that take at most this many bytes are put into the statements, as long as those of all such tables
take no more than the second figure."""
READERS = 8
"""How many tables with few rows the driver reads at the same time."""
THREADS = 2
"""How many pieces of work a task loads at the same time: one sends rows while the other one is computed."""


class SqlSink(Sink):
    """Writes to tables of PostgreSQL, MySQL or MariaDB, exactly once."""

    settings = (
        Setting("url", "the target, as postgresql://, mysql:// or mariadb://", text("a URL"), secret=True),
        SCHEMA_CHANGES,
        Setting("schema", "the schema (MySQL: database) of all tables; default: the source's", text(), default=None),
        Setting(
            "deletes", "hard deletes rows, soft keeps them and sets _deleted", choice("hard", "soft"), default="hard"
        ),
        Setting("records", "the schema (MySQL: database) of the sink's own tables", text(), default="dblog"),
    )

    def __init__(self, given: Mapping[str, Any], context: SinkContext) -> None:
        super().__init__(given, context)
        self._soft = given["deletes"] == "soft"
        self._target = target_of(given["url"])
        self._ledger = Ledger(self._target, given["records"], context.pipeline, context.epoch)
        self._tables = TargetTables(
            self._target, self._ledger, schema=given["schema"], mode=given["schema_changes"], soft=self._soft
        )
        self._application = Application(self._target, self._ledger, soft=self._soft)
        self._session: Session | None = None
        self._spark: SparkSession | None = None
        self._kept: dict[str, str] = {}
        """By table, the columns of the staging table for a few rows that this session has made."""
        self._cascading: Cascading | None = None
        """The cascades of the batch that is being written."""
        self._indexed: set[str] = set()
        """The indexes that cascades need and that this session has found or made."""

    @property
    def cascades(self) -> str:
        return APPLIED

    @property
    def years(self) -> str | None:
        return self._target.years

    def check(self) -> None:
        session = self._target.connect()
        try:
            self._make(session)
        finally:
            session.close()

    def fence(self) -> None:
        self._connected()

    def open(self, spark: SparkSession) -> None:
        self._spark = spark
        with suppress(SinkUnreachable):  # `write` waits for the target
            self._connected()

    def close(self) -> None:
        self._forget()

    def write(self, batch: Batch) -> None:
        shares: list[Share] = []
        try:
            session = self._connected()
            if self._ledger.taken(session, batch.id, batch.position):
                return
            shares += self._shares(session, batch)
            self._cascading = cascading(self._target, self._ledger, batch, shares, soft=self._soft)
            self._load(session, batch, self._uncut(session, shares))
            try:
                self._apply(session, batch, shares)
            except SinkUnreachable:
                raise
            except SinkError:  # the error of many statements does not say which of them has failed, and for which row
                self._apply_apart(session, batch, shares)
        except BaseException:
            self._drop(shares)
            self._forget()
            raise
        self._drop(shares)

    def _uncut(self, session: Session, shares: Sequence[Share]) -> list[Share]:
        """The shares that are loaded as a whole. Those that cascades cut are staged here."""
        if self._cascading is None:
            return list(shares)
        cut = self._cascading.load(session, self._indexed)
        for share in cut:
            without_rows(share)
        return [share for share in shares if all(share is not other for other in cut)]

    # -- connection --------------------------------------------------------------------------------------------------

    def _connected(self) -> Session:
        if self._session is None:
            session = self._target.connect()
            try:
                if self.context.epoch is not None:
                    self._target.claim(session, self._ledger.claim)
                self._make(session)
                self._ledger.enter_pipeline(session)
                self._ledger.fence(session)
                self._ledger.sweep(session)
            except BaseException:
                session.close()
                raise
            self._session = session
        return self._session

    def _make(self, session: Session) -> None:
        with self._target.alone(session):
            self._ledger.make(session)
            if self.given["schema"]:
                self._target.create_schemas(session, [self.given["schema"]])

    def _forget(self) -> None:
        """Drop the connection and everything that is remembered about the target."""
        if self._session is not None:
            self._session.close()
        self._session = None
        self._indexed.clear()
        self._tables.forget()
        self._kept.clear()

    def _drop(self, shares: Sequence[Share]) -> None:
        """Drop the staging tables: those of the batch, and any that late tasks of earlier batches have made."""
        if self._session is not None and (self._cascading or any(not share.few for share in shares)):
            with suppress(SinkError):  # otherwise the next start drops them
                self._ledger.sweep(self._session)

    # -- staging -----------------------------------------------------------------------------------------------------

    def _shares(self, session: Session, batch: Batch) -> list[Share]:
        schemas = [table.schema for table in batch.tables]
        try:
            found = self._tables.fit(session, schemas)
        except SinkUnreachable:
            raise
        except SinkError:
            with session.apart():  # so the error says which statement has failed, and for which table
                for table in batch.tables:
                    with about_table(table.source):
                        self._tables.fit(session, [table.schema])
                found = self._tables.fit(session, schemas)
        pairs = zip(batch.tables, found, strict=True)
        return in_order(Share(table, into, self._loading(session, table, into)) for table, into in pairs)

    def _loading(self, session: Session, table: TableBatch, into: Fitted) -> Loading:
        target = self._target
        added = ("boolean not null default false", "bigint", "int", target.unchanged, "boolean not null default false")
        columns = [
            f"{target.quoted(n)} {kind if n in into.key else target.staged_type(kind)} null"
            for n, kind in into.types.items()
        ]
        columns += [f"{n} {kind}" for n, kind in zip(STAGED, added, strict=True)]
        kinds = dict(zip(STAGED, ("boolean", "bigint", "integer", target.unchanged, "boolean"), strict=True))
        return Loading(
            target,
            table.source,
            TableShape(
                table.schema,
                tuple(into.types),
                self._soft,
                table.truncated,
                target if target.of_family(table.schema) else None,
            ),
            into.name,
            target.quoted(*into.name),
            {**into.types, **kinds},
            self._ledger.stage,
            f"({', '.join(columns)}){target.table_options(session)}",
            self._ledger.ask_token(into.id),
        )

    def _load(self, session: Session, batch: Batch, shares: Sequence[Share]) -> None:
        """Have the rows of all tables staged, or in the case of a first dump inserted."""
        left = FEW_BYTES_IN_ALL
        for share in shares:
            weight = FEW_BYTES + 1 if share.table.arrow is None else share.table.arrow.weight
            share.few = weight <= min(FEW_BYTES, left)
            left -= weight if share.few else 0
        self._read_few(session, [share for share in shares if share.few])
        others = [share for share in shares if not share.few]
        if loaded := [share for share in others if share.table.arrow is not None]:
            self._run_job(session, loaded)
        of = {id(share.table): share for share in others}

        def load(table: TableBatch) -> None:
            share, rows = of[id(table)], net(table)
            if rows is not None:
                with about_table(table.source):
                    stages = load_frame(rows, share.loading)
                share.staged += [(Inline(f"{stage.name} as _s"), stage.kinds) for stage in stages]

        Batch(batch.id, batch.position, tuple(s.table for s in others if s.table.arrow is None)).each(load)

    def _read_few(self, session: Session, shares: Sequence[Share]) -> None:
        """Read the rows of tables with few rows, and make parts of statements of them."""
        if self._target.keeps_stages:
            self._keep_stages(session, shares)

        def read(share: Share) -> None:
            rows, loading = share.table.arrow, share.loading
            assert rows is not None
            kinds = {**share.into.plain, **{n: loading.types[n] for n in STAGED}}
            windows = [*change_windows(rows.changes(), loading.shape)]
            for part in rows.dump_parts():
                windows += dump_windows(part.dump_rows(), loading.shape)
            for staged, found in windows:
                try:
                    share.staged.append((self._target.inline(staged, kinds, self._ledger.few(share.into.id)), found))
                except Refused as refused:
                    with about_table(share.table.source):
                        raise explained(refused, staged, loading) from refused

        if shares:
            with ThreadPoolExecutor(READERS, thread_name_prefix="dblog-sink") as pool:
                list(pool.map(read, shares))

    def _keep_stages(self, session: Session, shares: Sequence[Share]) -> None:
        """Make staging tables for few rows, once per session and definition."""
        new = [share for share in shares if self._kept.get(share.into.id) != share.loading.create]
        statements = []
        for share in new:
            stage, doing = self._ledger.few(share.into.id), f"creating a staging table for {share.into.name}"
            statements += [Statement(f"drop table if exists {stage}", doing)]
            statements += [Statement(f"{self._target.scratch} {stage} {share.loading.create}", doing)]
        session.run_all(statements)
        self._kept |= {share.into.id: share.loading.create for share in new}

    def _run_job(self, session: Session, shares: Sequence[Share]) -> None:
        """Load the rows of tables in the tasks of one Spark job."""
        dumped = {share.into.id: share.table.arrow.dump_parts() for share in shares if share.table.arrow is not None}
        alone = [s.into.id for s in shares if dumped[s.into.id] and s.table.truncated is None and self._alike(s.into)]
        token = secrets.token_hex(8)
        direct = self._ledger.start_filling(session, alone, token)
        parts: list[tuple[Share, Part]] = []
        for share in shares:
            assert share.table.arrow is not None
            parts += [(share, Part(share.loading, rows, log=True)) for rows in share.table.arrow.log_parts()]
            allowed = token if share.into.id in direct else ""
            parts += [(share, Part(share.loading, rows, False, allowed)) for rows in dumped[share.into.id]]
        works = [part for _, part in parts]
        assert self._spark is not None
        loaded = run_in_tasks(self._spark, works, load_part, [part.rows.weight for part in works], threads=THREADS)
        for (share, _), done in zip(parts, loaded, strict=True):
            _note(share, done)

    def _alike(self, into: Fitted) -> bool:
        """Whether a staging table has the table's own types. Other values need the statements that apply them."""
        return all(self._target.staged_type(kind) == kind for n, kind in into.types.items() if n not in into.key)

    # -- the transaction ---------------------------------------------------------------------------------------------

    def _apply(self, session: Session, batch: Batch, shares: Sequence[Share]) -> None:
        with session.transaction():
            if self._ledger.taken(session, batch.id, batch.position, lock=True):
                return
            least = self._ledger.least(session, batch.position)
            known = self._ledger.known(session, [share.into.id for share in shares], lock=True)
            shared = self._ledger.shared(session, [table for table, entry in known.items() if entry.filling])
            session.run_all(self._application.statements(shares, known, shared, least))
            if self._cascading is not None:
                self._cascading.apply(session, self._application, known, least)
            self._ledger.record(session, batch.id, batch.position)

    def _apply_apart(self, session: Session, batch: Batch, shares: Sequence[Share]) -> None:
        """Apply the batch once more, statement by statement, with all rows in staging tables."""
        for share in shares:
            if share.few:
                share.staged, share.few = [], False
                with about_table(share.table.source):
                    self._stage_few(share)
        with session.apart():
            self._apply(session, batch, shares)

    def _stage_few(self, share: Share) -> None:
        rows, loading = share.table.arrow, share.loading
        assert rows is not None
        for window in change_windows(rows.changes(), loading.shape):
            _note(share, load_windows(loading, [window]))
        for part in rows.dump_parts():
            _note(share, load_windows(loading, dump_windows(part.dump_rows(), loading.shape)))


def _note(share: Share, loaded: Loaded) -> None:
    share.staged += [(Inline(f"{stage.name} as _s"), stage.kinds) for stage in loaded.stages]
    share.full = share.full or loaded.full


def target_of(url: str) -> Target:
    """The target that a URL names. Raises ConfigError."""
    found = entry_of(url)
    if found is None or found.target is None:
        known = [scheme for entry in entries() if entry.target is not None for scheme in entry.schemes]
        raise ConfigError(
            "the setting 'url' of the sink is not the URL of a supported database",
            hint=f"it must begin with one of {', '.join(f'{scheme}://' for scheme in known)}",
        )
    target: Target = import_object(found.target)(url)
    return target
