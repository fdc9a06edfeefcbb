"""Staged chunks: the rows of each select, in files that one batch writes and the next delivers.

    chunk/<id>.<stamp>.arrow   rows of one select, and their raw values (`core.raw_values`)
    chunk/<id>.json            says which stamp counts: the first writer's; or why the chunk cannot be read
    note/<id>.json             how many of the rows were delivered; the task that delivers them writes it

A chunk file is complete before the marker that names it appears, and the first marker wins: a retried, speculative
or orphaned task that finishes late cannot replace rows read inside the window by rows read after it. Where the
storage has no exclusive create, the stamp that the offset pins has the same effect.

An id is never used again. So each file of an id that no offset names any more can be removed, by any process.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

from dblog.capture.storage import Storage, described
from dblog.core.dump import Staged
from dblog.core.raw_values import FIELD, with_raw
from dblog.core.schema import TableSchema
from dblog.errors import SpoolError


class ChunkFiles(Storage):
    """The files of chunks."""

    def stage(
        self, chunk_id: str, schema: TableSchema, read: Callable[[Callable[[pa.RecordBatch], None]], None]
    ) -> Staged:
        """Write the rows that `read` passes, and publish them, unless another task has published the chunk already.
        Returns the staged file that counts."""
        # 1. the rows, under a unique name
        stamp = uuid.uuid4().hex[:12]
        path = self._path("chunk", f"{chunk_id}.{stamp}.arrow")
        began, rows = time.monotonic(), 0
        try:
            with self._guarded("write", path), self._open_output(path) as sink:
                with ipc.new_file(sink, described(schema.arrow.append(FIELD), schema)) as writer:

                    def take(batch: pa.RecordBatch) -> None:
                        nonlocal rows
                        writer.write_batch(with_raw(batch))
                        rows += batch.num_rows

                    read(take)
                size = sink.tell()
        except BaseException:
            self.remove([path])
            raise
        # 2. the marker, exclusively
        marker = {"stamp": stamp, "rows": rows, "seconds": time.monotonic() - began, "version": schema.version}
        if not self._publish(self._path("chunk", f"{chunk_id}.json"), json.dumps({**marker, "bytes": size}).encode()):
            self.remove([path])
        return self._winner(chunk_id)

    def stage_failed(self, chunk_id: str, reason: str, about: Mapping[str, Any] | None = None) -> Staged:
        """Publish that a chunk cannot be read. Returns what counts: it may be rows that another task could read."""
        marker = {"stamp": "", "rows": 0, "seconds": 0.0, "version": "", "failed": reason, "about": about}
        self._publish(self._path("chunk", f"{chunk_id}.json"), json.dumps(marker).encode())
        return self._winner(chunk_id)

    def _winner(self, chunk_id: str) -> Staged:
        winner = self.staged(chunk_id)
        if winner is None:
            raise SpoolError(f"chunk {chunk_id!r} was removed from the spool {self.uri!r} while it was written")
        return winner

    def staged(self, chunk_id: str) -> Staged | None:
        """The staged file that counts for a chunk; None if there is none."""
        marker = self._json("chunk", chunk_id)
        if marker is None:
            return None
        failed, about = marker.get("failed"), marker.get("about")
        staged = Staged(marker["stamp"], marker["rows"], marker["seconds"], marker["version"], failed, about)
        if staged.failed is not None:
            return staged
        info = self._filesystem().get_file_info(self.chunk_path(chunk_id, marker["stamp"]))
        return staged if info.size == marker["bytes"] else None

    def chunk_facts(self, chunk_id: str, stamp: str) -> tuple[str, int] | None:
        """The schema version and the size in bytes of a staged file; None if it is not the one that counts."""
        marker = self._json("chunk", chunk_id)
        if marker is None or marker["stamp"] != stamp or "bytes" not in marker:
            return None
        return marker["version"], marker["bytes"]

    def chunk_path(self, chunk_id: str, stamp: str) -> str:
        return self._path("chunk", f"{chunk_id}.{stamp}.arrow")

    def read_chunk(
        self, chunk_id: str, stamp: str, columns: Sequence[str] | None = None
    ) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        """The rows of a staged chunk, batch by batch. With `columns`, only these columns."""
        return self._read(self.chunk_path(chunk_id, stamp), columns)

    # -- notes: facts that tasks write for the driver --------------------------------------------------------

    def note(self, name: str, facts: Mapping[str, Any]) -> None:
        path = self._path("note", f"{name}.json")
        with self._guarded("write", path), self._filesystem().open_output_stream(path) as stream:
            stream.write(json.dumps(facts).encode())

    def noted(self, name: str) -> dict[str, Any] | None:
        return self._json("note", name)

    def _json(self, folder: str, name: str) -> dict[str, Any] | None:
        try:
            with self._filesystem().open_input_stream(self._path(folder, f"{name}.json")) as stream:
                facts: dict[str, Any] = json.loads(stream.read())
                return facts
        except FileNotFoundError:
            return None

    # -- removal ---------------------------------------------------------------------------------------------

    def remove_chunks(self, chunk_ids: Iterable[str]) -> None:
        """Remove the files that count of these chunks. They are found by name, because listing a folder of remote
        storage takes long. Files that do not count stay until `sweep_chunks`."""
        for chunk_id in chunk_ids:
            stamp = (self._json("chunk", chunk_id) or {}).get("stamp")
            self.remove(self._path(folder, f"{chunk_id}.json") for folder in ("chunk", "note"))
            if stamp:
                self.remove([self.chunk_path(chunk_id, stamp)])

    def sweep_chunks(self, keep: Collection[str]) -> None:
        """Remove all files of all chunks, except the chunks to keep. This includes files of late and killed tasks."""
        for folder in ("chunk", "note"):
            self.remove(p for p in self._list(folder) if _chunk_of(p) not in keep)


def _chunk_of(path: str) -> str:
    return path.rsplit("/", 1)[1].split(".", 1)[0]
