"""The sink `noop` reads every row and discards it: to try a source, or to measure."""

from __future__ import annotations

from dblog.sinks.base import Batch, Sink, TableBatch


class NoopSink(Sink):
    """Reads and discards every row. It has no settings."""

    def write(self, batch: Batch) -> None:
        batch.each(_read)


def _read(table: TableBatch) -> None:
    for frame in (table.changes, table.rows):
        if frame is not None:
            frame.write.format("noop").mode("append").save()
