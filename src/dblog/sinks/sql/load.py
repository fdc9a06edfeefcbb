"""Loads rows into the target, on the executors: into staging tables, or, in a first dump, into the table itself.

A task makes a staging table for each window of rows, and returns the names. Spark may run a task twice and count only
one result: nobody reads the staging tables of the other run, and the driver drops them with those of the batch.

Rows of a first dump are inserted directly while the ledger has the token of this attempt at the batch. The transaction
that inserts them holds a lock on the ledger's entry, and the next transaction that writes the table removes the token.
So a task that is late inserts nothing: it cannot bring back a row that was deleted since.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.keys import key_columns, matches
from dblog.core.schema import TableName
from dblog.errors import SinkError, TargetRefused
from dblog.sinks.base import ArrowRows
from dblog.sinks.sql.rows import TableShape, change_windows, dump_windows, portions, spark_windows
from dblog.sinks.sql.staged import Kinds
from dblog.sinks.sql.target import DuplicateKey, Session, Target, about_table
from dblog.sinks.sql.text import Refused
from dblog.work.json_text import json_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN = 100
"""How many characters of a value an error shows."""
FEW = 10_000
"""If the target has more rows than this within the keys of a portion, the portion is not inserted directly."""

Windows = Iterable[tuple[pa.Table, Kinds]]


@dataclass(frozen=True)
class Loading:
    """How the rows of a table are loaded."""

    target: Target
    source: TableName
    """The source's table."""
    shape: TableShape
    name: TableName
    """The target's table."""
    table: str
    """Its quoted name."""
    types: Mapping[str, str]
    """The server's types of all columns that are loaded."""
    stage: tuple[str, str]
    """The schema of staging tables, and how their names begin."""
    create: str
    """The columns and options of a staging table, as in CREATE TABLE."""
    ask_token: str = ""
    """The statement that locks the table's entry in the ledger and returns its token."""


@dataclass(frozen=True)
class Part:
    """Rows that one piece of work loads."""

    loading: Loading
    rows: ArrowRows
    log: bool
    """Whether they are changes; otherwise they are rows of dumps."""
    token: str = ""
    """The token under which they may be inserted directly; empty if they may not."""


@dataclass(frozen=True)
class Stage:
    """A loaded staging table: its quoted name, and what kinds of rows it has."""

    name: str
    kinds: Kinds


@dataclass(frozen=True)
class Loaded:
    """What a piece of work has loaded."""

    stages: tuple[Stage, ...] = ()
    full: bool = False
    """Whether the table turned out to have too many of the rows already for direct inserts."""


def load_part(part: Part) -> Loaded:
    """Load the rows of one piece of work. Raises SinkError."""
    session = part.loading.target.connect(durable=False)
    try:
        with about_table(part.loading.source):
            if part.log:
                windows = change_windows(part.rows.changes(), part.loading.shape)
                return Loaded(tuple(_stage(session, part.loading, [window]) for window in windows))
            if part.token:
                return _insert(session, part)
            return _dumped(session, part)
    finally:
        session.close()


def load_windows(loading: Loading, windows: Windows) -> Loaded:
    """Load windows of rows that may be applied together into one staging table. Raises SinkError."""
    session = loading.target.connect(durable=False)
    try:
        return Loaded((_stage(session, loading, windows),))
    finally:
        session.close()


def _dumped(session: Session, part: Part, *, full: bool = False) -> Loaded:
    windows = dump_windows(part.rows.dump_rows(), part.loading.shape)
    return Loaded((_stage(session, part.loading, windows),), full)


def _stage(session: Session, loading: Loading, windows: Windows) -> Stage:
    """Load rows into a new staging table."""
    target = loading.target
    schema, prefix = loading.stage
    name = target.quoted(schema, prefix + secrets.token_hex(8))
    gone = live = incomplete = False
    last = -1
    session.run(f"{target.scratch} {name} {loading.create}", f"creating {name}")
    with session.transaction():
        for rows, kinds in windows:
            _send(session, loading, name, rows)
            gone, live = gone or kinds.gone, live or kinds.live
            incomplete, last = incomplete or kinds.incomplete, max(last, kinds.last_gone)
    return Stage(name, Kinds(gone, live, incomplete, last))


def _send(session: Session, loading: Loading, table: str, rows: pa.Table) -> None:
    for portion in portions(rows):
        try:
            loading.target.insert(session, table, portion, loading.types)
        except Refused as refused:
            raise explained(refused, portion, loading) from refused


# -- direct inserts ----------------------------------------------------------------------------------------------------


def _insert(session: Session, part: Part) -> Loaded:
    """Insert rows of a first dump into the table itself. Rows that the table has already are staged: the log was there
    first. So are all rows if the token is not valid any more, or if the table has many of them."""
    loading, later = part.loading, []
    checked = _comparable(loading)
    try:
        with session.transaction():
            if session.run(loading.ask_token) != [(part.token,)]:
                raise _NotDirect(full=False)
            for rows, _ in dump_windows(part.rows.dump_rows(), loading.shape):
                new, known = _divided(session, loading, rows) if checked else (rows, rows.slice(0, 0))
                if known.num_rows:
                    later.append(known)
                _send(session, loading, loading.table, new.select([*loading.shape.columns, "_lsn", "_seq"]))
    except DuplicateKey:
        # A repeated batch, if the keys were checked. Otherwise changes of the log, and more of them will come.
        return _dumped(session, part, full=not checked)
    except _NotDirect as why:
        return _dumped(session, part, full=why.full)
    windows = [(rows, Kinds(live=True, incomplete="_unchanged" in rows.schema.names)) for rows in later]
    return Loaded((_stage(session, loading, windows),) if windows else ())


class _NotDirect(Exception):
    """The rows cannot be inserted directly."""

    def __init__(self, *, full: bool) -> None:
        super().__init__()
        self.full = full


def _comparable(loading: Loading) -> bool:
    """Whether the keys of rows can be compared with the server's: the first column is ordered alike on both sides."""
    key = [(loading.shape.schema.column(n).arrow, loading.types[n]) for n in loading.shape.schema.key]
    first, server = key[0]
    texts = all(pa.types.is_integer(kind) or kind == pa.string() for kind, _ in key)
    return texts and (pa.types.is_integer(first) or server == "uuid")


def _divided(session: Session, loading: Loading, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows whose keys the table does not have, and the others. Rows that the table has from this batch do not count
    here: they would be all rows of a repeated batch."""
    quoted, key = loading.target.quoted, loading.shape.schema.key
    bounds = pc.min_max(rows[key[0]]).as_py()
    low, high = (loading.target.literal(str(bounds[b])) for b in ("min", "max"))
    first, lsn, seq = quoted(key[0]), rows["_lsn"][0].as_py(), rows["_seq"][0].as_py()
    found = session.run(
        f"select {', '.join(map(quoted, key))} from {loading.table} where {first} between {low} and {high} "
        f"and not (_lsn = {lsn} and _seq = {seq}) limit {FEW + 1}"
    )
    if len(found) > FEW:
        raise _NotDirect(full=True)
    if not found:
        return rows, rows.slice(0, 0)
    theirs = [pa.array(values, rows[n].type) for n, values in zip(key, zip(*found, strict=True), strict=True)]
    there = matches(key_columns(rows, key), theirs)
    return rows.filter(pc.invert(there)), rows.filter(there)


# -- rows that Spark computes ------------------------------------------------------------------------------------------


def load_frame(rows: DataFrame, loading: Loading) -> list[Stage]:
    """Load the net effect of a table that only Spark can compute, because of its route. Raises SinkError."""
    names = list(rows.columns)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stages: tuple[Stage, ...] = ()
        error: SinkError | None = None
        given = (batch.rename_columns(names) for batch in batches if batch.num_rows)
        first = next(given, None)
        if first is not None:
            try:
                stages = load_windows(loading, spark_windows(_chained(first, given), loading.shape)).stages
            except SinkError as raised:
                error = raised
                for _ in given:  # Spark expects the task to read all its input
                    pass
        told = [pa.array([pickle.dumps(stages)]), pa.array([error and pickle.dumps(error)], pa.binary())]
        yield pa.record_batch(told, names=["stages", "error"])

    # Spark cannot pass columns to Arrow whose names have special characters or differ by case only.
    plain = rows.toDF(*(f"c{n}" for n in range(len(names))))
    found: list[Stage] = []
    for told in plain.mapInArrow(task, "stages binary, error binary").collect():
        if told.error is not None:
            raise pickle.loads(told.error)  # pickled by our own task of this job
        found += pickle.loads(told.stages)
    return found


def _chained(first: pa.RecordBatch, rest: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


# -- errors ------------------------------------------------------------------------------------------------------------


def explained(refused: Refused, rows: pa.RecordBatch | pa.Table, loading: Loading) -> TargetRefused:
    """The error with table, column, value and key."""
    key: Sequence[str] = loading.shape.schema.key
    value, *shown = (_shown(rows.column(name), refused.row) for name in (refused.column, *key))
    return TargetRefused(
        f"table {loading.name} cannot store {value} in column {refused.column!r} of the row with the key "
        f"({', '.join(shown)}): {refused.why}",
        hint=refused.hint,
    )


def _shown(column: pa.Array, row: int) -> str:
    """A value as JSON, cut to `SHOWN` characters."""
    value = column.slice(row, 1)
    value = value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value
    shown = json_text(value.cast(pa.string()) if pa.types.is_large_string(value.type) else value)[0].as_py() or "null"
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
