"""The sink `iceberg` in a REST catalog, written by Spark's connector and read by pyiceberg."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog.testing.iceberg_rest import IcebergRest
from tests.lakes.conftest import in_rest
from tests.sinks.lakes import Lake, LakeSuite

pytestmark = pytest.mark.spark


class TestIcebergInRest(LakeSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession, rest: IcebergRest) -> Lake:
        return in_rest(tmp_path, spark, rest)
