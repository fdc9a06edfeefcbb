"""The page of pipelines says what a file may say, and its examples are files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from dblog.core.settings import Setting
from dblog.pipelines.config import read_config
from dblog.pipelines.executors import WARN_SECONDS
from dblog.pipelines.file_settings import EVERY_SECONDS, HA, PIPELINE, SINK, SOURCE, SPARK, TABLE
from dblog.pipelines.running import DRAIN_SECONDS
from dblog.pipelines.sink_kinds import SINKS
from dblog.sinks.route import MASKS
from dblog.storage.object_storage import SETTINGS as STORAGE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "pipelines.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
FILES = [text for page in (PAGE, README) for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]


@pytest.mark.parametrize(
    ("title", "known"),
    [
        ("[source]", SOURCE),
        ("[pipeline]", PIPELINE),
        ("[storage]", STORAGE),
        ("[spark]", SPARK),
        ("[ha]", HA),
        ("[[table]]", TABLE),
        ("[[sink]]", SINK),
    ],
)
def test_every_setting_is_explained_and_nothing_else_is(title: str, known: Sequence[Setting]) -> None:
    section = PAGE.split(f"## `{title}`\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == [s.name for s in known]


def test_every_type_of_sink_and_every_mask_is_named() -> None:
    assert ", ".join(f"`{kind}`" for kind in SINKS) in PAGE
    assert all(f"`{mask}`" in PAGE for mask in MASKS)
    assert f"| {EVERY_SECONDS:.0f} |" in PAGE
    assert f"at most {DRAIN_SECONDS:.0f} seconds" in PAGE


def test_there_are_examples() -> None:
    assert len(FILES) >= 2


@pytest.mark.parametrize("content", FILES)
def test_the_examples_are_files_that_can_be_read(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "pw")
    path = tmp_path / "shop.toml"
    path.write_text(content)
    assert len(content.splitlines()) <= 10
    assert [s.name for s in read_config(path).sinks] == ["delta" if content in README else "ndjson"]


def test_the_example_of_a_cluster_is_a_file_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    (content,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    for name in re.findall(r'env = "(\w+)"', content):
        monkeypatch.setenv(name, "secret-7")
    (tmp_path / "shop.toml").write_text(content)
    config = read_config(tmp_path / "shop.toml")
    assert config.master == "spark://spark.example:7077"
    assert config.spark == {"spark.executor.memory": "2g", "spark.executor.cores": "2", "spark.cores.max": "8"}
    assert f"for {WARN_SECONDS:.0f} s" in page


def test_the_first_example_of_the_readme_is_a_lake() -> None:
    assert README.split("## Use it")[1].index('type = "delta"') < README.split("## Use it")[1].index("readStream")
