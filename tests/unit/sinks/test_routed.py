"""Routes of rows that a task reads as Arrow."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from dblog.core.names import parse_patterns
from dblog.core.schema import Column, TableName, TableSchema
from dblog.sinks.base import TableBatch
from dblog.sinks.route import Route
from dblog.sinks.routed import routed
from dblog.work.rows import Typed

COLUMNS = (Column("id", "", pa.int32()), Column("n", "", pa.int64()), Column("note", "", pa.string()))
SCHEMA = TableSchema(TableName("public", "t"), COLUMNS, ("id",))
EVENTS = [
    {"id": 1, "n": 5, "note": "a", "_op": "create", "_lsn": 1, "_before": None},
    {"id": 1, "n": None, "note": None, "_op": "update", "_unchanged": ["n", "note"], "_before": {"id": 1, "note": "a"}},
    {"id": 2, "n": 7, "note": None, "_op": "update", "_unchanged": ["note"], "_before": None},
]


@dataclass(frozen=True)
class Given:
    overlapping: bool = True
    weight: int = 7

    def changes(self) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(EVENTS, schema=Typed(SCHEMA, before=True).arrow)

    def dump_rows(self) -> Iterator[pa.RecordBatch]:
        return self.changes()

    def split(self) -> list[Given]:
        return [self, self]


def table(**given: Any) -> TableBatch:
    (pattern,) = parse_patterns("public.t")
    batch = TableBatch(SCHEMA.table, SCHEMA, None, None, None, incomplete=True, arrow=Given())
    return routed(batch, [Route(pattern, **given)])


def test_columns_are_renamed_left_out_and_masked() -> None:
    found = table(target="lake.copy", rename={"id": "key"}, mask={"note": "redact", "n": "null"})
    assert found.schema.table == TableName("lake", "copy")
    assert found.arrow is not None
    rows = pickle.loads(pickle.dumps(found.arrow))
    (batch,) = rows.changes()
    assert batch.schema.names[:3] == list(found.schema.names) == ["key", "n", "note"]
    assert [(r["key"], r["n"], r["note"]) for r in batch.to_pylist()] == [
        (1, None, "***"),
        (1, None, None),
        (2, None, None),
    ]
    assert batch.column("_before").to_pylist() == [None, {"key": 1, "n": None, "note": "***"}, None]
    assert batch.column("_unchanged").to_pylist() == [None, ["n", "note"], ["note"]]
    assert next(rows.dump_rows()).equals(batch)
    assert (rows.overlapping, rows.weight) == (True, 7)
    assert [next(part.changes()).equals(batch) for part in rows.split()] == [True, True]


def test_what_the_target_does_not_get_is_not_named_as_unchanged() -> None:
    found = table(exclude=("note",), rename={"n": "number"})
    assert found.arrow is not None
    (batch,) = found.arrow.changes()
    assert [(r["id"], r["number"], r["_unchanged"]) for r in batch.to_pylist()] == [
        (1, 5, None),
        (1, None, ["number"]),
        (2, 7, None),
    ]
    assert batch.column("_before").to_pylist()[1] == {"id": 1, "number": None}
    included = table(include=("note",)).arrow
    assert included is not None
    assert next(included.changes()).schema.names[:2] == ["id", "note"]


@pytest.mark.parametrize("given", [{"where": "n > 5"}, {"mask": {"note": "sha256"}}])
def test_what_only_spark_can_do_is_left_to_spark(given: Any) -> None:
    assert table(**given).arrow is None


def test_a_table_without_a_route_is_as_it_was() -> None:
    batch = TableBatch(SCHEMA.table, SCHEMA, None, None, None, incomplete=False, arrow=Given())
    assert routed(batch, []) is batch
