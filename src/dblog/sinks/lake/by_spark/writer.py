"""Writes a batch by Spark's connectors: for each table one statement, in one commit of the lake.

In mode `current` the MERGE also compares the order of rows, and never replaces a row by an older one.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.errors import AnalysisException
from pyspark.sql.types import DataType

from dblog.core.schema import TableName
from dblog.errors import SinkError, SinkUnreachable
from dblog.sinks.base import Batch, SinkContext, TableBatch
from dblog.sinks.lake.by_spark import current, history
from dblog.sinks.lake.columns import LOG_COLUMNS, Fit, columns_of, fit_table, quoted
from dblog.sinks.lake.marks import BatchMark
from dblog.sinks.net_effect import net
from dblog.sinks.packages import check_loaded, package_of
from dblog.sinks.parquet import EXACT, everything
from dblog.sinks.s3a import s3a_settings
from dblog.sinks.storage import causes, reached

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PACKAGES = "spark.jars.packages"
CONFLICTS = ("Concurrent", "CommitFailedException", "CommitStateUnknownException", "ValidationException")
"""Parts of the names of a connector's exceptions for a conflict with another writer."""


class SparkTables(ABC):
    """What a format does in its own way: names, settings of Spark, marks."""

    format: ClassVar[str]
    """The name of Spark's format, which is also the sink's type."""
    needed: ClassVar[str]
    """A Java class of the connector, to check that Spark has it."""

    def __init__(self, given: Mapping[str, Any], context: SinkContext) -> None:
        self.given = given
        self.context = context

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that Spark must be started with. Raises ConfigError if there is no connector for this
        PySpark."""
        s3a = s3a_settings(self.given["path"] or "", self.context.objects)
        packages = [package_of(self.format, self.given["package"]), s3a.pop(PACKAGES, None)]
        joined = ",".join(package for package in packages if package)
        return {**EXACT, **s3a, **({PACKAGES: joined} if joined else {})}

    def check_loaded(self, spark: SparkSession) -> None:
        """Raise ConfigError unless Spark has the connector."""
        check_loaded(spark, self.format, self.needed, package_of(self.format, self.given["package"]))

    @abstractmethod
    def name(self, table: TableName) -> str:
        """The table in the lake, for Spark's SQL."""

    @abstractmethod
    def mark(self, mark: BatchMark) -> Mapping[str, str]:
        """The Spark settings that add a mark to commits."""

    @abstractmethod
    def last_mark(self, spark: SparkSession, name: str) -> BatchMark | None:
        """The mark of the last commit of this pipeline to a table."""

    @property
    def of_new_tables(self) -> Mapping[str, str]:
        """The properties of tables that Spark's writer creates: with them a MERGE does not write whole files again."""
        return {}

    def properties(self, columns: Mapping[str, DataType], *, widened: bool) -> dict[str, str]:
        """The properties that a table needs for these columns, or (`widened`) for columns whose type changes."""
        return {}

    def make_room(self, spark: SparkSession, table: TableName) -> None:
        """Create the schema or folder of a new table."""
        return


class SparkWriter:
    """Writes tables of a lake by Spark's SQL."""

    def __init__(self, spark: SparkSession, tables: SparkTables) -> None:
        tables.check_loaded(spark)
        self._tables = tables
        self._mode: str = tables.given["mode"]
        self._changes: str = tables.given["schema_changes"]
        self._columns: dict[str, dict[str, DataType]] = {}
        self._marks: dict[str, BatchMark] = {}
        # A mark is a setting of the session that writes. Another session, without it, creates and alters tables.
        self._spark, self._marked = spark.newSession(), spark.newSession()

    def write(self, batch: Batch, tables: Sequence[TableBatch]) -> None:
        for name, value in self._tables.mark(BatchMark(batch.id, batch.position)).items():
            self._marked.conf.set(name, value)
        Batch(batch.id, batch.position, tuple(tables)).each(lambda table: self._write(batch, table))

    def forget(self, table: TableName) -> None:
        """Another writer writes the table now: its columns and its mark change."""
        name = self._tables.name(table)
        self._columns.pop(name, None)
        self._marks.pop(name, None)

    def _write(self, batch: Batch, table: TableBatch) -> None:
        name = self._tables.name(table.schema.table)
        with self._trying(name):
            fit = self._fit(name, table)
            mark = self._marks.get(name) or self._tables.last_mark(self._spark, name)
            if mark is None or not mark.has(batch):
                self._bring(name, table, fit)
                mark = BatchMark(batch.id, batch.position)
            self._marks[name] = mark

    def _bring(self, name: str, table: TableBatch, fit: Fit) -> None:
        """Write the batch's rows of a table."""
        values = self._values(name, table, fit)
        columns = list(values)
        match self._mode:
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

    # -- the table -------------------------------------------------------------------------------------------------

    def _fit(self, name: str, table: TableBatch) -> Fit:
        """Fit the target to the batch's columns, as far as the settings allow."""
        definition = _Definition(self, name, table.schema.table, self._columns.get(name) or self._found(name))
        fit, self._columns[name] = fit_table(definition, table, self._mode, self._changes)
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
        self._tables.make_room(self._spark, table)
        listed = [f"{quoted(c)} {kind.simpleString()}" for c, kind in columns.items()]
        properties = {**self._tables.of_new_tables, **self._tables.properties(columns, widened=False)}
        with_them = f" TBLPROPERTIES ({_listed(properties)})" if properties else ""
        self._spark.sql(f"CREATE TABLE {name} ({', '.join(listed)}) USING {self._tables.format}{with_them}")

    def _change(self, name: str, columns: Mapping[str, DataType], fit: Fit) -> None:
        if properties := self._tables.properties({**columns, **fit.new}, widened=bool(fit.wider)):
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


class _Definition:
    """A table for `fit_table`."""

    def __init__(self, writer: SparkWriter, name: str, table: TableName, columns: dict[str, DataType] | None) -> None:
        self.name = name
        self.columns = columns
        self._writer = writer
        self._table = table

    def create(self, columns: Mapping[str, DataType]) -> None:
        self._writer._create(self.name, self._table, columns)
        self.columns = self._writer._found(self.name)

    def change(self, fit: Fit) -> None:
        self._writer._change(self.name, self.columns or {}, fit)
        self.columns = self._writer._found(self.name)


def _named(values: Mapping[str, Column]) -> list[Column]:
    return [value.alias(name) for name, value in values.items()]


def _listed(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
