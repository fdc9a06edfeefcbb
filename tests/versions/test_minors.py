"""A chosen set of tests on every older minor version of PySpark: `scripts/sparks.sh` puts them beside the environment's
own, on which all tests run. `DBLOG_TEST_SPARKS` names another folder than the environment's.
"""

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

STREAM = "tests/spark/test_stream.py::test_"
EVERYWHERE = [
    "tests/unit/spark/test_versions.py",
    f"{STREAM}a_typed_stream_is_found_without_registration_and_gives_the_tables_columns",
    f"{STREAM}a_drained_stream_has_everything_and_goes_on_in_the_next_query",
    f"{STREAM}mariadb_gives_typed_columns_and_envelopes",
    f"{STREAM}a_change_of_the_table_ends_the_query_with_what_to_do",
    f"{STREAM}a_spark_connect_client_streams_too",
    "tests/versions/test_killed.py",
    "tests/cli/test_run.py::test_a_pipeline_goes_on_where_it_stopped_and_says_why_it_cannot",
]
AVAILABLE_NOW = f"{STREAM}all_that_is_there_now_goes_into_parquet_once"
OF_A_MINOR = {"4.0": ["tests/versions/one_batch.py"], "4.1": ["tests/versions/one_batch.py"], "4.2": [AVAILABLE_NOW]}


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("minor", MINORS)
def test_the_chosen_tests_pass_on(minor: str, tmp_path: Path) -> None:
    folder = FOLDER / f"spark-{minor}"
    if not folder.is_dir():
        pytest.skip(f"PySpark {minor} is not in {FOLDER}: scripts/sparks.sh puts it there")
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
    quiet = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")
    said = python("-m", "pytest", *quiet, f"--basetemp={tmp_path / 'of'}", *EVERYWHERE, *OF_A_MINOR[minor])
    assert re.search(r"\d+ passed", said), said[-2000:]
    assert "skipped" not in said, said[-2000:]
