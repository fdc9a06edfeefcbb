"""How the lake sinks write a batch: each table by the writer that serves it.

    native    Python tasks write files, the driver commits them (`dblog.sinks.lake.native`); needs no connector
    spark     one statement of Spark's connector per table (`dblog.sinks.lake.by_spark`)

Both leave the same tables and the same marks, so a table may change from one writer to the other between batches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from dblog.core.schema import TableName
from dblog.core.settings import Setting, choice, mapping, text
from dblog.errors import ConfigError, SinkError
from dblog.sinks.base import APPLIED, UNKNOWN, Batch, Sink, SinkContext
from dblog.sinks.folder import Folder
from dblog.sinks.lake.by_spark.writer import SparkTables, SparkWriter
from dblog.sinks.lake.chosen import shown
from dblog.sinks.lake.native.writer import NativeTables, NativeWriter
from dblog.sinks.packages import PACKAGE
from dblog.sinks.settings import SCHEMA_CHANGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NATIVE_BYTES = 8 << 30
"""A table of more bytes is written by Spark if Spark has the connector: replaced rows mean that whole files are written
again, which a cluster does faster."""
LARGE = f"more than {NATIVE_BYTES >> 30} GB"
NO_CONNECTOR = "Spark is started without a connector"


class LakeSink(Sink):
    """Writes the source's tables to a lake."""

    format: ClassVar[str]
    """The sink's type, and the name of Spark's format."""

    settings = (
        Setting("path", "the folder of the lake", text("a path or an address that Spark can write to"), default=None),
        Setting("catalog", "a catalog", text("a name"), default=None),
        Setting("options", "of that catalog, as type, uri or warehouse", mapping(), default={}, secret=True),
        Setting("database", "of the catalog, for all tables; without it the source's schema", text(), default=None),
        Setting(
            "mode",
            "what the tables show: current the rows as they are, history every state a row has had, log every change",
            choice("current", "history", "log"),
            default="current",
        ),
        Setting(
            "writer",
            "who writes: native Python, spark its connector, auto decides for each table",
            choice("auto", "native", "spark"),
            default="auto",
        ),
        Setting(
            "maintain",
            "whether the native writer keeps tables fast between batches: auto does, off leaves it to you",
            choice("auto", "off"),
            default="auto",
        ),
        SCHEMA_CHANGES,
        PACKAGE,
    )

    def __init__(self, given: Mapping[str, Any], context: SinkContext) -> None:
        super().__init__(given, context)
        self.writers: dict[TableName, tuple[str, str]] = {}
        """Who has written each table last, and why."""

    # -- what is different -----------------------------------------------------------------------------------------

    @abstractmethod
    def _spark_tables(self) -> SparkTables: ...

    @abstractmethod
    def _native_tables(self) -> NativeTables:
        """Raises ConfigError if the Python package is missing."""

    @abstractmethod
    def _not_native(self) -> str | None:
        """Why the settings cannot be served by the native writer; None if they can."""

    # -- before the start ------------------------------------------------------------------------------------------

    @property
    def _by_spark(self) -> bool:
        """Whether Spark is started with the connector."""
        wanted = self.given["writer"] == "spark" or self.given["package"] is not None
        return wanted or (self.given["writer"] == "auto" and self._not_native() is not None)

    @property
    def cascades(self) -> str:
        native = self.given["writer"] != "spark" and self._not_native() is None
        return APPLIED if native and self.given["mode"] != "log" else UNKNOWN

    @property
    def spark_settings(self) -> Mapping[str, str]:
        return self._spark_tables().settings if self._by_spark else {}

    @property
    def folders(self) -> Sequence[str]:
        warehouse = self.given["options"].get("warehouse", "")  # of a REST catalog it may be a name
        paths = [self.given["path"], warehouse if warehouse.startswith(("/", "file:///")) else None]
        return [Folder.of(path, self.context).uri for path in paths if path]

    def check(self) -> None:
        if self.given["path"] is None and self.given["catalog"] is None:
            raise ConfigError(f"sink {self.format!r} needs the setting 'path' or 'catalog'", hint="set one of them")
        if self.given["writer"] != "spark" and (why := self._not_native()) is not None:
            if self.given["writer"] == "native":
                raise ConfigError(f'sink {self.format!r} cannot have writer = "native": {why}', hint='set "spark"')
        elif self.given["writer"] != "spark":
            self._native_tables()
        if self._by_spark:
            self._spark_tables().settings  # noqa: B018 - raises if there is no connector

    def facts(self) -> Mapping[str, str]:
        found = {"format": self.format, "writer": shown(self.writers) if self.writers else self._expected()}
        native = getattr(self, "_native", None)
        if native is not None and (done := native.maintenance_facts()):
            counts = ", ".join(f"{number} {kind}" for kind, number in done["counts"].items() if number)
            found["maintenance"] = counts or "nothing to do so far"
            if "error" in done:
                found["maintenance"] += f"; failed: {done['error']}"
        return found

    def _expected(self) -> str:
        """Who will write, and why, as far as the settings decide it."""
        if self.given["writer"] == "spark":
            return 'spark (writer = "spark")'
        if (why := self._not_native()) is not None:
            return f"spark ({why})"
        if self.given["writer"] == "native":
            return 'native (writer = "native")'
        if not self._by_spark:
            return f"native ({NO_CONNECTOR})"
        return f"native; spark for tables that have {LARGE} or features that the native writer does not know"

    def open(self, spark: SparkSession) -> None:
        self._spark = spark
        self._native = None if self._not_native() else self._native_writer()
        self._other = SparkWriter(spark, self._spark_tables()) if self._by_spark else None

    def _native_writer(self) -> NativeWriter | None:
        if self.given["writer"] == "spark":
            return None
        return NativeWriter(
            self._spark,
            self._native_tables(),
            self.given["mode"],
            self.given["schema_changes"],
            maintain=self.given["maintain"] == "auto",
        )

    def close(self) -> None:
        if (native := getattr(self, "_native", None)) is not None:
            native.close()

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        names = [table.schema.table for table in batch.tables]
        with nullcontext() if self._native is None else self._native.batch(names):
            self._write(batch)

    def _write(self, batch: Batch) -> None:
        cascading = {table for one in batch.cascades for table in one.rules.tables}
        native = [t for t in batch.tables if self._is_native(t.schema.table, cascading=t.source in cascading)]
        others = [table for table in batch.tables if table not in native]
        if native:
            assert self._native is not None
            self._native.write(batch, native)
        if others:
            assert self._other is not None
            self._other.write(batch, others)

    def _is_native(self, table: TableName, *, cascading: bool) -> bool:
        writer, _ = self.writers[table] = self._chosen(table, cascading=cascading)
        other = self._other if writer == "native" else self._native
        if other is not None:
            other.forget(table)
        return writer == "native"

    def _chosen(self, table: TableName, *, cascading: bool) -> tuple[str, str]:
        """The writer of a table, and why. Only the native writer applies what foreign keys did (`cascading`)."""
        if self._native is None:
            return "spark", self._not_native() or 'writer = "spark"'
        found = self._native.known(table)
        if found is not None and (why := found.unsupported) is not None:
            if self._other is None or cascading:
                spark = 'set writer = "spark", with a PySpark for which there is a connector'
                raise SinkError(
                    f"the native writer cannot write to {self._native.name(table)}: {why}",
                    hint="set cascades to skip: Spark's writer cannot follow foreign keys" if cascading else spark,
                )
            return "spark", why
        if cascading:
            return "native", "foreign keys have changed its rows"
        if self.given["writer"] == "native" or self._other is None:
            return "native", 'writer = "native"' if self.given["writer"] == "native" else NO_CONNECTOR
        if found is not None and found.size > NATIVE_BYTES:
            return "spark", f"it has {LARGE}"
        return "native", "it is small enough"
