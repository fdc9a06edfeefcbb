"""What a sink is: it is given each batch of a pipeline and makes its target follow.

    class Sink              what every kind of output is
    class Batch             what it is given: the tables that have something new
    class TableBatch        for each of them two DataFrames: changes of the log, and rows of dumps

A batch is given again after a crash, with the same id and the same rows, until it has been taken: a sink that is to
be exact remembers, together with the rows, the id of the last batch it has taken. Batches come in order and one at a
time. A sink that raises `SinkUnreachable` is given the batch again after a while. `SinkError` ends its stream. After
any other error the stream is started again, a few times: a new object of the sink is given the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dblog.core.schema import TableName, TableSchema
from dblog.core.settings import Setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AT_ONCE = 4
"""Tables that `Batch.each` has in hand at the same time."""


@dataclass(frozen=True)
class TableBatch:
    """What a batch has for one table.

    Both DataFrames have the columns of `schema` and then the metadata: `_op`, `_lsn`, `_seq`, `_txid`,
    `_committed_at`, `_dump`, `_schema`, `_unchanged`, and `_before` where the sink wants it. `(_lsn, _seq)` orders all
    that ever happens to a key. Every row has a key but a truncate. A change of a key is a delete and a create.
    """

    source: TableName
    """The table in the source database."""
    schema: TableSchema
    """The table as it is to be in the target: its name, columns and key."""
    changes: DataFrame | None
    """What the log says: create, update, delete, truncate; in order, also through the partitions. A key may come often:
    `dblog.sinks.net_effect` has what it comes to."""
    rows: DataFrame | None
    """Rows of dumps (`_op` is read), in no order. No key comes twice, and none that is in `changes`."""
    truncated: tuple[int, int] | None
    """Where, by `(_lsn, _seq)`, the table was emptied for the last time in this batch: all that the target had before
    is gone. Changes before that place need not be looked at."""
    incomplete: bool
    """Whether rows may name columns in `_unchanged`: those that are to be left as the target has them."""


@dataclass(frozen=True)
class Batch:
    """What a sink is given."""

    id: int
    """Grows by one from batch to batch, with gaps where there was nothing to give."""
    position: int
    """The log is delivered up to here when this batch is."""
    tables: tuple[TableBatch, ...]

    def each(self, write: Callable[[TableBatch], None]) -> None:
        """Write the tables, a few at the same time. Raises what the first that fails raises."""
        from pyspark import inheritable_thread_target

        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="dblog-sink") as pool:
            for written in [pool.submit(inheritable_thread_target(write), table) for table in self.tables]:
                written.result()


@dataclass(frozen=True)
class SinkContext:
    """Where a sink stands."""

    pipeline: str
    """The name of the pipeline, unique for the source and the sink."""
    folder: Path
    """Relative paths in settings begin here: where the pipeline's file is."""


class Sink(ABC):
    """One kind of output. A sink is made before Spark starts, and used on the driver only."""

    settings: ClassVar[tuple[Setting, ...]] = ()
    """What may be written in a `[[sink]]` of this type; `given` has a value for each of them."""

    def __init__(self, given: Mapping[str, Any], context: SinkContext) -> None:
        self.given = given
        self.context = context

    @property
    def before(self) -> bool:
        """Whether it wants the old rows of changes."""
        return False

    @property
    def spark_settings(self) -> Mapping[str, str]:
        """What the Spark session must be started with. Values of `spark.jars.packages` and `spark.sql.extensions` of
        several sinks are put together."""
        return {}

    def check(self) -> None:
        """Find out what is wrong before anything begins: raises ConfigError, SinkError or SinkUnreachable."""
        return

    def open(self, spark: SparkSession) -> None:
        """Get ready. `write` comes next."""
        return

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Take a batch: whole, or so that taking it again makes it whole."""

    def close(self) -> None:
        """No batch comes any more."""
        return


def metadata_of(names: Sequence[str], schema: TableSchema) -> list[str]:
    """The names of a DataFrame's columns that are not the table's."""
    return [name for name in names if name not in schema.names]
