"""The contract of a sink. A sink receives every batch of a stream and writes it to its target.

    class Sink              one kind of output
    class Batch             the tables that have changes or dump rows
    class TableBatch        for one table two DataFrames: changes of the log, and rows of dumps; or the same as Arrow

Batches come in order and one at a time. After a crash the last batch comes again, with the same id and the same rows.
For exactly-once delivery a sink stores the id of the last batch together with its rows.

`SinkUnreachable`: the batch is written again after a while. `SinkError`: the stream ends. Any other error: the stream
is started again a few times, with a new object of the sink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import pyarrow as pa

from dblog.core.cascades import Rules
from dblog.core.schema import TableName, TableSchema
from dblog.core.settings import Setting
from dblog.storage.object_storage import NO_SETTINGS, ObjectStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPLIED, DELIVERED, UNKNOWN = "applied", "delivered", "unknown"
"""What a sink does with cascades: it changes the rows that it has, it passes events on, or it cannot be used."""
AT_ONCE = 4
"""How many tables `Batch.each` writes at the same time."""


Frame: TypeAlias = "DataFrame | Callable[[], DataFrame] | None"
"""A DataFrame, or a function that makes it when a sink asks for it."""


class ArrowRows(Protocol):
    """The rows of a table in a batch, as a Spark task reads them. It can be pickled."""

    @property
    def overlapping(self) -> bool:
        """Whether `dump_rows` may have a row twice, in the same state."""

    @property
    def weight(self) -> int:
        """About how much there is to read, in bytes."""

    def changes(self) -> Iterator[pa.RecordBatch]:
        """The changes, as in `TableBatch.changes`."""

    def dump_rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of dumps, as in `TableBatch.rows`."""

    def split(self) -> Sequence[ArrowRows]:
        """The same rows in parts that may be written side by side: no two of them have rows of the same key. The first
        part has all changes, if there are any."""

    def log_parts(self) -> Sequence[ArrowRows]:
        """The changes alone, in parts that are to be applied in this order: two parts may have changes of one key."""

    def dump_parts(self) -> Sequence[ArrowRows]:
        """The rows of dumps alone, in parts that may be applied in any order. No part has a key twice. If the rows are
        `overlapping`, two parts may have the same row."""


@dataclass(init=False, eq=False, repr=False)
class TableBatch:
    """What a batch has for one table: as two DataFrames (`changes`, `rows`), or as Arrow (`arrow`) for a sink that
    writes from Spark's tasks. A DataFrame is made when a sink first asks for it.

    Both forms have the columns of `schema` and then the metadata: `_op`, `_lsn`, `_seq`, `_txid`, `_committed_at`,
    `_dump`, `_schema`, `_unchanged`, and `_before` if the sink asks for it. `(_lsn, _seq)` orders all events of a key.
    Every row has a key, except a truncate. A change of the key is a delete and a create.
    """

    source: TableName
    """The table in the source database."""
    schema: TableSchema
    """The table in the target: its name, columns and key."""
    changes: DataFrame | None
    """Changes of the log: create, update, delete, truncate, in order within and across partitions. A key may occur more
    than once: `dblog.sinks.net_effect` reduces them to one row per key."""
    rows: DataFrame | None
    """Rows of dumps (`_op` is `read`), in no order. No key occurs twice, and no key occurs in `changes` too."""
    truncated: tuple[int, int] | None
    """`(_lsn, _seq)` of the last truncate in this batch. All rows that the target had before are gone, and changes
    before it can be ignored."""
    incomplete: bool
    """Whether rows may name columns in `_unchanged`. The sink leaves these columns as they are in the target."""
    arrow: ArrowRows | None = field(init=False)
    """The same rows for a task to read. None if only Spark can make them, because of a route."""
    cascades: bool = field(init=False)
    """Whether rows have the column `_cascade`, for a sink whose `cascades` are `DELIVERED`. Then `changes` may have
    events of the kind `cascade`, and begins with the rows of dumps that these events are about."""

    def __init__(
        self,
        source: TableName,
        schema: TableSchema,
        changes: Frame,
        rows: Frame,
        truncated: tuple[int, int] | None,
        incomplete: bool,
        arrow: ArrowRows | None = None,
        cascades: bool = False,
    ) -> None:
        self.source, self.schema = source, schema
        self.truncated, self.incomplete, self.arrow, self.cascades = truncated, incomplete, arrow, cascades
        self._frames = {"changes": changes, "rows": rows}

    def __getattr__(self, name: str) -> DataFrame | None:
        """`changes` and `rows`, when they are first asked for."""
        if name not in ("changes", "rows"):
            raise AttributeError(name)
        frame = self._frames[name]
        made = frame() if callable(frame) else frame
        setattr(self, name, made)
        return made

    @property
    def has_changes(self) -> bool:
        """Whether `changes` is not None. No DataFrame is made for it."""
        return self._frames["changes"] is not None

    @property
    def has_rows(self) -> bool:
        """Whether `rows` is not None. No DataFrame is made for it."""
        return self._frames["rows"] is not None

    def mapped(
        self, schema: TableSchema, map_frame: Callable[[DataFrame, bool], DataFrame], arrow: ArrowRows | None = None
    ) -> TableBatch:
        """The table with another schema and other DataFrames. `map_frame` gets each DataFrame and whether it has
        changes."""

        def mapped(frame: Callable[[], DataFrame | None], changes: bool) -> DataFrame:
            found = frame()
            assert found is not None
            return map_frame(found, changes)

        return TableBatch(
            self.source,
            schema,
            None if self._frames["changes"] is None else partial(mapped, lambda: self.changes, True),
            None if self._frames["rows"] is None else partial(mapped, lambda: self.rows, False),
            self.truncated,
            self.incomplete,
            arrow,
            self.cascades,
        )


@dataclass(frozen=True)
class TableCascades:
    """The cascade events of one foreign key in a batch."""

    rules: Rules
    """The foreign key, and those that it can set off. Names are the source's."""
    events: ArrowRows
    """The events, as `changes`: `deleted`, and the old and new values of the referenced columns
    (`dblog.core.cascades.old_name` and `new_name`)."""


@dataclass(frozen=True)
class Batch:
    """What a sink writes at once."""

    id: int
    """Grows from batch to batch, with gaps for batches that had nothing to write."""
    position: int
    """The log is delivered up to this position when the batch is written."""
    tables: tuple[TableBatch, ...]
    """With `cascades`, the tables that they may change are all here, some of them without rows."""
    cascades: tuple[TableCascades, ...] = ()
    """What foreign keys did without a record in the log. Only for a sink whose `cascades` are `APPLIED`. The order of
    these events, of changes and of rows of dumps is `(_lsn, _seq)`."""

    def each(self, write: Callable[[TableBatch], None]) -> None:
        """Write the tables, `AT_ONCE` of them at the same time. Raises the first error."""
        if not self.tables:
            return
        from pyspark import inheritable_thread_target
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()  # a thread without a session has no tags and properties to pass on
        inheriting = write if session is None else inheritable_thread_target(session)(write)
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="dblog-sink") as pool:
            for written in [pool.submit(inheriting, table) for table in self.tables]:
                written.result()


@dataclass(frozen=True)
class SinkContext:
    """What a sink knows about its pipeline."""

    pipeline: str
    """The name of the stream, unique per source and sink."""
    folder: Path
    """The folder of the pipeline's file. Relative paths in settings start here."""
    objects: ObjectStorage = NO_SETTINGS
    """How to reach object storage: `[storage]` of the pipeline's file."""
    epoch: int | None = None
    """The epoch of the leader that writes; None for a pipeline without standbys."""


class Sink(ABC):
    """One kind of output. The object is made before Spark starts and is used on the driver only."""

    settings: ClassVar[tuple[Setting, ...]] = ()
    """The settings of a `[[sink]]` of this type. `given` has a value for each of them."""

    def __init__(self, given: Mapping[str, Any], context: SinkContext) -> None:
        self.given = given
        self.context = context

    @property
    def cascades(self) -> str:
        """What the sink does with cascades: `APPLIED` if it applies `Batch.cascades`, `DELIVERED` if it passes on the
        events among the changes of tables, else `UNKNOWN`."""
        return UNKNOWN

    @property
    def before(self) -> bool:
        """Whether the sink needs the old rows of changes (`_before`)."""
        return False

    @property
    def years(self) -> str | None:
        """The option `years` of the source: 1-9999 if the target cannot store dates of other years."""
        return None

    @property
    def spark_settings(self) -> Mapping[str, str]:
        """Settings that the Spark session must be started with. The values of `spark.jars.packages` and
        `spark.sql.extensions` of several sinks are joined."""
        return {}

    @property
    def folders(self) -> Sequence[str]:
        """Paths and URIs of folders to which Spark's tasks write files. On a cluster all nodes must see the same
        files in a path, which is checked at the start."""
        return ()

    def facts(self) -> Mapping[str, str]:
        """What users should know about how the sink writes, as short texts by short names. `dblog check` asks for it
        after `check`; while the pipeline runs, `dblog status` shows what it returns after each batch. It must be quick:
        it is not the place to ask the target."""
        return {}

    def check(self) -> None:
        """Check settings and target before the stream starts. Raises ConfigError, SinkError or SinkUnreachable."""
        return

    def fence(self) -> None:
        """Refuse everything that leaders with an earlier epoch than `context.epoch` write from now on, if the target
        can. Called when an instance becomes the leader, before the checkpoint is read. Raises SinkUnreachable, and
        LeaseLost if the target knows a later epoch."""
        return

    def open(self, spark: SparkSession) -> None:
        """Prepare for the first `write`."""
        return

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Write a batch completely, or so that writing it again completes it."""

    def close(self) -> None:
        """Close what `open` has opened. No further batch comes."""
        return


def metadata_of(names: Sequence[str], schema: TableSchema) -> list[str]:
    """The names of a DataFrame's columns that are not the table's."""
    return [name for name in names if name not in schema.names]
