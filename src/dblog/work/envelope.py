"""One row format for the changes of many tables: the row as JSON, beside the metadata of the change.

A stream over several tables cannot have their columns, so each change becomes an *envelope*: where it happened
(`schema`, `table`), what happened (`op`), to which row (`key`), and the row's images (`before`, `after`).
`dblog.work.json_text` defines the JSON of values. Spark's `from_json` with the table's columns reads an image back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import CHANGE_FIELDS, DELIVERED_FIELDS, RAW, Op, op_names
from dblog.core.schema import TableSchema
from dblog.errors import SchemaChanged
from dblog.work.json_text import join_members, json_text

_PARTS = ("schema", "table", "op", "key", "before", "after")

ENVELOPE = pa.schema([*(pa.field(name, pa.string()) for name in _PARTS), *DELIVERED_FIELDS])
"""The columns of an envelope, as Spark's Arrow form of them in time zone UTC."""


def envelope(changes: pa.RecordBatch, schema: TableSchema, *, dump: str | None = None) -> pa.RecordBatch:
    """The envelopes of a change batch of one table.

    `key`
        The primary key columns, in the key's order. Null for a truncate and for a cascade.
    `after`
        Every column, for create, update and read; a column that `_unchanged` names is absent, which is not `null`.
        Null for others.
    `before`
        The old row: `_before` if the batch has it, else the row of a delete. If only the key of the old row is known,
        its other columns are null in the batch. So an old row whose columns are all null, except the key, is written
        with its key only: unknown columns are absent. A reader with a schema reads absent and null columns alike.
        Null if the old row is unknown.
    """
    raw = pa.nulls(changes.num_rows, pa.string())
    if changes.schema.names[-1] == RAW:
        raw, changes = changes.columns[-1], changes.drop_columns([RAW])
    first, last = len(CHANGE_FIELDS), len(CHANGE_FIELDS) + len(schema.columns)
    names = tuple(changes.schema.names[first:last])
    if names != schema.names:
        raise SchemaChanged(
            f"changes of {str(schema.table)!r} have columns {names!r}, schema {schema.version!r} has {schema.names!r}",
            hint="pass the schema with which the change batch was decoded",
        )
    # By index, not by name: a column of the table may have the name of a metadata column.
    op, lsn, seq, txid, committed_at, unchanged = changes.columns[:first]
    columns = changes.columns[first:last]
    texts = dict(zip(names, map(json_text, columns), strict=True))
    key = join_members(schema.key, [texts[name] for name in schema.key])
    row = join_members(names, list(texts.values()), absent=unchanged)

    rows = changes.num_rows
    before = _with_old_rows(pa.nulls(rows, pa.string()), pc.equal(op, Op.delete.value), columns, schema)
    for images in changes.columns[last:]:
        before = _with_old_rows(before, pc.is_valid(images), images.flatten(), schema)
    return pa.record_batch(
        [
            pa.repeat(schema.table.schema, rows),
            pa.repeat(schema.table.name, rows),
            pc.take(op_names(), op),
            pc.if_else(pc.is_in(op, pa.array([Op.truncate, Op.cascade], op.type)), None, key),
            before,
            pc.if_else(pc.is_in(op, pa.array([Op.create, Op.update, Op.read], op.type)), row, None),
            lsn,
            seq,
            txid,
            committed_at,
            pa.repeat(pa.scalar(dump, pa.string()), rows),
            pa.repeat(schema.version, rows),
            unchanged,
            raw,
        ],
        schema=ENVELOPE,
    )


def _with_old_rows(
    before: pa.StringArray, where: pa.BooleanArray, columns: Sequence[pa.Array], schema: TableSchema
) -> pa.StringArray:
    """`before` with the old rows of `columns` at the indexes `where`."""
    if not where.true_count:
        return before
    columns = [column.filter(where) for column in columns]
    texts = dict(zip(schema.names, map(json_text, columns), strict=True))
    known = [pc.is_valid(c) for name, c in zip(schema.names, columns, strict=True) if name not in schema.key]
    images = join_members(schema.key, [texts[name] for name in schema.key])
    if known:
        images = pc.if_else(reduce(pc.or_, known), join_members(schema.names, list(texts.values())), images)
    return pc.replace_with_mask(before, where, images)
