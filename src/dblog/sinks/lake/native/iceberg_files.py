"""What a task does with the files of an Iceberg table: it reads them with their deletes, and writes new ones."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    ArrowScan,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import FileScanTask
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, TimestampType, TimestamptzType

from dblog.sinks.lake.native.files import ROLL_BYTES, LakeFiles, ListedFile, NewFile
from dblog.sinks.lake.native.iceberg_errors import reached
from dblog.sinks.lake.native.iceberg_types import to_arrow
from dblog.sinks.lake.native.rolling import rolled

METRICS = "write.metadata.metrics.column."
"""The property that says what is known of a column in each file; the column's name follows."""


@dataclass(frozen=True)
class IcebergFiles(LakeFiles):
    """Parquet files in the table's folder. A file's columns have the ids that they have in the table."""

    name: str
    io: FileIO
    metadata: TableMetadata
    """The table's metadata without its snapshots."""

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "io": self.io, "metadata": self.metadata}

    @cached_property
    def schema(self) -> pa.Schema:
        return to_arrow(self._schema, ids=False)

    @cached_property
    def _schema(self) -> Schema:
        return self.metadata.schema()

    def read(self, file: ListedFile, columns: Sequence[str]) -> pa.Table:
        wanted = pa.schema([self.schema.field(name) for name in columns])
        scan = ArrowScan(self.metadata, self.io, self._schema.select(*columns), AlwaysTrue())
        with reached(self.name):
            batches = list(scan.to_record_batches([_scan_task(file)]))
        rows = [pa.Table.from_batches([batch]).select(wanted.names).cast(wanted) for batch in batches]
        return pa.concat_tables(rows) if rows else wanted.empty_table()

    def write(self, tables: Iterable[pa.Table]) -> list[NewFile]:
        # Names of columns that Avro does not allow are replaced in files, as all writers of Iceberg do.
        columns = sanitize_column_names(self._schema)
        arrow = to_arrow(columns, ids=True)
        folder = load_location_provider(self.metadata.location, self.metadata.properties)
        made = []
        for group in rolled(tables, ROLL_BYTES):
            path = folder.new_data_location(f"{uuid.uuid4()}.parquet")
            written: list[Any] = []
            with reached(self.name), self.io.new_output(path).create() as stream:
                with pq.ParquetWriter(
                    stream, arrow, compression="zstd", store_decimal_as_integer=True, metadata_collector=written
                ) as writer:
                    for table in group:
                        writer.write_table(table.rename_columns(arrow.names).cast(arrow))
                size = stream.tell()
            made.append(NewFile(path, self._data_file(path, size, columns, written[0])))
        return made

    def _data_file(self, path: str, size: int, columns: Schema, written: Any) -> DataFile:
        facts = self._facts(columns, written)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=size,
            sort_order_id=None,
            spec_id=self.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **facts,
        )

    def _facts(self, columns: Schema, written: Any) -> dict[str, Any]:
        """What the table's metadata say of a file: how many rows, sizes, and bounds of columns. Times that Python does
        not have, and a few texts, make pyiceberg fail: then such columns get no bounds."""
        others = [f for f in columns.fields if not isinstance(f.field_type, (IntegerType, LongType))]
        times = [f for f in others if isinstance(f.field_type, (DateType, TimestampType, TimestamptzType))]
        for unbounded in ([], times):
            with suppress(ValueError, OverflowError):
                return self._bounded(columns, written, unbounded)
        return self._bounded(columns, written, others)

    def _bounded(self, columns: Schema, written: Any, unbounded: Sequence[NestedField]) -> dict[str, Any]:
        names = [name for f in unbounded for name in (f.name, f"{f.name}.element")]
        properties = {**self.metadata.properties, **{METRICS + name: "counts" for name in names}}
        return data_file_statistics_from_parquet_metadata(
            written, compute_statistics_plan(columns, properties), parquet_path_to_id_mapping(columns)
        ).to_serialized_dict()


def _scan_task(file: ListedFile) -> FileScanTask:
    format_name, deletes = file.handle
    return FileScanTask(
        _found(file.name, format_name, DataFileContent.DATA),
        {_found(path, kind, DataFileContent.POSITION_DELETES) for path, kind in deletes},
    )


def _found(path: str, format_name: str, content: DataFileContent) -> DataFile:
    """A file of the table, with what is needed to read it."""
    found = DataFile.from_args(
        content=content, file_path=path, file_format=FileFormat[format_name], partition=Record(), record_count=0
    )
    found.spec_id = 0
    return found
