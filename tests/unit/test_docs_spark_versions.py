"""docs/spark-versions.md says of every version of PySpark what the code and the tests say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from dblog.sinks.packages import RELEASES
from dblog.spark.versions import ADMISSION_SINCE, LEAST, minor_of
from tests.versions.test_minors import EVERYWHERE, MINORS, OF_A_MINOR, THOROUGH

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/spark-versions.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
VERSIONS = ROWS[0][1:]
TABLE = {row[0]: dict(zip(VERSIONS, row[1:], strict=True)) for row in ROWS[2:]}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_versions_are_those_that_are_tested_and_the_newest_is_the_environment_s_own() -> None:
    newest = next(d for d in PROJECT["optional-dependencies"]["dev"] if d.startswith("pyspark"))
    assert [*MINORS, newest.partition(">=")[2]] == VERSIONS


def test_the_oldest_is_the_one_that_pip_asks_for() -> None:
    (asked,) = (d for d in PROJECT["dependencies"] if d.startswith("pyspark"))
    assert asked == f"pyspark[sql]>={VERSIONS[0]}"
    assert asked in PAGE
    assert minor_of(VERSIONS[0]) == LEAST


def test_the_connectors_are_those_that_spark_fetches() -> None:
    named = {label: cells for label, cells in TABLE.items() if label.startswith("connector")}
    assert named == {
        f"connector for `{sink}`": {v: f"`{releases[v]}`" if v in releases else "none" for v in VERSIONS}
        for sink, releases in RELEASES.items()
    }


def test_available_now_is_whole_where_spark_has_admission_control() -> None:
    told = {v: "all" if minor_of(v) >= ADMISSION_SINCE else "one batch" for v in VERSIONS}
    assert TABLE["`trigger(availableNow=True)`"] == told
    pipelines = TABLE["Declarative Pipelines"]
    assert {v: pipelines[v] for v in VERSIONS if pipelines[v] != "no"} == {v: told[v] for v in VERSIONS[1:]}
    one_batch = {v for v, tests in OF_A_MINOR.items() if any("one_batch" in t for t in tests)}
    assert one_batch == {v for v in VERSIONS if told[v] == "one batch"}


def test_what_runs_everywhere_is_tested_everywhere() -> None:
    tested = " ".join(EVERYWHERE)
    for label, words in {
        "the source, `foreachBatch`, `dblog run`, dumps, progress": ("typed_stream", "goes_on_where_it_stopped"),
        "Spark Connect": ("spark_connect",),
        "the option `drain`, `dblog run --once`": ("drained_stream", "goes_on_where_it_stopped"),
    }.items():
        assert len(set(TABLE[label].values())) == 1
        assert all(word in tested for word in words)


SUITES = ("tests/sinks/suite.py", "tests/sinks/lakes.py")
"""Files with tests that classes of other files inherit."""


def test_every_chosen_test_exists() -> None:
    for chosen in [*EVERYWHERE, *THOROUGH, *(t for tests in OF_A_MINOR.values() for t in tests)]:
        path, *names = chosen.split("::")
        text = (ROOT / path).read_text()
        if len(names) == 2:
            assert re.search(rf"^class {names[0]}\(", text, re.MULTILINE), chosen
            text += "".join((ROOT / suite).read_text() for suite in SUITES)
        assert not names or re.search(rf"^ *def {names[-1]}\(", text, re.MULTILINE), chosen
