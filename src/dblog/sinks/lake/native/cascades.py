"""Applies what foreign keys did in the source without a record in its log (`core.cascades`) to tables of a lake.

The effects become changes of the rows that they touch, at the place of the parent's change in the log (`replay`). Then
the tables are written as always, so that all modes have them: a version of a row that a cascade has deleted ends when
its parent was deleted. The rows of the lake that are concerned are searched in Spark's tasks, file by file, and only
their columns that decide are kept.

Each table has a commit of its own, and a batch may come again when some tables have it. The rows of a table decide what
happens to the tables below it. So a table is committed after those below it (`commit_groups`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc

from dblog.core.cascades import DELETED, ForeignKey, new_name, old_name
from dblog.core.schema import TableName, TableSchema
from dblog.errors import SinkError
from dblog.sinks.base import ArrowRows, Batch, TableBatch
from dblog.sinks.lake.native.files import LakeFiles, ListedFile
from dblog.sinks.lake.native.replay import Replay, ReplayTable, Values
from dblog.sinks.lake.native.write import Target
from dblog.sinks.task_job import run_in_tasks
from dblog.work.rows import Typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGE = 32
"""The number of a row is that of the table it is held in, shifted by so many bits, and its index there."""


@dataclass(frozen=True)
class CascadedRows:
    """The rows of a table in a batch, and what foreign keys did to rows. All of them are changes, in order: a cascade
    may have changed a row of a dump."""

    rows: ArrowRows
    more: bytes
    """The changes by foreign keys, as a stream of Arrow's IPC format."""

    @property
    def overlapping(self) -> bool:
        return self.rows.overlapping

    @property
    def weight(self) -> int:
        return self.rows.weight + len(self.more)

    def changes(self) -> Iterator[pa.RecordBatch]:
        more = list(ipc.open_stream(self.more))
        names = more[0].schema.names
        every = pa.Table.from_batches(
            [b.select(names).cast(more[0].schema) for b in (*self.rows.changes(), *self.rows.dump_rows())] + more
        )
        order = np.lexsort((every["_seq"].to_numpy(), every["_lsn"].to_numpy()))
        yield from every.take(pa.array(order)).combine_chunks().to_batches()

    def dump_rows(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def split(self) -> list[ArrowRows]:
        return [self]

    def log_parts(self) -> list[ArrowRows]:
        return [self]

    def dump_parts(self) -> list[ArrowRows]:
        return []


@dataclass(frozen=True)
class Search:
    """The work of a task: find rows of a file."""

    files: LakeFiles
    file: ListedFile
    columns: tuple[str, ...]
    wanted: Mapping[str, pa.Array]
    """By column, the values that a row may have."""
    history: bool
    """Whether only open versions count."""

    def run(self) -> pa.Table | None:
        names = [*self.wanted, *(["valid_to"] if self.history else [])]
        rows = self.files.read(self.file, names)
        mask = pa.chunked_array([np.ones(rows.num_rows, np.bool_)])
        for name, values in self.wanted.items():
            mask = pc.and_(mask, pc.is_in(rows[name], value_set=values))
        if self.history:
            mask = pc.and_(mask, pc.is_null(rows["valid_to"]))
        if not pc.any(mask).as_py():
            return None
        return self.files.read(self.file, self.columns).filter(mask)


@dataclass
class CascadeTable:
    """A table of the batch that cascades may change."""

    table: TableBatch
    target: Target
    replayed: ReplayTable
    moves: bool
    """Whether cascades may change keys: then whole rows are held."""
    held: list[pa.Table] = field(default_factory=list)

    @property
    def schema(self) -> TableSchema:
        return self.table.schema

    def kind(self, column: str) -> pa.DataType:
        """The type of a column in the lake."""
        kind: pa.DataType = self.target.files.schema.field(self.target.names[column]).type
        return kind

    def values(self, rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> list[list[Any]]:
        """The columns that decide; `names` are those they have in `rows`."""
        pairs = zip(self.replayed.columns, names, strict=True)
        return [encoded(rows.column(name), self.kind(column)) for column, name in pairs]

    def hold(self, rows: pa.Table) -> list[int | None]:
        """Hold whole rows, if they may be needed. Returns their numbers."""
        if not self.moves:
            return [None] * rows.num_rows
        self.held.append(rows)
        first = (len(self.held) - 1) << _PAGE
        return list(range(first, first + rows.num_rows))


def cascaded(
    spark: SparkSession | None, batch: Batch, tables: Mapping[TableName, tuple[TableBatch, Target]]
) -> dict[TableName, CascadedRows]:
    """The rows of the tables that foreign keys have changed. `tables` are those that do not have the batch yet, by
    their names in the source."""
    _check(batch, tables)
    found = _tables(batch, tables)
    of = {key: found[key.child] for one in found.values() for key in one.replayed.foreign}

    def load(key: ForeignKey, values: set[Values]) -> Iterator[Values]:
        one = of[key]
        names = one.target.names
        wanted = {
            names[c]: decoded([v[n] for v in values], one.kind(c), distinct=True) for n, c in enumerate(key.columns)
        }
        whole = [n for n in one.schema.names if n in names] if one.moves else list(one.replayed.columns)
        columns = (*(names[n] for n in whole), "_lsn", "_seq")
        history = one.target.mode == "history"
        works = [Search(one.target.files, f, columns, wanted, history) for f in one.target.listed]
        for rows in run_in_tasks(spark, works, Search.run, [f.size for f in one.target.listed]):
            if rows is not None:
                decisive = one.values(rows, [names[c] for c in one.replayed.columns])
                numbers = one.hold(rows.select(columns[:-2]).rename_columns(whole))
                yield from zip(*decisive, rows["_lsn"].to_pylist(), rows["_seq"].to_pylist(), numbers, strict=True)

    with closing(Replay([one.replayed for one in found.values()], load)) as replay:
        for one in found.values():
            _add_rows(replay, one)
        for event in batch.cascades:
            if event.rules.first in of:
                for rows in event.events.changes():
                    _add_events(replay, of[event.rules.first], event.rules.first, rows)
        replay.run()
        return {name: rows for name, one in found.items() if (rows := _result(replay, one)) is not None}


def commit_groups(batch: Batch, tables: Sequence[TableName]) -> list[list[int]]:
    """The tables of a batch, by index, in groups that are committed one after the other: a table after those below."""
    below: dict[TableName, set[TableName]] = {}
    for one in batch.cascades:
        for table in one.rules.tables:
            below.setdefault(table, set()).update(one.rules.below(table) - {table})
    groups: dict[int, list[int]] = {}
    for index, table in enumerate(tables):
        groups.setdefault(len(below.get(table, ())), []).append(index)
    return [groups[size] for size in sorted(groups)]


def _check(batch: Batch, tables: Mapping[TableName, tuple[TableBatch, Target]]) -> None:
    for rules in (one.rules for one in batch.cascades):
        for table in rules.tables - tables.keys():
            if lost := sorted(map(str, rules.below(table) & tables.keys())):
                raise SinkError(
                    f"a crash has left the lake's table of {table} with a batch that {', '.join(lost)} does not have: "
                    "what foreign keys did to it is unknown, because they refer to each other",
                    hint="start with a new checkpoint, which dumps the tables again",
                )
        for name, needed in rules.needed().items():
            if name not in tables:
                continue
            table_batch, target = tables[name]
            if table_batch.arrow is None:
                raise SinkError(
                    f"foreign keys have changed rows of {name}, whose route only Spark can follow",
                    hint="remove the mask sha256 of the table, or set cascades to skip, which leaves such tables out",
                )
            if missing := sorted(needed.difference(target.names)):
                raise SinkError(
                    f"the lake's table of {name} lacks the columns {missing}, which are needed to apply foreign keys",
                    hint="set schema_changes = evolve, or cascades to skip, which leaves such tables out",
                )


def _tables(batch: Batch, tables: Mapping[TableName, tuple[TableBatch, Target]]) -> dict[TableName, CascadeTable]:
    rules = [one.rules for one in batch.cascades]
    keys = list(dict.fromkeys(key for one in rules for key in one.keys if key.child in tables))
    found: dict[TableName, CascadeTable] = {}
    for name in dict.fromkeys(key.child for key in keys):
        table, target = tables[name]
        key = table.schema.key
        needed = {column for one in rules for column in one.needed().get(name, ())}
        mine = tuple(k for k in keys if k.child == name)
        replayed = ReplayTable(
            (*key, *sorted(needed - set(key))), len(key), mine, tuple(k for k in keys if k.parent == name)
        )
        moves = any(set(k.columns) & set(key) for k in mine)
        found[name] = CascadeTable(table, target, replayed, moves)
    return found


def _add_rows(replay: Replay, one: CascadeTable) -> None:
    rows = one.table.arrow
    assert rows is not None
    for batches in (rows.changes(), rows.dump_rows()):
        for part in batches:
            unchanged = {n for names in part.column("_unchanged").to_pylist() for n in names or ()}
            if lost := sorted(unchanged.intersection(one.replayed.columns)):
                raise SinkError(
                    f"a change of {one.table.source} lacks the columns {lost}, by which foreign keys find its rows",
                    hint="start with a new checkpoint, which dumps the tables again",
                )
            decisive = one.values(part, one.replayed.columns)
            numbers = one.hold(pa.Table.from_batches([part.select(list(one.schema.names))]))
            meta = [part.column(name).to_pylist() for name in ("_lsn", "_seq", "_op")]
            replay.add_rows(one.replayed, zip(*meta, *decisive, numbers, strict=True))


def _add_events(replay: Replay, child: CascadeTable, key: ForeignKey, rows: pa.RecordBatch) -> None:
    kinds = [child.kind(column) for column in key.columns]
    values = [encoded(rows.column(name(n)), kind) for name in (old_name, new_name) for n, kind in enumerate(kinds)]
    times = rows.column("_committed_at").cast(pa.int64()).to_pylist()
    meta = [rows.column(name).to_pylist() for name in ("_lsn", "_seq", "_txid")]
    replay.add_events(key, zip(*meta, times, rows.column(DELETED).to_pylist(), *values, strict=True))


def _result(replay: Replay, one: CascadeTable) -> CascadedRows | None:
    """The rows of a table with what foreign keys did; None if they did nothing."""
    made = list(replay.changes(one.replayed))
    if not made:
        return None
    shape = Typed(one.schema, before=False).arrow
    lsn, seq, txid, at, op, *columns, numbers = (list(column) for column in zip(*made, strict=True))
    given = dict(zip(one.replayed.columns, columns, strict=True))
    size = len(made)
    created = [n for n, what in enumerate(op) if what == "create"]
    whole = _held_rows(one, [numbers[n] for n in created]) if created else None
    others = [name for name in one.schema.names if name not in given]
    arrays: dict[str, pa.Array] = {}
    for name in one.schema.names:
        kind = one.schema.column(name).arrow
        if name in given:
            arrays[name] = decoded(given[name], one.kind(name)).cast(kind)
        elif whole is None:
            arrays[name] = pa.nulls(size, kind)
        else:
            index = np.full(size, len(created), np.int64)
            index[created] = np.arange(len(created))
            values = pa.concat_arrays([whole[name].combine_chunks().cast(kind), pa.nulls(1, kind)])
            arrays[name] = values.take(pa.array(index))
    meta = {
        "_op": pa.array(op, pa.string()),
        "_lsn": pa.array(lsn),
        "_seq": pa.array(seq),
        "_txid": pa.array(txid, pa.int64()),
        "_committed_at": pa.array(at, pa.int64()),
        "_unchanged": pa.array([others if what == "update" else None for what in op], pa.list_(pa.string())),
    }
    for column in shape:
        if column.name not in arrays:
            arrays[column.name] = meta[column.name] if column.name in meta else pa.nulls(size, column.type)
    rows = pa.RecordBatch.from_arrays([arrays[f.name].cast(f.type) for f in shape], schema=shape)
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, shape) as writer:
        writer.write_batch(rows)
    assert one.table.arrow is not None
    return CascadedRows(one.table.arrow, sink.getvalue().to_pybytes())


def _held_rows(one: CascadeTable, numbers: Sequence[int]) -> pa.Table:
    """Whole rows by their numbers. A column that a row does not have is null."""
    parts = [one.held[n >> _PAGE].slice(n & ((1 << _PAGE) - 1), 1) for n in numbers]
    kinds = one.schema.arrow
    full = [
        pa.table({f.name: p[f.name].cast(f.type) if f.name in p.schema.names else pa.nulls(1, f.type) for f in kinds})
        for p in parts
    ]
    return pa.concat_tables(full)


def with_rows(table: TableBatch, rows: CascadedRows) -> TableBatch:
    """The table with the rows that foreign keys have changed."""
    return TableBatch(table.source, table.schema, None, None, table.truncated, True, rows)


# -- values ----------------------------------------------------------------------------------------------------------


def encoded(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> list[Any]:
    """Values of a type as values that SQLite compares exactly: equal ones are the same number, text or bytes."""
    column = column if column.type == kind else column.cast(kind)
    if pa.types.is_temporal(kind):
        return column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_decimal(kind):
        return [None if value is None else _number(value) for value in column.to_pylist()]
    return column.to_pylist()  # type: ignore[no-any-return]


def _number(value: Decimal) -> int | str:
    """An integer as such, so that it is the same in a column of integers."""
    if value == value.to_integral_value() and abs(value) < 1 << 63:
        return int(value)
    return format(value.normalize(), "f")


def decoded(values: Sequence[Any], kind: pa.DataType, *, distinct: bool = False) -> pa.Array:
    """The values that `encoded` had."""
    given = list(dict.fromkeys(values)) if distinct else list(values)
    if pa.types.is_temporal(kind):
        return pa.array(given, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if value is None else Decimal(value) for value in given], kind)
    return pa.array(given, kind)
