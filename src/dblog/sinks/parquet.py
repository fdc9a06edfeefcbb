"""The sink `parquet`: a change log in files that every engine reads, with no connector.

    <folder>/<schema>.<table>/batch=<id>/part-*.parquet

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dblog.core.settings import Setting, choice, text
from dblog.errors import SinkError, SinkUnreachable
from dblog.sinks.base import Batch, Sink, SinkContext, TableBatch
from dblog.sinks.folder import Folder, folder_name
from dblog.sinks.formats import OLD_ROWS
from dblog.sinks.s3a import s3a_settings
from dblog.sinks.settings import SCHEMA_CHANGES
from dblog.sinks.storage import Files, reached
from dblog.storage.object_storage import has_no_rename, is_s3

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITING = "_writing"
"""The temporary folder of a table's incomplete batches."""
MARK = "_dblog"

EXACT = {
    # Otherwise Spark writes timestamps as INT96, which other readers take for nanoseconds, and refuses dates before
    # 1582.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""Spark settings with which every value is written unchanged."""


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
        self._files = Files(spark)

    def write(self, batch: Batch) -> None:
        batch.each(lambda table: self._write(batch, table))

    def _write(self, batch: Batch, table: TableBatch) -> None:
        home = f"{self._folder}/{folder_name(table.schema.table)}"
        to, beside = f"{home}/batch={batch.id}", f"{home}/{WRITING}/batch={batch.id}"
        with reached(self._folder):
            if self._files.exists(f"{to}/{MARK}"):
                self._same(to, batch)
                return
            frame = self._fitting(home, everything(table), table)
            for begun in (beside, to):
                self._files.remove(begun)
            written = to if self._in_place else beside
            self._files.make(written)
            frame.write.mode("overwrite").option("compression", self.given["compression"]).parquet(written)
            columns = {field.name: field.dataType.simpleString() for field in frame.schema}
            mark = {"pipeline": self.context.pipeline, "position": batch.position, "columns": columns}
            if not self._in_place:
                self._files.move(beside, to)
            self._files.put(f"{to}/{MARK}", json.dumps(mark))
        self._columns[home] = columns

    def _same(self, folder: str, batch: Batch) -> None:
        """Raise SinkError if the folder's batch is one of an earlier stream."""
        found = json.loads(self._files.get(f"{folder}/{MARK}"))
        if found["position"] != batch.position:
            raise SinkError(
                f"{folder!r} has the batch {batch.id} of an earlier stream, which ended at another position",
                hint="a new stream needs a new folder: move the old folder away, or name another one",
            )

    def _fitting(self, home: str, frame: DataFrame, table: TableBatch) -> DataFrame:
        """The rows with the target's columns."""
        from pyspark.sql import functions as f

        known = self._columns.get(home) or self._last_columns(home)
        mode = self.given["schema_changes"]
        if known is None or mode == "evolve":
            return frame
        new = {
            c.name: c.dataType.simpleString() for c in frame.schema if known.get(c.name) != c.dataType.simpleString()
        }
        if new and mode == "fail":
            raise SinkError(
                f"{table.source} has columns that {home!r} does not have: "
                + ", ".join(f"{name!r} ({kind})" for name, kind in new.items()),
                hint="set schema_changes = evolve, which adds them",
            )
        values = [
            f.lit(None).cast(known[c]).alias(c) if c in new else f.col(quoted(c)) for c in frame.columns if c in known
        ]
        return frame.select(*values)

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
