"""How the sink writes a batch.

The executors load the net effect of each table's changes (`dblog.sinks.net_effect`) into staging tables. Then the
driver applies all of them and records the batch, in one transaction. So a batch is written completely and once, or not
at all.

Every row of the target has the order (`_lsn`, `_seq`) of its last change, and only a newer state replaces it. So
several pipelines of one source can write to one table, and a batch can come again, without a row going back in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dblog.core.settings import Setting, choice, text
from dblog.databases.families import entries, entry_of, import_object
from dblog.errors import ConfigError, SinkError, SinkUnreachable
from dblog.sinks.base import Batch, Sink, SinkContext, TableBatch
from dblog.sinks.net_effect import net, signed_key
from dblog.sinks.settings import SCHEMA_CHANGES
from dblog.sinks.sql.ledger import Ledger, deleted
from dblog.sinks.sql.load import load
from dblog.sinks.sql.tables import Fitted, TargetTables
from dblog.sinks.sql.target import GONE, STAGED, Session, StagedRows, Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class Share:
    """A batch's rows of one table, on their way to the target."""

    table: TableBatch
    into: Fitted
    rows: DataFrame | None
    stage: str
    """The quoted name of the staging table. It exists only if there are rows."""
    tasks: tuple[int, ...] = ()
    """The Spark tasks whose rows in it count."""


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
        self._ledger = Ledger(self._target, given["records"], context.pipeline)
        self._tables = TargetTables(
            self._target, self._ledger, schema=given["schema"], mode=given["schema_changes"], soft=self._soft
        )
        self._session: Session | None = None

    def check(self) -> None:
        session = self._target.connect()
        try:
            self._make(session)
        finally:
            session.close()

    def open(self, spark: SparkSession) -> None:
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
            for number, table in enumerate(batch.tables):
                into = self._tables.fit(session, table.schema)
                stage = self._ledger.name(self._ledger.new_stage(batch.id, number))
                shares.append(Share(table, into, net(table), stage))
            self._load(session, batch, shares)
            self._apply(session, batch, shares)
        except BaseException:
            self._drop(shares)
            self._forget()
            raise
        self._drop(shares)

    # -- connection --------------------------------------------------------------------------------------------------

    def _connected(self) -> Session:
        if self._session is None:
            session = self._target.connect()
            self._make(session)
            self._ledger.enter_pipeline(session)
            self._ledger.sweep(session)
            self._session = session
        return self._session

    def _make(self, session: Session) -> None:
        with self._target.alone(session):
            self._ledger.make(session)
            if self.given["schema"]:
                self._target.create_schema(session, self.given["schema"])

    def _forget(self) -> None:
        """Drop the connection and everything that is remembered about the target."""
        if self._session is not None:
            self._session.close()
        self._session = None
        self._tables.forget()

    def _drop(self, shares: Sequence[Share]) -> None:
        with suppress(SinkError):  # otherwise the next start drops them
            for share in shares:
                if self._session is not None and share.rows is not None:
                    self._session.run(f"drop table if exists {share.stage}")

    # -- staging -----------------------------------------------------------------------------------------------------

    def _load(self, session: Session, batch: Batch, shares: Sequence[Share]) -> None:
        """Load the rows of all tables into staging tables, a few tables at the same time."""
        for share in shares:
            if share.rows is not None:
                self._create_stage(session, share)
        of = {id(share.table): share for share in shares}

        def stage(table: TableBatch) -> None:
            share = of[id(table)]
            if share.rows is not None:
                names = (*share.into.types, *STAGED[:-1])
                rows, into = self._prepared(share.rows, share, names), share.into
                share.tasks = load(rows, names, self._target, share.stage, into.name, into.key)

        batch.each(stage)

    def _create_stage(self, session: Session, share: Share) -> None:
        kinds = ("boolean", "bigint", "int", self._target.unchanged, "boolean", "bigint")
        columns = [
            f"{self._target.quoted(n)} {kind if n in share.into.key else self._target.staged_type(kind)} null"
            for n, kind in share.into.types.items()
        ]
        columns += [f"{n} {kind} null" for n, kind in zip(STAGED, kinds, strict=True)]
        options = self._target.table_options(session)
        session.run(f"{self._target.scratch} {share.stage} ({', '.join(columns)}){options}", f"creating {share.stage}")

    def _prepared(self, rows: DataFrame, share: Share, names: Sequence[str]) -> DataFrame:
        """The rows with the columns of the staging table. A soft delete is a row with only its key."""
        from pyspark.sql import functions as f

        schema = share.table.schema
        gone = f.col("_op") == "delete"
        unchanged, whole = f.col("_unchanged"), f.col("_whole")
        if self._soft:
            rest = [f.lit(n) for n in schema.names if n not in schema.key]
            unchanged = f.when(gone, f.array(*rest)).otherwise(unchanged)
            whole = whole & ~gone
        rows = rows.withColumns({GONE: gone, "_gone": gone, "_unchanged": unchanged, "_whole": whole})
        kinds = {c.name: c.arrow for c in schema.columns} | {"_unchanged": pa.list_(pa.string())}
        cells = [self._target.cell(n, kinds.get(n, pa.null())) for n in names]
        return rows.select(
            *(cell.alias(f"c{n}") for n, cell in enumerate(cells))
        )  # Spark fails on names with special characters

    # -- the transaction ---------------------------------------------------------------------------------------------

    def _apply(self, session: Session, batch: Batch, shares: Sequence[Share]) -> None:
        with session.transaction():
            if self._ledger.taken(session, batch.id, batch.position, lock=True):
                return
            least = self._ledger.least(session, batch.position)
            # Always in the same order, so that two pipelines cannot deadlock.
            for share in sorted(shares, key=lambda share: share.into.id):
                self._apply_share(session, share, least)
            self._ledger.record(session, batch.id, batch.position)

    def _apply_share(self, session: Session, share: Share, least: int) -> None:
        into, target, ledger = share.into, self._target, self._ledger
        doing = f"writing table {into.name}"
        known = ledger.known(session, into.id, lock=True)
        if known is None:
            raise SinkUnreachable(f"the ledger has no entry for table {into.name} any more")
        emptied = known.emptied
        if share.table.truncated is not None and share.table.truncated > emptied:
            emptied = share.table.truncated
            self._empty(session, into, emptied)
        if share.tasks:
            staged = self._staged(share)
            if not self._soft:
                session.run(target.deletes(staged), doing)
                session.run(target.tombstones(staged, least, emptied), doing)
            for statement in target.upserts(staged, target.alive(staged, emptied, soft=self._soft)):
                session.run(statement, doing)
        session.run(f"delete from {ledger.name(deleted(into.id))} where _lsn < {least}", doing)

    def _empty(self, session: Session, into: Fitted, at: tuple[int, int]) -> None:
        """Delete all rows that are older than the truncate."""
        table = self._target.quoted(*into.name)
        soft = f"update {table} set {GONE} = true, _lsn = {at[0]}, _seq = {at[1]}"
        change = soft if self._soft else f"delete from {table}"
        session.run(f"{change} where (_lsn, _seq) < ({at[0]}, {at[1]})", f"emptying table {into.name}")
        self._ledger.empty(session, into.id, at)

    def _staged(self, share: Share) -> StagedRows:
        quoted, into = self._target.quoted, share.into
        return StagedRows(
            stage=share.stage,
            table=quoted(*into.name),
            deleted=self._ledger.name(deleted(into.id)),
            key=tuple(map(quoted, into.key)),
            signed=tuple(map(quoted, signed_key(share.table.schema))),
            columns=tuple(map(quoted, into.types)),
            names={quoted(n): n for n in into.types},
            types={quoted(n): kind for n, kind in into.types.items()},
            incomplete=share.table.incomplete or self._soft,
            tasks=share.tasks,
        )


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
