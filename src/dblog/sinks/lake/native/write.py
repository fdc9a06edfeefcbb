"""What a task does for a table: it writes the batch's rows to files, and finds the rows that they replace.

A file that has replaced rows is written again without them. New rows go into the same files, so that a small table
stays one file however often it changes. Small files that have come together are written into one along the way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Protocol

import numpy as np
import pyarrow as pa

from dblog.core.schema import TableSchema
from dblog.sinks.lake.columns import LOG_COLUMNS
from dblog.sinks.lake.native.files import LakeFiles, ListedFile, NewFile
from dblog.sinks.lake.native.merge import Merge
from dblog.sinks.lake.native.versions import FACTS, Versions
from dblog.sinks.net_rows import NetRows, Order, net_changes, net_dump_rows

SMALL_BYTES = 4 << 20
"""A file of at most this size is small."""
SMALL_FILES = 8
"""So many small files of a table are written into one when the table is written."""
SLICED_ROWS = 500
"""If fewer rows than one in so many are removed, the rest is sliced and not copied."""
TOGETHER_BYTES = 32 << 20
"""How many bytes of small files a batch writes into one at most. After a dump there may be thousands."""


class Rows(Protocol):
    """The rows of a table in a batch: `dblog.work.table_rows.TableRows`, or rows that Spark has computed."""

    @property
    def overlapping(self) -> bool: ...

    def changes(self) -> Iterable[pa.RecordBatch]: ...

    def dump_rows(self) -> Iterable[pa.RecordBatch]: ...


@dataclass(frozen=True)
class Target:
    """The table in the lake that rows of a batch are for."""

    schema: TableSchema
    """The columns of the rows."""
    names: Mapping[str, str]
    """The columns that are written, with the names that they have in the lake."""
    files: LakeFiles
    listed: tuple[ListedFile, ...]
    mode: str
    truncated: Order | None
    now: int
    """The time of the batch, for versions that have none of their own, in microseconds since 1970."""

    @property
    def key(self) -> list[str]:
        return [self.names[name] for name in self.schema.key]


@dataclass(frozen=True)
class TablePart:
    """Rows of a batch for one table."""

    target: Target
    rows: Rows
    alone: bool
    """Whether no other part of this table is in the batch. Then files are written again by the task of this part."""


@dataclass(frozen=True)
class Written:
    """What a task has done for a part."""

    added: list[NewFile]
    removed: list[str] = field(default_factory=list)
    """Names of files that the new ones replace."""
    replaced: dict[str, bytes] = field(default_factory=dict)
    """If the part is not alone: by file, the rows to be removed, as a mask of bits."""


def write_part(part: TablePart) -> Written:
    """Write a part's rows. Nothing of it is in the table before it is committed."""
    target, rows = part.target, part.rows
    match target.mode:
        case "log":
            wanted = {**target.names, **{name: name for name in LOG_COLUMNS}}
            batches = chain(rows.changes(), rows.dump_rows())
            return Written(target.files.write(_complete(target, _fitted(target, b, wanted)) for b in batches))
        case "history":
            added, replaced = _versions(target, rows)
        case _:
            added, replaced = _current(target, rows)
    if not part.alone:
        masks = {name: np.packbits(mask).tobytes() for name, mask in replaced.items()}
        return Written(target.files.write([added]), replaced=masks)
    return _rewritten(target, replaced, added)


def rewrite(target: Target, replaced: Mapping[str, Sequence[bytes]]) -> Written:
    """Write the listed files again, without the rows that parts have found replaced. `replaced` has the masks of all
    parts."""
    masks = {
        name: np.unpackbits(np.bitwise_or.reduce([np.frombuffer(m, np.uint8) for m in found])).astype(np.bool_)
        for name, found in replaced.items()
    }
    return Written(
        target.files.write(_left(target.files, target.listed, masks)), removed=[f.name for f in target.listed]
    )


def _current(target: Target, given: Rows) -> tuple[pa.Table, dict[str, np.ndarray]]:
    """The rows that the table gets, and by file the rows that are replaced."""
    changes, dumped = list(given.changes()), list(given.dump_rows())
    nets = [net_changes(changes, target.schema, target.truncated)] if changes else []
    nets += [net_dump_rows(dumped, target.schema, overlapping=given.overlapping)] if dumped else []
    if not nets:
        return target.files.schema.empty_table(), {}
    net = NetRows.joined(nets)
    rows = _fitted(target, net.rows, {**target.names, "_op": "_op", "_lsn": "_lsn", "_seq": "_seq"})
    missing = {target.names[name]: mask for name, mask in net.missing.items() if name in target.names}
    others = pa.schema([f for f in target.files.schema if f.name not in rows.schema.names])
    merge = Merge(NetRows(rows, missing, net.whole), target.key, others, target.truncated)
    replaced: dict[str, np.ndarray] = {}
    for file in _touched(target, rows[target.key[0]], everywhere=target.truncated is not None):
        if target.truncated is not None and file.newest is not None and file.newest < target.truncated[0]:
            replaced[file.name] = np.ones(1, np.bool_)  # every row
            continue
        mask = merge.replaced(target.files.read(file, merge.columns))
        if mask.any():
            replaced[file.name] = mask
    return merge.added().select(target.files.schema.names), replaced


def _versions(target: Target, given: Rows) -> tuple[pa.Table, dict[str, np.ndarray]]:
    """The same for a history: closed versions are replaced by themselves with a time at which they end."""
    wanted = {**target.names, **{name: name for name in FACTS}}
    facts = [_fitted(target, b, wanted) for b in chain(given.changes(), given.dump_rows())]
    if not facts:
        return target.files.schema.empty_table(), {}
    versions = Versions(facts, target.files.schema, target.key, target.now, overlapping=given.overlapping)
    replaced: dict[str, np.ndarray] = {}
    for file in _touched(target, versions.first_keys, everywhere=bool(versions.truncates)):
        mask = versions.closed(target.files.read(file, versions.columns))
        if mask.any():
            replaced[file.name] = mask
            versions.take(target.files.read(file, target.files.schema.names).filter(pa.array(mask)))
    return versions.result(), replaced


def _rewritten(target: Target, replaced: Mapping[str, np.ndarray], added: pa.Table) -> Written:
    """Write the files again that have replaced rows, and small ones, together with the new rows."""
    together = small_files([f for f in target.listed if f.name not in replaced])
    again = [*(f for f in target.listed if f.name in replaced), *together]
    tables = chain(_left(target.files, again, replaced), [added])
    return Written(target.files.write(tables), removed=[f.name for f in again])


def _left(files: LakeFiles, again: Sequence[ListedFile], replaced: Mapping[str, np.ndarray]) -> Iterator[pa.Table]:
    """The rows of files that stay."""
    for file in again:
        mask = replaced.get(file.name)
        if mask is None:
            yield files.read(file, files.schema.names)
        elif not mask.all():
            yield _without(files.read(file, files.schema.names), mask)


def _without(rows: pa.Table, mask: np.ndarray) -> pa.Table:
    """The rows without those of the mask."""
    gone = np.flatnonzero(mask[: rows.num_rows])
    if len(gone) * SLICED_ROWS > rows.num_rows:
        return rows.filter(pa.array(~mask[: rows.num_rows]))
    starts, ends = np.r_[0, gone + 1].tolist(), np.r_[gone, rows.num_rows].tolist()
    return pa.concat_tables([rows.slice(a, b - a) for a, b in zip(starts, ends, strict=True)])


def small_files(listed: Iterable[ListedFile], least: int = SMALL_FILES) -> list[ListedFile]:
    """The small files that are to be written into one, if there are `least` of them: neighbours by their keys."""
    small = [f for f in listed if f.size <= SMALL_BYTES]
    if len(small) < least:
        return []
    small = by_key(small)
    sizes = accumulate(f.size for f in small)
    return [f for f, size in zip(small, sizes, strict=True) if size <= TOGETHER_BYTES]


def by_key(files: Sequence[ListedFile]) -> list[ListedFile]:
    """The files in the order of their keys, if these are known. Neighbours that are written into one file leave it with
    narrow bounds, so that batches which change few keys read few files."""
    if any(f.bounds is None for f in files):
        return list(files)
    return sorted(files, key=lambda f: f.bounds or ())


def _touched(target: Target, keys: pa.Array | pa.ChunkedArray, *, everywhere: bool) -> list[ListedFile]:
    """The files that may have one of these values of the first key column, or all files."""
    if everywhere or all(f.bounds is None for f in target.listed):
        return list(target.listed)
    values = sorted(keys.unique().to_pylist())

    def near(bounds: tuple[object, object]) -> bool:
        at = bisect_left(values, bounds[0])
        return at < len(values) and bool(values[at] <= bounds[1])

    return [f for f in target.listed if f.bounds is None or near(f.bounds)]


def _fitted(target: Target, rows: pa.Table | pa.RecordBatch, wanted: Mapping[str, str]) -> pa.Table:
    """Columns of the rows under the names and in the types that they have in the lake. Metadata that the lake does not
    have keep their types."""
    columns, fields = [], []
    for name, shown in wanted.items():
        column = rows.column(name)
        at = target.files.schema.get_field_index(shown)
        kind = target.files.schema.field(at).type if at >= 0 else column.type
        columns.append(column if column.type == kind else column.cast(kind))
        fields.append(pa.field(shown, kind))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _complete(target: Target, rows: pa.Table) -> pa.Table:
    """The rows with all columns of the table; null where they have none."""
    columns = [
        rows[f.name] if f.name in rows.schema.names else pa.nulls(rows.num_rows, f.type) for f in target.files.schema
    ]
    return pa.Table.from_arrays(columns, schema=target.files.schema)
