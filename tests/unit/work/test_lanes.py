"""How the work of a batch is spread over Spark's tasks."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from dblog.capture.spool import LogFile
from dblog.core.offset import Chunk, Extent
from dblog.core.schema import TableName
from dblog.work.lanes import SMALL_LOG_ROWS, Work, lanes
from dblog.work.tasks import Emit, Log, Select, Window

TABLE = TableName("public", "t")


def window(*segments: list[int]) -> Window:
    """A window of segments of files of so many rows."""
    return Window(0, 1, tuple(tuple(LogFile("f", TABLE, "v", rows, 0) for rows in files) for files in segments))


def chunk(name: str) -> Chunk:
    return Chunk(name, "initial", TABLE, Extent())


W = window([5])
LARGE = Log(window([SMALL_LOG_ROWS + 1]), ())
EMITS: list[Work] = [Emit(W, chunk(f"e{n}")) for n in range(3)]
SELECTS: list[Work] = [Select(chunk(f"s{n}")) for n in range(3)]


def test_a_lane_emits_before_it_selects_and_a_small_log_goes_first() -> None:
    log = Log(W, ())
    assert lanes([log, *EMITS, *SELECTS], 2) == [
        (log, EMITS[0], EMITS[2], SELECTS[0], SELECTS[2]),
        (EMITS[1], SELECTS[1]),
    ]


@pytest.mark.parametrize("segments", [([SMALL_LOG_ROWS],), ([SMALL_LOG_ROWS - 9, 4], [5])])
def test_a_log_of_the_limit_is_small(segments: tuple[list[int], ...]) -> None:
    log = Log(window(*segments), ())
    assert lanes([log, *EMITS], 2) == [(log, EMITS[0], EMITS[2]), (EMITS[1],)]


@pytest.mark.parametrize("segments", [([SMALL_LOG_ROWS + 1],), ([SMALL_LOG_ROWS, 1],), ([1], [SMALL_LOG_ROWS])])
def test_a_large_log_has_a_lane_of_its_own_in_front_of_all_others(segments: tuple[list[int], ...]) -> None:
    log = Log(window(*segments), ())
    assert lanes([log, *EMITS], 2) == [(log,), (EMITS[0], EMITS[2]), (EMITS[1],)]
    assert lanes([log], 2) == [(log,)]


def test_there_are_no_empty_lanes() -> None:
    assert lanes([], 4) == []
    assert lanes(SELECTS[:1], 4) == [(SELECTS[0],)]


@pytest.mark.parametrize("log", [[], [Log(W, ())], [LARGE]], ids=["none", "small", "large"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_task_is_done_once_in_the_order_of_its_kinds(log: list[Work], count: int) -> None:
    for emits, selects in product(range(len(EMITS) + 1), range(len(SELECTS) + 1)):
        work = [*log, *EMITS[:emits], *SELECTS[:selects]]
        found = lanes(work, count)
        assert Counter(w for lane in found for w in lane) == Counter(work)
        assert len(found) <= count + (log == [LARGE])
        for lane in found:
            kinds = [(Log, Emit, Select).index(type(w)) for w in lane]
            assert kinds == sorted(kinds)
