"""Tables of Apache Iceberg, by pyiceberg.

Tasks write Parquet files into the table's folder. The driver commits them (`iceberg_commit`): if another writer has
committed since the table was refreshed, the commit fails.

The mark is in the snapshot's summary, where Spark's writer has it too, and in a property of the table, which stays when
snapshots are expired.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, PrimitiveType, StringType
from pyspark.sql.types import ArrayType, DataType

from dblog.core.schema import TableName
from dblog.errors import SinkError
from dblog.sinks.lake.marks import BatchMark, iceberg_mark, mark_property, read_iceberg_mark
from dblog.sinks.lake.native.files import Chore, LakeTable, ListedFile, NewFile
from dblog.sinks.lake.native.iceberg_catalog import OpenCatalog
from dblog.sinks.lake.native.iceberg_chores import chores
from dblog.sinks.lake.native.iceberg_commit import Change, Manifests, commit
from dblog.sinks.lake.native.iceberg_errors import reached
from dblog.sinks.lake.native.iceberg_files import IcebergFiles
from dblog.sinks.lake.native.iceberg_types import known, to_iceberg, to_schema, to_spark
from dblog.sinks.lake.native.maintenance import compact
from dblog.sinks.lake.native.writer import NativeTables

PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Of new tables. Each commit writes a file of metadata: the older ones are deleted."""
BOUNDED = (IntegerType, LongType, StringType, DateType)
"""Types whose bounds compare as their values do in Python."""
EPOCH = datetime.date(1970, 1, 1)


class IcebergCatalog(NativeTables):
    """Tables of a catalog."""

    def __init__(self, catalog: OpenCatalog, database: str | None, pipeline: str) -> None:
        self._catalog = catalog
        self._database = database
        self._pipeline = pipeline

    def check(self) -> None:
        """Open the catalog. Raises ConfigError if its options are wrong, SinkUnreachable if it does not answer."""
        self._catalog.tables  # noqa: B018
        self.close()

    def close(self) -> None:
        self._catalog.close()

    def name(self, table: TableName) -> str:
        return ".".join((self._catalog.name, *self._identifier(table)))

    def _identifier(self, table: TableName) -> tuple[str, str]:
        return self._database or table.schema or "default", table.name

    def find(self, table: TableName) -> IcebergTable | None:
        name = self.name(table)
        with reached(name):
            try:
                return IcebergTable(name, self._pipeline, self._catalog.tables.load_table(self._identifier(table)))
            except NoSuchTableError:
                return None

    def create(self, table: TableName, columns: Mapping[str, DataType]) -> IcebergTable:
        name = self.name(table)
        with reached(name):
            return IcebergTable(
                name, self._pipeline, self._catalog.create(self._identifier(table), to_schema(columns), PROPERTIES)
            )


class IcebergTable(LakeTable):
    """A table of a catalog."""

    def __init__(self, name: str, pipeline: str, table: Table) -> None:
        self.name = name
        self._pipeline = pipeline
        self._table = table
        self._manifests = Manifests()

    @property
    def unsupported(self) -> str | None:
        metadata = self._table.metadata
        if metadata.format_version != 2:
            return f"it has the format version {metadata.format_version}"
        if len(metadata.partition_specs) > 1 or not metadata.spec().is_unpartitioned():
            return "it is or was partitioned"
        fields = metadata.schema().fields
        if strange := sorted(f"{f.name} ({f.field_type})" for f in fields if not known(f.field_type)):
            return f"it has columns of types that are not written: {', '.join(strange)}"
        if required := sorted(f.name for f in fields if _required(f)):
            return f"it has columns that cannot be null: {', '.join(required)}"
        return self._unsupported_deletes(metadata.current_snapshot())

    def _unsupported_deletes(self, current: Snapshot | None) -> str | None:
        if current is None or (current.summary is not None and current.summary.get("total-delete-files") == "0"):
            return None
        with reached(self.name):
            for manifest in self._manifests.of(self._table):
                if manifest.content == ManifestContent.DELETES:
                    for entry in self._manifests.entries(manifest, self._table.io):
                        if entry.data_file.content != DataFileContent.POSITION_DELETES:
                            return "it has equality deletes"
        return None

    @property
    def size(self) -> int:
        current = self._table.metadata.current_snapshot()
        summary = None if current is None else current.summary
        return int((summary and summary.get("total-files-size")) or 0)

    def refresh(self) -> None:
        with reached(self.name):
            try:
                self._table.refresh()
            except ValueError as error:  # pyiceberg found another table of the name
                raise SinkError(f"{self.name} was made anew: {error}", hint="start the pipeline again") from error

    @property
    def columns(self) -> dict[str, DataType]:
        return {field.name: to_spark(field.field_type) for field in self._table.schema().fields}

    # -- marks -----------------------------------------------------------------------------------------------------

    @property
    def _mark_name(self) -> str:
        return mark_property(self._pipeline)

    def last_mark(self) -> BatchMark | None:
        """The mark of the newest snapshot that has one. The property counts if its snapshot has been expired, and no
        later one has a mark."""
        metadata = self._table.metadata
        found, number = None, -1
        for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
            found = read_iceberg_mark(snapshot.summary or {}, self._pipeline)
            if found is not None:
                number = snapshot.sequence_number or 0
                break
        if (kept := metadata.properties.get(self._mark_name)) is not None:
            said = json.loads(kept)
            if metadata.snapshot_by_id(int(said["snapshot"])) is None and int(said["sequence"]) > number:
                return read_iceberg_mark(said, self._pipeline)
        return found

    # -- columns ---------------------------------------------------------------------------------------------------

    def change(self, new: Mapping[str, DataType], wider: Mapping[str, DataType]) -> None:
        names = {field.name.lower(): field.name for field in self._table.schema().fields}
        with reached(self.name), self._table.update_schema() as update:
            for column, kind in new.items():
                update.add_column((column,), to_iceberg(kind, count(1)))
            for column, kind in wider.items():
                self._widen(update, (names[column.lower()],), column, kind)

    def _widen(self, update: UpdateSchema, path: tuple[str, ...], column: str, kind: DataType) -> None:
        element = kind
        while isinstance(element, ArrayType):
            path, element = (*path, "element"), element.elementType
        try:
            update.update_column(path, to_iceberg(element, count(1)))
        except ValidationError as error:
            raise SinkError(
                f"the column {column!r} of {self.name} cannot become {kind.simpleString()}: {error}",
                hint="set schema_changes = ignore to leave the column as it is, or write to a new table",
            ) from error

    # -- files -----------------------------------------------------------------------------------------------------

    def files(self) -> IcebergFiles:
        bare: dict[str, Any] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
        }
        return IcebergFiles(self.name, self._table.io, self._table.metadata.model_copy(update=bare))

    def listed(self, key: str) -> list[ListedFile]:
        schema = self._table.schema()
        key_field, lsn = schema.find_field(key), schema.find_field("_lsn")
        with reached(self.name):
            found = self._manifests.of(self._table)
            if any(m.content == ManifestContent.DELETES for m in found):
                files = [(task.file, task.delete_files) for task in self._table.scan().plan_files()]
            else:
                entries = [e for m in found for e in self._manifests.entries(m, self._table.io)]
                files = [(entry.data_file, set()) for entry in entries]
        listed = []
        for file, deletes in files:
            if file.file_format not in (FileFormat.PARQUET, FileFormat.ORC):
                raise SinkError(
                    f"the native writer cannot read {file.file_path}: it is {file.file_format.value}",
                    hint='set writer = "spark"',
                )
            handle = (file.file_format.name, tuple((d.file_path, d.file_format.name) for d in deletes))
            bounds, newest = _bounds(file, key_field), _bounds(file, lsn)
            listed.append(ListedFile(file.file_path, file.file_size_in_bytes, bounds, newest and newest[1], handle))
        return listed

    def commit(self, added: Sequence[NewFile], removed: Sequence[ListedFile], mark: BatchMark) -> None:
        change = Change([file.handle for file in added], frozenset(file.name for file in removed))
        with reached(self.name):
            commit(self._table, self._manifests, change, iceberg_mark(mark, self._pipeline), self._mark_name)

    def replace(self, added: Sequence[NewFile], removed: Sequence[ListedFile]) -> None:
        change = Change([f.handle for f in added], frozenset(f.name for f in removed), same_rows=True)
        with reached(self.name):
            commit(self._table, self._manifests, change, {}, None)

    def chores(self, mode: str) -> list[Chore]:
        appended = [Chore("compacted", 0, lambda commit, _: compact(self, commit))] if mode == "log" else []
        mine = chores(self._table, lambda summary: read_iceberg_mark(summary, self._pipeline) is not None)
        return [*appended, *mine]


def _required(field: NestedField) -> bool:
    element = getattr(field.field_type, "element_field", None)
    return field.required or (element is not None and _required(element))


def _bounds(file: DataFile, field: NestedField) -> tuple[Any, Any] | None:
    """The bounds of a column in a file. Those of a text may be shorter than its values, and still are bounds: Iceberg
    cuts the lower one, and cuts and increments the upper one."""
    kind = field.field_type
    low, high = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    if low is None or high is None or not isinstance(kind, BOUNDED):
        return None
    assert isinstance(kind, PrimitiveType)
    found: tuple[Any, Any] = from_bytes(kind, low), from_bytes(kind, high)
    if not isinstance(kind, DateType):
        return found
    try:
        return EPOCH + datetime.timedelta(days=found[0]), EPOCH + datetime.timedelta(days=found[1])
    except OverflowError:
        return None
