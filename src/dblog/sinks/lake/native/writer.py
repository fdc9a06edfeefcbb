"""What the driver does for a batch: it opens the tables, lets the tasks of one Spark job write files, and commits."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType

from dblog.core.schema import TableName
from dblog.sinks.base import Batch, TableBatch
from dblog.sinks.lake.columns import Fit, fit_table
from dblog.sinks.lake.marks import BatchMark
from dblog.sinks.lake.native.cascades import cascaded, commit_groups, with_rows
from dblog.sinks.lake.native.files import LakeTable, ListedFile
from dblog.sinks.lake.native.maintenance import Maintenance
from dblog.sinks.lake.native.write import (
    SMALL_FILES,
    TablePart,
    Target,
    Written,
    by_key,
    rewrite,
    small_files,
    write_part,
)
from dblog.sinks.parquet import everything
from dblog.sinks.task_job import run_in_tasks, run_on_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 8
"""How many tables are opened or committed at the same time."""
REWRITE_BYTES = 32 << 20
"""Files of a larger table are written again by several tasks, each about so many bytes, in a second job."""
DUMPED_FILES = 32
"""A batch that takes one more Spark job for it writes this many small files of a table into one."""


class NativeTables(ABC):
    """Opens tables of one format. Errors are those of `LakeTable`."""

    @abstractmethod
    def name(self, table: TableName) -> str:
        """The table in the lake, for messages."""

    @abstractmethod
    def find(self, table: TableName) -> LakeTable | None:
        """The table; None if it does not exist."""

    @abstractmethod
    def create(self, table: TableName, columns: Mapping[str, DataType]) -> LakeTable: ...


@dataclass(frozen=True)
class _Open:
    """A table of the batch that is to be written."""

    table: TableBatch
    lake: LakeTable
    target: Target


class NativeWriter:
    """Writes tables of a lake from Python."""

    def __init__(
        self, spark: SparkSession, tables: NativeTables, mode: str, schema_changes: str, *, maintain: bool = False
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._mode = mode
        self._changes = schema_changes
        self._known: dict[TableName, LakeTable] = {}
        self._maintenance = Maintenance(tables.find, mode) if maintain else None

    def maintenance_facts(self) -> dict[str, Any]:
        """What was done to keep the tables fast; see `Maintenance.facts`. Empty if it is switched off."""
        return {} if self._maintenance is None else self._maintenance.facts()

    def close(self) -> None:
        """End the maintenance."""
        if self._maintenance is not None:
            self._maintenance.close()

    def name(self, table: TableName) -> str:
        """The table in the lake, for messages."""
        return self._tables.name(table)

    @contextmanager
    def batch(self, tables: Sequence[TableName]) -> Iterator[None]:
        """Around the writing of a batch: look at its tables as they are now, and keep maintenance away from them. A
        table is opened once, and then refreshed."""
        with nullcontext() if self._maintenance is None else self._maintenance.batch(tables):
            with self._forgetting(tables):
                _side_by_side(self._refresh, tables)
            yield

    def _refresh(self, table: TableName) -> None:
        known = self._known.get(table)
        if known is not None:
            known.refresh()
        elif (found := self._tables.find(table)) is not None:
            self._know(table, found)

    def known(self, table: TableName) -> LakeTable | None:
        """The table as the batch has found it; None if it does not exist."""
        return self._known.get(table)

    def _know(self, table: TableName, found: LakeTable) -> None:
        found.maintained = self._maintenance is not None
        self._known[table] = found

    def forget(self, table: TableName) -> None:
        """Open the table again when it is written next."""
        self._known.pop(table, None)

    @contextmanager
    def _forgetting(self, tables: Sequence[TableName]) -> Iterator[None]:
        """Around work on tables: forget them if it fails."""
        try:
            yield
        except BaseException:
            for table in tables:
                self.forget(table)
            raise

    def write(self, batch: Batch, tables: Sequence[TableBatch]) -> None:
        """Write tables within a `batch`: all of them, or so that writing it again completes them."""
        with self._forgetting([table.schema.table for table in tables]):
            opened = [found for found in _side_by_side(lambda t: self._open(batch, t), tables) if found is not None]
            if batch.cascades:
                opened = self._cascaded(batch, opened)
            written = self._written(opened)
            pairs = list(zip(opened, written, strict=True))
            for group in commit_groups(batch, [one.table.source for one in opened]):
                _side_by_side(lambda pair: _commit(batch, *pair), [pairs[index] for index in group])

    def _cascaded(self, batch: Batch, opened: Sequence[_Open]) -> list[_Open]:
        """The tables with what foreign keys did, without those of which the batch has nothing."""
        tables = {one.table.source: (one.table, one.target) for one in opened}
        found = cascaded(self._spark, batch, tables)
        changed = [
            replace(one, table=with_rows(one.table, found[one.table.source])) if one.table.source in found else one
            for one in opened
        ]
        return [one for one in changed if one.table.source in found or one.table.has_rows or one.table.has_changes]

    def _open(self, batch: Batch, table: TableBatch) -> _Open | None:
        """The table, fitted to the batch's columns; None if it has the batch already."""
        name = table.schema.table
        definition = _Definition(self, name, self.known(name))
        fit, columns = fit_table(definition, table, self._mode, self._changes)
        lake = definition.lake
        assert lake is not None
        mark = lake.last_mark()
        if mark is not None and mark.has(batch):
            return None
        shown = {column.lower(): column for column in columns}
        names = {c: shown[c.lower()] for c in table.schema.names if c not in fit.left_out}
        listed = tuple(lake.listed(names[table.schema.key[0]])) if self._mode != "log" else ()
        now = time.time_ns() // 1000
        target = Target(table.schema, names, lake.files(), listed, self._mode, table.truncated, now)
        return _Open(table, lake, target)

    def _written(self, opened: Sequence[_Open]) -> list[Written]:
        """Let tasks write the files of all tables."""
        parts: list[tuple[int, TablePart, int]] = []
        for number, one in enumerate(opened):
            rows = one.table.arrow
            if rows is not None:
                split = [rows] if one.table.truncated is not None else rows.split()
                listed = sum(f.size for f in one.target.listed)  # a part may read them, and write them again
                alone = len(split) == 1 and listed <= REWRITE_BYTES
                parts += [(number, TablePart(one.target, r, alone), r.weight + listed) for r in split]
        found: list[list[Written]] = [[] for _ in opened]
        works, weights = [part for _, part, _ in parts], [weight for _, _, weight in parts]
        for (number, _, _), done in zip(parts, run_in_tasks(self._spark, works, write_part, weights), strict=True):
            found[number].append(done)
        for number, one in enumerate(opened):
            if one.table.arrow is None:
                found[number].append(_write_frame(one))
        return self._rewritten(opened, found)

    def _rewritten(self, opened: Sequence[_Open], found: Sequence[Sequence[Written]]) -> list[Written]:
        """Let tasks write the files again in which parts have found replaced rows, and small files that the
        parts could not write together: a dump adds a few with each batch."""
        works: list[tuple[int, Target, dict[str, list[bytes]]]] = []
        for number, parts in enumerate(found):
            target, replaced = opened[number].target, _replaced(parts)
            for files in _groups([f for f in target.listed if f.name in replaced]):
                works.append((number, replace(target, listed=files), {f.name: replaced[f.name] for f in files}))
            gone = {*replaced, *(name for part in parts for name in part.removed)}
            others = [f for f in target.listed if f.name not in gone]
            if small := small_files(others, SMALL_FILES if replaced else DUMPED_FILES):
                works.append((number, replace(target, listed=tuple(small)), {}))
        sizes = [sum(f.size for f in target.listed) for _, target, _ in works]
        every = [list(parts) for parts in found]
        for (number, _, _), done in zip(
            works, run_in_tasks(self._spark, works, _rewrite, sizes, threads=1), strict=True
        ):
            every[number].append(done)
        return [Written([f for p in parts for f in p.added], [f for p in parts for f in p.removed]) for parts in every]


def _commit(batch: Batch, one: _Open, written: Written) -> None:
    gone = set(written.removed)
    removed = [f for f in one.target.listed if f.name in gone]
    one.lake.commit(written.added, removed, BatchMark(batch.id, batch.position))


def _replaced(parts: Sequence[Written]) -> dict[str, list[bytes]]:
    """By file, the masks of all parts."""
    found: dict[str, list[bytes]] = {}
    for part in parts:
        for name, mask in part.replaced.items():
            found.setdefault(name, []).append(mask)
    return found


def _groups(files: Sequence[ListedFile]) -> list[tuple[ListedFile, ...]]:
    """The files in groups of about `REWRITE_BYTES`, neighbours by their keys."""
    groups: list[tuple[ListedFile, ...]] = []
    for file in by_key(files):
        if groups and sum(f.size for f in groups[-1]) + file.size <= REWRITE_BYTES:
            groups[-1] += (file,)
        else:
            groups.append((file,))
    return groups


def _rewrite(work: tuple[int, Target, Mapping[str, Sequence[bytes]]]) -> Written:
    _, target, replaced = work
    return rewrite(target, replaced)


def _write_frame(one: _Open) -> Written:
    """Write a table whose rows only Spark can compute, because of its route: in one task, from Spark's rows."""
    target, table = one.target, one.table

    def write(batches: list[pa.RecordBatch]) -> Written:
        return write_part(TablePart(target, _SparkRows(batches), alone=True))

    return run_on_frame(everything(table), write)


class _SparkRows:
    """Rows that Spark has computed: changes in order, then rows of dumps."""

    overlapping = False

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = [b for b in batches if b.num_rows]

    def changes(self) -> list[pa.RecordBatch]:
        return self._where("not_equal")

    def dump_rows(self) -> list[pa.RecordBatch]:
        return self._where("equal")

    def _where(self, comparison: str) -> list[pa.RecordBatch]:
        found = [b.filter(pc.call_function(comparison, [b.column("_op"), "read"])) for b in self._batches]
        return [b for b in found if b.num_rows]


class _Definition:
    """A table for `fit_table`."""

    def __init__(self, writer: NativeWriter, table: TableName, lake: LakeTable | None) -> None:
        self.name = writer.name(table)
        self.lake = lake
        self._writer = writer
        self._table = table

    @property
    def columns(self) -> Mapping[str, DataType] | None:
        return None if self.lake is None else self.lake.columns

    def create(self, columns: Mapping[str, DataType]) -> None:
        self.lake = self._writer._tables.create(self._table, columns)
        self._writer._know(self._table, self.lake)

    def change(self, fit: Fit) -> None:
        assert self.lake is not None
        self.lake.change(fit.new, fit.wider)


def _side_by_side(call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results of calls that run at the same time. Raises the first error when all calls have ended."""
    if not items:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(items)), thread_name_prefix="dblog-lake") as pool:
        return [made.result() for made in [pool.submit(call, item) for item in items]]
