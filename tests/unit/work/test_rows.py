"""Typed rows: projection, history under older schemas, batch sizes and order across tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dblog.core.event import Op, change_schema
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import SchemaChanged
from dblog.work.rows import LEAST_ROWS, MOST_ROWS, Enveloped, Typed, in_order, regrouped

NAME = TableName("public", "t")
ID, NOTE, SUM = (
    Column("id", "bigint", pa.int64()),
    Column("note", "text", pa.string()),
    Column("sum", "integer", pa.int32()),
)
NOW = TableSchema(NAME, (ID, NOTE, SUM), ("id",))


def changes(schema: TableSchema, *events: dict[str, Any], before: bool = False) -> pa.RecordBatch:
    blank = {"_op": Op.update, "_lsn": 1, "_seq": 0, "_txid": 9, "_committed_at": 0}
    return pa.RecordBatch.from_pylist([{**blank, **e} for e in events], change_schema(schema.arrow, before=before))


def test_a_typed_row_has_the_tables_columns_and_the_metadata() -> None:
    batch = changes(NOW, {"id": 1, "note": "a", "sum": 5, "_op": Op.create})
    (row,) = Typed(NOW, before=False).project(NOW, batch, None).to_pylist()
    assert (row["id"], row["note"], row["sum"], row["_op"], row["_schema"]) == (1, "a", 5, "create", NOW.version)
    assert row["_dump"] is None
    assert row["_unchanged"] is None


def test_the_old_row_is_there_when_asked_for() -> None:
    batch = changes(NOW, {"id": 1, "_before": {"id": 1, "note": "old", "sum": 2}}, {"id": 2}, before=True)
    rows = Typed(NOW, before=True).project(NOW, batch, None).to_pylist()
    assert [r["_before"] for r in rows] == [{"id": 1, "note": "old", "sum": 2}, None]


def test_a_column_that_older_log_lacks_is_named_not_nulled() -> None:
    old = TableSchema(NAME, (ID, SUM), ("id",))
    batch = changes(old, {"id": 1, "sum": 5}, {"id": 2, "_op": Op.delete}, {"id": 3, "_unchanged": ["sum"]})
    rows = Typed(NOW, before=False).project(old, batch, None).to_pylist()
    assert [r["_unchanged"] for r in rows] == [["note"], None, ["sum", "note"]]


def test_a_column_that_was_dropped_since_is_left_out() -> None:
    old = TableSchema(NAME, (ID, NOTE, SUM, Column("gone", "text", pa.string())), ("id",))
    out = Typed(NOW, before=False).project(old, changes(old, {"id": 1, "note": "a", "sum": 5, "gone": "x"}), None)
    assert "gone" not in out.schema.names
    assert out.to_pylist()[0]["_unchanged"] is None


def test_an_older_type_is_converted_only_when_every_value_fits() -> None:
    narrow = TableSchema(NAME, (ID, NOTE, Column("sum", "smallint", pa.int16())), ("id",))
    wide = TableSchema(NAME, (ID, NOTE, Column("sum", "bigint", pa.int64())), ("id",))
    typed = Typed(NOW, before=False)
    assert typed.project(narrow, changes(narrow, {"id": 1, "sum": 7}), None).to_pylist()[0]["sum"] == 7
    row = typed.project(wide, changes(wide, {"id": 1, "sum": 2**40, "note": "a"}), None).to_pylist()[0]
    assert (row["sum"], row["_unchanged"]) == (None, ["sum"])


def test_log_without_the_key_cannot_be_delivered() -> None:
    old = TableSchema(NAME, (NOTE, SUM), ("note",))
    with pytest.raises(SchemaChanged, match="key column 'id'"):
        Typed(NOW, before=False).project(old, changes(old, {"note": "a"}), None)


class _Catalog:
    """A source of which only the catalog is asked."""

    def __init__(self, *tables: TableSchema) -> None:
        self._tables = {t.table: t for t in tables}
        self.asked = 0

    def tables(self) -> dict[TableName, TableSchema]:
        self.asked += 1
        return self._tables


def test_newer_log_stops_a_typed_stream_and_says_what_changed() -> None:
    new = TableSchema(NAME, (ID, Column("note", "text", pa.string()), Column("extra", "date", pa.date32())), ("id",))
    with pytest.raises(SchemaChanged, match=r"'sum' was dropped; column 'extra' \(date\) was added") as caught:
        Typed(NOW, before=False).check({new.version}, _Catalog(new), set())  # type: ignore[arg-type]
    assert "restart the query" in (caught.value.hint or "")


def test_older_log_is_accepted_while_the_table_is_what_the_stream_has() -> None:
    old, catalog, accepted = TableSchema(NAME, (ID,), ("id",)), _Catalog(NOW), set[str]()
    typed = Typed(NOW, before=False)
    typed.check({NOW.version}, catalog, accepted)  # type: ignore[arg-type]
    assert catalog.asked == 0, "the usual case asks nobody"
    typed.check({old.version}, catalog, accepted)  # type: ignore[arg-type]
    typed.check({old.version}, catalog, accepted)  # type: ignore[arg-type]
    assert catalog.asked == 1


def test_a_dropped_table_stops_a_typed_stream() -> None:
    old = TableSchema(NAME, (ID,), ("id",))
    with pytest.raises(SchemaChanged, match="the table does not exist"):
        Typed(NOW, before=False).check({old.version}, _Catalog(), set())  # type: ignore[arg-type]


def test_events_of_several_tables_come_in_commit_order() -> None:
    other = TableSchema(TableName("public", "u"), (ID,), ("id",))
    stride = [
        (NOW, changes(NOW, {"id": 1, "_lsn": 10, "_seq": 2}, {"id": 2, "_lsn": 30, "_seq": 0})),
        (other, changes(other, {"id": 3, "_lsn": 10, "_seq": 0}, {"id": 4, "_lsn": 20, "_seq": 0})),
    ]
    rows = [r for b in in_order([stride], Enveloped()) for r in b.to_pylist()]
    assert [(r["table"], r["_lsn"], r["_seq"]) for r in rows] == [
        ("u", 10, 0),
        ("t", 10, 2),
        ("u", 20, 0),
        ("t", 30, 0),
    ]


@pytest.mark.parametrize("sizes", [[1] * 10_000, [100_000], [5, 70_000, 3], [], [LEAST_ROWS]])
def test_batches_are_regrouped_to_a_size_that_spark_likes(sizes: list[int]) -> None:
    at, given = 0, []
    for size in sizes:
        given.append(pa.record_batch({"n": range(at, at + size)}))
        at += size
    out = list(regrouped(given))
    assert [n for b in out for n in b.column("n").to_pylist()] == list(range(at))
    assert all(b.num_rows <= MOST_ROWS for b in out)
    assert len(out) <= at // LEAST_ROWS + 2


def test_wide_rows_make_small_batches() -> None:
    batch = pa.record_batch({"n": [b"x" * (4 << 20)] * 20})
    assert max(b.nbytes for b in regrouped([batch])) <= 40 << 20
    assert sum(b.num_rows for b in regrouped([batch])) == 20
