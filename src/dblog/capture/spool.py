"""The spool: Arrow files that are written once, read many times, and removed after commit.

    log/<life>-<n>.arrow    changes of one table and schema version, in one segment of the log
    batch.json              names the log files of the batch that was planned last
    refused.json            tables whose target has refused the last batch; a copy (`dblog.pipelines.refusals`)
    chunk/, note/           staged chunks (`dblog.capture.chunk_files`)
    range/<file>.jsonl      work of a batch, handed over to tasks (`dblog.work.handover`)

All files may be lost: the log can be read again from the database, and a lost chunk is selected again. Files that are
still there after a crash are used: a planned batch is delivered again from the files that `batch.json` names, because
another server of a cluster may have the same transactions at other positions, or in another order.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc

from dblog.capture.chunk_files import ChunkFiles
from dblog.capture.storage import described, described_by
from dblog.core.event import RAW, Op, change_schema
from dblog.core.raw_values import FIELD, counted, some, with_raw
from dblog.core.schema import TableName, TableSchema

_MAGIC = b"ARROW1"
"""The last bytes of an Arrow IPC file."""


@dataclass(frozen=True)
class LogFile:
    """Changes of one table and schema version within a segment."""

    path: str
    table: TableName
    version: str
    rows: int
    incomplete: int
    """The number of rows with a column that the log does not have."""
    truncates: tuple[tuple[int, int], ...] = ()
    """Where, by `(lsn, seq)`, the table was emptied."""
    first: int = 0
    last: int = 2**63 - 1
    """The positions of its first and its last change."""
    size: int = 0
    """The size of the file, in bytes."""
    identity: str = ""
    """The table's identity in the log (`core.schema.TableSchema.identity`)."""
    raw: tuple[tuple[str, int], ...] = ()
    """The columns with raw values (`core.raw_values`), and how many rows have one."""


Segments = tuple[tuple[LogFile, ...], ...]
"""The log files of consecutive segments."""


class Spool(ChunkFiles):
    """Files under one URI that the driver and every executor can read. It has no state."""

    # -- log segments ----------------------------------------------------------------------------------------

    def log_writer(self, name: str, schema: TableSchema, *, before: bool) -> LogWriter:
        path = self._path("log", f"{name}.arrow")
        return LogWriter(self, path, schema, change_schema(schema.arrow, before=before).append(FIELD))

    def read_log(self, path: str, columns: Sequence[str] | None = None) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        """The changes in a log file, batch by batch. With `columns`, only these columns."""
        return self._read(path, columns)

    def relabelled(self, file: LogFile, table: TableName) -> LogFile:
        """Copy a log file to a new file, with another table name."""
        schema, batches = self.read_log(file.path)
        labelled = replace(schema, table=table)
        path = f"{file.path.removesuffix('.arrow')}-{labelled.version}.arrow"
        with self._guarded("write", path), self._open_output(path) as sink:
            first = next(batches)  # a file of the log is never empty
            with ipc.new_file(sink, described(first.schema, labelled)) as arrow:
                for batch in itertools.chain([first], batches):
                    arrow.write_batch(batch)
            size = sink.tell()
        return replace(file, path=path, table=table, version=labelled.version, size=size)

    # -- the planned batch -----------------------------------------------------------------------------------

    def keep_batch(self, batch: str, segments: Segments) -> None:
        """Write which log files make up the batch of this name. This replaces the entry of the batch before."""
        files = [[{**vars(f), "path": f.path.rsplit("/", 1)[1]} for f in segment] for segment in segments]
        self._replace(self._path("", "batch.json"), json.dumps({"batch": batch, "segments": files}).encode())

    def kept_batch(self, batch: str) -> Segments | None:
        """The log files of the batch of this name; None if one of them is missing or incomplete."""
        try:
            with self._filesystem().open_input_stream(self._path("", "batch.json")) as stream:
                kept = json.loads(stream.read())
            if kept["batch"] != batch:
                return None
            segments = tuple(tuple(self._log_file(f) for f in segment) for segment in kept["segments"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # it is missing, incomplete, or of another version
        return segments if all(self._whole(f) for segment in segments for f in segment) else None

    def keep_refused(self, notes: Sequence[Mapping[str, Any]]) -> None:
        """Hand over to the planner which tables the target has refused in the last batch."""
        self._replace(self._path("", "refused.json"), json.dumps(notes).encode())

    def refused(self) -> list[dict[str, Any]]:
        """What `keep_refused` has handed over last."""
        try:
            with self._filesystem().open_input_stream(self._path("", "refused.json")) as stream:
                return list(json.loads(stream.read()))
        except FileNotFoundError:
            return []

    def _log_file(self, facts: Mapping[str, Any]) -> LogFile:
        table, truncates = TableName(*facts["table"]), tuple((lsn, seq) for lsn, seq in facts["truncates"])
        raw = tuple((column, rows) for column, rows in facts["raw"])
        path = self._path("log", facts["path"])
        return LogFile(**{**facts, "path": path, "table": table, "truncates": truncates, "raw": raw})

    def _whole(self, file: LogFile) -> bool:
        """Whether a file has its size and its end. File systems make a file longer only after its data is on disk, so
        after a crash of the machine a file of the right size has the right data."""
        try:
            with self._filesystem().open_input_file(file.path) as found:
                return bool(found.size() == file.size and found.read_at(len(_MAGIC), file.size - len(_MAGIC)) == _MAGIC)
        except (OSError, ValueError):
            return False

    def log_path(self, name: str) -> str:
        return self._path("log", name)

    # -- ranges: work that is handed over --------------------------------------------------------------------

    def write_range_file(self, lines: Sequence[str]) -> tuple[str, str]:
        """Write a range file; return its name and its path."""
        name = uuid.uuid4().hex
        path = self._path("range", f"{name}.jsonl")
        with self._guarded("write", path), self._open_output(path) as sink:
            sink.write("\n".join(lines).encode())
        return name, path

    def read_range_file(self, name: str) -> list[str]:
        path = self._path("range", f"{name}.jsonl")
        with self._guarded("read", path), self._filesystem().open_input_stream(path) as stream:
            return str(stream.read(), "utf-8", "replace").split("\n")

    # -- removal ---------------------------------------------------------------------------------------------

    def sweep(self, keep: Collection[str], batch: Segments = ()) -> None:
        """Remove the files of an earlier life: all chunks except those to keep, all log files except those of `batch`,
        and all ranges."""
        kept = {f.path for segment in batch for f in segment}
        self.remove(p for p in self._list("log") if p not in kept)
        self.remove(self._list("range"))
        self.sweep_chunks(keep)


class LogWriter:
    """Appends changes of one table to one log file of the open segment."""

    def __init__(self, spool: Spool, path: str, schema: TableSchema, arrow: pa.Schema) -> None:
        self._spool = spool
        self._path = path
        self._schema = schema
        self._rows = 0
        self._incomplete = 0
        self._raw: Counter[str] = Counter()
        self._truncates: list[tuple[int, int]] = []
        self._reach: tuple[int, int] | None = None
        with spool._guarded("write", path):
            self._sink = spool._open_output(path)
            self._writer = ipc.new_file(self._sink, described(arrow, schema))

    def append(self, batch: pa.RecordBatch) -> None:
        with self._spool._guarded("write", self._path):
            self._writer.write_batch(with_raw(batch))
        if batch.num_rows:
            first, last = (batch.column("_lsn")[row].as_py() for row in (0, -1))
            self._reach = (self._reach[0] if self._reach else first), last
        self._rows += batch.num_rows
        self._incomplete += batch.num_rows - batch.column("_unchanged").null_count
        if some(batch):
            self._raw += counted(batch.column(RAW))
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
        return LogFile(*file, size, schema.identity, tuple(sorted(self._raw.items())))

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()
            self._sink.close()
        self._spool.remove([self._path])


def schema_to_text(schema: TableSchema) -> str:
    """A table's schema as a text that `schema_from_text` reads."""
    return base64.b64encode(described(schema.arrow, schema).serialize()).decode()


def schema_from_text(text: str) -> TableSchema:
    return described_by(ipc.read_schema(pa.py_buffer(base64.b64decode(text))))
