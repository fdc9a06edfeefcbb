"""`spark.readStream.format("dblog")`: Spark's calls, translated to the engine's.

Spark makes the reader in two processes, pickles it into every task, and calls it in an order that a crash may cut
anywhere. So the reader holds nothing but options; the engine lives only in the driver's source process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dblog.capture.segments import Limit
from dblog.core.event import RESERVED
from dblog.core.offset import Offset
from dblog.errors import ConfigError, DBLogError, PreconditionFailed, SchemaChanged
from dblog.spark.options import Options, read_options
from dblog.spark.ranges import OPTION, Handed, RangeReader, handed, spark_schema
from dblog.spark.versions import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
    check_planned,
    for_this_spark,
    to_arrow_schema,
)
from dblog.work.lanes import Work, delivered, lanes, tune_worker
from dblog.work.rows import Enveloped, Shape, Typed

if TYPE_CHECKING:
    from dblog.planning.engine import Engine


def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns of a stream or a range with these options."""
    tune_worker()
    if OPTION in options:
        return spark_schema(RangeReader(options).range())
    return _spark_schema(_shape(read_options(options)).arrow)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader of a stream, as this version of Spark calls it."""
    return for_this_spark(ChangeReader(read_options(options), schema))


def batch_reader(options: Mapping[str, str]) -> DataSourceReader:
    """The reader of a range. Raises ConfigError without the option `range`."""
    tune_worker()
    if OPTION in options:
        return RangeReader(options)
    raise ConfigError(
        "format 'dblog' is a streaming source",
        hint='use spark.readStream; for everything up to now and no more, .option("drain", "true") and '
        "query.processAllAvailable()",
    )


@dataclass
class Lane(InputPartition):
    """The work of one Spark task, done in this order, and the shape of its rows."""

    work: tuple[Work, ...]
    shape: Shape

    def __init__(self, work: tuple[Work, ...], shape: Shape) -> None:
        self.work = work
        self.shape = shape


class Handover(InputPartition):
    """The name of the range that has a batch's work."""

    def __init__(self, name: str) -> None:
        super().__init__(name)


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of one query."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._running: tuple[Engine, Shape] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}

    # -- the driver ----------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return Offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.limit.nbytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        everything = isinstance(limit, ReadAllAvailable)
        at = Offset.from_json(start)
        with self._reporting() as (engine, _):
            end = engine.next(at, Limit() if everything else self._options.limit)
        return start if end == at else end.to_json()  # Spark compares the texts of offsets

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._running is None else self._running[0].report()

    def prepareForTriggerAvailableNow(self) -> None:
        with self._reporting() as (engine, _):
            engine.drain()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        check_planned(start, end)
        between = Offset.from_json(start), Offset.from_json(end)
        with self._reporting() as (engine, shape):
            if self._options.ranges:
                name = engine.hand_over(*between)
                return [] if name is None else [Handover(name)]
            work = engine.batch(*between)
        return [Lane(lane, shape) for lane in lanes(work, self._options.settings.parallelism)]

    def commit(self, end: dict[str, Any]) -> None:
        with self._reporting() as (engine, _):
            engine.commit(Offset.from_json(end))

    def stop(self) -> None:
        if self._running is not None:
            self._running[0].stop()

    def _started(self) -> tuple[Engine, Shape]:
        if self._running is None:
            # only this process needs the engine, and no other one is to wait until it is loaded
            from dblog.planning.engine import Engine
            from dblog.state import open_store

            tune_worker()
            options = self._options
            if options.lease is not None:
                options.lease.check()
                options.lease.end_process()
            source, shape = options.source, _shape(options)
            if _spark_schema(shape.arrow) != self._schema:
                raise SchemaChanged(
                    f"the stream was loaded with other columns than table {options.table} has now",
                    hint="load it again; to choose columns use the option columns, not .schema(...)",
                )
            accepted: set[str] = set()

            def check(versions: Collection[str]) -> None:
                if isinstance(shape, Typed):
                    shape.check(versions, source, accepted)

            version = shape.table.version if isinstance(shape, Typed) else None
            engine = Engine(
                source,
                options.open_spool(),
                options.settings,
                check,
                version,
                pipeline=options.pipeline,
                open_store=None if options.state == "off" else partial(open_store, options.state),
            )
            if options.drain:
                engine.drain()
            self._running = engine, shape
        return self._running

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[tuple[Engine, Shape]]:
        """Give the engine to the body, if the lease allows it. An error in the body is written to the state store."""
        if self._options.lease is not None:
            self._options.lease.check()
        engine, shape = self._started()
        try:
            yield engine, shape
        except DBLogError as error:
            engine.stop(error)
            raise

    # -- the executors -------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Handover):
            yield handed(partition.value)
            return
        assert isinstance(partition, Lane)
        options = self._options
        arrow = to_arrow_schema(self._schema)
        spool, before = options.open_spool(), options.settings.before
        for batch in delivered(partition.work, partition.shape, spool, lambda: options.source, before=before):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=arrow)


def _shape(options: Options) -> Shape:
    found = options.source.tables()
    for name, schema in found.items():
        if taken := RESERVED & set(schema.names):
            raise ConfigError(
                f"table {name} has columns named {sorted(taken)}, which dblog uses for itself",
                hint="leave them out with the option columns, or the table with a pattern like !public.odd in tables",
            )
    if options.ranges:
        return Handed()
    if options.table is None:
        return Enveloped()
    if options.table not in found:
        raise PreconditionFailed(
            f"table {options.table} does not exist in {options.address}", hint="check the option table and the database"
        )
    schema = found[options.table]
    unknown = set(options.columns or ()) - set(schema.names)
    if unknown:
        raise ConfigError(
            f"option 'columns' names {sorted(unknown)}, which table {options.table} does not have",
            hint="its columns are " + ", ".join(schema.names),
        )
    return Typed(schema, options.settings.before)


def _spark_schema(arrow: pa.Schema) -> StructType:
    return from_arrow_schema(arrow, prefer_timestamp_ntz=True)
