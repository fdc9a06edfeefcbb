"""The spool: log segments and staged chunks as Arrow IPC files, written once, read many times, removed after commit.

    log/<life>-<n>.arrow              changes of one table and schema version, in one segment of the log
    chunk/<id>.<stamp>.arrow          rows of one select
    chunk/<id>.json                   says which stamp counts: the first writer's
    batch.json                        names the log files of the batch that was planned last

A chunk file is complete before the marker that names it appears, and the first marker wins: a retried, speculative
or orphaned task that finishes late cannot replace rows read inside the window by rows read after it. Where the
storage has no exclusive create, the stamp that the offset pins has the same effect.

Nothing here must survive: the log can be read again from the database, and a lost chunk is selected again. But what
does survive a crash is used: a planned batch is delivered again from the files that `batch.json` names, because another
server of a cluster may have the same transactions at other positions, or in another order.

Every file describes itself: the table's schema travels in the Arrow schema's metadata.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import itertools
import json
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.ipc as ipc

from dblog.core.dump import Staged
from dblog.core.event import Op, change_schema
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import SpoolError

_META = b"dblog"
_MAGIC = b"ARROW1"
"""How an Arrow IPC file ends."""


@dataclass(frozen=True)
class LogFile:
    """Changes of one table and schema version within a segment."""

    path: str
    table: TableName
    version: str
    rows: int
    incomplete: int
    """Rows with a column that the log did not carry."""
    truncates: tuple[tuple[int, int], ...] = ()
    """Where, by `(lsn, seq)`, the table was emptied."""
    first: int = 0
    last: int = 2**63 - 1
    """The positions of its first and its last change."""
    size: int = 0
    """In bytes."""
    identity: str = ""
    """What the log knows the table by (`core.schema.TableSchema.identity`)."""


Segments = tuple[tuple[LogFile, ...], ...]
"""The log files of consecutive segments."""


class Spool:
    """Files under one URI that the driver and every executor see. Holds no state: pickles and compares by its URI."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._fs: pafs.FileSystem | None = None
        self._root = ""

    def __getstate__(self) -> str:
        return self.uri

    def __setstate__(self, uri: str) -> None:
        self.__init__(uri)  # type: ignore[misc]

    # -- log segments ----------------------------------------------------------------------------------------

    def log_writer(self, name: str, schema: TableSchema, *, before: bool) -> LogWriter:
        path = self._path("log", f"{name}.arrow")
        return LogWriter(self, path, schema, change_schema(schema.arrow, before=before))

    def read_log(self, path: str, columns: Sequence[str] | None = None) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        """The changes in a log file, batch by batch; only some columns when named."""
        return self._read(path, columns)

    def relabelled(self, file: LogFile, table: TableName) -> LogFile:
        """The changes of a log file as those of a table of another name, in a file of their own."""
        schema, batches = self.read_log(file.path)
        labelled = replace(schema, table=table)
        path = f"{file.path.removesuffix('.arrow')}-{labelled.version}.arrow"
        with self._guarded("write", path), self._open_output(path) as sink:
            first = next(batches)  # a file of the log is never empty
            with ipc.new_file(sink, _described(first.schema, labelled)) as arrow:
                for batch in itertools.chain([first], batches):
                    arrow.write_batch(batch)
            size = sink.tell()
        return replace(file, path=path, table=table, version=labelled.version, size=size)

    # -- the planned batch -----------------------------------------------------------------------------------

    def keep_batch(self, batch: str, segments: Segments) -> None:
        """Note which log files make up the batch of this name, instead of those of the batch before."""
        files = [[{**vars(f), "path": f.path.rsplit("/", 1)[1]} for f in segment] for segment in segments]
        self._replace(self._path("", "batch.json"), json.dumps({"batch": batch, "segments": files}).encode())

    def kept_batch(self, batch: str) -> Segments | None:
        """The log files of the batch of this name; None unless all of them are there and whole."""
        try:
            with self._filesystem().open_input_stream(self._path("", "batch.json")) as stream:
                kept = json.loads(stream.read())
            if kept["batch"] != batch:
                return None
            segments = tuple(tuple(self._log_file(f) for f in segment) for segment in kept["segments"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # it is not there, was written in part, or by another version
        return segments if all(self._whole(f) for segment in segments for f in segment) else None

    def _log_file(self, facts: Mapping[str, Any]) -> LogFile:
        table, truncates = TableName(*facts["table"]), tuple((lsn, seq) for lsn, seq in facts["truncates"])
        return LogFile(**{**facts, "path": self._path("log", facts["path"]), "table": table, "truncates": truncates})

    def _whole(self, file: LogFile) -> bool:
        """Whether a file has its size and its end. File systems make a file longer only after its data is on disk, so
        after a crash of the machine a file of the right size has the right data."""
        try:
            with self._filesystem().open_input_file(file.path) as found:
                return bool(found.size() == file.size and found.read_at(len(_MAGIC), file.size - len(_MAGIC)) == _MAGIC)
        except (OSError, ValueError):
            return False

    # -- staged chunks ---------------------------------------------------------------------------------------

    def stage(
        self, chunk_id: str, schema: TableSchema, read: Callable[[Callable[[pa.RecordBatch], None]], None]
    ) -> Staged:
        """Write the rows that `read` hands over and publish them, unless somebody else has already; what counts from
        now on."""
        # 1. the rows, under a name of our own
        stamp = uuid.uuid4().hex[:12]
        path = self._path("chunk", f"{chunk_id}.{stamp}.arrow")
        began, rows = time.monotonic(), 0
        with self._guarded("write", path), self._open_output(path) as sink:
            with ipc.new_file(sink, _described(schema.arrow, schema)) as writer:

                def take(batch: pa.RecordBatch) -> None:
                    nonlocal rows
                    writer.write_batch(batch)
                    rows += batch.num_rows

                read(take)
            size = sink.tell()
        # 2. the marker, exclusively
        marker = {"stamp": stamp, "rows": rows, "seconds": time.monotonic() - began, "version": schema.version}
        if not self._publish(self._path("chunk", f"{chunk_id}.json"), json.dumps({**marker, "bytes": size}).encode()):
            self.remove([path])
        return self._winner(chunk_id)

    def stage_failed(self, chunk_id: str, reason: str) -> Staged:
        """Say that a chunk cannot be read; what counts from now on, which may be the rows of somebody who could."""
        marker = {"stamp": "", "rows": 0, "seconds": 0.0, "version": "", "failed": reason}
        self._publish(self._path("chunk", f"{chunk_id}.json"), json.dumps(marker).encode())
        return self._winner(chunk_id)

    def _winner(self, chunk_id: str) -> Staged:
        winner = self.staged(chunk_id)
        if winner is None:
            raise SpoolError(f"chunk {chunk_id!r} vanished from the spool {self.uri!r} while it was written")
        return winner

    def staged(self, chunk_id: str) -> Staged | None:
        """The staged file that counts for a chunk, or None when there is none (any more)."""
        try:
            with self._filesystem().open_input_stream(self._path("chunk", f"{chunk_id}.json")) as stream:
                marker = json.loads(stream.read())
        except FileNotFoundError:
            return None
        staged = Staged(marker["stamp"], marker["rows"], marker["seconds"], marker["version"], marker.get("failed"))
        if staged.failed is not None:
            return staged
        info = self._filesystem().get_file_info(self.chunk_path(chunk_id, marker["stamp"]))
        return staged if info.size == marker["bytes"] else None

    def chunk_path(self, chunk_id: str, stamp: str) -> str:
        return self._path("chunk", f"{chunk_id}.{stamp}.arrow")

    def read_chunk(
        self, chunk_id: str, stamp: str, columns: Sequence[str] | None = None
    ) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        """The rows of a staged chunk, batch by batch; only some columns when named."""
        return self._read(self.chunk_path(chunk_id, stamp), columns)

    # -- notes: small facts that tasks leave for the driver --------------------------------------------------

    def note(self, name: str, facts: Mapping[str, Any]) -> None:
        path = self._path("note", f"{name}.json")
        with self._guarded("write", path), self._filesystem().open_output_stream(path) as stream:
            stream.write(json.dumps(facts).encode())

    def noted(self, name: str) -> dict[str, Any] | None:
        try:
            with self._filesystem().open_input_stream(self._path("note", f"{name}.json")) as stream:
                facts: dict[str, Any] = json.loads(stream.read())
                return facts
        except FileNotFoundError:
            return None

    # -- size ------------------------------------------------------------------------------------------------

    def size(self) -> int:
        """Bytes on the spool now."""
        files = self._filesystem()
        folders = [pafs.FileSelector(f"{self._root}/{name}", allow_not_found=True) for name in ("log", "chunk", "note")]
        return sum(info.size or 0 for folder in folders for info in files.get_file_info(folder))

    # -- removal ---------------------------------------------------------------------------------------------

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem().delete_file(path)

    def remove_chunks(self, chunk_ids: Collection[str]) -> None:
        """Remove everything of these chunks, late writers' files included."""
        if chunk_ids:
            self.remove(p for p in self._list("chunk") + self._list("note") if _chunk_of(p) in chunk_ids)

    def sweep(self, keep: Collection[str], batch: Segments = ()) -> None:
        """Remove what an earlier life left behind: all chunks but those to keep, and all log files but the batch's."""
        kept = {f.path for segment in batch for f in segment}
        self.remove(p for p in self._list("log") if p not in kept)
        self.remove(p for p in self._list("chunk") + self._list("note") if _chunk_of(p) not in keep)

    # -- files -----------------------------------------------------------------------------------------------

    def _filesystem(self) -> pafs.FileSystem:
        if self._fs is None:
            try:
                if "://" in self.uri:
                    files, self._root = pafs.FileSystem.from_uri(self.uri)
                else:
                    files, self._root = pafs.LocalFileSystem(use_mmap=True), os.path.abspath(self.uri)
                    os.makedirs(self._root, mode=0o700, exist_ok=True)  # rows are nobody else's business
                for folder in ("log", "chunk", "note"):
                    files.create_dir(f"{self._root}/{folder}", recursive=True)
                self._fs = files  # last: another thread must find the folders
            except (OSError, ValueError) as error:
                raise SpoolError(
                    f"cannot use {self.uri!r} as the spool: {error}",
                    hint="set the option spool to a folder (or a file system URI) that driver and executors can write",
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
        """Create the file with this content unless it exists; whether it was us."""
        if not isinstance(self._filesystem(), pafs.LocalFileSystem):
            # no exclusive create here: a race is decided by the stamp that the offset pins
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
        """Write a file in place of the one that is there: where the storage can, whole or not at all."""
        local = isinstance(self._filesystem(), pafs.LocalFileSystem)
        with self._guarded("write", path):
            with self._open_output(f"{path}.new" if local else path) as sink:
                sink.write(data)
            if local:
                os.replace(f"{path}.new", path)

    def _read(self, path: str, columns: Sequence[str] | None) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        with self._guarded("read", path):
            file = self._filesystem().open_input_file(path)
            reader = ipc.open_file(file)
            full = reader.schema
            if columns is not None:
                fields = sorted(full.get_field_index(c) for c in columns)
                reader = ipc.open_file(file, options=ipc.IpcReadOptions(included_fields=fields))
        return _described_by(full), (reader.get_batch(i) for i in range(reader.num_record_batches))

    @contextlib.contextmanager
    def _guarded(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise SpoolError(
                f"{path!r} is not on the spool",
                hint="on a cluster the option spool must name storage that the driver and all executors share",
            ) from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise SpoolError(
                f"the spool {self.uri!r} is full" if full else f"cannot {doing} {path!r} on the spool: {error}",
                hint="free disk space or set the option spool to a larger volume; the query can then be restarted"
                if full
                else None,
            ) from error


class LogWriter:
    """Appends changes of one table to one log file of the open segment."""

    def __init__(self, spool: Spool, path: str, schema: TableSchema, arrow: pa.Schema) -> None:
        self._spool = spool
        self._path = path
        self._schema = schema
        self._rows = 0
        self._incomplete = 0
        self._truncates: list[tuple[int, int]] = []
        self._reach: tuple[int, int] | None = None
        with spool._guarded("write", path):
            self._sink = spool._open_output(path)
            self._writer = ipc.new_file(self._sink, _described(arrow, schema))

    def append(self, batch: pa.RecordBatch) -> None:
        with self._spool._guarded("write", self._path):
            self._writer.write_batch(batch)
        if batch.num_rows:
            first, last = (batch.column("_lsn")[row].as_py() for row in (0, -1))
            self._reach = (self._reach[0] if self._reach else first), last
        self._rows += batch.num_rows
        self._incomplete += batch.num_rows - batch.column("_unchanged").null_count
        emptied = pc.indices_nonzero(pc.equal(batch.column("_op"), int(Op.truncate)))
        for row in emptied.to_pylist():
            self._truncates.append((batch.column("_lsn")[row].as_py(), batch.column("_seq")[row].as_py()))

    def close(self) -> LogFile:
        with self._spool._guarded("write", self._path):
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
        schema, truncates, reach = self._schema, tuple(self._truncates), self._reach or (0, -1)
        file = self._path, schema.table, schema.version, self._rows, self._incomplete, truncates, *reach
        return LogFile(*file, size, schema.identity)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()
            self._sink.close()
        self._spool.remove([self._path])


def _chunk_of(path: str) -> str:
    return path.rsplit("/", 1)[1].split(".", 1)[0]


def _described(arrow: pa.Schema, schema: TableSchema) -> pa.Schema:
    """The Arrow schema of a file, carrying what `_described_by` needs to make the table's schema again."""
    about = {"table": schema.table, "key": schema.key, "types": {c.name: c.type for c in schema.columns}}
    return arrow.with_metadata({_META: json.dumps(about).encode()})


def schema_to_text(schema: TableSchema) -> str:
    """A table's schema as a text that `schema_from_text` reads."""
    return base64.b64encode(_described(schema.arrow, schema).serialize()).decode()


def schema_from_text(text: str) -> TableSchema:
    return _described_by(ipc.read_schema(pa.py_buffer(base64.b64decode(text))))


def _described_by(arrow: pa.Schema) -> TableSchema:
    about = json.loads(arrow.metadata[_META])
    columns = tuple(Column(name, kind, arrow.field(name).type) for name, kind in about["types"].items())
    return TableSchema(TableName(*about["table"]), columns, tuple(about["key"]))
