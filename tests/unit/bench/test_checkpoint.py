"""What the benchmark reads from a checkpoint while a command runs, and how it computes speeds from that."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.command import Checkpoint, net_rate
from bench.figures import Cpu
from bench.lake_peers import merged_work
from dblog.core.offset import Chunk, Cursor, Extent, Offset
from dblog.core.schema import TableName

TABLE = TableName("public", "a")
CHUNK = Chunk("c1", "initial", TABLE, Extent())
CURSOR = Cursor("initial", TABLE, 10)


def written(folder: Path, number: int, offset: Offset, committed: float | None) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offset.to_json())}\n")
    if committed is not None:
        commit = folder / "commits" / str(number)
        commit.write_text("v1\n{}")
        os.utime(commit, (committed, committed))


def test_a_dump_has_ended_when_the_batch_with_its_last_rows_is_committed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.started() is None
    written(tmp_path, 0, Offset(5), 100.0)
    assert checkpoint.started() is not None
    written(tmp_path, 1, Offset(6, read=(CHUNK,), dumps=(CURSOR,)), 101.0)
    written(tmp_path, 2, Offset(7, emit=(CHUNK,), read=(CHUNK,)), 102.0)
    written(tmp_path, 3, Offset(8, emit=(CHUNK,)), None)
    assert checkpoint.dumped() is None
    written(tmp_path, 3, Offset(8, emit=(CHUNK,)), 103.0)
    written(tmp_path, 4, Offset(9), 104.0)
    assert checkpoint.dumped() == 103.0


def test_a_position_is_reached_with_the_first_committed_batch_that_has_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.reached(5) is None
    written(tmp_path, 9, Offset(4), 100.0)
    written(tmp_path, 10, Offset(6), None)
    assert checkpoint.reached(5) is None
    written(tmp_path, 10, Offset(6), 110.0)
    written(tmp_path, 11, Offset(7), 120.0)
    assert checkpoint.reached(5) == 110.0
    assert checkpoint.size() == len(json.dumps(Offset(7).to_json()))


def test_the_start_of_a_command_is_subtracted() -> None:
    assert net_rate(1000, 12.0, 2.0) == 100.0


def test_the_first_quarter_of_what_was_merged_is_left_out() -> None:
    work = merged_work(0.0, [10, 20, 70], [5.0, 6.0, 13.0], 100, Cpu(7.0, 1.0), Cpu(0.0003))
    assert work.rate == pytest.approx(70 / 7)
    assert work.cpu == Cpu(pytest.approx(10.0), 1.0)  # type: ignore[arg-type]


def test_what_was_merged_in_one_batch_counts_as_a_whole() -> None:
    assert merged_work(2.0, [100], [4.0], 100, Cpu(0.0), Cpu(0.0)).rate == 50


def test_rows_that_were_not_merged_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="100 rows were to be merged, 99 were"):
        merged_work(0.0, [99], [1.0], 100, Cpu(0.0), Cpu(0.0))
