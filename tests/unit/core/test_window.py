from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog.core.boundaries import Boundaries
from dblog.core.dump import INITIAL, REPAIR, Orders, Staged
from dblog.core.event import Op, change_schema
from dblog.core.keys import matches
from dblog.core.offset import Chunk, Cursor, Extent, Key, Offset, Taken, Tally, pinned
from dblog.core.pace import Pace
from dblog.core.schema import TableName
from dblog.core.window import Mark, complete, plan, survivors
from dblog.errors import WatermarkError

A, B = TableName("public", "a"), TableName("public", "b")
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("doc", pa.string()), ("img", pa.string())])
NAN = float("nan")

Line = tuple[Op, int | None, str | None, str | None, str | None, list[str] | None]


def log(*lines: Line) -> pa.RecordBatch:
    """Changes as (op, id, name, doc, img, unchanged)."""
    rows = [
        {
            "_op": int(op),
            "_lsn": 10,
            "_seq": 2 * n,
            "_unchanged": unchanged,
            "id": i,
            "name": name,
            "doc": doc,
            "img": img,
        }
        for n, (op, i, name, doc, img, unchanged) in enumerate(lines)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=change_schema(COLUMNS))


def created(i: int, doc: str | None = "d") -> Line:
    return (Op.create, i, "new", doc, "i", None)


def updated(i: int, *, doc: str | None = None, unchanged: Sequence[str] = ("doc",)) -> Line:
    return (Op.update, i, "new", doc, None if "img" in unchanged else "i", list(unchanged) or None)


def deleted(i: int) -> Line:
    return (Op.delete, i, None, None, None, None)


TRUNCATED: Line = (Op.truncate, None, None, None, None, None)


def chunk_rows(*ids: int, doc: str | None = "old doc") -> pa.Table:
    rows = [{"id": i, "name": "old", "doc": doc, "img": "old img"} for i in ids]
    return pa.Table.from_pylist(rows, schema=COLUMNS)


def kept(rows: pa.Table, *batches: pa.RecordBatch) -> list[int]:
    return [
        i for i, keep in zip(rows["id"].to_pylist(), survivors(rows, ["id"], batches).to_pylist(), strict=True) if keep
    ]


# survivors


def test_rows_that_the_window_does_not_touch_survive() -> None:
    assert kept(chunk_rows(1, 2, 3), log(updated(2))) == [1, 3]


def test_a_delete_inside_the_window_is_not_resurrected() -> None:
    assert kept(chunk_rows(1, 2), log(deleted(1))) == [2]


def test_a_row_created_inside_the_window_comes_by_the_log_alone() -> None:
    assert kept(chunk_rows(1, 2), log(deleted(2), created(2))) == [1]


def test_a_key_update_drops_the_old_and_the_new_key() -> None:
    assert kept(chunk_rows(1, 2, 3), log(deleted(1), created(3))) == [2]


def test_a_truncate_drops_every_row_wherever_it_stands() -> None:
    assert kept(chunk_rows(1, 2), log(created(9)), log(created(1), TRUNCATED)) == []


def test_every_batch_of_the_window_counts() -> None:
    assert kept(chunk_rows(1, 2, 3), log(updated(1)), log(), log(updated(3))) == [2]


def test_a_window_without_changes_keeps_all() -> None:
    assert kept(chunk_rows(1, 2)) == [1, 2]
    assert kept(chunk_rows(1, 2), log()) == [1, 2]


def test_an_empty_chunk_has_no_survivors() -> None:
    assert kept(chunk_rows(), log(updated(1), TRUNCATED)) == []
    assert kept(chunk_rows()) == []


def test_only_the_key_columns_of_the_chunk_are_needed() -> None:
    assert survivors(chunk_rows(1, 2).select(["id"]), ["id"], [log(updated(1))]).to_pylist() == [False, True]


def test_a_composite_key_must_match_in_all_its_columns() -> None:
    rows = pa.table({"k": ["a", "a", "b"], "n": [1, 2, 1]})
    changes = pa.record_batch({"_op": pa.array([1, 2], pa.int8()), "k": ["a", "b"], "n": [2, 2]})
    assert survivors(rows, ["k", "n"], [changes]).to_pylist() == [True, False, True]


def test_a_truncate_of_a_table_with_a_composite_key_drops_every_row() -> None:
    rows = pa.table({"k": ["a"], "n": [1]})
    changes = pa.record_batch(
        {"_op": pa.array([4], pa.int8()), "k": pa.array([None], pa.string()), "n": pa.array([None], pa.int64())}
    )
    assert survivors(rows, ["k", "n"], [changes]).to_pylist() == [False]


def test_a_chunk_in_several_pieces_is_one_chunk() -> None:
    rows = pa.concat_tables([chunk_rows(1, 2), chunk_rows(3)])
    assert kept(rows, log(updated(2), updated(3))) == [1]


# matches

KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [1, 2, 3]),
    (pa.string(), ["a", "A", "a "]),
    (pa.string(), [str(uuid.UUID(int=n)) for n in range(3)]),
    (pa.binary(), [b"", b"\0", b"\0\0"]),
    (pa.decimal128(38, 10), [Decimal("1"), Decimal("1.0000000001"), Decimal("-1")]),
    (pa.decimal256(60, 2), [Decimal(10) ** 50, Decimal(0), Decimal("0.01")]),
    (pa.timestamp("us", tz="UTC"), [datetime(2024, 1, 1, 0, 0, 0, n, tzinfo=UTC) for n in range(3)]),
    (pa.date32(), [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
    (pa.float64(), [NAN, 0.5, float("inf")]),
    (pa.bool_(), [True, False]),
    (pa.list_(pa.int64()), [[], [1], [1, 2]]),
    (pa.list_(pa.float64()), [[NAN], [1.0], [NAN, NAN]]),
    (pa.struct([("x", pa.int64())]), [{"x": 1}, {"x": 2}, {"x": None}]),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda v: str(v) if isinstance(v, pa.DataType) else "")
def test_a_key_of_any_type_equals_itself_alone(kind: pa.DataType, values: list[Any]) -> None:
    rows = pa.array(values, kind)
    number = pa.array(range(len(values)), pa.int64())
    for i in range(len(values)):
        expected = [n == i for n in range(len(values))]
        assert matches([rows], [rows.slice(i, 1)]).to_pylist() == expected
        assert matches([rows, number], [rows.slice(i, 1), number.slice(i, 1)]).to_pylist() == expected
        assert matches([number, rows], [number.slice(i, 1), rows.slice(i, 1)]).to_pylist() == expected


def test_nothing_matches_no_keys_and_no_rows_match_anything() -> None:
    none, one = pa.array([], pa.int64()), pa.array([1], pa.int64())
    assert matches([one], [none]).to_pylist() == [False]
    assert matches([none], [one]).to_pylist() == []
    assert matches([one, one], [none, none]).to_pylist() == [False]
    assert matches([none, none], [one, one]).to_pylist() == []


pairs = st.lists(st.tuples(st.sampled_from(["", "a", "b", "ab"]), st.integers(-1, 3)), max_size=12)


@given(pairs, pairs)
@settings(max_examples=100, deadline=None)
def test_matching_composite_keys_is_membership_of_tuples(
    rows: list[tuple[str, int]], keys: list[tuple[str, int]]
) -> None:
    def columns(of: list[tuple[str, int]]) -> list[pa.Array]:
        return [pa.array([k for k, _ in of], pa.string()), pa.array([n for _, n in of], pa.int64())]

    assert matches(columns(rows), columns(keys)).to_pylist() == [row in keys for row in rows]


# complete


def docs(batches: Sequence[pa.RecordBatch]) -> list[tuple[int | None, str | None, list[str] | None]]:
    return [(r["id"], r["doc"], r["_unchanged"]) for batch in batches for r in batch.to_pylist()]


def test_a_value_the_log_left_out_is_taken_from_the_dropped_row() -> None:
    assert docs(complete([log(updated(1))], ["id"], [chunk_rows(1)])) == [(1, "old doc", None)]


def test_every_update_of_the_row_gets_the_value() -> None:
    batches = [log(updated(1)), log(updated(2), updated(1))]
    assert docs(complete(batches, ["id"], [chunk_rows(1)])) == [
        (1, "old doc", None),
        (2, None, ["doc"]),
        (1, "old doc", None),
    ]


def test_a_null_in_the_chunk_row_is_a_value() -> None:
    assert docs(complete([log(updated(1))], ["id"], [chunk_rows(1, doc=None)])) == [(1, None, None)]


@pytest.mark.parametrize(
    "other",
    [updated(1, doc="newer", unchanged=()), deleted(1), created(1)],
    ids=["an update carries it", "a delete", "a create"],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_value_that_the_window_may_have_changed_is_not_taken(other: Line, first: bool) -> None:
    lines = [other, updated(1)] if first else [updated(1), other]
    done = docs(complete([log(*lines)], ["id"], [chunk_rows(1)]))
    assert (1, None, ["doc"]) in done


def test_a_change_among_the_others_counts_but_is_not_returned() -> None:
    carried = log(updated(1, doc="newer", unchanged=()))
    assert docs(complete([log(updated(1))], ["id"], [chunk_rows(1)], [carried])) == [(1, None, ["doc"])]
    assert docs(complete([log(updated(1))], ["id"], [chunk_rows(1)], [log(updated(2, doc="x"))])) == [
        (1, "old doc", None)
    ]


def test_a_row_moved_here_is_not_completed() -> None:
    moved: Line = (Op.create, 1, "new", None, "i", ["doc"])
    assert docs(complete([log(deleted(9), moved)], ["id"], [chunk_rows(1)]))[1] == (1, None, ["doc"])


def test_only_the_columns_that_no_change_carries_are_filled() -> None:
    lines = [updated(1, unchanged=("doc", "img")), updated(1, unchanged=("doc",))]
    done = complete([log(*lines)], ["id"], [chunk_rows(1)])[0].to_pylist()
    assert [(r["doc"], r["img"], r["_unchanged"]) for r in done] == [("old doc", None, ["img"]), ("old doc", "i", None)]


def test_a_row_outside_the_chunks_stays_incomplete() -> None:
    changes = [log(updated(1), deleted(2))]
    assert complete(changes, ["id"], [chunk_rows(2, 3)]) == changes
    assert complete(changes, ["id"], []) == changes


def test_completing_keeps_the_schema_and_the_other_columns() -> None:
    before = log(created(7), updated(1), TRUNCATED)
    (after,) = complete([before], ["id"], [chunk_rows(1)])
    assert after.schema == before.schema
    assert after.drop_columns(["doc", "_unchanged"]) == before.drop_columns(["doc", "_unchanged"])


def test_a_key_that_does_not_equal_itself_is_completed_too() -> None:
    columns = pa.schema([("id", pa.float64()), ("doc", pa.string())])
    change = pa.RecordBatch.from_pylist(
        [{"_op": int(Op.update), "_unchanged": ["doc"], "id": NAN}], schema=change_schema(columns)
    )
    rows = pa.Table.from_pylist([{"id": NAN, "doc": "old doc"}], schema=columns)
    assert complete([change], ["id"], [rows])[0]["doc"].to_pylist() == ["old doc"]


# plan


class Tens(Boundaries):
    """Tables whose keys are 1 to 10."""

    def key(self, table: TableName) -> str:
        return KEY

    def last_key(self, table: TableName) -> Key | None:
        return ("10",)

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        low = int(after[0]) if after else 0
        return [(str(min(low + rows * (n + 1), int(upto[0]))),) for n in range(count) if low + rows * n < int(upto[0])]


KEY = "id integer"
PACE = Pace(chunks=2, rows=4)
CHUNK = Chunk("w1-0", INITIAL, A, Extent(None, ("4",)), KEY)
OTHER = Chunk("w1-1", INITIAL, A, Extent(("4",), ("8",)), KEY)
LEFT = Cursor(INITIAL, A, 4, ("8",), ("10",), key=KEY)


def planned(
    start: Offset,
    mark: Mark,
    staged: dict[str, Staged] | None = None,
    wanted: Sequence[TableName] = (),
    orders: Orders | None = None,
) -> Offset:
    orders = orders or Orders(wanted=tuple(wanted))
    return plan(start, mark, staged=staged or {}, orders=orders, pace=PACE, boundaries=Tens())


def test_a_wanted_table_opens_a_round_at_the_watermark() -> None:
    end = planned(Offset(5), Mark(9, "w1"), wanted=[A])
    assert end == Offset(9, read=(CHUNK, OTHER), dumps=(LEFT,), tables=(A,))


def test_the_round_of_the_start_is_emitted_pinned_to_its_files() -> None:
    staged = {"w1-0": Staged("s0", 4, 0.1), "w1-1": Staged("s1", 4, 0.1)}
    end = planned(Offset(9, read=(CHUNK, OTHER), dumps=(LEFT,), tables=(A,)), Mark(20, "w2"), staged)
    assert end.emit == (pinned(CHUNK, "s0"), pinned(OTHER, "s1"))
    assert [c.extent for c in end.read] == [Extent(("8",), ("10",))]
    assert not end.dumps


def test_a_window_must_end_at_a_watermark() -> None:
    with pytest.raises(WatermarkError):
        planned(Offset(9, read=(CHUNK,)), Mark(20, None))


def test_a_batch_without_a_watermark_opens_no_round() -> None:
    assert planned(Offset(9, dumps=(LEFT,)), Mark(20, None)) == Offset(20, dumps=(LEFT,))


def test_no_round_opens_while_a_select_might_miss_what_the_log_has_shown() -> None:
    staged = {"w1-0": Staged("s0", 4, 0.1)}
    end = planned(Offset(9, read=(CHUNK,), dumps=(LEFT,)), Mark(20, "w2", suspects=(77,)), staged)
    assert end == Offset(20, emit=(pinned(CHUNK, "s0"),), dumps=(LEFT,), suspects=(77,))


@pytest.mark.parametrize("staged", [{}, {"w1-0": Staged("another", 4, 0.1)}], ids=["gone", "another file"])
def test_an_emitted_chunk_without_its_file_is_read_again(staged: dict[str, Staged]) -> None:
    end = planned(Offset(9, emit=(pinned(CHUNK, "s0"),)), Mark(20, "w2"), staged)
    assert [(c.id, c.extent, c.stamp) for c in end.read] == [("w2-0", CHUNK.extent, None)]
    assert end.emit == ()


def test_an_emitted_chunk_with_its_file_is_done() -> None:
    end = planned(Offset(9, emit=(pinned(CHUNK, "s0"),)), Mark(20, None), {"w1-0": Staged("s0", 4, 0.1)})
    assert end == Offset(20)


def test_a_chunk_that_was_never_staged_is_read_again() -> None:
    end = planned(Offset(9, read=(CHUNK,)), Mark(20, "w2"))
    assert end.emit == ()
    assert [c.extent for c in end.read] == [CHUNK.extent]


def test_an_empty_chunk_is_a_chunk_that_was_read() -> None:
    end = planned(Offset(9, read=(CHUNK,)), Mark(20, "w2"), {"w1-0": Staged("s0", 0, 0.1)})
    assert end == Offset(20, emit=(pinned(CHUNK, "s0"),))


def test_a_row_the_log_left_incomplete_is_read_in_a_later_round() -> None:
    waits = planned(Offset(9, tables=(A,)), Mark(20, None, holes={A: [("3",)]}))
    assert waits.dumping
    end = planned(waits, Mark(30, "w2"))
    assert [(c.dump, c.extent) for c in end.read] == [(REPAIR, Extent(keys=(("3",),)))]


def test_a_table_that_joins_later_gets_its_first_dump() -> None:
    end = planned(Offset(9, tables=(A,)), Mark(20, "w2"), wanted=[A, B])
    assert {c.table for c in end.read} == {B}
    assert end.tables == (A, B)


def test_the_next_chunks_have_the_size_that_the_last_ones_allow() -> None:
    start = Offset(9, read=(CHUNK,), dumps=(Cursor(INITIAL, A, 10_000, ("4",), ("10",)),))
    mark = Mark(20, "w2", suspects=(1,))
    staged = {"w1-0": Staged("s0", 10_000, 1.0)}
    end = plan(start, mark, staged=staged, orders=Orders(), pace=Pace(seconds=0.5), boundaries=Tens())
    assert [c.rows for c in end.dumps] == [5_000]


def test_a_chunk_that_can_never_be_read_ends_the_dump_of_its_table() -> None:
    staged = {"w1-0": Staged("", 0, 0.0, failed="it is gone"), "w1-1": Staged("s1", 4, 0.1)}
    for left in ((LEFT,), ()):
        end = planned(Offset(9, read=(CHUNK, OTHER), dumps=left), Mark(20, "w2"), staged)
        assert end.emit == (pinned(OTHER, "s1"),)
        assert [(c.dump, c.table, c.failed) for c in end.dumps] == [(INITIAL, A, "it is gone")]
        assert end.read == ()
        assert planned(end, Mark(30, "w3"), {"w1-1": Staged("s1", 4, 0.1)}) == Offset(30), "it stays for one batch"


def test_a_request_is_taken_once() -> None:
    orders = Orders(new=(Cursor("4-a", A, 4),), taken=Taken("store", 4))
    end = planned(Offset(9, taken=Taken("store", 3)), Mark(20, None), orders=orders)
    assert end == Offset(20, dumps=(Cursor("4-a", A, 4),), taken=Taken("store", 4))
    assert planned(end, Mark(30, "w")).taken == Taken("store", 4)


def test_a_held_dump_delivers_the_chunks_it_has_read_and_no_more() -> None:
    start = Offset(9, read=(CHUNK,), dumps=(LEFT,))
    end = planned(start, Mark(20, "w2"), {"w1-0": Staged("s0", 4, 0.1)}, orders=Orders(held=frozenset({INITIAL})))
    assert end == Offset(20, emit=(pinned(CHUNK, "s0"),), dumps=(LEFT,))


def test_a_condition_is_paced_by_the_rows_it_looks_at() -> None:
    cursor = Cursor("1-a", A, 10_000, ("4",), ("10",), where="rare")
    start = Offset(9, read=(Chunk("w1-0", "1-a", A, Extent(None, ("4",), where="rare")),), dumps=(cursor,))
    staged = {"w1-0": Staged("s0", 3, 1.0)}
    mark = Mark(20, "w", suspects=(1,))
    end = plan(start, mark, staged=staged, orders=Orders(), pace=Pace(seconds=0.5), boundaries=Tens())
    assert [c.rows for c in end.dumps] == [5_000]


def test_a_tally_is_kept_while_its_table_is_being_dumped() -> None:
    mine, over = Tally(INITIAL, A, 8, 1), Tally("1-a", B, 5, 0)
    start = Offset(9, read=(CHUNK,), dumps=(LEFT,), tally=(mine, over))
    staged = {"w1-0": Staged("s0", 4, 0.1)}
    end = plan(start, Mark(20, "w"), staged=staged, orders=Orders(), pace=PACE, boundaries=Tens(), tally=(mine, over))
    assert end.tally == (mine,)
