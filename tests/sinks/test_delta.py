"""The sink `delta`, on a real Delta Lake where there is one for this PySpark; `make lakes` else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sinks import suite
from tests.sinks.lakes import Delta, Lake, LakeSuite, lake_session, needs
from tests.sinks.pipeline import Pipeline
from tests.sinks.suite import SinkSuite
from tests.sinks.target import Target

pytestmark = needs("delta")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("delta")
    yield from lake_session(Delta(folder, None).make(folder), folder)


class TestDelta(LakeSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Lake:
        return Delta(tmp_path / "lake", spark)


class Patient(Pipeline):
    """A commit of Delta's takes seconds, and many on a busy machine."""

    def until(self, ready: Callable[[], bool], why: Callable[[], str] = str, seconds: float = 60.0) -> None:
        super().until(ready, why, 4 * seconds)


class TestDeltaPipeline(SinkSuite):
    @pytest.fixture(autouse=True)
    def _patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(suite, "Pipeline", Patient)

    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Target:
        return Delta(tmp_path / "lake", spark)
