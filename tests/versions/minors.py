"""Tests on an older minor version of PySpark, in a process of their own: `scripts/sparks.sh` puts these versions beside
the environment's own. `DBLOG_TEST_SPARKS` names another folder than the environment's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.apps import ROOT

MINORS = re.search(r"MINORS='(.*)'", (ROOT / "scripts/sparks.sh").read_text())[1].split()  # type: ignore[index]
FOLDER = Path(os.environ.get("DBLOG_TEST_SPARKS", sys.prefix))
QUIET = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")


def run_on(minor: str, temporary: Path, *arguments: str) -> None:
    """Run pytest on a minor version. All tests must pass, and none may be skipped."""
    folder = FOLDER / f"spark-{minor}"
    if not folder.is_dir():
        pytest.fail(f"PySpark {minor} is not in {FOLDER}: scripts/sparks.sh puts it there (make test does)")
    path = [str(folder), str(ROOT / "src"), str(ROOT)]
    left_out = ("PYTEST_", "SPARK_", "PYSPARK_", "DBLOG_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    environment["PYTHONPATH"] = os.pathsep.join(path)

    def python(*arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, (ended.stdout + ended.stderr)[-8000:]
        return ended.stdout

    assert python("-c", "import pyspark; print(pyspark.__version__)").startswith(f"{minor}.")
    python("-m", "tests.spark.home")
    said = python("-m", "pytest", *QUIET, f"--basetemp={temporary / 'of'}", *arguments)
    assert re.search(r"\d+ passed", said), said[-2000:]
    assert "skipped" not in said, said[-2000:]
