"""The folder of a stream: its name, and where Spark's checkpoint says that it goes on. On a bucket: tests/cli."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dblog.core.offset import Offset
from dblog.errors import ConfigError
from dblog.pipelines.stream_folder import StreamFolder
from dblog.storage.object_storage import NO_SETTINGS


@pytest.fixture(params=["path", "address"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> StreamFolder:
    pipeline = tmp_path / "kept" if request.param == "path" else f"file://{tmp_path}/kept"
    return StreamFolder(pipeline, "lake", NO_SETTINGS)


def written(tmp_path: Path, offsets: dict[int, int], commits: list[int]) -> None:
    """A checkpoint as Spark writes it: positions of planned batches, and the batches that are committed."""
    for name in ("offsets", "commits"):
        (tmp_path / "kept/lake/checkpoint" / name).mkdir(parents=True)
    for number, position in offsets.items():
        text = f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(Offset(position=position).to_json())}'
        (tmp_path / "kept/lake/checkpoint/offsets" / str(number)).write_text(text)
    for number in commits:
        (tmp_path / "kept/lake/checkpoint/commits" / str(number)).write_text("v1\n{}")
    (tmp_path / "kept/lake/checkpoint/offsets/.7.tmp").write_text("half")


def test_a_new_folder_has_no_name_and_no_offset(folder: StreamFolder) -> None:
    assert (folder.name(), folder.resume_offset()) == (None, None)


def test_it_keeps_the_name(folder: StreamFolder, tmp_path: Path) -> None:
    folder.make("shop")
    assert folder.name() == "shop"
    assert (tmp_path / "kept/lake/stream").read_text() == "shop\n"


@pytest.mark.parametrize(
    ("offsets", "commits", "position"),
    [({0: 10, 1: 20, 2: 30}, [0, 1], 20), ({9: 10, 10: 20}, [9], 10), ({3: 30, 4: 40}, [], 30)],
)
def test_it_goes_on_from_the_last_committed_batch(
    folder: StreamFolder, tmp_path: Path, offsets: dict[int, int], commits: list[int], position: int
) -> None:
    written(tmp_path, offsets, commits)
    found = folder.resume_offset()
    assert found is not None
    assert found.position == position


@pytest.mark.parametrize("text", ["", "v1\n", "v1\n{}\n{"])
def test_a_first_offset_that_is_incomplete_was_not_written(folder: StreamFolder, tmp_path: Path, text: str) -> None:
    written(tmp_path, {0: 10}, [])
    (tmp_path / "kept/lake/checkpoint/offsets/0").write_text(text)
    assert folder.resume_offset() is None


def test_the_checkpoint_can_be_removed_whether_it_is_there_or_not(folder: StreamFolder, tmp_path: Path) -> None:
    folder.make("shop")
    folder.remove_checkpoint()
    written(tmp_path, {0: 10}, [0])
    folder.remove_checkpoint()
    assert folder.resume_offset() is None
    assert folder.name() == "shop"


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    (tmp_path / "kept/lake").mkdir(parents=True, mode=0o755)
    StreamFolder(tmp_path / "kept", "lake", NO_SETTINGS).make("shop")
    assert (tmp_path / "kept/lake").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_read_is_not_taken_for_a_new_one(folder: StreamFolder, tmp_path: Path) -> None:
    written(tmp_path, {0: 10}, [])
    (tmp_path / "kept/lake/checkpoint/offsets/0").unlink()
    (tmp_path / "kept/lake/checkpoint/offsets/0").mkdir()
    with pytest.raises(ConfigError, match="cannot read the pipeline's folder"):
        folder.resume_offset()


@pytest.mark.parametrize("pipeline", ["s3://", "nonsense://x/y"])
def test_an_address_that_nobody_knows_is_named(pipeline: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the pipeline's folder"):
        StreamFolder(pipeline, "lake", NO_SETTINGS).resume_offset()
