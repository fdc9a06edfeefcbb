"""The quarantine of a stream: the raw values of its batches (`core.raw_values`), in files beside its checkpoint.

    quarantine/<position>-<batch>.ndjson

A line has the table, the key of the row, the column, the database's text of the value, the operation and the place in
the log. A batch has a file only if it has raw values. The file is written before the batch is committed; a batch that
is repeated writes the same file again. What a route leaves out or masks is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import RAW
from dblog.core.raw_values import OLD, by_row, some
from dblog.core.schema import TableName
from dblog.sinks.base import Batch, TableBatch
from dblog.work.json_text import json_object

if TYPE_CHECKING:
    from dblog.pipelines.stream_folder import StreamFolder

FOLDER = "quarantine"


class Quarantine:
    """Keeps the raw values of one stream."""

    def __init__(self, folder: StreamFolder) -> None:
        self._folder = folder

    def keep(self, batch: Batch, tables: Collection[TableName]) -> None:
        """Write the raw values that a batch has for these source tables."""
        lines = [line for table in batch.tables if table.source in tables for line in _lines(table)]
        if lines:
            name = f"{FOLDER}/{batch.position}-{batch.id}.ndjson"
            self._folder.write(name, "".join(f"{line}\n" for line in lines))


def _lines(table: TableBatch) -> Iterator[str]:
    for rows in _rows(table):
        if not some(rows):
            continue
        rows = rows.filter(pc.is_valid(rows.column(RAW)))
        keys = json_object(table.schema.key, [rows.column(name) for name in table.schema.key]).to_pylist()
        place = rows.select(["_op", "_lsn", "_seq"]).to_pylist()
        for row, texts in by_row(rows.column(RAW)).items():
            for column, text in texts.items():
                if column.startswith(OLD):
                    continue  # it was in the quarantine when it was the row's value
                told = {"table": str(table.source), "key": json.loads(keys[row]), "column": column, "text": text}
                at = {"op": place[row]["_op"], "lsn": place[row]["_lsn"], "seq": place[row]["_seq"]}
                yield json.dumps({**told, **at}, ensure_ascii=False)


def _rows(table: TableBatch) -> Iterable[pa.RecordBatch]:
    """The rows of a table: read here if that is possible, else by Spark."""
    if table.arrow is not None:
        yield from table.arrow.changes()
        yield from table.arrow.dump_rows()
        return
    for frame in (table.changes, table.rows):
        if frame is not None:
            for batch in frame.where(f"{RAW} is not null").toArrow().to_batches():
                yield batch.rename_columns(list(frame.columns))
