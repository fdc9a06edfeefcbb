"""Parquet files that tasks write from Arrow, and the folders that they are in.

Spark, DuckDB and others read in them the same values and types as in files that Spark writes: timestamps in
microseconds, lists with the names that the standard gives them, small decimals as integers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from dblog.errors import SinkError, SinkUnreachable
from dblog.sinks.folder import Folder
from dblog.sinks.table_parts import Part
from dblog.storage.object_storage import refused

GROUP_BYTES = 32 << 20
"""About how much Arrow data a row group gets, in bytes. A task has one row group of each file in memory."""
HIDDEN = "."
"""The first character of the name of a file that is being written. Readers ignore such files."""
_SUFFIX = {"zstd": ".zstd.parquet", "snappy": ".snappy.parquet", "gzip": ".gz.parquet", "none": ".parquet"}


@dataclass(frozen=True)
class ArrowFiles:
    """Operations on the files of a folder, by their full path or URL: those of `dblog.sinks.storage.Files`, without
    Spark. It can be pickled."""

    root: Folder

    def exists(self, path: str) -> bool:
        with self._reached() as files:
            return bool(files.get_file_info(self._at(path)).type != pafs.FileType.NotFound)

    def names(self, path: str) -> list[str]:
        with self._reached() as files:
            found = files.get_file_info(pafs.FileSelector(self._at(path), allow_not_found=True))
        return [info.base_name for info in found]

    def make(self, path: str) -> None:
        with self._reached() as files:
            files.create_dir(self._at(path), recursive=True)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it, if it exists."""
        with self._reached() as files:
            match files.get_file_info(self._at(path)).type:
                case pafs.FileType.Directory:
                    files.delete_dir(self._at(path))
                case pafs.FileType.File:
                    files.delete_file(self._at(path))

    def move(self, path: str, to: str) -> None:
        with self._reached() as files:
            files.move(self._at(path), self._at(to))

    def put(self, path: str, content: str) -> None:
        """Write a file: completely, or not at all."""
        folder, _, name = path.rpartition("/")
        begun = f"{folder}/{HIDDEN}{name}" if self.renames else path
        with self.writing(begun) as stream:
            stream.write(content.encode())
        if begun != path:
            self.move(begun, path)

    def get(self, path: str) -> str:
        with self._reached() as files, files.open_input_stream(self._at(path)) as stream:
            return str(stream.read(), "utf-8")

    @contextmanager
    def writing(self, path: str) -> Iterator[pa.NativeFile]:
        with self._reached() as files, files.open_output_stream(self._at(path)) as stream:
            yield stream

    @property
    def renames(self) -> bool:
        """Whether a file can be renamed at once. If not, a file appears when it is complete."""
        return isinstance(self.root.opened[0], pafs.LocalFileSystem)

    def _at(self, path: str) -> str:
        return self.root.opened[1].rstrip("/") + path.removeprefix(self.root.uri.rstrip("/"))

    @contextmanager
    def _reached(self) -> Iterator[pafs.FileSystem]:
        try:
            yield self.root.opened[0]
        except OSError as error:
            what = f"cannot write to {self.root.uri!r}: {error}"
            if isinstance(error, PermissionError) or refused(error):
                raise SinkError(what, hint="check its permissions") from None
            raise SinkUnreachable(what, hint="check that it can be reached") from None


@dataclass(frozen=True)
class WriteParquet:
    """The work of a task: write a part of a table to a file of a folder, and return the file's name. It is a new name
    each time: Spark may run a task twice."""

    files: ArrowFiles
    folder: str
    part: Part
    schema: pa.Schema
    """The columns of the file. The rows may have more."""
    compression: str

    def __call__(self) -> str:
        """Write the file. A part without rows needs no file, except the first: it shows the columns of a table that is
        empty. Returns "" if there is none."""
        groups = _groups(batch.select(self.schema.names) for batch in self.part.batches())
        first = next(groups, None)
        if first is None and self.part.number:
            return ""
        name = f"part-{self.part.number:05d}-{uuid.uuid4().hex}{_SUFFIX[self.compression]}"
        path = f"{self.folder}/{HIDDEN if self.files.renames else ''}{name}"
        with (
            self.files.writing(path) as stream,
            pq.ParquetWriter(
                stream,
                self.schema,
                compression=self.compression,
                store_schema=False,
                store_decimal_as_integer=True,
            ) as file,
        ):
            for group in chain([] if first is None else [first], groups):
                file.write_table(group)
        return name

    @staticmethod
    def run(work: WriteParquet) -> str:
        return work()


def publish(files: ArrowFiles, folder: str, names: list[str]) -> None:
    """Keep the files of these names, and nothing else that tasks have left in the folder."""
    if files.renames:
        for name in names:
            files.move(f"{folder}/{HIDDEN}{name}", f"{folder}/{name}")
    for name in set(files.names(folder)) - set(names):
        files.remove(f"{folder}/{name}")


def file_schema(columns: pa.Schema, facts: Mapping[str, str]) -> pa.Schema:
    """The schema of a file with these facts in its metadata."""
    return columns.with_metadata({name.encode(): value.encode() for name, value in facts.items()})


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables of the size of a row group."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)
