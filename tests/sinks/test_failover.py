"""A sink that has written a batch takes it for the same one when another server of the cluster repeats it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog.core.schema import TableName
from dblog.sinks.base import Batch
from tests.conftest import MYSQL_SERVERS
from tests.engine.cluster import Cluster
from tests.families import OnMySQL
from tests.sinks.pipeline import Pipeline, Written
from tests.sinks.test_parquet import Files

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.skipif("mariadb" not in MYSQL_SERVERS, reason="mariadb is not installed"),
]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster("mariadb")
    cluster.primary.execute("create table t (id int primary key, n int)", "insert into t values (1, 0), (2, 0)")
    cluster.caught_up()
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("spool", ["kept", "lost"])
def test_a_batch_that_parquet_has_written_is_not_written_again_after_a_failover(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, spool: str
) -> None:
    target = Files(tmp_path / "lake")
    broken = False

    def around(batch: Batch, write: Written) -> None:
        write(batch)
        if broken:
            raise RuntimeError("the driver dies before Spark has committed the batch")

    pipeline = Pipeline(spark, target, OnMySQL(cluster.primary.server, "shop"), tmp_path, around=around)
    with pipeline:
        pipeline.follows()
        broken = True
        cluster.primary.execute("update t set n = 1 where id = 1")
        assert "the driver dies" in pipeline.failure()
    second = cluster.promote()
    broken = False
    if spool == "lost":
        shutil.rmtree(tmp_path / "spool")
    pipeline.database = OnMySQL(second.server, "shop")
    with pipeline:
        second.execute("update t set n = 2 where id = 1")
        pipeline.follows()
    events = [e for e in target.events(TableName("shop", "t")) if e["key"] == (1,)]
    assert [e["row"]["n"] for e in events] == [0, 1, 2]
    assert sorted(events, key=lambda e: (e["lsn"], e["seq"])) == events
