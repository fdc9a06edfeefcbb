"""The sink that forgets: it reads everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from dblog.sinks.base import SinkContext
from dblog.sinks.noop import NoopSink
from tests.sinks.batches import batch, change, frame, read

pytestmark = [pytest.mark.spark]


def with_a_last_row_that_fails(rows: DataFrame) -> DataFrame:
    return rows.withColumn("note", f.when(f.col("id") == 9, f.raise_error(f.lit("row nine is read"))).otherwise("x"))


def test_every_row_of_both_kinds_is_read(spark: SparkSession, tmp_path: Path) -> None:
    sink = NoopSink({}, SinkContext("shop", tmp_path))
    changes = frame(spark, [change("create", n, n) for n in range(10)], partitions=2)
    rows = frame(spark, [read(20, n) for n in range(10)], partitions=2)
    sink.write(batch(0, changes, rows))
    for given in (
        batch(1, with_a_last_row_that_fails(changes), rows),
        batch(1, changes, with_a_last_row_that_fails(rows)),
    ):
        with pytest.raises(PySparkException, match="row nine is read"):
            sink.write(given)
