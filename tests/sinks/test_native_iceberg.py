"""The sink `iceberg`, written by Python tasks: on any PySpark, without a connector."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sinks.lakes import Lake, LakeSuite, NativeIceberg
from tests.sinks.suite import SinkSuite
from tests.sinks.target import Target

pytestmark = pytest.mark.spark


class TestNativeIceberg(LakeSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Lake:
        return NativeIceberg(tmp_path / "lake", spark)


class TestNativeIcebergPipeline(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Target:
        return NativeIceberg(tmp_path / "lake", spark)
