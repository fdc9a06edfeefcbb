"""Segments: pieces of the captured log that end at commits, and the positions in them at which a batch may end."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.capture.effects import REAL, Effects
from dblog.capture.spool import LogFile, LogWriter
from dblog.core.cascades import child_of
from dblog.core.dump import REPAIR_LIMIT, Staged
from dblog.core.event import Op
from dblog.core.keys import has_plain_text
from dblog.core.offset import Followed, Key, Offset
from dblog.core.schema import TableName, TableSchema
from dblog.sources.base import Commits, Loss, Run, joined

SEGMENT_ROWS = 50_000
"""Rows after which a segment ends at the next commit."""
SEGMENT_BYTES = 8 << 20
"""Bytes of log after which a segment ends at the next commit."""
SEGMENT_SECONDS = 0.02
"""Age at which a segment is published while planning waits for the log, in seconds."""
UNWANTED_SECONDS = 0.25
"""Age at which a segment is published while planning does not wait, in seconds: fewer and larger files."""


@dataclass(frozen=True)
class Segment:
    """The captured log in `(start, end]`."""

    start: int
    end: int
    files: tuple[LogFile, ...]
    commits: Commits
    holes: Mapping[TableName, Sequence[Key] | None]
    """Keys of rows that must be read again: they moved to a new key and their log entry lacks a column, so that no sink
    can know its value, or the server has lost what was delivered of them. None when they are too many to list, or when
    a key cannot be written as text."""
    nbytes: int
    committed_at: float
    """When its last transaction committed, by the database's clock, in seconds since 1970."""
    coordinate: str | None = None
    """The coordinate of its start (`sources.base.Origin`)."""
    lost: Loss | None = None
    """What it takes back: the server does not have all that was delivered."""

    def upto(self, position: int) -> tuple[int, int]:
        """Rows and bytes of the segment's transactions that end at or before a position."""
        ended = self._ended(position)
        return (int(self.commits.rows[ended - 1]), int(self.commits.nbytes[ended - 1])) if ended else (0, 0)

    def cut(self, start: int, rows: float, nbytes: float) -> int:
        """The last commit such that the log from `start` to it fits into `rows` and `nbytes`; `start` if none does."""
        rows_before, bytes_before = self.upto(start)
        fitting = min(
            int(np.searchsorted(self.commits.rows, rows_before + rows, "right")),
            int(np.searchsorted(self.commits.nbytes, bytes_before + nbytes, "right")),
        )
        if self.holes and fitting < len(self.commits):  # holes are repaired after the whole segment
            return start
        return int(self.commits.positions[fitting - 1]) if fitting else start

    def first(self, start: int) -> int:
        """The first position after `start` where a batch may end."""
        return self.end if self.holes else int(self.commits.positions[self._ended(start)])

    def _ended(self, position: int) -> int:
        return int(np.searchsorted(self.commits.positions, position, "right"))


@dataclass(frozen=True)
class Limit:
    """How much log one batch may hold. A window is always delivered whole, even above the limit."""

    rows: int | None = None
    nbytes: int | None = None


def reach(segments: Sequence[Segment], start: int, limit: Limit) -> int:
    """The last commit such that the log from `start` to it fits the limit; the first commit if none does."""
    rows, nbytes = limit.rows or math.inf, limit.nbytes or math.inf
    reached = start
    for segment in segments:
        reached = max(reached, segment.cut(start, rows, nbytes))
        if reached < segment.end:
            break
        rows_before, bytes_before = segment.upto(start)
        rows -= segment.upto(reached)[0] - rows_before
        nbytes -= segment.upto(reached)[1] - bytes_before
    return reached if reached > start else segments[0].first(start)


def followed_part(
    segment: Segment,
    followed: Mapping[TableName, Followed] | None,
    relabelled: Callable[[LogFile, TableName], LogFile],
) -> Segment:
    """The segment with only the changes of the followed tables, each table under the name it is followed by.

    Capture reads ahead of planning. So it may have read the log of a table that is not followed yet, or have written it
    under another name than the table is followed by. `relabelled` copies a file for another table name."""
    if followed is None:
        return segment
    names = {known.identity: table for table, known in followed.items() if known.identity}
    holes = {table: keys for table, keys in segment.holes.items() if table in followed}
    files: list[LogFile] = []
    for file in segment.files:
        name = names.get(file.identity) if file.identity else file.table
        if name is None or (child_of(name) or name) not in followed:
            continue
        if name != file.table and file.table in segment.holes:
            holes[name] = None
        files.append(file if name == file.table else relabelled(file, name))
    return replace(segment, files=tuple(files), holes=holes)


def joined_holes(segments: Sequence[Segment]) -> Mapping[TableName, Sequence[Key] | None]:
    holes: dict[TableName, list[Key] | None] = {}
    for segment in segments:
        for table, keys in segment.holes.items():
            known = holes.setdefault(table, [])
            holes[table] = None if known is None or keys is None else [*known, *keys]
    return holes


def note_holes(holes: dict[TableName, list[Key] | None], schema: TableSchema, batch: pa.RecordBatch) -> None:
    """Add the keys of rows that a key update created and whose log entry lacks a column."""
    unchanged = batch.column("_unchanged")
    if unchanged.null_count == len(unchanged):
        return
    moved = batch.filter(pc.and_(pc.is_valid(unchanged), pc.equal(batch.column("_op"), int(Op.create))))
    if not moved.num_rows:
        return
    known = holes.setdefault(schema.table, [])
    nameable = all(has_plain_text(moved.column(k).type) for k in schema.key)
    if known is None or not nameable or len(known) + moved.num_rows > REPAIR_LIMIT:
        holes[schema.table] = None
        return
    texts = [moved.column(k).cast(pa.string()).to_pylist() for k in schema.key]
    known += zip(*texts, strict=True)


class OpenSegment:
    """The segment being written: a file per table and schema version."""

    def __init__(
        self, new_file: Callable[[TableSchema], LogWriter], start: int, coordinate: str | None, effects: Effects = REAL
    ) -> None:
        self._new_file = new_file
        self._effects = effects
        self._start = start
        self.coordinate = coordinate
        self._writers: dict[tuple[TableName, str, str], LogWriter] = {}
        self._commits: list[Commits] = []
        self._holes: dict[TableName, list[Key] | None] = {}
        self._rows = 0
        self._nbytes = 0
        self._since = 0.0
        self._committed_at = 0
        self.operations: dict[TableName, np.ndarray] = {}
        """How many changes there are of each table, by the number of their operation (`Op`)."""
        self._lost: Loss | None = None
        self.dirty = False
        self.end: int | None = None
        """The position of its last commit, where it can be closed; None inside a transaction."""

    @property
    def large(self) -> bool:
        return self._rows >= SEGMENT_ROWS or self._nbytes >= SEGMENT_BYTES

    @property
    def age(self) -> float:
        return self._effects.monotonic() - self._since

    def append(self, run: Run) -> None:
        if not self.dirty:
            self.dirty, self._since = True, self._effects.monotonic()
        rows, nbytes = run.commits.rows + self._rows, run.commits.nbytes + self._nbytes
        self._commits.append(replace(run.commits, rows=rows, nbytes=nbytes))
        for schema, batch in run.changes:
            at = (schema.table, schema.version, schema.identity)
            if at not in self._writers:
                self._writers[at] = self._new_file(schema)
            self._writers[at].append(batch)
            self._rows += batch.num_rows
            counted = np.bincount(batch.column("_op").to_numpy(), minlength=len(Op))
            self.operations[schema.table] = self.operations.get(schema.table, 0) + counted
            note_holes(self._holes, schema, batch)
        for table, keys in run.reread.items():
            known = self._holes.setdefault(table, [])
            few = known is not None and len(known) + len(keys) <= REPAIR_LIMIT
            self._holes[table] = [*(known or ()), *keys] if few else None
        self._holes |= dict.fromkeys(run.replaced)
        self._lost = run.lost or self._lost
        self._nbytes += run.nbytes
        self._committed_at = run.committed_at or self._committed_at
        self.end = run.position

    def close(self) -> Segment:
        assert self.end is not None
        files = tuple(w.close() for w in self._writers.values())
        commits, committed_at = joined(self._commits), self._committed_at / 1e6
        what = files, commits, self._holes, self._nbytes, committed_at, self.coordinate, self._lost
        return Segment(self._start, self.end, *what)

    def abort(self) -> None:
        for writer in self._writers.values():
            writer.abort()


def named(operations: np.ndarray) -> dict[str, int]:
    """The counts of operations (`OpenSegment.operations`) by their names."""
    return {op.name: int(operations[op]) for op in Op if op not in (Op.read, Op.cascade)}


def same_schema(start: Offset, staged: Mapping[str, Staged], log: Sequence[LogFile]) -> Mapping[str, Staged]:
    """The staged chunks, without those whose schema differs from the schema in the log of their window.

    A chunk that is left out here is read again under the new schema. A failed chunk has no rows and so no schema: it
    stays failed."""
    versions = defaultdict(set)
    for file in log:
        versions[file.table].add(file.version)
    tables = {c.id: c.table for c in start.read}
    return {
        chunk_id: found
        for chunk_id, found in staged.items()
        if chunk_id not in tables or found.failed is not None or versions[tables[chunk_id]] <= {found.version}
    }
