"""Tables of Delta Lake, by delta-rs.

Tasks write Parquet files into the table's folder. The driver commits them with delta-rs, which checks for conflicts: of
two commits with the same mark, or of two that replace the same file, the second one fails.

The mark is in two of Delta's own transaction actions, which checkpoints of the log keep for ever, and as text in the
commit's `userMetadata`, where Spark's writer has it too.
"""

from __future__ import annotations

import datetime
import json
import math
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import DataType, StructField, StructType

from dblog.core.schema import TableName
from dblog.errors import SinkError
from dblog.sinks.folder import Folder, delta_folder_name
from dblog.sinks.lake.marks import BatchMark, delta_mark, read_delta_mark
from dblog.sinks.lake.native.delta_chores import NO_HOOKS, chores, reached, since_checkpoint
from dblog.sinks.lake.native.files import ROLL_BYTES, Chore, LakeFiles, LakeTable, ListedFile, NewFile
from dblog.sinks.lake.native.maintenance import compact
from dblog.sinks.lake.native.rolling import rolled
from dblog.sinks.lake.native.writer import NativeTables
from dblog.storage.object_storage import is_s3, s3_uri
from dblog.storage.put_if_absent import replaces_objects

READER_FEATURES = frozenset({"timestampNtz", "vacuumProtocolCheck"})
"""Features of tables that the files of this module follow, beside those of the first protocol."""
WRITER_FEATURES = READER_FEATURES | {"appendOnly", "invariants", "v2Checkpoint"}
LOOK_BACK = 1000
"""How many commits are searched for the last mark that has no transaction action: one of Spark's writer."""
PROPERTIES = {"delta.logRetentionDuration": "interval 7 days"}
"""Of new tables. Files of replaced rows are kept for 7 days, so older entries of the log are of no use. Every commit
lists the log, which takes 2.5 ms for 1000 entries on a local disk."""
LATE = 100
"""A batch makes a checkpoint itself if the last one is this many commits old."""
TEXT_BOUND = 64
"""The bounds of longer texts are cut to this length in a file's statistics, in characters."""


@dataclass(frozen=True)
class DeltaFiles(LakeFiles):
    """Parquet files in the table's folder."""

    folder: Folder
    schema: pa.Schema

    def read(self, file: ListedFile, columns: Sequence[str]) -> pa.Table:
        files, root = self.folder.opened
        with reached(self.folder.uri), files.open_input_file(f"{root}/{file.name}") as stream:
            found = pq.ParquetFile(stream, pre_buffer=True)
            have = set(found.schema_arrow.names)
            rows = found.read([name for name in columns if name in have])
        kinds = [self.schema.field(name) for name in columns]
        made = [
            rows[k.name].cast(k.type) if k.name in have else pa.nulls(found.metadata.num_rows, k.type) for k in kinds
        ]
        return pa.Table.from_arrays(made, schema=pa.schema(kinds))

    def write(self, tables: Iterable[pa.Table]) -> list[NewFile]:
        files, root = self.folder.opened
        made = []
        for group in rolled(tables, ROLL_BYTES):
            name = f"part-{uuid.uuid4()}.parquet"
            written: list[Any] = []
            with_nan = _with_nan(group)
            # Parquet leaves a NaN out of its bounds, and readers that skip by these would not find it.
            bounded = [f.name for f in self.schema if f.name not in with_nan] if with_nan else True
            with (
                reached(self.folder.uri),
                files.open_output_stream(f"{root}/{name}") as stream,
                pq.ParquetWriter(
                    stream, self.schema, compression="snappy", write_statistics=bounded, metadata_collector=written
                ) as writer,
            ):
                for table in group:
                    writer.write_table(table)
            size = files.get_file_info(f"{root}/{name}").size
            made.append(NewFile(name, (size, _statistics(written[0], with_nan))))
        return made


class DeltaFolder(NativeTables):
    """Tables in folders of one folder."""

    def __init__(self, folder: Folder, pipeline: str) -> None:
        self._folder = folder
        self._pipeline = pipeline
        self._options = folder.objects.delta_options() or None

    def check(self) -> None:
        """Reach object storage, and refuse one on which two writers can make the same commit: the later one would
        replace the other's. Raises SinkError, SinkUnreachable."""
        uri = self._folder.uri
        if not is_s3(uri):
            return
        self._folder.reach()
        if replaces_objects(self._folder.objects, uri):
            raise SinkError(
                f"the storage at {uri!r} ignores If-None-Match: a commit of a Delta table could replace another one",
                hint="use a storage with conditional writes, or the sink 'iceberg' with a catalog; see docs/storage.md",
            )

    def name(self, table: TableName) -> str:
        return self._of(table).uri

    def _of(self, table: TableName) -> Folder:
        return self._folder / delta_folder_name(table)

    def find(self, table: TableName) -> DeltaLakeTable | None:
        folder = self._of(table)
        with reached(folder.uri):
            try:
                found = DeltaTable(s3_uri(folder.uri), storage_options=self._options)
                return DeltaLakeTable(folder, self._pipeline, found)
            except TableNotFoundError:
                return None

    def create(self, table: TableName, columns: Mapping[str, DataType]) -> DeltaLakeTable:
        folder = self._of(table)
        with reached(folder.uri):
            made = DeltaTable.create(
                s3_uri(folder.uri),
                _delta_schema(columns),
                configuration=dict(PROPERTIES),
                storage_options=self._options,
            )
        return DeltaLakeTable(folder, self._pipeline, made)


class DeltaLakeTable(LakeTable):
    """A table in a folder."""

    def __init__(self, folder: Folder, pipeline: str, table: DeltaTable) -> None:
        self._folder = folder
        self.uri = folder.uri
        self._pipeline = pipeline
        self._table = table
        self._searched: tuple[BatchMark | None, BatchMark | None] | None = None
        """The mark of the transaction actions when the commits were searched, and the mark that was found."""

    @property
    def unsupported(self) -> str | None:
        """What keeps this module from writing to the table; None if nothing does."""
        protocol = self._table.protocol()
        features = set(protocol.reader_features or ()) - READER_FEATURES
        features |= set(protocol.writer_features or ()) - WRITER_FEATURES
        if protocol.min_reader_version > 1 and protocol.reader_features is None:
            features.add(f"reader version {protocol.min_reader_version}")
        if protocol.min_writer_version > 2 and protocol.writer_features is None:
            features.add(f"writer version {protocol.min_writer_version}")
        if features:
            return f"it has the features {sorted(features)}"
        if self._table.metadata().partition_columns:
            return f"it is partitioned by {self._table.metadata().partition_columns}"
        return None

    @property
    def size(self) -> int:
        return int(pc.sum(pa.table(self._table.get_add_actions(flatten=True))["size_bytes"]).as_py() or 0)

    def refresh(self) -> None:
        with reached(self.uri):
            self._table.update_incremental()

    @property
    def columns(self) -> dict[str, DataType]:
        found = StructType.fromJson(json.loads(self._table.schema().to_json()))
        return {field.name: field.dataType for field in found}

    def last_mark(self) -> BatchMark | None:
        """The mark of the transaction actions. The commits are searched only once: for a later mark of Spark's writer,
        which has no such actions."""
        with reached(self.uri):
            batch, position = (self._table.transaction_version(app) for app in self._applications)
            acted = None if batch is None or position is None else BatchMark(batch, position)
            if self._searched is None:
                self._searched = acted, self._searched_mark() or acted
        before, found = self._searched
        return found if acted == before else acted

    def _searched_mark(self) -> BatchMark | None:
        """The newest mark of the last commits, of either writer."""
        commits = self._table.history(LOOK_BACK)  # the newest first
        marks = (read_delta_mark(commit.get("userMetadata"), self._pipeline) for commit in commits)
        return next((mark for mark in marks if mark is not None), None)

    @property
    def _applications(self) -> tuple[str, str]:
        return f"dblog/{self._pipeline}/batch", f"dblog/{self._pipeline}/position"

    def change(self, new: Mapping[str, DataType], wider: Mapping[str, DataType]) -> None:
        with reached(self.uri):
            if new:
                self._table.alter.add_columns(_delta_schema(new).fields)
                self._table.update_incremental()
            if wider:
                self._rewrite({**self.columns, **{_named(self.columns, c): kind for c, kind in wider.items()}})
                self._table.update_incremental()

    def _rewrite(self, columns: Mapping[str, DataType]) -> None:
        """Write all rows again, in other types: Delta's files cannot have two types in one column without a feature
        that few readers know."""
        files, wide = self.files(), _arrow_schema(_delta_schema(columns))
        listed = self.listed(next(iter(columns)))

        def batches() -> Iterator[pa.RecordBatch]:
            for file in listed:
                yield from files.read(file, files.schema.names).cast(wide).to_batches()

        reader = pa.RecordBatchReader.from_batches(wide, batches())
        alone = CommitProperties(max_commit_retries=0)  # as in `commit`
        write_deltalake(self._table, reader, mode="overwrite", schema_mode="overwrite", commit_properties=alone)

    def files(self) -> DeltaFiles:
        return DeltaFiles(self._folder, _arrow_schema(self._table.schema()))

    def listed(self, key: str) -> list[ListedFile]:
        with reached(self.uri):
            found = pa.table(self._table.get_add_actions(flatten=True))
        bounds = _bounds(found, key)
        newest = _column(found, "max._lsn")
        names, sizes = found["path"].to_pylist(), found["size_bytes"].to_pylist()
        return [ListedFile(n, s, b, new) for n, s, b, new in zip(names, sizes, bounds, newest, strict=True)]

    def commit(self, added: Sequence[NewFile], removed: Sequence[ListedFile], mark: BatchMark) -> None:
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [RemoveAction(f.name, True, now, f.size) for f in removed]
        actions += [AddAction(f.name, f.handle[0], {}, now, True, f.handle[1]) for f in added]
        marks = [Transaction(app, value) for app, value in zip(self._applications, mark, strict=True)]
        properties = CommitProperties(
            app_transactions=marks,
            custom_metadata={"userMetadata": delta_mark(mark, self._pipeline)},
            # delta-rs allows a commit after a compaction that has removed the same files, and their rows would be there
            # twice. So no other commit may be between the version that was read and ours.
            **({"max_commit_retries": 0} if removed else {}),
        )
        with reached(self.uri):
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                commit_properties=properties,
                post_commithook_properties=NO_HOOKS if self.maintained else None,
            )
            if (
                self.maintained
                and self._table.version() % LATE == 0
                and since_checkpoint(self._folder, self._table.version()) >= LATE
            ):
                self._table.create_checkpoint()

    def replace(self, added: Sequence[NewFile], removed: Sequence[ListedFile]) -> None:
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [RemoveAction(f.name, False, now, f.size) for f in removed]
        actions += [AddAction(f.name, f.handle[0], {}, now, False, f.handle[1]) for f in added]
        with reached(self.uri):
            self._table.create_write_transaction(
                actions, "append", self._table.schema(), post_commithook_properties=NO_HOOKS
            )

    def chores(self, mode: str) -> list[Chore]:
        appended = [Chore("compacted", 0, lambda commit, _: compact(self, commit))] if mode == "log" else []
        return [*chores(self._folder, self._table), *appended]


def _delta_schema(columns: Mapping[str, DataType]) -> Schema:
    return Schema.from_json(StructType([StructField(name, kind) for name, kind in columns.items()]).json())


def _arrow_schema(schema: Schema) -> pa.Schema:
    """The types in which files are written: plain strings and binaries, as every reader expects them."""
    return pa.schema([pa.field(f.name, _plain(f.type)) for f in pa.schema(schema.to_arrow())])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


def _named(columns: Mapping[str, DataType], name: str) -> str:
    """The column of the table, in whatever case."""
    return next(c for c in columns if c.lower() == name.lower())


def _column(found: pa.Table, name: str) -> list[Any]:
    return found[name].to_pylist() if name in found.schema.names else [None] * found.num_rows


def _bounds(found: pa.Table, key: str) -> list[tuple[Any, Any] | None]:
    """The bounds of a column in each file, if their type is one that compares as its values do."""
    names = (f"min.{key}", f"max.{key}")
    if not all(n in found.schema.names and _bounded(found.schema.field(n).type) for n in names):
        return [None] * found.num_rows
    pairs = zip(*(found[n].to_pylist() for n in names), strict=True)
    return [None if low is None or high is None else (low, high) for low, high in pairs]


def _bounded(kind: pa.DataType) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_string_view(kind) or pa.types.is_large_string(kind)
    return bool(text or pa.types.is_integer(kind) or pa.types.is_date(kind))


def _with_nan(tables: Sequence[pa.Table]) -> dict[str, int]:
    """The columns that have a NaN, and how many nulls they have."""
    floats = [f.name for f in tables[0].schema if pa.types.is_floating(f.type)]
    found = [name for name in floats if any(pc.any(pc.is_nan(table[name])).as_py() for table in tables)]
    return {name: sum(table[name].null_count for table in tables) for name in found}


def _statistics(written: Any, with_nan: Mapping[str, int]) -> str:
    """What Delta's log says of a file: how many rows, nulls, and bounds of columns. `with_nan` are columns that have a
    NaN, and how many nulls they have: Parquet has no bounds for them. For Spark a NaN is the greatest value.

    Every column that can have bounds gets them. delta-rs finds no row when it is asked for values of a column that has
    none in a file, if other columns of the table have.
    """
    low = dict.fromkeys(with_nan, _LEAST)
    high = dict.fromkeys(with_nan, _NAN)
    nulls = dict(with_nan)
    for number in range(written.num_columns):
        groups = [written.row_group(n).column(number) for n in range(written.num_row_groups)]
        if not groups or "." in groups[0].path_in_schema or not all(g.is_stats_set for g in groups):
            continue
        name = groups[0].path_in_schema
        nulls[name] = sum(g.statistics.null_count for g in groups)
        with_values = [g.statistics for g in groups if g.statistics.has_min_max]
        if not with_values or len(with_values) + sum(g.statistics.null_count == g.num_values for g in groups) < len(
            groups
        ):
            continue
        try:
            least, greatest = min(s.min for s in with_values), max(s.max for s in with_values)
        except (ValueError, OverflowError):  # a date that Python does not have
            continue
        shown = _lower(least), _upper(greatest)
        if shown[0] is not None and shown[1] is not None:
            low[name], high[name] = shown[0], shown[1]
    bounds = f'"minValues":{_object(low)},"maxValues":{_object(high)}'
    return f'{{"numRecords":{written.num_rows},{bounds},"nullCount":{json.dumps(nulls)}}}'


_NAN, _LEAST = '"NaN"', '"-Infinity"'


def _object(members: Mapping[str, str]) -> str:
    """An object of JSON, of members that are JSON already."""
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in members.items()) + "}"


def _lower(value: Any) -> str | None:
    return _shown(value[:TEXT_BOUND] if isinstance(value, str) else value)


def _upper(value: Any) -> str | None:
    if isinstance(value, str) and len(value) > TEXT_BOUND:
        cut = value[:TEXT_BOUND] + chr(sys.maxunicode)
        return _shown(cut if cut >= value else value)
    return _shown(value)


def _shown(value: Any) -> str | None:
    """A bound as JSON; None if it has no exact form there."""
    match value:
        case float():
            return json.dumps(value) if math.isfinite(value) else f'"{"-" * (value < 0)}Infinity"'
        case bool() | int() | str():
            return json.dumps(value)
        case Decimal():
            return format(value, "f")
        case datetime.datetime():
            shown = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return f'"{shown}Z"' if value.tzinfo else f'"{shown}"'
        case datetime.date():
            return f'"{value.isoformat()}"'
    return None
