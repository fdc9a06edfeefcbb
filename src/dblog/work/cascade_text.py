"""Cascade events (`core.cascades`) as rows of their child table, for targets that keep events and not rows.

Such a row has no values. Its column `_cascade` says, as JSON, what a foreign key did: the rows of the table whose
columns had the values of `old` were deleted, or have the values of `new` now.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.cascades import CASCADE, DELETED, ForeignKey, from_text, new_name, old_name
from dblog.core.schema import TableSchema
from dblog.work.json_text import join_members, json_text


def cascade_text(schema: TableSchema, events: pa.RecordBatch) -> pa.StringArray:
    """What each event says. `schema` is that of the events."""
    rules = from_text(schema.cascade)
    key, size = rules.first, events.num_rows
    width = range(len(key.columns))
    gone = events.column(DELETED)
    old = join_members(key.columns, [json_text(events.column(old_name(n))) for n in width])
    given = join_members(key.columns, [json_text(events.column(new_name(n))) for n in width])
    none = pa.scalar(json.dumps(dict.fromkeys(key.columns)))
    after = {deleted: _new(key, deleted, given, none) for deleted in (True, False)}  # null: the rows were deleted
    new = pc.if_else(gone, after[True], after[False])
    about = {
        "foreign_key": key.name,
        "parent": str(key.parent),
        "referenced": list(key.referenced),
        "then": [_rule(other) for other in rules.others],
    }
    rule = pc.if_else(gone, _quoted(f"on delete {key.on_delete}"), _quoted(f"on update {key.on_update}"))
    members = {name: pa.repeat(json.dumps(value), size) for name, value in about.items()}
    members |= {"rule": rule, "old": old, "new": new}
    order = ("foreign_key", "rule", "parent", "referenced", "old", "new", "then")
    return join_members(order, [members[name] for name in order])


def _new(key: ForeignKey, deleted: bool, given: pa.StringArray, none: pa.Scalar) -> pa.Array | pa.Scalar:
    action = key.action(deleted=deleted)
    if action != CASCADE:
        return none
    return pa.scalar(None, pa.string()) if deleted else given


def _rule(key: ForeignKey) -> dict[str, object]:
    return {
        "foreign_key": key.name,
        "table": str(key.child),
        "columns": list(key.columns),
        "parent": str(key.parent),
        "referenced": list(key.referenced),
        "on_delete": key.on_delete or None,
        "on_update": key.on_update or None,
    }


def _quoted(text: str) -> pa.Scalar:
    return pa.scalar(json.dumps(text))
