"""Storage: the files under one URI, as Arrow's file systems show them.

Arrow files describe themselves: the table's schema is in the metadata of the Arrow schema.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.ipc as ipc

from dblog.core.schema import NULL, Column, TableName, TableSchema
from dblog.errors import SpoolError
from dblog.storage.object_storage import NO_SETTINGS, ObjectStorage, is_on_s3

FOLDERS = ("log", "chunk", "note", "range")

_META = b"dblog"
"""The key of the table's schema in the metadata of an Arrow schema."""
AT_ONCE = 32 << 20
"""Up to how many bytes a file of object storage is read by one request. A larger file needs one for each column of each
batch."""


class Storage:
    """Files under one URI that the driver and every executor can read. It has no state: it is pickled as its URI and
    the credentials of object storage."""

    def __init__(self, uri: str, objects: ObjectStorage = NO_SETTINGS) -> None:
        self.uri = uri
        self._objects = objects
        self._fs: pafs.FileSystem | None = None
        self._root = ""

    def __getstate__(self) -> tuple[str, ObjectStorage]:
        return self.uri, self._objects

    def __setstate__(self, state: tuple[str, ObjectStorage]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @property
    def options(self) -> dict[str, str]:
        """The options of the Spark source that name this storage."""
        return {"spool": self.uri, **self._objects.options()}

    def size(self) -> int:
        """Bytes on the spool now."""
        files = self._filesystem()
        if is_on_s3(files):  # one request, where each costs
            folders = [pafs.FileSelector(self._root, allow_not_found=True, recursive=True)]
        else:
            folders = [pafs.FileSelector(f"{self._root}/{name}", allow_not_found=True) for name in FOLDERS]
        return sum(info.size or 0 for folder in folders for info in files.get_file_info(folder))

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem().delete_file(path)

    # -- for subclasses ----------------------------------------------------------------------------------------

    def _filesystem(self) -> pafs.FileSystem:
        if self._fs is None:
            try:
                if "://" in self.uri:
                    files, self._root = self._objects.arrow_filesystem(self.uri)
                else:
                    files, self._root = pafs.LocalFileSystem(use_mmap=True), os.path.abspath(self.uri)
                    os.makedirs(self._root, mode=0o700, exist_ok=True)  # other users must not read the rows
                if is_on_s3(files):  # it needs no folders
                    files.get_file_info(f"{self._root}/batch.json")
                else:
                    for folder in FOLDERS:
                        files.create_dir(f"{self._root}/{folder}", recursive=True)
                self._fs = files  # last: another thread must find the folders
            except (OSError, ValueError) as error:
                raise SpoolError(
                    f"cannot use {self.uri!r} as the spool: {error}",
                    hint="set the option spool to a folder (or a file system URI) that driver and executors can write; "
                    "for s3:// see that endpoint and keys of the storage are right",
                ) from error
        return self._fs

    def _path(self, folder: str, name: str) -> str:
        self._filesystem()
        return f"{self._root}/{folder}/{name}" if folder else f"{self._root}/{name}"

    def _list(self, folder: str) -> list[str]:
        infos = self._filesystem().get_file_info(pafs.FileSelector(f"{self._root}/{folder}", allow_not_found=True))
        return [info.path for info in infos]

    def _open_output(self, path: str) -> pa.NativeFile:
        return self._filesystem().open_output_stream(path)

    def _publish(self, path: str, data: bytes) -> bool:
        """Create the file with this content unless it exists. Returns whether this call created it."""
        if not isinstance(self._filesystem(), pafs.LocalFileSystem):
            # This storage has no exclusive create: the stamp in the offset decides which file counts. A marker that is
            # replaced after that counts as lost, and its chunk is read again. Object storage shows only whole files.
            if self._filesystem().get_file_info(path).type != pafs.FileType.NotFound:
                return False
            with self._guarded("write", path), self._open_output(path) as sink:
                sink.write(data)
            return True
        mine = f"{path}.{uuid.uuid4().hex[:8]}"
        with self._guarded("write", path):
            with open(mine, "wb") as file:
                file.write(data)
            try:
                os.link(mine, path)
            except FileExistsError:
                return False
            finally:
                os.unlink(mine)
        return True

    def _replace(self, path: str, data: bytes) -> None:
        """Replace a file. If the storage supports it, the file is replaced completely or not at all."""
        local = isinstance(self._filesystem(), pafs.LocalFileSystem)
        with self._guarded("write", path):
            with self._open_output(f"{path}.new" if local else path) as sink:
                sink.write(data)
            if local:
                os.replace(f"{path}.new", path)

    def _read(self, path: str, columns: Sequence[str] | None) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        """The table's schema and the batches of an Arrow file. With `columns`, only these columns."""
        with self._guarded("read", path):
            file = self._filesystem().open_input_file(path)
            if is_on_s3(self._filesystem()) and file.size() <= AT_ONCE:
                file = pa.BufferReader(file.read_buffer())
            reader = ipc.open_file(file)
            full = reader.schema
            if columns is not None:
                fields = sorted(full.get_field_index(c) for c in columns)
                reader = ipc.open_file(file, options=ipc.IpcReadOptions(included_fields=fields))
        return described_by(full), (reader.get_batch(i) for i in range(reader.num_record_batches))

    @contextlib.contextmanager
    def _guarded(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise SpoolError(
                f"the file {path!r} is missing from the spool",
                hint="on a cluster, set the option spool to storage that the driver and all executors share",
            ) from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise SpoolError(
                f"the spool {self.uri!r} is full" if full else f"cannot {doing} {path!r} on the spool: {error}",
                hint="free disk space or set the option spool to a larger volume; the query can then be restarted"
                if full
                else None,
            ) from error


def described(arrow: pa.Schema, schema: TableSchema) -> pa.Schema:
    """The Arrow schema of a file, with the table's schema in its metadata. `described_by` reads it back."""
    about = {"table": schema.table, "key": schema.key, "types": {c.name: c.type for c in schema.columns}}
    about |= {"cascade": schema.cascade} if schema.cascade else {}
    if rules := {c.name: c.rule for c in schema.columns if c.rule != NULL}:
        about["rules"] = rules
    return arrow.with_metadata({_META: json.dumps(about).encode()})


def described_by(arrow: pa.Schema) -> TableSchema:
    about = json.loads(arrow.metadata[_META])
    rules = about.get("rules", {})
    columns = tuple(
        Column(name, kind, arrow.field(name).type, rule=rules.get(name, NULL)) for name, kind in about["types"].items()
    )
    return TableSchema(TableName(*about["table"]), columns, tuple(about["key"]), cascade=about.get("cascade", ""))
