"""The sink `delta`, written by Spark's connector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog.errors import SinkError
from tests.sinks import suite
from tests.sinks.lakes import CatalogDelta, Delta, Lake, LakeSuite, Source, change, read
from tests.sinks.pipeline import Pipeline
from tests.sinks.suite import SinkSuite
from tests.sinks.target import Target

pytestmark = pytest.mark.spark


class TestDelta(LakeSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Lake:
        return Delta(tmp_path / "lake", spark)

    def test_rows_are_replaced_by_deletion_vectors(self, target: Lake, batch: Source) -> None:
        sink = self.opened(target)
        sink.write(batch(*(read(10, key, 0, "a") for key in range(100))))
        sink.write(batch(change("update", 20, 7, 1, "b"), change("delete", 21, 8)))
        assert len(self.state(target)) == 99
        metrics = target.spark.sql(f"DESCRIBE HISTORY {target.table()} LIMIT 1").first()["operationMetrics"]
        assert metrics["numTargetDeletionVectorsAdded"] == "1"
        with pytest.raises(SinkError, match=r"native writer cannot write to .*deletionVectors") as refused:
            self.opened(target, writer="native").write(batch(change("update", 30, 7, 2, "c")))
        assert 'writer = "spark"' in str(refused.value)


class TestDeltaInACatalog:
    """The catalog's own tests: the rest does not depend on where the table is."""

    opened, state, batch = LakeSuite.opened, LakeSuite.state, LakeSuite.batch
    test_again = LakeSuite.test_a_batch_that_comes_again_changes_nothing
    test_columns = LakeSuite.test_columns_follow_the_source

    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Lake:
        return CatalogDelta(tmp_path, spark)

    def test_the_table_is_in_the_catalog(self, target: CatalogDelta, batch: Source) -> None:
        sink = self.opened(target)
        assert sink.facts()["writer"] == "spark (a catalog of Spark's has the tables)"
        sink.write(batch(read(10, 1, 0, "a")))
        shown = target.spark.sql(f"SHOW TABLES IN spark_catalog.{target.database}").collect()
        assert [row.tableName for row in shown] == ["t"]
        assert target.table() == f"`spark_catalog`.`{target.database}`.`t`"
        described = target.spark.sql(f"DESCRIBE DETAIL {target.table()}").first()
        assert described is not None
        assert described["format"] == "delta"


class Patient(Pipeline):
    """A commit of Delta's takes seconds, and many on a busy machine."""

    def until(self, ready: Callable[[], bool], why: Callable[[], str] = str, seconds: float = 60.0) -> None:
        super().until(ready, why, 4 * seconds)


class TestDeltaPipeline(SinkSuite):
    @pytest.fixture(autouse=True)
    def _patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(suite, "Pipeline", Patient)

    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Target:
        return Delta(tmp_path / "lake", spark)
