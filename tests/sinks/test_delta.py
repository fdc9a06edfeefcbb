"""The sink `delta`, on a real Delta Lake where there is one for this PySpark; `make lakes` else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sinks.lakes import Delta, Lake, LakeSuite, lake_session, needs
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


class TestDeltaPipeline(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Target:
        return Delta(tmp_path / "lake", spark)
