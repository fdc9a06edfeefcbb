"""A simulated spool: the files of `capture.spool.Spool` in memory, with its interface and its rules.

A chunk's file is complete before its marker appears, and the first marker wins. Files can be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dblog.capture.spool import LogFile, Segments
from dblog.core.dump import Staged
from dblog.core.event import Op
from dblog.core.schema import TableName, TableSchema
from dblog.errors import SpoolError

Contents = tuple[TableSchema, list[pa.RecordBatch]]


class SimSpool:
    """`token` gives a text that nobody else has; `pause` is called where a writer may be held up."""

    uri = "simulated"

    def __init__(self, token: Callable[[], str], pause: Callable[[], None]) -> None:
        self._token = token
        self._pause = pause
        self.logs: dict[str, Contents] = {}
        self.chunks: dict[tuple[str, str], Contents] = {}
        """By id and stamp."""
        self.markers: dict[str, Staged] = {}
        self.notes: dict[str, Mapping[str, Any]] = {}
        self.batch: tuple[str, Segments] | None = None

    # -- log segments ----------------------------------------------------------------------------------------

    def log_writer(self, name: str, schema: TableSchema, *, before: bool) -> SimLogWriter:
        return SimLogWriter(self, f"log/{name}", schema)

    def read_log(self, path: str, columns: Sequence[str] | None = None) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        return _read(self.logs, path, columns)

    def relabelled(self, file: LogFile, table: TableName) -> LogFile:
        schema, batches = self.logs[file.path]
        path = f"{file.path}-{table}"
        self.logs[path] = replace(schema, table=table), batches
        return replace(file, path=path, table=table)

    # -- tables that the target refuses ----------------------------------------------------------------------

    def refused(self) -> list[dict[str, Any]]:
        """None: the simulated target takes every row."""
        return []

    # -- the planned batch -----------------------------------------------------------------------------------

    def keep_batch(self, batch: str, segments: Segments) -> None:
        self.batch = batch, segments

    def kept_batch(self, batch: str) -> Segments | None:
        if self.batch is None or self.batch[0] != batch:
            return None
        segments = self.batch[1]
        return segments if all(f.path in self.logs for segment in segments for f in segment) else None

    # -- staged chunks ---------------------------------------------------------------------------------------

    def stage(
        self, chunk_id: str, schema: TableSchema, read: Callable[[Callable[[pa.RecordBatch], None]], None]
    ) -> Staged:
        staged = self.write(chunk_id, schema, read)
        self._pause()
        return self.publish(chunk_id, staged)

    def write(
        self, chunk_id: str, schema: TableSchema, read: Callable[[Callable[[pa.RecordBatch], None]], None]
    ) -> Staged:
        """Write the rows, under a stamp of their own."""
        batches: list[pa.RecordBatch] = []
        read(batches.append)
        stamp = self._token()
        self.chunks[chunk_id, stamp] = schema, batches
        return Staged(stamp, sum(b.num_rows for b in batches), 0.1, schema.version)

    def publish(self, chunk_id: str, staged: Staged) -> Staged:
        """Write the marker, unless there is one; what counts from now on."""
        if chunk_id in self.markers:
            self.chunks.pop((chunk_id, staged.stamp), None)
        return self.markers.setdefault(chunk_id, staged)

    def stage_failed(self, chunk_id: str, reason: str, about: Mapping[str, Any] | None = None) -> Staged:
        return self.markers.setdefault(chunk_id, Staged("", 0, 0.0, "", reason, about))

    def staged(self, chunk_id: str) -> Staged | None:
        found = self.markers.get(chunk_id)
        if found is None or found.failed is not None:
            return found
        return found if (chunk_id, found.stamp) in self.chunks else None

    def read_chunk(
        self, chunk_id: str, stamp: str, columns: Sequence[str] | None = None
    ) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        return _read(self.chunks, (chunk_id, stamp), columns)

    # -- notes and removal -----------------------------------------------------------------------------------

    def note(self, name: str, facts: Mapping[str, Any]) -> None:
        self.notes[name] = facts

    def noted(self, name: str) -> Mapping[str, Any] | None:
        return self.notes.get(name)

    def size(self) -> int:
        return len(self.logs) + len(self.chunks)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.logs.pop(path, None)

    def remove_chunks(self, chunk_ids: Collection[str]) -> None:
        if chunk_ids:
            self._keep(lambda chunk_id: chunk_id not in chunk_ids)

    def sweep(self, keep: Collection[str], batch: Segments = ()) -> None:
        kept = {f.path for segment in batch for f in segment}
        self.remove([path for path in self.logs if path not in kept])
        self.sweep_chunks(keep)

    def sweep_chunks(self, keep: Collection[str]) -> None:
        self._keep(keep.__contains__)

    def _keep(self, wanted: Callable[[str], bool]) -> None:
        self.chunks = {name: found for name, found in self.chunks.items() if wanted(name[0])}
        self.markers = {name: found for name, found in self.markers.items() if wanted(name)}
        self.notes = {name: found for name, found in self.notes.items() if wanted(name)}

    # -- loss ------------------------------------------------------------------------------------------------

    def files(self) -> list[Any]:
        """What can be lost."""
        return [*self.chunks, *self.logs]

    def lose(self, file: Any) -> None:
        self.chunks.pop(file, None)
        self.logs.pop(file, None)


class LateSpool:
    """The spool as a task uses it that has looked for its chunk, and hangs before it says that the chunk is there."""

    def __init__(self, spool: SimSpool, found: Staged | None) -> None:
        self._spool = spool
        self._found = found
        self._written: tuple[str, Staged] | None = None

    def staged(self, chunk_id: str) -> Staged | None:
        return self._found

    def stage(
        self, chunk_id: str, schema: TableSchema, read: Callable[[Callable[[pa.RecordBatch], None]], None]
    ) -> Staged:
        staged = self._spool.write(chunk_id, schema, read)
        self._written = chunk_id, staged
        return staged

    def stage_failed(self, chunk_id: str, reason: str, about: Mapping[str, Any] | None = None) -> Staged:
        self._written = chunk_id, Staged("", 0, 0.0, "", reason, about)
        return self._written[1]

    def publish(self) -> None:
        if self._written is not None:
            self._spool.publish(*self._written)


class SimLogWriter:
    def __init__(self, spool: SimSpool, path: str, schema: TableSchema) -> None:
        self._spool = spool
        self._path = path
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []

    def append(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def close(self) -> LogFile:
        self._spool.logs[self._path] = self._schema, self._batches
        rows = [
            row
            for batch in self._batches
            for row in zip(*(batch.column(at).to_pylist() for at in (0, 1, 2)), strict=True)
        ]
        incomplete = sum(batch.num_rows - batch.column(5).null_count for batch in self._batches)
        truncates = tuple((lsn, seq) for op, lsn, seq in rows if op == Op.truncate)
        reach = (rows[0][1], rows[-1][1]) if rows else (0, -1)
        schema = self._schema
        return LogFile(self._path, schema.table, schema.version, len(rows), incomplete, truncates, *reach)

    def abort(self) -> None:
        pass


def _read(files: Mapping[Any, Contents], path: Any, columns: Sequence[str] | None) -> Any:
    try:
        schema, batches = files[path]
    except KeyError:
        raise SpoolError(f"{path!r} is missing from the spool") from None
    return schema, iter(batches if columns is None else [b.select(columns) for b in batches])
