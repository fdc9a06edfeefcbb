"""Rows of a batch as staged rows: windows of changes, and columns that a change leaves out."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from dblog.core.schema import Column, TableName, TableSchema
from dblog.sinks.sql import rows
from dblog.sinks.sql.rows import TableShape, change_windows, portions

SCHEMA = TableSchema(
    TableName("public", "t"),
    (Column("id", "integer", pa.int32()), Column("v", "text", pa.string()), Column("big", "text", pa.string())),
    ("id",),
)
FIELDS = pa.schema(
    [
        *SCHEMA.arrow,
        ("_op", pa.string()),
        ("_lsn", pa.int64()),
        ("_seq", pa.int32()),
        ("_unchanged", pa.list_(pa.string())),
    ]
)
Change = dict[str, Any]


def history(seed: int, count: int) -> list[Change]:
    chance, live, changes = random.Random(seed), set(), []
    for lsn in range(1, count + 1):
        key = chance.randrange(5)
        change: Change = {"id": key, "v": f"v{lsn}", "big": f"b{lsn}", "_lsn": lsn, "_seq": 0, "_op": "create"}
        if key in live:
            change["_op"] = chance.choice(["update", "update", "delete"])
            if change["_op"] == "delete":
                change |= {"v": None, "big": None}
            elif chance.random() < 0.5:
                change |= {"big": None, "_unchanged": ["big"]}
        (live.discard if change["_op"] == "delete" else live.add)(key)
        changes.append(change)
    return changes


def batches(changes: list[Change]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([change], FIELDS) for change in changes]


def applied(changes: list[Change], shape: TableShape) -> dict[int, tuple[Any, ...]]:
    """A table after the windows were applied in order."""
    found: dict[int, tuple[Any, ...]] = {}
    for window, kinds in change_windows(batches(changes), shape):
        for row in window.to_pylist():
            if row.get("_gone") and not shape.soft:
                assert kinds.gone
                assert kinds.last_gone >= row["_lsn"]
                found.pop(row["id"], None)
                continue
            kept = dict(zip(("v", "big"), found.get(row["id"], (None, None)), strict=False))
            kept = {} if row.get("_whole") else kept
            lacks = row.get("_unchanged") or ()
            assert kinds.incomplete or not lacks
            found[row["id"]] = tuple(kept.get(n) if n in lacks else row[n] for n in ("v", "big"))
    return found


def truth(changes: list[Change]) -> dict[int, tuple[Any, ...]]:
    found: dict[int, tuple[Any, ...]] = {}
    for change in changes:
        if change["_op"] == "delete":
            found.pop(change["id"])
        else:
            big = found[change["id"]][1] if change.get("_unchanged") else change["big"]
            found[change["id"]] = (change["v"], big)
    return found


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_windows_that_are_applied_in_order_give_the_table(
    monkeypatch: pytest.MonkeyPatch, seed: int, size: int
) -> None:
    monkeypatch.setattr(rows, "WINDOW_ROWS", size)
    changes = history(seed, 60)
    assert applied(changes, TableShape(SCHEMA, SCHEMA.names, False, None)) == truth(changes)


def test_changes_up_to_a_truncate_do_not_count() -> None:
    changes = history(3, 30)
    after = [c for c in changes if c["_lsn"] > 20]
    shape = TableShape(SCHEMA, SCHEMA.names, False, (20, 0))
    assert applied(changes, shape) == applied(after, shape)
    assert list(change_windows(batches(changes[:20]), shape)) == []


def test_a_soft_delete_leaves_all_but_the_key() -> None:
    changes = [c for c in history(1, 40) if c["_op"] == "delete"][:1]
    shape = TableShape(SCHEMA, (*SCHEMA.names, "_deleted"), True, None)
    ((window, kinds),) = change_windows(batches(changes), shape)
    (row,) = window.to_pylist()
    assert (row["_deleted"], sorted(row["_unchanged"]), row["_whole"]) == (True, ["big", "v"], False)
    assert kinds.incomplete


def test_columns_that_no_statement_needs_are_left_out() -> None:
    creates = [c for c in history(1, 40) if c["_op"] == "create"][:1]
    ((window, _),) = change_windows(batches(creates), TableShape(SCHEMA, ("id", "v"), False, None))
    assert window.schema.names == ["id", "v", "_lsn", "_seq"]


def test_portions_have_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"a": pa.array(["x" * 100] * 1000)})
    monkeypatch.setattr(rows, "PORTION_BYTES", 10_000)
    found = list(portions(table))
    assert sum(p.num_rows for p in found) == 1000
    assert all(p.num_rows <= 100 for p in found)
    assert [p.num_rows for p in portions(table.slice(0, 1))] == [1]
