"""The sink `iceberg`, written by Spark's connector."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog.sinks.lake.marks import BatchMark, mark_property
from tests.sinks.lakes import Iceberg, Lake, LakeSuite, Source, change, read

pytestmark = pytest.mark.spark


class TestIceberg(LakeSuite):
    @pytest.fixture
    def target(self, warehouse: Path, spark: SparkSession) -> Lake:
        return Iceberg(warehouse, spark)

    def test_rows_are_replaced_by_deletes(self, target: Lake, batch: Source) -> None:
        sink = self.opened(target)
        sink.write(batch(*(read(10, key, 0, "a") for key in range(100))))
        sink.write(batch(change("update", 20, 7, 1, "b"), change("delete", 21, 8)))
        assert len(self.state(target)) == 99
        summary = target.spark.table(f"{target.table()}.snapshots").orderBy("committed_at").collect()[-1]["summary"]
        assert (summary["added-position-deletes"], summary.get("deleted-records")) == ("2", None)

    def test_the_mark_in_the_property_counts_if_no_snapshot_has_one(self, target: Lake, batch: Source) -> None:
        self.opened(target).write(batch(change("create", 10, 1, 1, "a")))
        tables = target.make(target.folder)._spark_tables()  # type: ignore[attr-defined]
        others = target.make(target.folder)._spark_tables()  # type: ignore[attr-defined]
        others.context = type(others.context)("other", target.folder)
        assert tables.last_mark(target.spark, target.table()) == BatchMark(0, 11)
        assert others.last_mark(target.spark, target.table()) is None
        kept = (
            '{"snapshot": "1", "sequence": "1", "dblog-pipeline": "other", "dblog-batch": "7", "dblog-position": "9"}'
        )
        name = mark_property("other")
        target.spark.sql(f"ALTER TABLE {target.table()} SET TBLPROPERTIES ('{name}' = '{kept}')")
        assert others.last_mark(target.spark, target.table()) == BatchMark(7, 9)
