"""A Spark with the connectors of both formats, on a PySpark for which there are such: `test_lakes.py` runs these tests
on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog.pipelines.spark_settings import JOINED
from dblog.testing.iceberg_rest import IcebergRest
from tests.sinks.lakes import CatalogIceberg, Delta, Iceberg, Lake
from tests.spark.home import QUICK_START, local_session


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Iceberg's catalog `lake`, which is set up when Spark starts."""
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def rest() -> Iterator[IcebergRest]:
    with IcebergRest() as server:
        yield server


def in_rest(folder: Path, spark: SparkSession | None, rest: IcebergRest) -> CatalogIceberg:
    """Written by Spark unless told otherwise, and read by pyiceberg."""
    lake = CatalogIceberg(folder, spark, type="rest", uri=rest.uri)
    lake.writer = "spark"
    return lake


@pytest.fixture(scope="session")
def spark(warehouse: Path, rest: IcebergRest) -> Iterator[SparkSession]:
    lakes: list[Lake] = [Delta(warehouse, None), Iceberg(warehouse, None), in_rest(warehouse, None, rest)]
    settings = {"spark.driver.extraJavaOptions": f"-Xss16m {QUICK_START}"}
    for lake in lakes:
        for name, value in lake.make(warehouse, writer="spark").spark_settings.items():
            known = settings[name].split(",") if name in settings and name in JOINED else []
            settings[name] = ",".join(dict.fromkeys([*known, *value.split(",")])) if name in JOINED else value
    # A busy machine is slow, not wrong.
    settings["spark.python.authenticate.socketTimeout"] = "2m"
    yield from local_session(warehouse / "spark", settings)
