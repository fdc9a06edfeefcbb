"""A batch that is planned and not committed is the same batch in the next life, whatever is left on the spool."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dblog.work.tasks import Emit, Log
from tests.engine.conftest import MakeQuery, check, on_families
from tests.families import AnyDatabase

pytestmark = [pytest.mark.server, on_families]


@pytest.mark.parametrize("left", ["all", "nothing", "no note", "half a note", "a file less", "half a file"])
def test_a_planned_batch_is_the_same_in_the_next_life(table: AnyDatabase, query: MakeQuery, left: str) -> None:
    stream = query()
    stream.open_window()
    table.execute("update t set n = 1 where id in (5, 6)")
    table.execute("update t set n = 2 where id = 5")
    stream.wait_captured()
    assert stream.plan()
    before = list(stream.rows(stream.work(), Log, Emit))
    table.execute("update t set n = 3 where id = 5")
    stream.stop()
    spool = Path(stream.given["spool"])
    planned = set((spool / "log").iterdir())
    damage(spool, left)
    lanes = stream.work()
    used = {Path(f.path) for lane in lanes for w in lane.work if isinstance(w, Log) for f in w.window.files}
    assert (used <= planned) == (left == "all")
    after = list(stream.rows(lanes, Log, Emit))
    lost = left == "nothing"  # with the chunks, which are selected again for a later batch
    assert after == ([row for row in before if row["_op"] != "read"] if lost else before)
    stream.restart()
    check(stream, table)
    assert len(os.listdir(spool / "log")) == 0


def damage(spool: Path, left: str) -> None:
    note, files = spool / "batch.json", sorted((spool / "log").iterdir())
    match left:
        case "nothing":
            shutil.rmtree(spool)
        case "no note":
            note.unlink()
        case "half a note":
            os.truncate(note, note.stat().st_size // 2)
        case "a file less":
            files[0].unlink()
        case "half a file":
            os.truncate(files[0], files[0].stat().st_size // 2)


def test_a_stream_with_other_options_reads_the_log_again(table: AnyDatabase, query: MakeQuery) -> None:
    stream = query()
    stream.dump()
    table.execute("update t set n = 1 where id = 5")
    stream.wait_captured()
    assert stream.plan()
    stream.restart(before="true")
    (row,) = stream.history.of(5)[-1:]
    assert (row["_op"], row["n"]) == ("update", 1)
    assert "_before" in row
    check(stream, table)
