"""Each leader has a checkpoint of its own, which begins as a copy of the newest one."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest

from dblog.pipelines.checkpoints import inherit, newest
from dblog.pipelines.stream_folder import StreamFolder
from dblog.storage.object_storage import NO_SETTINGS

FILES = pafs.LocalFileSystem()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shop" / "lake"


def entries(checkpoint: Path, offsets: range, commits: range) -> None:
    (checkpoint / "metadata").parent.mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text("id")
    for kind, numbers in (("offsets", offsets), ("commits", commits)):
        (checkpoint / kind).mkdir(exist_ok=True)
        for number in numbers:
            (checkpoint / kind / str(number)).write_text(f"{checkpoint.name} {number}")


def names(checkpoint: Path) -> set[str]:
    return {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()}


def test_a_leader_begins_with_the_newest_entries_of_the_checkpoint_before_it(root: Path) -> None:
    entries(root / "checkpoint", range(20), range(19))
    assert inherit(FILES, str(root), 4) == "checkpoint-4"
    found = {"metadata", "offsets/17", "offsets/18", "offsets/19", "commits/17", "commits/18"}
    assert names(root / "checkpoint-4") == found
    assert (root / "checkpoint-4" / "offsets" / "19").read_text() == "checkpoint 19"
    assert newest(FILES, str(root)) == (4, "checkpoint-4")


def test_what_an_earlier_leader_writes_later_is_not_read(root: Path) -> None:
    inherit(FILES, str(root), 1)
    entries(root / "checkpoint-1", range(6), range(5))
    inherit(FILES, str(root), 2)
    entries(root / "checkpoint-1", range(9), range(9))
    entries(root / "checkpoint-2", range(5, 8), range(5, 7))
    inherit(FILES, str(root), 3)
    assert names(root / "checkpoint-3") == {"metadata", "offsets/5", "offsets/6", "offsets/7", "commits/5", "commits/6"}
    assert (root / "checkpoint-3" / "offsets" / "7").read_text() == "checkpoint-2 7"


def test_a_checkpoint_whose_leader_never_started_does_not_count(root: Path) -> None:
    inherit(FILES, str(root), 1)
    entries(root / "checkpoint-1", range(3), range(2))
    entries(root / "checkpoint-2", range(1), range(0))  # its leader was stopped while it copied
    inherit(FILES, str(root), 3)
    assert (root / "checkpoint-3" / "offsets" / "2").read_text() == "checkpoint-1 2"
    inherit(FILES, str(root), 2)  # and it wakes up
    assert (root / "checkpoint-2.json").read_text() == '{"from": 1}'
    inherit(FILES, str(root), 4)
    assert (root / "checkpoint-4.json").read_text() == '{"from": 3}'


def test_only_the_last_two_checkpoints_are_kept(root: Path) -> None:
    for epoch in range(1, 12):
        inherit(FILES, str(root), epoch)
        entries(root / f"checkpoint-{epoch}", range(epoch), range(epoch))
    assert sorted(path.name for path in root.iterdir()) == [
        "checkpoint-10",
        "checkpoint-10.json",
        "checkpoint-11",
        "checkpoint-11.json",
    ]


def test_a_pipeline_without_standbys_goes_on_with_the_checkpoint_of_the_last_leader(root: Path) -> None:
    folder = StreamFolder(root.parent, "lake", NO_SETTINGS)
    assert folder.checkpoint == f"file://{root}/checkpoint"
    folder.take_over(7)
    assert folder.checkpoint == f"file://{root}/checkpoint-7"
    assert StreamFolder(root.parent, "lake", NO_SETTINGS).checkpoint == f"file://{root}/checkpoint-7"
