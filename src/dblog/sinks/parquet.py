"""The sink `parquet`: a change log in files that every engine reads, with no connector.

    <folder>/<schema>.<table>/batch=<id>/part-*.parquet

The tasks of one Spark job write the files of all tables. Where only Spark can write, or read a table, it does.

A batch is written to a temporary folder and moved to its final one. Then the folder gets a file `_dblog`, which readers
ignore. A batch with that file is complete: when it comes again, nothing is written. A batch without it is replaced.
Object storage cannot move a folder. There a batch is written in place, and its files appear one after the other.

The file has the log position at which the batch ends. A new stream numbers its batches from the beginning again, and
the position tells its batches from those of an earlier stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dblog.core.schema import TableName
from dblog.core.settings import Setting, choice, text
from dblog.errors import SinkError, SinkUnreachable
from dblog.sinks.base import DELIVERED, Batch, Sink, SinkContext, TableBatch
from dblog.sinks.folder import Folder, folder_name
from dblog.sinks.formats import OLD_ROWS
from dblog.sinks.parquet_files import ArrowFiles, WriteParquet, file_schema, publish
from dblog.sinks.s3a import s3a_settings
from dblog.sinks.settings import SCHEMA_CHANGES
from dblog.sinks.storage import Files, reached
from dblog.sinks.table_parts import parts_of, read_in_tasks, weights_of
from dblog.sinks.task_job import run_in_tasks, run_in_threads
from dblog.storage.object_storage import has_no_rename, is_s3
from dblog.work.rows import Typed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WRITING = "_writing"
"""The temporary folder of a table's incomplete batches."""
MARK = "_dblog"
THREADS = 2
"""How many files a task writes at the same time."""

EXACT = {
    # Otherwise Spark writes timestamps as INT96, which other readers take for nanoseconds, and refuses dates before
    # 1582.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""Spark settings with which every value is written unchanged."""


@dataclass
class _Open:
    """A table of the batch that is to be written."""

    table: TableBatch
    home: str
    """The table's folder."""
    to: str
    """The batch's folder in it."""
    written: str
    """The folder that the files are written to."""
    columns: dict[str, str] = field(default_factory=dict)
    """The columns of the files, in the types of Spark."""
    arrow: pa.Schema | None = None
    """The same for tasks that write the files; None if Spark writes them."""


class ParquetSink(Sink):
    """Writes every change and every dump row to files, exactly once."""

    settings = (
        Setting("path", "the folder, or a URL that Spark can write to", text("a path or a URL")),
        Setting("compression", "the compression of files", choice("zstd", "snappy", "gzip", "none"), default="zstd"),
        SCHEMA_CHANGES,
        OLD_ROWS,
    )

    def __init__(self, given: Mapping[str, Any], context: SinkContext) -> None:
        super().__init__(given, context)
        self._folder = Folder.of(given["path"], context).uri.rstrip("/")
        self._in_place = has_no_rename(self._folder)
        self._columns: dict[str, dict[str, str]] = {}
        self._known_types: dict[TableName, tuple[str, pa.Schema, StructType]] = {}

    @property
    def cascades(self) -> str:
        return DELIVERED

    @property
    def before(self) -> bool:
        return bool(self.given["before"])

    @property
    def spark_settings(self) -> Mapping[str, str]:
        return {**EXACT, **s3a_settings(self._folder, self.context.objects)}

    @property
    def folders(self) -> Sequence[str]:
        return (self._folder,)

    def check(self) -> None:
        if is_s3(self._folder):
            Folder(self._folder, self.context.objects).make()
        if "://" in self._folder:  # only Spark can check that
            return
        try:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            raise SinkError(f"cannot write to {self._folder!r}: {error}", hint="check its permissions") from None
        except OSError as error:
            raise SinkUnreachable(
                f"cannot write to {self._folder!r}: {error}", hint="check that it is mounted"
            ) from None

    def open(self, spark: SparkSession) -> None:
        self._spark = spark
        self._version = spark.version  # Spark reads old dates as they are in files that name its version
        of_spark = Files(spark)
        here = is_s3(self._folder) if "://" in self._folder else of_spark.scheme(self._folder) == "file"
        direct = here and not re.search(r"[?@]", self._folder)  # a URL with settings of its own
        self._arrow_files = ArrowFiles(Folder(self._folder, self.context.objects)) if direct else None
        self._files: Files | ArrowFiles = self._arrow_files or of_spark

    def write(self, batch: Batch) -> None:
        # 1. choose who writes each table, and remove what an earlier attempt has left
        begun = run_in_threads(batch.tables, lambda table: self._begin(batch, table))
        opened = [one for one in begun if one is not None]
        # 2. write the files
        self._write_in_tasks([one for one in opened if one.arrow is not None])
        by_spark = {id(one.table): one for one in opened if one.arrow is None}
        rest = replace(batch, tables=tuple(one.table for one in by_spark.values()))
        rest.each(lambda table: self._write_frame(by_spark[id(table)]))
        # 3. move them to their folder, and mark it as complete
        run_in_threads(opened, lambda one: self._end(batch, one))

    def _begin(self, batch: Batch, table: TableBatch) -> _Open | None:
        """The table; None if it has the batch already."""
        home = f"{self._folder}/{folder_name(table.schema.table)}"
        to, beside = f"{home}/batch={batch.id}", f"{home}/{WRITING}/batch={batch.id}"
        with reached(self._folder):
            if self._files.exists(f"{to}/{MARK}"):
                self._same(to, batch)
                return None
            found = _Open(table, home, to, to if self._in_place else beside)
            if self._arrow_files is not None and read_in_tasks([table])[0]:
                self._fit_arrow(found)
            for begun in (beside, to):
                self._files.remove(begun)
            self._files.make(found.written)
        return found

    def _write_in_tasks(self, opened: Sequence[_Open]) -> None:
        """Write the files of tables that tasks can read, all in one job."""
        files = self._arrow_files
        if files is None:
            return
        works = []
        for part in parts_of([one.table for one in opened]):
            one = opened[part.table]
            assert one.arrow is not None
            works.append(WriteParquet(files, one.written, part, one.arrow, self.given["compression"]))
        weights = weights_of([work.part for work in works])
        made = run_in_tasks(self._spark, works, WriteParquet.run, weights, threads=THREADS)
        names: list[list[str]] = [[] for _ in opened]
        for work, name in zip(works, made, strict=True):
            if name:
                names[work.part.table].append(name)
        run_in_threads(
            list(zip(opened, names, strict=True)), lambda written: publish(files, written[0].written, written[1])
        )

    def _write_frame(self, one: _Open) -> None:
        """Let Spark write a table."""
        from pyspark.sql import functions as f

        frame = everything(one.table)
        given = {field.name: field.dataType.simpleString() for field in frame.schema}
        names, nulls = self._fitting(one, given)
        values = [f.lit(None).cast(nulls[c]).alias(c) if c in nulls else f.col(quoted(c)) for c in names]
        with reached(self._folder):
            writer = frame.select(*values).write.mode("overwrite").option("compression", self.given["compression"])
            writer.parquet(one.written)
        one.columns = {name: nulls.get(name, given[name]) for name in names}

    def _fit_arrow(self, one: _Open) -> None:
        """Choose the columns of the table's files, unless Spark is needed to make values of them."""
        arrow, kind = self._types(one.table)
        given = {field.name: field.dataType.simpleString() for field in kind}
        names, nulls = self._fitting(one, given)
        if nulls:
            return
        one.columns = {name: given[name] for name in names}
        chosen = kind if len(names) == len(kind.fields) else type(kind)([kind[name] for name in names])
        facts = {"org.apache.spark.version": self._version, "org.apache.spark.sql.parquet.row.metadata": chosen.json()}
        one.arrow = file_schema(pa.schema([arrow.field(name) for name in names]), facts)

    def _types(self, table: TableBatch) -> tuple[pa.Schema, StructType]:
        """The columns of a table's rows, in the types of Arrow and of Spark."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = table.schema
        known = self._known_types.get(schema.table)
        if known is None or known[0] != schema.version:
            arrow = Typed(schema, self.before, table.cascades).arrow
            known = schema.version, arrow, from_arrow_schema(arrow, prefer_timestamp_ntz=True)
            self._known_types[schema.table] = known
        return known[1:]

    def _end(self, batch: Batch, one: _Open) -> None:
        mark = {"pipeline": self.context.pipeline, "position": batch.position, "columns": one.columns}
        with reached(self._folder):
            if one.written != one.to:
                self._files.move(one.written, one.to)
            self._files.put(f"{one.to}/{MARK}", json.dumps(mark))
        self._columns[one.home] = one.columns

    def _same(self, folder: str, batch: Batch) -> None:
        """Raise SinkError if the folder's batch is one of an earlier stream."""
        found = json.loads(self._files.get(f"{folder}/{MARK}"))
        if found["position"] != batch.position:
            raise SinkError(
                f"{folder!r} has the batch {batch.id} of an earlier stream, which ended at another position",
                hint="a new stream needs a new folder: move the old folder away, or name another one",
            )

    def _fitting(self, one: _Open, given: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """The names of the columns to write, and the types of those that are null: the target has them in a type that
        is not the given one."""
        known = self._columns.get(one.home) or self._last_columns(one.home)
        mode = self.given["schema_changes"]
        if known is None or mode == "evolve":
            return list(given), {}
        new = {name: kind for name, kind in given.items() if known.get(name) != kind}
        if new and mode == "fail":
            raise SinkError(
                f"{one.table.source} has columns that {one.home!r} does not have: "
                + ", ".join(f"{name!r} ({kind})" for name, kind in new.items()),
                hint="set schema_changes = evolve, which adds them",
            )
        return [name for name in given if name in known], {name: known[name] for name in new if name in known}

    def _last_columns(self, home: str) -> dict[str, str] | None:
        matches = (re.fullmatch(r"batch=(\d+)", name) for name in self._files.names(home))
        for number in sorted((int(match[1]) for match in matches if match), reverse=True):
            if self._files.exists(mark := f"{home}/batch={number}/{MARK}"):
                found: dict[str, str] = json.loads(self._files.get(mark))["columns"]
                return found
        return None


def everything(table: TableBatch) -> DataFrame:
    """All rows of a table in a batch: the changes in order, then the rows of dumps."""
    parts = [part for part in (table.changes, table.rows) if part is not None]
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def quoted(name: str) -> str:
    """A column's name for Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
