"""How the lake sinks write a batch.

For each table one statement writes all rows of the batch, in one commit of the lake. The commit has a *mark*: the
pipeline, the batch's id and the position at which it ends. A batch whose mark exists is skipped when it comes again. So
every row of a log and a history is written exactly once, and deleted rows do not come back. In mode `current` the MERGE
also compares the order of rows, and never replaces a row by an older one.

A new stream numbers its batches from the beginning, while its positions go on. So a batch was already written if
neither its id nor its position is greater than the mark's.
"""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql.types import DataType

from dblog.core.schema import TableName
from dblog.core.settings import Setting, choice, mapping, text
from dblog.errors import ConfigError, SinkError, SinkUnreachable
from dblog.sinks.base import Batch, Sink, SinkContext, TableBatch
from dblog.sinks.lake import current, history
from dblog.sinks.lake.target import Fit, check_names, columns_of, quoted
from dblog.sinks.net_effect import net
from dblog.sinks.packages import PACKAGE, check_loaded, package_of
from dblog.sinks.parquet import EXACT, everything
from dblog.sinks.settings import SCHEMA_CHANGES
from dblog.sinks.storage import causes, reached

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LOG_COLUMNS = {
    "_op": "string",
    "_lsn": "bigint",
    "_seq": "int",
    "_txid": "bigint",
    "_committed_at": "timestamp",
    "_dump": "string",
    "_schema": "string",
    "_unchanged": "array<string>",
}
OURS = {"current": current.COLUMNS, "history": history.COLUMNS, "log": LOG_COLUMNS}
"""The target's columns beside the table's own, by mode."""
CONFLICTS = ("Concurrent", "CommitFailedException", "CommitStateUnknownException", "ValidationException")
"""Parts of the names of a connector's exceptions for a conflict with another writer."""


class BatchMark(NamedTuple):
    """The last batch of this pipeline in a table."""

    batch: int
    position: int

    def has(self, batch: Batch) -> bool:
        return batch.id <= self.batch and batch.position <= self.position


class LakeSink(Sink):
    """Writes the source's tables to a lake."""

    format: ClassVar[str]
    """The name of Spark's format, which is also the sink's type."""
    needed: ClassVar[str]
    """A Java class of the connector, to check that Spark has it."""

    settings = (
        Setting("path", "the folder of the lake", text("a path or an address that Spark can write to"), default=None),
        Setting("catalog", "a catalog of Spark's", text("a name"), default=None),
        Setting("options", "of that catalog, as type, uri or warehouse", mapping(), default={}, secret=True),
        Setting("database", "of the catalog, for all tables; without it the source's schema", text(), default=None),
        Setting(
            "mode",
            "what the tables show: current the rows as they are, history every state a row has had, log every change",
            choice("current", "history", "log"),
            default="current",
        ),
        SCHEMA_CHANGES,
        PACKAGE,
    )

    def __init__(self, given: Mapping[str, Any], context: SinkContext) -> None:
        super().__init__(given, context)
        self._columns: dict[str, dict[str, DataType]] = {}
        self._marks: dict[str, BatchMark] = {}

    @property
    def spark_settings(self) -> Mapping[str, str]:
        package = package_of(self.format, self.given["package"])
        return {**EXACT, **({"spark.jars.packages": package} if package else {})}

    def check(self) -> None:
        package_of(self.format, self.given["package"])
        if self.given["path"] is None and self.given["catalog"] is None:
            raise ConfigError(f"sink {self.format!r} needs the setting 'path' or 'catalog'", hint="set one of them")

    def open(self, spark: SparkSession) -> None:
        check_loaded(spark, self.format, self.needed, package_of(self.format, self.given["package"]))
        # A mark is a setting of the session that writes. Another session, without it, creates and alters tables.
        self._spark, self._marked = spark.newSession(), spark.newSession()

    # -- what is different -----------------------------------------------------------------------------------------

    @abstractmethod
    def _name(self, table: TableName) -> str:
        """The table in the lake, for Spark's SQL."""

    @abstractmethod
    def _mark(self, batch: Batch) -> Mapping[str, str]:
        """The Spark settings that add a batch's mark to commits."""

    @abstractmethod
    def _last_mark(self, name: str) -> BatchMark | None:
        """The mark of the last commit of this pipeline to a table."""

    def _properties(self, columns: Mapping[str, DataType], *, widened: bool) -> dict[str, str]:
        """The properties that a table needs for these columns, or (`widened`) for columns whose type changes."""
        return {}

    def _make_room(self, table: TableName) -> None:
        """Create the schema or folder of a new table."""
        return

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        for name, value in self._mark(batch).items():
            self._marked.conf.set(name, value)
        batch.each(lambda table: self._write(batch, table))

    def _write(self, batch: Batch, table: TableBatch) -> None:
        name = self._name(table.schema.table)
        with self._trying(name):
            fit = self._fit(name, table)
            mark = self._marks.get(name) or self._last_mark(name)
            if mark is None or not mark.has(batch):
                self._bring(name, table, fit)
                mark = BatchMark(batch.id, batch.position)
            self._marks[name] = mark

    def _bring(self, name: str, table: TableBatch, fit: Fit) -> None:
        """Write the batch's rows of a table."""
        values = self._values(name, table, fit)
        columns = list(values)
        match self.given["mode"]:
            case "current":
                rows = net(table)
                assert rows is not None
                rows = rows.select(*_named(values), "_op", "_lsn", "_seq", "_unchanged", "_whole")
                self._run(rows, lambda source: current.merge(name, source, table, columns))
            case "history":
                now = time.time_ns() // 1000
                emptied = history.truncates_of(table, now)
                frame = everything(table)
                rows = history.versions(table, frame.sparkSession.table(name), columns, values, emptied, now)
                # Spark fails on a MERGE whose source reads its target, so the rows are cached on the executors.
                rows = rows.localCheckpoint()
                self._run(rows, lambda source: history.merge(name, source, table.schema.key, columns, emptied))
            case "log":
                rows = everything(table).select(*_named(values), *LOG_COLUMNS)
                listed = ", ".join(map(quoted, [*columns, *LOG_COLUMNS]))
                self._run(rows, lambda source: f"INSERT INTO {name} ({listed}) SELECT {listed} FROM {source}")

    def _run(self, rows: DataFrame, statement: Callable[[str], str]) -> None:
        """Run a statement on rows, in the session whose commits get the mark."""
        view = f"dblog_{uuid.uuid4().hex}"
        rows.createGlobalTempView(view)
        try:
            self._marked.sql(statement(f"global_temp.{view}"))
        finally:
            rows.sparkSession.catalog.dropGlobalTempView(view)

    def _values(self, name: str, table: TableBatch, fit: Fit) -> dict[str, Column]:
        """The batch's columns in the target's types, without those that are not written."""
        from pyspark.sql import functions as f

        target = {c.lower(): kind for c, kind in self._columns[name].items()}
        return {c: f.col(quoted(c)).cast(target[c.lower()]) for c in table.schema.names if c not in fit.left_out}

    @contextmanager
    def _trying(self, name: str) -> Iterator[None]:
        """Around writing to a table: on failure, drop the cached columns and mark of the table."""
        try:
            with reached(name):
                yield
        except BaseException as error:
            self._columns.pop(name, None)
            self._marks.pop(name, None)
            said = causes(error)
            if any(word in line.partition(":")[0] for word in CONFLICTS for line in said):
                raise SinkUnreachable(
                    f"somebody else writes to {name}: {said[-1]}", hint="it is tried again"
                ) from error
            raise

    # -- the target ------------------------------------------------------------------------------------------------

    def _fit(self, name: str, table: TableBatch) -> Fit:
        """Fit the target to the batch's columns, as far as the settings allow."""
        source = {c: kind for c, kind in columns_of(everything(table).schema).items() if c in table.schema.names}
        ours = OURS[self.given["mode"]]
        found = self._columns.get(name) or self._found(name)
        if found is None:
            check_names(str(table.source), list(source), list(ours))
            self._create(name, table.schema.table, source)
            found = self._found(name)
            assert found is not None
        if missing := sorted(set(ours) - set(found)):
            raise SinkError(
                f"the table {name} is not of the mode {self.given['mode']!r}: it has no columns {missing}",
                hint="write to another folder or catalog, or set the mode with which the table was made",
            )
        fit = Fit(name, source, found, self.given["schema_changes"])
        if lost := sorted(fit.left_out & set(table.schema.key)):
            raise SinkError(
                f"the key columns {lost} of {table.source} do not fit the table {name}",
                hint="set schema_changes = evolve, or write to a new table",
            )
        if fit.new or fit.wider:
            check_names(str(table.source), list(source), list(ours))
            self._change(name, fit)
            found = self._found(name)
            assert found is not None
        self._columns[name] = found
        return fit

    def _found(self, name: str) -> dict[str, DataType] | None:
        """The columns of a table; None if it does not exist."""
        try:
            return columns_of(self._spark.table(name).schema)
        except AnalysisException as error:
            if "NOT_FOUND" in (error.getCondition() or "") or "NOT_EXIST" in (error.getCondition() or ""):
                return None
            raise

    def _create(self, name: str, table: TableName, columns: Mapping[str, DataType]) -> None:
        self._make_room(table)
        listed = [f"{quoted(c)} {kind.simpleString()}" for c, kind in columns.items()]
        listed += [f"{c} {kind}" for c, kind in OURS[self.given["mode"]].items()]
        properties = self._properties(columns, widened=False)
        with_them = f" TBLPROPERTIES ({_listed(properties)})" if properties else ""
        self._spark.sql(f"CREATE TABLE {name} ({', '.join(listed)}) USING {self.format}{with_them}")

    def _change(self, name: str, fit: Fit) -> None:
        if properties := self._properties(fit.new, widened=bool(fit.wider)):
            self._spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({_listed(properties)})")
        if fit.new:
            added = ", ".join(f"{quoted(c)} {kind.simpleString()}" for c, kind in fit.new.items())
            self._spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({added})")
        for column, kind in fit.wider.items():
            try:
                self._spark.sql(f"ALTER TABLE {name} ALTER COLUMN {quoted(column)} TYPE {kind.simpleString()}")
            except AnalysisException as error:
                raise SinkError(
                    f"the column {column!r} of {name} cannot become {kind.simpleString()}: {causes(error)[0]}",
                    hint="set schema_changes = ignore to leave the column as it is, or write to a new table",
                ) from error


def _named(values: Mapping[str, Column]) -> list[Column]:
    return [value.alias(name) for name, value in values.items()]


def _listed(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
