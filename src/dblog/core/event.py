"""What an event is made of: operations, metadata columns, and their order.

A *change batch* is an Arrow record batch of one table and one schema version: the metadata columns below, then the
table's columns. Decoders produce change batches, the spool stores them, and every output is made from them.

`(lsn, seq)` orders a key's history. A log event has the position of its transaction's commit and an ordinal that
grows within the transaction. A dump row has the position just below the end of its batch and the greatest ordinal:
it sorts after every log event of its batch and before every event of the next.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache

import pyarrow as pa


class Op(IntEnum):
    """What happened to a row. Stored as its number, shown as its name."""

    create = 0
    update = 1
    delete = 2
    read = 3
    """A row of a dump: the state of the table, not a change."""
    truncate = 4
    """All rows of the table were removed; the event has no key."""
    cascade = 5
    """A foreign key acted on rows that the log does not name (`core.cascades`)."""


@cache
def op_names() -> pa.Array:
    """The operations' names, by number. Made on first use, because the first Arrow array of a process loads pandas."""
    return pa.array([op.name for op in Op])


DUMP_SEQ = 2**31 - 1
"""`_seq` of a dump row: greater than that of every log event at the same position."""

EMPTIED_SEQ = DUMP_SEQ - 1
"""`_seq` of a truncate that ends a batch: after every log event of the batch, before its dump rows."""

UTC_MICROS = pa.timestamp("us", tz="UTC")

CHANGE_FIELDS: tuple[pa.Field, ...] = (
    pa.field("_op", pa.int8()),
    pa.field("_lsn", pa.int64()),
    pa.field("_seq", pa.int32()),
    pa.field("_txid", pa.int64()),
    pa.field("_committed_at", UTC_MICROS),
    pa.field("_unchanged", pa.list_(pa.string())),
)
"""Metadata of a change, before the table's columns. `_unchanged` is null if the log has every column. A batch in which
some value does not fit its column's type has one more column, `_raw_values`, at its end."""

RAW = "_raw_values"
"""The database's text of values that their column's type cannot hold (`core.raw_values`)."""

DELIVERED_FIELDS: tuple[pa.Field, ...] = (
    pa.field("_lsn", pa.int64()),
    pa.field("_seq", pa.int32()),
    pa.field("_txid", pa.int64()),
    pa.field("_committed_at", UTC_MICROS),
    pa.field("_dump", pa.string()),
    pa.field("_schema", pa.string()),
    pa.field("_unchanged", pa.list_(pa.string())),
    pa.field(RAW, pa.string()),
)
"""Metadata at the end of every delivered row, typed or envelope."""

BEFORE = "_before"
"""The old row as a struct of the table's columns, after the table's columns; only if the stream has old rows."""

CASCADE = "_cascade"
"""What a foreign key did, as JSON (`work.cascade_text`); only if the stream delivers cascade events as rows. It is null
in other rows."""

RESERVED = frozenset({"_op", BEFORE, CASCADE, *(field.name for field in DELIVERED_FIELDS)})
"""Names that no column of a table may have."""
WHOLE = "_whole"
"""One more reserved name, used by pipelines that reduce a batch to one row per key (`sinks/net_effect.py`)."""


def truncation(
    columns: pa.Schema, lsn: int, seq: int, txid: int | None, committed_at: int | None, *, before: bool = False
) -> pa.RecordBatch:
    """The change batch of one truncate: a change without a row."""
    fields = change_schema(columns, before=before)
    meta = (int(Op.truncate), lsn, seq, txid, committed_at)
    arrays = [pa.array([value], pa.int64()).cast(field.type) for field, value in zip(fields, meta, strict=False)]
    arrays += [pa.nulls(1, field.type) for field in list(fields)[len(meta) :]]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


def change_schema(columns: pa.Schema, *, before: bool = False) -> pa.Schema:
    """The Arrow schema of a change batch over a table's columns."""
    fields = [*CHANGE_FIELDS, *columns]
    if before:
        fields.append(pa.field(BEFORE, pa.struct(list(columns))))
    return pa.schema(fields)
