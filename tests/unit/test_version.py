"""The version is in one place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dblog

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_project_takes_its_version_from_the_package() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/dblog/__init__.py"


def test_the_version_is_a_release() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", dblog.__version__)


def test_the_changelog_has_the_version_below_the_unreleased() -> None:
    page = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", page, re.MULTILINE)[:2] == ["Unreleased", dblog.__version__]
    section = page.partition(f"## {dblog.__version__}")[2]
    assert re.findall(r"^### (\w+)", section, re.MULTILINE)[:3] == ["Added", "Changed", "Fixed"]


def test_the_documents_show_the_version() -> None:
    assert re.findall(r"^dblog (\d\S+)$", (ROOT / "docs/cli.md").read_text(), re.MULTILINE) == [dblog.__version__]


@pytest.mark.parametrize(("tag", "code"), [(f"v{dblog.__version__}", 0), ("v0.0.1", 1), (None, 0)])
def test_only_a_tag_of_the_version_is_built(tag: str | None, code: int) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TAG"} | ({} if tag is None else {"TAG": tag})
    done = subprocess.run([ROOT / "scripts/version.sh", sys.executable], env=environment, check=False)
    assert done.returncode == code
