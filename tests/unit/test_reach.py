"""Where a batch ends under a limit: between transactions, wherever capture has cut the log."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dblog.capture.segments import Limit, Segment, reach
from dblog.core.schema import TableName
from dblog.sources.base import Commits, Run, joined

TABLE = TableName("public", "t")


def segment(start: int, sizes: list[tuple[int, int]], holes: bool = False) -> Segment:
    """Transactions of so many rows and bytes, one position apart, after `start`."""
    rows, nbytes = np.cumsum(sizes, axis=0).T
    ends = np.arange(start + 1, start + len(sizes) + 1)
    return Segment(
        start, start + len(sizes), (), Commits(ends, ends, rows, nbytes), {TABLE: []} if holes else {}, 0, 0.0
    )


def segments(cut: list[list[tuple[int, int]]]) -> list[Segment]:
    starts = np.append(0, np.cumsum([len(sizes) for sizes in cut]))
    return [segment(int(start), sizes) for start, sizes in zip(starts, cut, strict=False)]


Sizes = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50)), min_size=1, max_size=6)
Limits = st.builds(Limit, st.none() | st.integers(1, 20), st.none() | st.integers(1, 200))


@given(st.lists(Sizes, min_size=1, max_size=4), Limits, st.data())
def test_a_batch_ends_at_the_last_commit_that_fits_or_at_the_first(
    cut: list[list[tuple[int, int]]], limit: Limit, data: st.DataObject
) -> None:
    sizes = [size for part in cut for size in part]
    start = data.draw(st.integers(0, len(sizes) - 1))
    reached = start + 1  # positions count transactions here
    while reached < len(sizes):
        rows, nbytes = np.sum(sizes[start : reached + 1], axis=0)
        if (limit.rows and rows > limit.rows) or (limit.nbytes and nbytes > limit.nbytes):
            break
        reached += 1
    overlapping = [s for s in segments(cut) if s.end > start]
    assert reach(overlapping, start, limit) == reached


def test_a_segment_with_rows_to_repair_is_not_cut() -> None:
    whole = segment(0, [(1, 10)] * 4, holes=True)
    assert reach([whole], 0, Limit(rows=2)) == 4
    assert reach([segment(0, [(1, 10)]), segment(1, [(1, 10)] * 4, holes=True)], 0, Limit(rows=3)) == 1


def test_commits_of_consecutive_runs_are_joined() -> None:
    parts = [segment(0, [(1, 10), (2, 20)]).commits, Run().commits, segment(2, [(4, 40)]).commits]
    assert joined(parts).positions.tolist() == [1, 2, 3]
    assert len(joined([])) == 0
