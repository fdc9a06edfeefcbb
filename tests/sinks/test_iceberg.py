"""The sink `iceberg`, on a real Iceberg where there is one for this PySpark: `tests/sinks/lakes.py` says how else."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.sinks.lakes import Lake, LakeSuite, lake_session, needs

pytestmark = needs("iceberg")


class Iceberg(Lake):
    """A catalog is set up when Spark starts, so that the tests have a database each."""

    sink = "iceberg"

    def __init__(self, folder: Path, spark: SparkSession | None) -> None:
        super().__init__(folder, spark)  # type: ignore[arg-type]
        self.database = uuid.uuid4().hex

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "database": self.database}

    def commits(self) -> int:
        return self.spark.table(f"{self.table()}.snapshots").count()


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
