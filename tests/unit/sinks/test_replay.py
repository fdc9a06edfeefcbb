"""The replay of a batch with cascades, where real servers rarely get."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from dblog.core.cascades import CASCADE, ForeignKey
from dblog.core.schema import TableName
from dblog.sinks.lake.native.replay import Replay, ReplayTable, Values

KEY = ForeignKey("f", TableName("s", "c"), ("p_id",), TableName("s", "p"), ("id",), CASCADE, CASCADE)
MOVED = (20, 4, 1, 99, False, 7, 8)
"""A parent's value 7 becomes 8."""


def changes(lake: list[Values], rows: list[Values]) -> list[Values]:
    """What a cascade comes to. Rows of the lake: id, p_id, order, number; of the batch: order, op, id, p_id, number."""
    table = ReplayTable(("id", "p_id"), 1, (KEY,))

    def load(key: ForeignKey, values: set[Values]) -> Iterable[Values]:
        return [row for row in lake if (row[1],) in values]

    with closing(Replay([table], load)) as replay:
        replay.add_rows(table, rows)
        replay.add_events(KEY, [MOVED])
        replay.run()
        return list(replay.changes(table))


def test_a_dump_row_as_old_as_the_row_of_the_lake_does_not_hide_it() -> None:
    """The lake keeps its row then, which was read before the cascade."""
    found = changes([(1, 7, 9, 5, None)], [(9, 5, "read", 1, 8, None)])
    assert found == [(20, 4, 1, 99, "update", 1, 8, None)]


def test_a_row_that_the_log_has_changed_before_is_not_taken_from_the_lake() -> None:
    lake = [(1, 7, 9, 5, None), (2, 7, 9, 5, None), (3, 7, 9, 5, None)]
    rows: list[Values] = [(12, 0, "update", 1, 6, None), (13, 0, "delete", 2, None, None)]
    assert changes(lake, rows) == [(20, 4, 1, 99, "update", 3, 8, None)]
    assert changes(lake, [(14, 0, "truncate", None, None, None)]) == []
