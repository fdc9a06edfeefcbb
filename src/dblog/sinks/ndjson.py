"""Events as lines of JSON: files in a folder, or standard output.

Each table has a folder, and each batch has files in it: `<batch>-<part>.ndjson`. Sorted by name, the files have the
events in order. The tasks of one Spark job write the files of all tables under temporary names; when all files are
complete, the driver renames them. A batch that comes again replaces its files, so every event is there once.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.settings import Setting, choice, text
from dblog.errors import SinkError
from dblog.sinks.base import DELIVERED, Batch, Sink, SinkContext, TableBatch
from dblog.sinks.folder import Folder, folder_name
from dblog.sinks.formats import FORMAT, OLD_ROWS, Formatter, events, events_of, formatter
from dblog.sinks.partition_work import each_part
from dblog.sinks.table_parts import Part, parts_of, read_in_tasks, weights_of
from dblog.sinks.task_job import DRIVER_BYTES, run_in_tasks, run_in_threads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THREADS = 2
"""How many files a task writes at the same time."""
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
        self._spark: SparkSession | None = None

    @property
    def cascades(self) -> str:
        return DELIVERED

    @property
    def before(self) -> bool:
        return bool(self.given["before"])

    @property
    def folders(self) -> Sequence[str]:
        return (self._folder.uri,)

    def check(self) -> None:
        self._form()
        self._folder.make()

    def open(self, spark: SparkSession) -> None:
        self._spark = spark

    def write(self, batch: Batch) -> None:
        form = self._form()
        # Only the first batch after a start or an error can have files of an earlier attempt.
        again, self._clean = not self._clean, False
        self._write_in_tasks(batch, form, again=again)
        self._write_frames(batch, form, again=again)
        self._clean = True

    def _form(self) -> Formatter:
        return formatter(self.given["format"], self.context)

    def _write_in_tasks(self, batch: Batch, form: Formatter, *, again: bool) -> None:
        """Write the tables that tasks can read, all in one job."""
        tables, _ = read_in_tasks(batch.tables)
        begun = run_in_threads(tables, lambda table: self._begin(batch, table, again=again))
        parts = parts_of(tables)
        works = [(self._lines(batch, tables[part.table]), part, form) for part in parts]
        made = run_in_tasks(self._spark, works, _write_lines, weights_of(parts), threads=THREADS)
        written: list[dict[int, str]] = [{} for _ in tables]
        for part, name in zip(parts, made, strict=True):
            written[part.table][part.number] = name
        run_in_threads(list(zip(tables, begun, written, strict=True)), lambda work: self._end(batch, *work))

    def _write_frames(self, batch: Batch, form: Formatter, *, again: bool) -> None:
        """Write the other tables, each by Spark."""
        _, tables = read_in_tasks(batch.tables)

        def write(table: TableBatch) -> None:
            begun = self._begin(batch, table, again=again)
            self._end(batch, table, begun, each_part(whole(table, form), self._lines(batch, table)))

        replace(batch, tables=tuple(tables)).each(write)

    def _of(self, table: TableBatch) -> Folder:
        return self._folder / folder_name(table.schema.table)

    def _lines(self, batch: Batch, table: TableBatch) -> WriteLines:
        return WriteLines(self._of(table), f".{batch.id:020d}-", SUFFIX[self.given["compression"]])

    def _begin(self, batch: Batch, table: TableBatch, *, again: bool) -> list[str]:
        """Make the table's folder. Returns the files of an earlier attempt at the batch."""
        folder = self._of(table)
        folder.make()
        return [*folder.names(f".{batch.id:020d}-"), *folder.names(f"{batch.id:020d}-")] if again else []

    def _end(self, batch: Batch, table: TableBatch, begun: Sequence[str], written: Mapping[int, str]) -> None:
        """Give the files their names, and remove those of an earlier attempt. `written` has the names of the files by
        the parts of the table."""
        folder, suffix = self._of(table), SUFFIX[self.given["compression"]]
        names = {made: f"{batch.id:020d}-{part:05d}{suffix}" for part, made in written.items() if made}
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


def _write_lines(work: tuple[WriteLines, Part, Formatter]) -> str:
    write, part, form = work
    return write(part.number, events_of(part.batches(), part.schema, form))


class StdoutSink(Sink):
    """Writes lines to standard output, in commit order, at least once."""

    settings = (FORMAT, OLD_ROWS)

    @property
    def cascades(self) -> str:
        return DELIVERED

    @property
    def before(self) -> bool:
        return bool(self.given["before"])

    def check(self) -> None:
        formatter(self.given["format"], self.context)

    def write(self, batch: Batch) -> None:
        form = formatter(self.given["format"], self.context)
        try:
            for text in self._texts_here(batch, form) if _small(batch) else self._texts_of_spark(batch, form):
                sys.stdout.write(text.decode())
            sys.stdout.flush()
        except BrokenPipeError:
            raise SinkError("the reader of standard output has ended", hint="start again with a reader") from None

    def _texts_here(self, batch: Batch, form: Formatter) -> Iterator[bytes]:
        """The lines of a batch that is small, without Spark."""
        made = [e for part in parts_of(batch.tables) for e in events_of(part.batches(), part.schema, form)]
        if not made:
            return
        found = pa.Table.from_batches(made)
        # A cascade has the order of its parent's change, and comes after it.
        if len(batch.tables) > 1:
            found = found.sort_by([("_lsn", "ascending"), ("_seq", "ascending"), ("_op", "descending")])
        for some in found.combine_chunks().to_batches():
            yield lines(some).to_pybytes()

    def _texts_of_spark(self, batch: Batch, form: Formatter) -> Iterator[bytes]:
        frame = reduce(lambda a, b: a.union(b), [whole(table, form) for table in batch.tables])
        if len(batch.tables) > 1:
            frame = frame.orderBy("_lsn", "_seq", frame["_op"].desc())
        # One value per Arrow batch, so that the driver holds only a part of the batch at a time.
        for row in frame.mapInArrow(_texts, "text binary").toLocalIterator():
            yield bytes(row.text)


def _small(batch: Batch) -> bool:
    """Whether the driver reads the batch itself."""
    tables, others = read_in_tasks(batch.tables)
    return not others and sum(table.arrow.weight for table in tables if table.arrow is not None) <= DRIVER_BYTES


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
