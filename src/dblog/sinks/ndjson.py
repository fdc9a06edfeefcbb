"""Events as lines of JSON: files in a folder, or standard output.

Each table has a folder, and each batch has files in it: `<batch>-<part>.ndjson`. Sorted by name, the files have the
events in order. Spark's tasks write under temporary names; when all files are complete, the driver renames them. A
batch that comes again replaces its files, so every event is there once.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.settings import Setting, choice, text
from dblog.errors import SinkError
from dblog.sinks.base import Batch, Sink, SinkContext, TableBatch
from dblog.sinks.folder import Folder, folder_name
from dblog.sinks.formats import FORMAT, OLD_ROWS, Formatter, events, formatter
from dblog.sinks.partition_work import each_part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SUFFIX = {"none": ".ndjson", "gz": ".ndjson.gz"}


class NdjsonSink(Sink):
    """Writes files of JSON lines, exactly once."""

    settings = (
        Setting("path", "the folder, with a folder for each table in it", text("a path, or a URL like s3://bucket/x")),
        FORMAT,
        Setting("compression", "gz compresses the files", choice(*SUFFIX), default="none"),
        OLD_ROWS,
    )

    def __init__(self, given: Mapping[str, Any], context: SinkContext) -> None:
        super().__init__(given, context)
        self._folder = Folder.of(given["path"], context)
        self._clean = False

    @property
    def before(self) -> bool:
        return bool(self.given["before"])

    @property
    def folders(self) -> Sequence[str]:
        return (self._folder.uri,)

    def check(self) -> None:
        self._form()
        self._folder.make()

    def write(self, batch: Batch) -> None:
        form = self._form()
        # Only the first batch after a start or an error can have files of an earlier attempt.
        again, self._clean = not self._clean, False
        batch.each(lambda table: self._write(batch.id, table, form, again=again))
        self._clean = True

    def _form(self) -> Formatter:
        return formatter(self.given["format"], self.context)

    def _write(self, number: int, table: TableBatch, form: Formatter, *, again: bool) -> None:
        folder, suffix = self._folder / folder_name(table.schema.table), SUFFIX[self.given["compression"]]
        folder.make()
        begun = [*folder.names(f".{number:020d}-"), *folder.names(f"{number:020d}-")] if again else []
        written = each_part(whole(table, form), WriteLines(folder, f".{number:020d}-", suffix))
        names = {made: f"{number:020d}-{part:05d}{suffix}" for part, made in written.items() if made}
        for name in set(begun) - set(names.values()):
            folder.remove(name)
        for made, name in names.items():
            folder.move(made, name)


@dataclass(frozen=True)
class WriteLines:
    """The work of a task: write its events to a file with a unique name, and return the name. No file without
    events."""

    folder: Folder
    beginning: str
    suffix: str

    def __call__(self, part: int, batches: Iterator[pa.RecordBatch]) -> str:
        filled = (text for text in map(lines, batches) if text.size)
        first = next(filled, None)
        if first is None:
            return ""
        name = f"{self.beginning}{part:05d}-{uuid.uuid4().hex}{self.suffix}"
        compression = "gzip" if self.suffix.endswith(".gz") else None
        with self.folder.writing(name, compression=compression) as file:
            file.write(first)
            for text in filled:
                file.write(text)
        return name


class StdoutSink(Sink):
    """Writes lines to standard output, in commit order, at least once."""

    settings = (FORMAT, OLD_ROWS)

    @property
    def before(self) -> bool:
        return bool(self.given["before"])

    def check(self) -> None:
        formatter(self.given["format"], self.context)

    def write(self, batch: Batch) -> None:
        form = formatter(self.given["format"], self.context)
        frame = reduce(lambda a, b: a.union(b), [whole(table, form) for table in batch.tables])
        if len(batch.tables) > 1:
            frame = frame.orderBy("_lsn", "_seq")
        try:
            # One value per Arrow batch, so that the driver holds only a part of the batch at a time.
            for row in frame.mapInArrow(_texts, "text binary").toLocalIterator():
                sys.stdout.write(bytes(row.text).decode())
            sys.stdout.flush()
        except BrokenPipeError:
            raise SinkError("the reader of standard output has ended", hint="start again with a reader") from None


def whole(table: TableBatch, form: Formatter) -> DataFrame:
    """All events of a table: first the changes in order, then the rows of dumps."""
    frames = [events(table, frame, form) for frame in (table.changes, table.rows) if frame is not None]
    return reduce(lambda a, b: a.union(b), frames)


def lines(batch: pa.RecordBatch) -> pa.Buffer:
    """The values of the events, one per line."""
    values = batch.column("value").drop_null()
    if pc.any(pc.match_substring(values, "\n")).as_py():
        raise SinkError("the formatter returned a text with a line break", hint="write JSON without line breaks")
    text = pc.binary_join_element_wise(values, "\n", "")
    _, offsets, data = text.buffers()
    if not len(text):
        return pa.py_buffer(b"")
    ends = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1]
    return data.slice(int(ends[0]), int(ends[-1] - ends[0]))


def _texts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([lines(batch).to_pybytes()], pa.binary())], names=["text"])
