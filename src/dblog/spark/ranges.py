"""A batch as ranges: how `dblog run` hands the rows of each table to a sink.

A stream with the option `deliver = ranges` has no rows of tables. It delivers, once per batch, one row: the name of a
range (`dblog.work.handover`) that has the *work* of the batch (`dblog.work.tasks`). The receiver reads what it wants of
it with a batch reader of the same format: `ranges_of` gives the log of one table and the chunks of one table as typed
DataFrames, with the columns that the table has in this batch, so that new columns flow without a restart. All of them
are read on the executors.

Ranges, and the files that they name, are on the spool until the stream's batch is committed, and no longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dblog.capture.spool import LogFile, Spool
from dblog.core.cascades import Rules, child_of, from_text
from dblog.core.offset import Chunk
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import ConfigError
from dblog.spark.options import read_options
from dblog.spark.versions import DataSourceReader, InputPartition, to_arrow_schema
from dblog.storage.object_storage import ObjectStorage
from dblog.work.handover import Lanes, Range, RangeFiles, read_range
from dblog.work.lanes import Work, delivered
from dblog.work.rows import Typed, check_names
from dblog.work.schemas import Schemas
from dblog.work.table_rows import TableRows
from dblog.work.tasks import Emit, Log, Window

OPTION = "range"
HANDED = pa.schema([pa.field("range", pa.string())])
"""The one column of a stream that delivers ranges."""
PART_ROWS = 100_000
"""The log of a table is read in parts of about this many rows, one Spark task each."""


@dataclass(frozen=True)
class Handed:
    """The shape of a stream that delivers ranges: it has no rows of tables."""

    @property
    def arrow(self) -> pa.Schema:
        return HANDED

    def project(self, schema: TableSchema, changes: pa.RecordBatch, dump: str | None) -> pa.RecordBatch:
        raise AssertionError("ranges are read by their readers")


def handed(name: str) -> pa.RecordBatch:
    """The row that hands over a batch's work: the name of its range."""
    return pa.record_batch([pa.array([name], pa.string())], schema=HANDED)


def work_of(batch: DataFrame, spool: Spool) -> list[Work]:
    """The work of a batch, from the stream's DataFrame of it."""
    ranges = [read_range(spool, row.range) for row in batch.collect()]
    return [work for found in ranges for number in range(found.size) for work in found.lane(number)]


@dataclass(frozen=True)
class TableRange:
    """What a batch has for one table, with the columns of `schema` and the metadata: as typed DataFrames, which are
    made when they are asked for, and as Arrow for tasks that read the spool themselves."""

    schema: TableSchema
    """Every column that the table has had in this batch."""
    changes: Callable[[], DataFrame] | None
    """The changes of the log, in the order of `_lsn`, `_seq`, through the partitions too."""
    rows: Callable[[], DataFrame] | None
    """Rows of dumps: no key twice, and none that a change of the batch touches."""
    arrow: TableRows
    """The same rows."""
    truncated: tuple[int, int] | None
    """Where the log emptied the table for the last time, as `(lsn, seq)`."""
    incomplete: bool
    """Whether there may be changes or rows with something in `_unchanged`."""
    cascades: bool = False
    """Whether cascade events of the table are among the changes: these may begin with rows of dumps then."""
    rules: tuple[Rules, ...] = ()
    """The rules of these events."""


def ranges_of(
    spark: SparkSession,
    files: RangeFiles,
    work: Sequence[Work],
    *,
    before: bool,
    tasks: int,
    schemas: Schemas | None = None,
    cascades: bool = False,
) -> list[TableRange]:
    """What a batch has for each table, in the order of the tables' first appearance. The DataFrames can be read as long
    as `files` are there. `schemas` are those that earlier batches have read. With `cascades`, cascade events are rows
    among the changes of their child table, otherwise tables of their own."""
    schemas = schemas or Schemas()
    windows: dict[int, dict[TableName, Window]] = {}

    def of_tables(window: Window) -> dict[TableName, Window]:
        if id(window) not in windows:  # the work of a batch has the same windows many times
            windows[id(window)] = _by_table(window, cascades=cascades)
        return windows[id(window)]

    logs: dict[TableName, list[Log]] = {}
    for log in (w for w in work if isinstance(w, Log)):
        chunks: dict[TableName, list[Chunk]] = {}
        for chunk in log.chunks:
            chunks.setdefault(chunk.table, []).append(chunk)
        for table, window in of_tables(log.window).items():
            logs.setdefault(table, []).append(Log(window, tuple(chunks.get(table, ()))))
    changed = cascading(files.spool, schemas, (log for found in logs.values() for log in found))
    emits: dict[TableName, list[Emit]] = {}
    for emit in (w for w in work if isinstance(w, Emit)):
        whole, table = emit.window, emit.chunk.table
        window = of_tables(whole).get(table) or Window(whole.start, whole.end, ())
        emits.setdefault(table, []).append(Emit(window, emit.chunk, table in changed))
    found = [
        _table_work(files.spool, schemas, logs.get(table, ()), emits.get(table, ()), tasks, cascades=cascades)
        for table in dict.fromkeys([*logs, *emits])
    ]
    tables = [table for table in found if table is not None]
    frames = _Frames(spark, files, [(Typed(t.schema, before, cascades), (t.log_lanes, t.emit_lanes)) for t in tables])
    return [_table_range(table, frames, number) for number, table in enumerate(tables)]


def cascading(spool: Spool, schemas: Schemas, logs: Iterable[Log]) -> frozenset[TableName]:
    """The tables whose rows foreign keys may have changed in these logs without a record."""
    files = [f for log in logs for f in log.window.files if child_of(f.table) is not None]
    return frozenset(t for f in files for s in schemas.of_log(spool, [f]) for t in from_text(s.cascade).tables)


class _Frames:
    """The DataFrames of a batch's tables. The first one that is asked for writes the ranges of all of them."""

    def __init__(self, spark: SparkSession, files: RangeFiles, tables: Sequence[tuple[Typed, Sequence[Lanes]]]) -> None:
        self._spark = spark
        self._files = files
        self._tables = tables
        self._writing = threading.Lock()
        self._names: dict[tuple[int, int], str] = {}

    def arrow(self, table: int, *, overlapping: bool, chunk_bytes: Mapping[str, int]) -> TableRows:
        shape, (log, emits) = self._tables[table]
        return TableRows(self._files.spool, shape, tuple(log), tuple(emits), overlapping, chunk_bytes)

    def load(self, table: int, kind: int) -> DataFrame:
        """The changes (`kind` 0) or the dump rows (1) of a table."""
        with self._writing:
            if not self._names:
                parts = [((n, k), t[0], lanes) for n, t in enumerate(self._tables) for k, lanes in enumerate(t[1])]
                given = {at: (shape, lanes) for at, shape, lanes in parts if lanes}
                self._names = dict(zip(given, self._files.write(list(given.values())), strict=True))
        options = {**self._files.spool.options, OPTION: self._names[table, kind]}
        return self._spark.read.format("dblog").options(**options).load()


@dataclass(frozen=True)
class _TableWork:
    """What a batch has to do for one table."""

    schemas: Sequence[TableSchema]
    logs: Sequence[Log]
    emits: Sequence[Emit]
    log_lanes: Lanes
    emit_lanes: Lanes
    chunk_bytes: Mapping[str, int]
    cascades: bool
    rules: tuple[Rules, ...]

    @cached_property
    def schema(self) -> TableSchema:
        return merged(self.schemas)


def _table_work(
    spool: Spool, schemas: Schemas, logs: Sequence[Log], emits: Sequence[Emit], tasks: int, *, cascades: bool
) -> _TableWork | None:
    staged = {e.chunk.id: schemas.of_chunk(spool, e) for e in emits}
    emits = [e for e in emits if staged[e.chunk.id].schema.columns]
    files = [f for log in logs for f in log.window.files]
    own = [f for f in files if not cascades or child_of(f.table) is None]
    found = [*schemas.of_log(spool, own), *(staged[e.chunk.id].schema for e in emits)]
    events = schemas.of_log(spool, [f for f in files if f not in own]) if len(own) < len(files) else []
    rules = tuple(from_text(schema.cascade) for schema in events)
    if not found:
        found = [s for one in rules for s in one.schemas if s.table == one.first.child]
    if not found:
        return None  # the table was gone when it was to be read
    log_lanes: list[tuple[Work, ...]] = [(part,) for log in logs for part in _parts(log)]
    if cascades and any(e.early for e in emits):
        # A reader that keeps the rows must have them before the cascades that act on them.
        items: list[Emit | Log] = [*emits, *(part for log in logs for part in _parts(log))]
        items.sort(key=lambda item: (item.window.start, isinstance(item, Log)))
        log_lanes, emits = [(item,) for item in items], []
    emit_lanes = [tuple(emits[n::tasks]) for n in range(min(tasks, len(emits)))]
    sizes = {chunk: known.size for chunk, known in staged.items() if known.size is not None}
    work = _TableWork(found, logs, emits, log_lanes, emit_lanes, sizes, cascades, rules)
    check_names(work.schema)
    return work


def _table_range(work: _TableWork, frames: _Frames, number: int) -> TableRange:
    overlapping = len({e.chunk.dump for e in work.emits}) > 1

    def changes() -> DataFrame:
        return frames.load(number, 0)

    def rows() -> DataFrame:
        found = frames.load(number, 1)
        # two dumps may have read one row; both have read the same
        return found.dropDuplicates(list(work.schema.key)) if overlapping else found

    files = [f for log in work.logs for f in log.window.files]
    truncates = [at for log in work.logs for f in log.window.files for at in f.truncates if _inside(log.window, at)]
    return TableRange(
        work.schema,
        changes if work.log_lanes else None,
        rows if work.emit_lanes else None,
        frames.arrow(number, overlapping=overlapping, chunk_bytes=work.chunk_bytes),
        max(truncates, default=None),
        any(f.incomplete for f in files) or len({s.version for s in work.schemas}) > 1,
        work.cascades,
        work.rules,
    )


def _by_table(window: Window, *, cascades: bool) -> dict[TableName, Window]:
    """The window of each table that has something in it, with the files that have. With `cascades`, a table's cascade
    events are its own."""
    found: dict[TableName, list[tuple[LogFile, ...]]] = {}
    for segment in window.segments:
        mine: dict[TableName, list[LogFile]] = {}
        for file in segment:
            table = (child_of(file.table) if cascades else None) or file.table
            if file.first < window.end_of(table) and window.start <= file.last:
                mine.setdefault(table, []).append(file)
        for table, files in mine.items():
            found.setdefault(table, []).append(tuple(files))
    return {t: Window(window.start, window.end_of(t), tuple(segments)) for t, segments in found.items()}


def _inside(window: Window, at: tuple[int, int]) -> bool:
    return window.start <= at[0] < window.end


def _parts(log: Log) -> Iterator[Log]:
    """The log in parts, one after the other. What was left out of a change is looked for in the whole window, so that
    a log in which that may happen is one part."""
    if log.chunks and any(f.incomplete for f in log.window.files):
        yield log
        return
    part: list[tuple[LogFile, ...]] = []
    for segment in log.window.segments:
        part.append(segment)
        if sum(f.rows for s in part for f in s) >= PART_ROWS:
            yield Log(Window(log.window.start, log.window.end, tuple(part)), log.chunks)
            part = []
    if part:
        yield Log(Window(log.window.start, log.window.end, tuple(part)), log.chunks)


# -- schemas ---------------------------------------------------------------------------------------------------------


def merged(schemas: Sequence[TableSchema]) -> TableSchema:
    """A schema into which rows of all of these fit: all columns, each as the last of them has it. What a row's own
    schema does not have is named in its `_unchanged`."""
    if len({schema.version for schema in schemas}) == 1:
        return schemas[-1]
    columns: dict[str, Column] = {}
    for schema in schemas:
        columns |= {c.name: c for c in schema.columns}
    last = schemas[-1]
    names = dict.fromkeys([*last.names, *columns])
    return TableSchema(last.table, tuple(columns[name] for name in names), last.key)


# -- the reader ------------------------------------------------------------------------------------------------------


class Part(InputPartition):
    """What one Spark task reads: its number among the tasks of the range."""

    def __init__(self, number: int) -> None:
        super().__init__(number)


class RangeReader(DataSourceReader):
    """Reads a range. It needs the source, and with it the stream's options, only to select chunks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._name = options[OPTION]
        self._options = {name: value for name, value in options.items() if name != OPTION}
        if "spool" not in self._options:
            raise ConfigError("option 'range' needs the option spool, which has the file that it names")
        self._spool = Spool(self._options["spool"], ObjectStorage.of_options(self._options))

    def range(self) -> Range:
        """What the option names. Raises ConfigError when it does not name a range."""
        return read_range(self._spool, self._name)

    def partitions(self) -> Sequence[InputPartition]:
        return [Part(number) for number in range(self.range().size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        found = self.range()
        arrow = to_arrow_schema(spark_schema(found))
        lane, before = found.lane(partition.value), found.shape.before
        for batch in delivered(
            lane, found.shape, self._spool, lambda: read_options(self._options).source, before=before
        ):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=arrow)


def spark_schema(found: Range) -> StructType:
    """The columns of a range's rows, as Spark has them."""
    return from_arrow_schema(found.shape.arrow, prefer_timestamp_ntz=True)
