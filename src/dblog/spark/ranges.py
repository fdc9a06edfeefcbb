"""A batch as ranges: how `dblog run` hands the rows of each table to a sink.

A stream with the option `deliver = ranges` has no rows of tables. It delivers, once per batch, the *work* that the
batch consists of (`dblog.work.tasks`), as one row. The receiver reads what it wants of it with a batch reader of the
same format: `ranges_of` gives the log of one table and the chunks of one table as typed DataFrames, with the columns
that the table has in this batch, so that new columns flow without a restart. All of them are read on the executors.

Ranges are files on the spool. They are there until the stream's batch is committed, and no longer.
"""

from __future__ import annotations

import base64
import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from dblog.capture.spool import LogFile, Spool
from dblog.core.schema import Column, TableName, TableSchema
from dblog.spark.options import read_options
from dblog.work.lanes import Work, delivered
from dblog.work.rows import Typed, check_names
from dblog.work.tasks import Emit, Log, Select, Window

OPTION = "range"
HANDED = pa.schema([pa.field("work", pa.binary())])
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


def handed(work: Sequence[Work]) -> pa.RecordBatch:
    """The row that hands over a batch's work."""
    return pa.record_batch([pa.array([pickle.dumps(tuple(work))], pa.binary())], schema=HANDED)


def work_of(batch: DataFrame) -> list[Work]:
    """The work of a batch, from the stream's DataFrame of it."""
    return [item for row in batch.collect() for item in pickle.loads(row.work)]


@dataclass(frozen=True)
class TableRange:
    """What a batch has for one table: typed DataFrames, with the columns of `schema` and the metadata."""

    schema: TableSchema
    """Every column that the table has had in this batch."""
    changes: DataFrame | None
    """The changes of the log, in the order of `_lsn`, `_seq`, through the partitions too."""
    rows: DataFrame | None
    """Rows of dumps: no key twice, and none that a change of the batch touches."""
    truncated: tuple[int, int] | None
    """Where the log emptied the table for the last time, as `(lsn, seq)`."""
    incomplete: bool
    """Whether there may be changes or rows with something in `_unchanged`."""


def ranges_of(spark: SparkSession, spool: Spool, work: Sequence[Work], *, before: bool, tasks: int) -> list[TableRange]:
    """What there is to read in a batch, table by table, in the order of the tables' first appearance."""
    logs = [Log(_only(w.window), w.chunks) for w in work if isinstance(w, Log)]
    emits = [Emit(_only(w.window, w.chunk.table), w.chunk) for w in work if isinstance(w, Emit)]
    files = [f for log in logs for f in log.window.files]
    tables = dict.fromkeys([*(f.table for f in files), *(e.chunk.table for e in emits)])
    found = [
        _table_range(spark, spool, [_of(log, table) for log in logs], [e for e in emits if e.chunk.table == table],
                     before=before, tasks=tasks)
        for table in tables
    ]  # fmt: skip
    return [table for table in found if table is not None]


def run_selects(spark: SparkSession, options: Mapping[str, str], work: Sequence[Work], *, tasks: int) -> None:
    """Stage the chunks that the batch is to select, on the executors."""
    selects = [w for w in work if isinstance(w, Select)]
    if selects:
        lanes = tuple(tuple(selects[n::tasks]) for n in range(min(tasks, len(selects))))
        request = Range(read_options(options).spool, Typed(_NOTHING, before=False), lanes)
        spark.read.format("dblog").options(**{**options, OPTION: request.encode()}).load().count()


def _table_range(
    spark: SparkSession, spool: Spool, logs: Sequence[Log], emits: Sequence[Emit], *, before: bool, tasks: int
) -> TableRange | None:
    files = [f for log in logs for f in log.window.files]
    staged = _chunk_schemas(spool, emits)
    emits = [e for e in emits if staged[e.chunk.id].columns]
    schemas = [*_log_schemas(spool, files), *(staged[e.chunk.id] for e in emits)]
    if not schemas:
        return None  # the table was gone when it was to be read
    schema = merged(schemas)
    check_names(schema)
    shape = Typed(schema, before)

    def load(lanes: Sequence[tuple[Work, ...]]) -> DataFrame:
        return spark.read.format("dblog").option(OPTION, Range(spool.uri, shape, tuple(lanes)).encode()).load()

    changes = load([(part,) for log in logs for part in _parts(log)]) if files else None
    rows = load([tuple(emits[n::tasks]) for n in range(min(tasks, len(emits)))]) if emits else None
    if rows is not None and len({e.chunk.dump for e in emits}) > 1:
        rows = rows.dropDuplicates(list(schema.key))  # two dumps may have read one row; both have read the same
    truncates = [at for log in logs for f in log.window.files for at in f.truncates if _inside(log.window, at)]
    incomplete = any(f.incomplete for f in files) or len({s.version for s in schemas}) > 1
    return TableRange(schema, changes, rows, max(truncates, default=None), incomplete)


def _of(log: Log, table: TableName) -> Log:
    return Log(_only(log.window, table), tuple(c for c in log.chunks if c.table == table))


def _only(window: Window, table: TableName | None = None) -> Window:
    """The window without files that have nothing in it, and of one table if it is named."""

    def wanted(file: LogFile) -> bool:
        return table in (None, file.table) and file.first < window.end and window.start <= file.last

    segments = (tuple(filter(wanted, segment)) for segment in window.segments)
    return Window(window.start, window.end, tuple(s for s in segments if s))


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


def _log_schemas(spool: Spool, files: Sequence[LogFile]) -> list[TableSchema]:
    """Those of the log, the oldest first."""
    last = {f.version: f.path for f in files}
    order = dict.fromkeys(f.version for f in reversed(files))
    return [spool.read_log(last[version], ())[0] for version in reversed(order)]


def _chunk_schemas(spool: Spool, emits: Sequence[Emit]) -> dict[str, TableSchema]:
    """The schema that each chunk was read under, by the chunk's id."""
    return {e.chunk.id: spool.read_chunk(e.chunk.id, e.chunk.stamp or "", ())[0] for e in emits}


def merged(schemas: Sequence[TableSchema]) -> TableSchema:
    """A schema into which rows of all of these fit: all columns, each as the last of them has it. What a row's own
    schema does not have is named in its `_unchanged`."""
    columns: dict[str, Column] = {}
    for schema in schemas:
        columns |= {c.name: c for c in schema.columns}
    last = schemas[-1]
    names = dict.fromkeys([*last.names, *columns])
    return TableSchema(last.table, tuple(columns[name] for name in names), last.key)


# -- the reader ------------------------------------------------------------------------------------------------------

_NOTHING = TableSchema(TableName("", ""), (), ())


@dataclass(frozen=True)
class Range:
    """Part of a batch's work, and what its rows are to look like."""

    spool: str
    shape: Typed
    lanes: tuple[tuple[Work, ...], ...]

    def encode(self) -> str:
        """As an option of Spark's."""
        return base64.b64encode(zlib.compress(pickle.dumps(self), 1)).decode()

    @staticmethod
    def decode(text: str) -> Range:
        found = pickle.loads(zlib.decompress(base64.b64decode(text)))
        assert isinstance(found, Range)
        return found

    @property
    def schema(self) -> StructType:
        return from_arrow_schema(self.shape.arrow, prefer_timestamp_ntz=True)


@dataclass
class Part(InputPartition):
    """What one Spark task reads."""

    lane: tuple[Work, ...]

    def __init__(self, lane: tuple[Work, ...]) -> None:
        self.lane = lane


class RangeReader(DataSourceReader):
    """Reads a range. It needs the source, and with it the stream's options, only to select chunks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._range = Range.decode(options[OPTION])
        self._options = {name: value for name, value in options.items() if name != OPTION}

    def partitions(self) -> Sequence[InputPartition]:
        return [Part(lane) for lane in self._range.lanes]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        shape = self._range.shape
        arrow = to_arrow_schema(self._range.schema, timezone="UTC")
        spool = Spool(self._range.spool)
        rows = delivered(partition.lane, shape, spool, lambda: read_options(self._options).source, before=shape.before)
        for batch in rows:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=arrow)
