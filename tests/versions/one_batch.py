"""`trigger(availableNow=True)` before PySpark 4.2. Not collected by itself: `test_minors.py` runs it there.

Spark makes one batch for a source that it cannot ask for more. The documentation says so, and this shows it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog.testing.postgres_server import PostgresServer
from tests.conftest import Database

pytestmark = [pytest.mark.server, pytest.mark.spark]


@pytest.fixture
def postgres(servers: dict[str, PostgresServer]) -> PostgresServer:
    return servers["pg18"].start()


def test_available_now_makes_one_batch_in_each_run(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key); insert into t select generate_series(1, 100)")
    rows = spark.readStream.format("dblog").option("url", database.url).option("table", "t")
    writer = rows.option("spool", str(tmp_path / "spool")).load().writeStream.trigger(availableNow=True)
    counts = []
    for _ in range(3):
        target = writer.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert target.start(str(tmp_path / "target")).awaitTermination(60)
        counts.append(spark.read.schema("id int").parquet(str(tmp_path / "target")).count())
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == 3
    assert counts == [0, 0, 100], "the start of the log, the first window, its rows"
