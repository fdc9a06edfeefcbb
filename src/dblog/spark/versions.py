"""What differs between the versions of PySpark, 4.0 and newer. No other module of the source knows it.

Spark 4.2 gave Python sources admission control: `latestOffset` gets the start of the batch and a limit, the reader is
told of `trigger(availableNow=True)`, and it reports the newest offset for the query's progress. Before 4.2 the reader
itself has to know where the stream stands: see `TrackingReader`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

from dblog.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

LEAST = (4, 0)
"""The oldest version of PySpark that has streaming sources written in Python."""

ADMISSION_SINCE = (4, 2)
"""The version from which on Spark gives `latestOffset` the start of the batch and a limit."""


def minor_of(version: str) -> tuple[int, int]:
    """The first two numbers of a version: of "4.1.0.dev1", 4 and 1."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def check_version(version: str = pyspark.__version__) -> None:
    """Raise ConfigError if dblog cannot run on this version of PySpark."""
    if minor_of(version) < LEAST:
        raise ConfigError(
            f"dblog needs PySpark {LEAST[0]}.{LEAST[1]} or newer, and this is PySpark {version}",
            hint=f"pip install 'pyspark>={LEAST[0]}.{LEAST[1]}', or use a platform with Spark {LEAST[0]}",
        )


check_version()  # before the imports that an older PySpark does not have

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition  # noqa: E402

_VERSION = minor_of(pyspark.__version__)
_ADMISSION = _VERSION >= ADMISSION_SINCE

if _ADMISSION:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:  # type: ignore[no-redef]
        """How much a batch may have. The classes stand in for those of PySpark 4.2."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """No limit."""

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """A number of bytes."""

        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Never called before PySpark 4.2."""


CHECKPOINT_MANAGER = (
    f"org.apache.spark.sql.execution.streaming.{'checkpointing.' if _VERSION >= (4, 1) else ''}"
    "FileSystemBasedCheckpointFileManager"
)
"""Spark's class that writes checkpoints without a process for every file."""


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's Arrow schema for rows of these columns, with timestamps in UTC."""
    utc: dict[str, Any] = {"timezone": "UTC"} if _ADMISSION else {"timestamp_utc": True}
    return types.to_arrow_schema(schema, **utc)


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Make a format known to a session. PySpark 4.0 refuses that for a format that it has found by itself."""
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


Json = dict[str, Any]


PLANNED_FROM = "after"
"""The key of an offset's JSON for the position that its batch was planned from; null for the first batch."""


class StartedReader(Protocol):
    """A stream reader whose `latestOffset` needs the start of the batch."""

    def initialOffset(self) -> Json: ...
    def getDefaultReadLimit(self) -> ReadLimit: ...
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json: ...
    def reportLatestOffset(self) -> Json | None: ...
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]: ...
    def commit(self, end: Json) -> None: ...
    def stop(self) -> None: ...
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...


class TrackingReader(DataSourceStreamReader):
    """Gives a reader the start of each batch on a Spark that does not: before 4.2.

    Spark takes every offset that `latestOffset` returns as the end of the next batch, so in a running query the last
    one is the start of the next batch. When a query is started again, Spark calls `partitions(o, o)` with the newest
    offset of its log before anything else (PySpark's own SimpleDataSourceStreamReader depends on that too):

        new query                    latestOffset -> a / initialOffset / partitions(initial, a)
        all batches committed        partitions(o, o) / latestOffset -> a / commit(o) / partitions(o, a)
        last batch not committed     partitions(o, o) / partitions(n, o) / latestOffset -> a / commit(o)
        batch 0 not committed        partitions(o, o) / initialOffset / partitions(initial, o)

    Any other order is refused: the start would be a guess, and rows would be lost or come twice. Spark has written the
    end of such a batch to its log before it asks for the partitions. So each offset names the position that it was
    planned from, and `check_planned` refuses the batch in every later life too.

    The report of the newest offset, which Spark does not ask for either, is put into the offset itself.
    `Offset.from_json` ignores these keys, and `latestOffset` in the query's progress has them as on newer versions.
    """

    def __init__(self, reader: StartedReader) -> None:
        self._reader = reader
        self._at: Json | None = None
        """The end of the newest batch that Spark has in its log or was given."""
        self._planned: tuple[Json, Json] | None = None
        """Start and end of the newest batch that was planned in this life."""

    def initialOffset(self) -> Json:
        return self._reader.initialOffset()

    def latestOffset(self) -> Json:  # type: ignore[override]
        start = _as_spark_returns(self._reader.initialOffset()) if self._at is None else self._at
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if end == start:
            return start  # exactly what Spark has, so that it makes no batch
        report = self._reader.reportLatestOffset() or {}
        self._at = _as_spark_returns({**end, **report, PLANNED_FROM: start.get("pos")})
        self._planned = start, self._at
        return self._at

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        if start == end:
            if self._at not in (None, end):
                raise _unexpected(start, end, self._planned)
            self._at = end
            return []
        known = (self._at == end) if self._planned is None else (self._planned == (start, end))
        if not known:
            raise _unexpected(start, end, self._planned)
        return self._reader.partitions(start, end)

    def commit(self, end: Json) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)


def check_planned(start: Json, end: Json) -> None:
    """Raise ConfigError if the end of a batch was planned from another position than the start that Spark has now."""
    if end.get(PLANNED_FROM, start.get("pos")) != start.get("pos"):
        raise ConfigError(
            f"Spark's checkpoint has the batch {_shown(start, end)}, whose end was planned from {end[PLANNED_FROM]}",
            hint="remove the newest file in the checkpoint's folder 'offsets': its batch was never delivered",
        )


def for_this_spark(reader: StartedReader) -> DataSourceStreamReader:
    """The reader as this version of Spark calls it."""
    if _ADMISSION:
        assert isinstance(reader, DataSourceStreamReader)
        return reader
    return TrackingReader(reader)


def _as_spark_returns(offset: Json) -> Json:
    """The offset as Spark gives it back, through JSON."""
    returned: Json = json.loads(json.dumps(offset))
    return returned


def _unexpected(start: Json, end: Json, planned: tuple[Json, Json] | None) -> ConfigError:
    ours = "no batch was planned" if planned is None else f"the planned batch is {_shown(*planned)}"
    return ConfigError(
        f"Spark asks for the batch {_shown(start, end)}, but {ours}: this Spark does not tell the source where the "
        "stream stands, or tells it too late",
        hint="use Apache Spark's own PySpark, or PySpark 4.2 or newer; "
        "set spark.sql.streaming.triggerAvailableNowWrapper.enabled to false",
    )


def _shown(start: Json, end: Json) -> str:
    return f"from {start.get('pos', 'the beginning')} to {end.get('pos', 'the beginning')}"


__all__ = [
    "ADMISSION_SINCE",
    "CHECKPOINT_MANAGER",
    "LEAST",
    "PLANNED_FROM",
    "DataSource",
    "DataSourceReader",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "SupportsTriggerAvailableNow",
    "TrackingReader",
    "check_planned",
    "check_version",
    "for_this_spark",
    "minor_of",
    "register",
    "to_arrow_schema",
]
