"""Taking back what was delivered and does not exist any more: the end of a log that a promoted server lacks.

The stream gets one run, before everything that the new timeline has. For each row that a lost commit has changed:

    the new primary does not have the row   the run deletes it
    it has the row                          it is read again, through a window, like a row of a dump

A row that was inserted or deleted on the new timeline in between is in its log, which follows the run. Where the keys
are not known any more (the stream was started again, there were too many, a truncate is among the changes), the run
empties the table, and all of its rows are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dblog.core.event import Op, change_schema, truncation
from dblog.core.keys import has_plain_text
from dblog.core.offset import Key
from dblog.core.schema import TableName, TableSchema
from dblog.errors import TableUnreadable
from dblog.sources.base import Commits, Loss, Run
from dblog.sources.postgres.recent_changes import TableChanges
from dblog.sources.postgres.resume import GAP, Resumption
from dblog.sources.postgres.stream import lsn

MOST_KEYS = 100_000
"""How many keys of a table are looked for on the new primary. With more, the whole table is read again."""

_SEQ_STEP = 2

Missing = Callable[[TableSchema, Sequence[Key]], Collection[Key]]
"""Finds those of the keys that no row of the table has."""


@dataclass
class _Found:
    changes: list[tuple[TableSchema, pa.RecordBatch]] = field(default_factory=list)
    replaced: list[TableName] = field(default_factory=list)
    reread: dict[TableName, list[Key]] = field(default_factory=dict)
    tables: dict[TableName, int | None] = field(default_factory=dict)


def taken_back(
    there: Mapping[TableName, TableSchema],
    changes: Mapping[TableName, TableChanges] | None,
    missing: Missing,
    opening: Resumption,
    *,
    servers: str,
    xid: int,
    before: bool,
) -> Run:
    """The run that takes back what is lost. `there` are the followed tables as the new primary has them, `changes` the
    lost changes, if they are known. `xid` is a transaction that every select sees."""
    assert opening.lost is not None
    found = _Found()
    for table, schema in there.items():
        mine = None if changes is None else changes.get(table)
        if changes is not None and mine is None:
            continue
        keys = None if mine is None else _keys(schema, mine)
        try:
            gone = None if keys is None else set(missing(schema, list(keys)))
        except TableUnreadable:
            gone = None
        if keys is None or gone is None:
            found.changes.append((schema, truncation(schema.arrow, opening.position, 0, None, None, before=before)))
            found.replaced.append(table)
            found.tables[table] = None
            continue
        if gone:
            rows = [row for key, row in keys.items() if key in gone]
            found.changes.append((schema, _deletes(schema, pa.concat_tables(rows), opening.position, before=before)))
        found.reread[table] = [key for key in keys if key not in gone]
        found.tables[table] = len(keys)
    rows = sum(batch.num_rows for _, batch in found.changes)
    end, xids, counted = (np.array([value], np.int64) for value in (opening.position + GAP, xid, rows))
    commits = Commits(end, xids, counted, np.zeros(1, np.int64), np.array([""], np.object_), np.zeros(1, np.int64))
    after, upto = opening.lost
    loss = Loss(lsn(after), lsn(upto), servers, found.tables)
    return Run(tuple(found.changes), commits, replaced=found.replaced, reread=found.reread, lost=loss)


def _keys(schema: TableSchema, changes: TableChanges) -> dict[Key, pa.Table] | None:
    """The changed keys as texts, each with a row of its values; None if they cannot be used with this schema."""
    types = [schema.column(name).arrow for name in schema.key]
    if changes.emptied or not types or not all(map(has_plain_text, types)):
        return None
    found: dict[Key, pa.Table] = {}
    for old, keys in zip(changes.schemas, changes.keys, strict=True):
        if old.key != schema.key or [old.column(name).arrow for name in old.key] != types:
            return None
        texts = [keys.column(name).cast(pa.string()).to_pylist() for name in schema.key]
        for number, key in enumerate(zip(*texts, strict=True)):
            if key not in found:
                found[key] = keys.slice(number, 1)
        if len(found) > MOST_KEYS:
            return None
    return found


def _deletes(schema: TableSchema, keys: pa.Table, position: int, *, before: bool) -> pa.RecordBatch:
    """The deletes of rows, of which only the keys are known."""
    fields, rows = change_schema(schema.arrow, before=before), keys.num_rows
    values = {
        "_op": pa.array(np.full(rows, int(Op.delete), np.int8)),
        "_lsn": pa.array(np.full(rows, position, np.int64)),
        "_seq": pa.array(np.arange(rows, dtype=np.int32) * np.int32(_SEQ_STEP)),
        **{name: keys.column(name).combine_chunks() for name in schema.key},
    }
    arrays = [values[f.name] if f.name in values else pa.nulls(rows, f.type) for f in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)
