"""Where histories separate, where a stream goes on, and what is known of lost changes."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from dblog.core.event import Op, change_schema
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import ConnectionLost, PositionLost
from dblog.sources.base import Run
from dblog.sources.postgres.recent_changes import RecentChanges
from dblog.sources.postgres.resume import GAP, resume
from dblog.sources.postgres.taken_back import taken_back
from dblog.sources.postgres.timeline import NEVER, Coordinate

FIRST = Coordinate("7", 1)
SECOND = Coordinate("7", 2, ((1, 1000),))
OTHER_SECOND = Coordinate("7", 2, ((1, 900),))
THIRD = Coordinate("7", 3, ((1, 1000), (2, 2000)))
SIBLING = Coordinate("7", 3, ((1, 1000),))

T = TableName("public", "t")


def test_a_coordinate_is_written_and_read() -> None:
    for each in (FIRST, THIRD, replace(SECOND, shift=12, last=1234)):
        assert Coordinate.parse(str(each)) == each
    assert Coordinate.parse(None) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "fork"),
    [
        (FIRST, FIRST, NEVER),
        (FIRST, SECOND, 1000),
        (FIRST, THIRD, 1000),
        (SECOND, THIRD, 2000),
        (SECOND, OTHER_SECOND, 900),
        (SECOND, SIBLING, 1000),
        (FIRST, Coordinate("7", 2), 0),
    ],
)
def test_histories_are_the_same_up_to_their_fork(ours: Coordinate, theirs: Coordinate, fork: int) -> None:
    assert ours.fork(theirs) == theirs.fork(ours) == fork


def test_a_stream_goes_on_where_it_was_if_the_server_has_everything() -> None:
    known = replace(FIRST, last=990, shift=50)
    found = resume(SECOND, 5000, 1050, known)
    assert (found.at, found.lost, found.coordinate) == (1000, None, replace(SECOND, last=990, shift=50))


def test_lost_commits_are_named_and_positions_go_on_growing() -> None:
    found = resume(SECOND, 5000, 1300, replace(FIRST, last=1200, shift=100))
    assert found.lost == (1000, 1200)
    assert found.at == 1000
    assert found.coordinate is not None
    assert 1000 + found.coordinate.shift == 1300 + GAP
    quiet = resume(SECOND, 5000, 1300, replace(FIRST, last=1000, shift=100))
    assert quiet.lost is None
    assert quiet.coordinate is not None
    assert quiet.coordinate.shift == found.coordinate.shift


def test_other_servers_are_refused() -> None:
    with pytest.raises(PositionLost, match="system identifier is 8"):
        resume(Coordinate("8", 1), 5000, 10, FIRST)
    with pytest.raises(PositionLost, match="ends at 0/64"):
        resume(FIRST, 100, 101, FIRST)
    with pytest.raises(PositionLost, match="no history in common"):
        resume(Coordinate("7", 2), 5000, 10, FIRST)
    with pytest.raises(ConnectionLost, match="timeline 1, but the stream has read timeline 2"):
        resume(FIRST, 5000, 10, SECOND)


def run_of(schema: TableSchema, *changes: tuple[Op, int, int]) -> Run:
    fields = change_schema(schema.arrow)
    rows = [{"_op": int(op), "_lsn": lsn, "_seq": 0, "id": key} for op, lsn, key in changes]
    return Run(((schema, pa.RecordBatch.from_pylist(rows, schema=fields)),))


def schema_of(kind: pa.DataType) -> TableSchema:
    return TableSchema(T, (Column("id", "int", kind), Column("n", "int", pa.int32())), ("id",))


def test_recent_changes_are_known_from_a_position_on() -> None:
    recent = RecentChanges(most=400)
    assert recent.after(5) is None
    recent.begin(100)
    recent.note([run_of(schema_of(pa.int32()), (Op.update, 100, 1), (Op.delete, 120, 2))])
    assert recent.after(99) is None
    found = recent.after(110)
    assert found is not None
    assert found[T].keys[0].column("id").to_pylist() == [2]
    assert recent.after(121) == {}
    for lsn in range(200, 300):
        recent.note([run_of(schema_of(pa.int32()), (Op.update, lsn, lsn))])
    assert recent.after(110) is None, "what was dropped is not known any more"
    assert recent.after(299) is not None


@pytest.mark.parametrize(
    ("kind", "op", "whole"),
    [(pa.int32(), Op.update, False), (pa.timestamp("us"), Op.update, True), (pa.int32(), Op.truncate, True)],
)
def test_rows_that_are_gone_are_deleted_and_others_are_read_again(kind: pa.DataType, op: Op, whole: bool) -> None:
    schema, recent = schema_of(kind), RecentChanges()
    recent.begin(0)
    recent.note([run_of(schema, (op, 1100, 1), (Op.create, 1150, 2))])
    opening = resume(SECOND, 5000, 1300, replace(FIRST, last=1200))
    changes = recent.after(1000)
    run = taken_back({T: schema}, changes, lambda s, keys: [("2",)], opening, servers="", xid=3, before=False)
    ((_, batch),) = run.changes
    assert run.position == 1300 + GAP
    assert batch.column("_lsn").to_pylist() == [1300]
    assert run.lost is not None
    if whole:
        assert batch.column("_op").to_pylist() == [int(Op.truncate)]
        assert (run.replaced, run.reread, run.lost.tables) == ([T], {}, {T: None})
    else:
        assert batch.column("_op").to_pylist() == [int(Op.delete)]
        assert batch.column("id").to_pylist() == [2]
        assert (run.replaced, run.reread, run.lost.tables) == ([], {T: [("1",)]}, {T: 2})
