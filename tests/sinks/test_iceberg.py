"""The sink `iceberg`, on a real Iceberg where there is one for this PySpark; `make lakes` else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sinks.lakes import Iceberg, Lake, LakeSuite, lake_session, needs

pytestmark = needs("iceberg")


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("iceberg")


@pytest.fixture(scope="module")
def spark(warehouse: Path) -> Iterator[SparkSession]:
    yield from lake_session(Iceberg(warehouse, None).make(warehouse), warehouse)


class TestIceberg(LakeSuite):
    @pytest.fixture
    def target(self, warehouse: Path, spark: SparkSession) -> Lake:
        return Iceberg(warehouse, spark)
