"""The source archive: everything that the tests need is in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import dblog
from tests.install.bare import ROOT, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    python = folder / "venv/bin/python"
    for command in (
        ["-m", "pip", "install", "-q", "hatchling"],
        ["-m", "hatchling", "build", "-t", "sdist", "-d", folder / "dist"],
    ):
        done = run(python, *command, folder=ROOT, environment=environment)
        assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    (archive,) = (folder / "dist").iterdir()
    assert archive.name == f"dblog-{dblog.__version__}.tar.gz"
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / f"dblog-{dblog.__version__}"


def pytest_in(folder: Path, *arguments: str) -> str:
    """What pytest prints, with the code of a folder and not with that of these tests."""
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}:{folder}", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = run(*command, folder=folder, environment=environment)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


def test_the_tests_in_the_archive_are_found(unpacked: Path) -> None:
    lines = pytest_in(unpacked, "--collect-only", "tests/unit").splitlines()
    found = re.match(r"(\d+)(?:/\d+)? tests collected", lines[-1])
    assert found is not None
    assert int(found[1]) > 1000


def test_the_documents_and_the_layout_in_the_archive_pass_their_tests(unpacked: Path) -> None:
    names = [path.name for path in (ROOT / "tests/unit").glob("test_docs*.py")]
    assert "passed" in pytest_in(unpacked, "tests/unit/test_layout.py", *(f"tests/unit/{name}" for name in names))
