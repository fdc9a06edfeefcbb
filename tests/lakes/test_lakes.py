"""The sinks of a lake by Spark's connectors, beside the native writer: in a process of its own, on the only minor
version of PySpark for which there is the newest release of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.versions.minors import run_on

MINOR = "4.1"
FILES = ("delta", "iceberg", "iceberg_rest", "writers", "readers")


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
def test_lakes_pass_with_the_connectors_of_spark(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    more = ("--thorough",) if request.config.getoption("--thorough") else ()
    run_on(MINOR, tmp_path, *more, *(f"tests/lakes/{name}.py" for name in FILES))
