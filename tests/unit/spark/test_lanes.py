"""How the work of a batch is spread over Spark's tasks."""

from __future__ import annotations

from dblog.core.offset import Chunk, Extent
from dblog.core.schema import TableName
from dblog.spark.source import SMALL_LOG_ROWS, Work, lanes
from dblog.spool import LogFile
from dblog.tasks import Emit, Log, Select, Window

TABLE = TableName("public", "t")


def window(rows: int) -> Window:
    return Window(0, 1, ((LogFile("f", TABLE, "v", rows, 0),),))


def chunk(name: str) -> Chunk:
    return Chunk(name, "initial", TABLE, Extent())


W = window(5)
EMITS: list[Work] = [Emit(W, chunk(f"e{n}")) for n in range(3)]
SELECTS: list[Work] = [Select(chunk(f"s{n}")) for n in range(3)]


def test_a_lane_emits_before_it_selects_and_a_small_log_goes_first() -> None:
    log = Log(W, ())
    assert lanes([log, *EMITS, *SELECTS], 2) == [
        (log, EMITS[0], EMITS[2], SELECTS[0], SELECTS[2]),
        (EMITS[1], SELECTS[1]),
    ]


def test_a_large_log_has_a_lane_of_its_own_in_front() -> None:
    log = Log(window(SMALL_LOG_ROWS + 1), ())
    assert lanes([log, *EMITS[:1]], 2) == [(log,), (EMITS[0],)]


def test_there_are_no_empty_lanes() -> None:
    assert lanes([], 4) == []
    assert lanes(SELECTS[:1], 4) == [(SELECTS[0],)]
