"""The sink `delta`, written by Python tasks: on any PySpark, without a connector."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sinks.lakes import Lake, LakeSuite, NativeDelta
from tests.sinks.suite import SinkSuite
from tests.sinks.target import Target

pytestmark = pytest.mark.spark


class TestNativeDelta(LakeSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Lake:
        return NativeDelta(tmp_path / "lake", spark)


class TestNativeDeltaPipeline(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Target:
        return NativeDelta(tmp_path / "lake", spark)
