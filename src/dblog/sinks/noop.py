"""The sink `noop` reads every row and discards it: to try a source, or to measure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dblog.sinks.base import DELIVERED, Batch, Sink, TableBatch
from dblog.sinks.table_parts import Part, parts_of, weights_of
from dblog.sinks.task_job import run_in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class NoopSink(Sink):
    """Reads and discards every row. It has no settings."""

    _spark: SparkSession | None = None

    @property
    def cascades(self) -> str:
        return DELIVERED

    def open(self, spark: SparkSession) -> None:
        self._spark = spark

    def write(self, batch: Batch) -> None:
        parts = parts_of([table for table in batch.tables if table.arrow is not None])
        run_in_tasks(self._spark, parts, _read, weights_of(parts))
        replace(batch, tables=tuple(table for table in batch.tables if table.arrow is None)).each(_read_frames)


def _read(part: Part) -> None:
    for _ in part.batches():
        pass


def _read_frames(table: TableBatch) -> None:
    for frame in (table.changes, table.rows):
        if frame is not None:
            frame.write.format("noop").mode("append").save()
