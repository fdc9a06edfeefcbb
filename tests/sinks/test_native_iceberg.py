"""The sink `iceberg`, written by Python tasks: on any PySpark, without a connector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyspark.sql import SparkSession

from dblog.errors import SinkUnreachable
from dblog.sinks.lake.native import iceberg, writer
from dblog.testing.iceberg_rest import IcebergRest, find_iceberg_rest
from tests.families import AnyDatabase
from tests.sinks.lakes import CatalogIceberg, Lake, LakeSuite, NativeIceberg, Source, change, read
from tests.sinks.suite import SinkSuite
from tests.sinks.target import Target

pytestmark = pytest.mark.spark


class TestNativeIceberg(LakeSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Lake:
        return NativeIceberg(tmp_path / "lake", spark)

    def test_a_foreign_writer_beside_ours_is_not_overwritten(
        self, target: NativeIceberg, batch: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = self.opened(target)
        sink.write(batch(read(10, 1, 0, "ours")))
        real = writer.run_in_tasks

        def interrupted(*given: object) -> object:
            """Another writer commits while the tasks of the batch write their files."""
            foreign = target.opened()
            assert foreign is not None
            foreign.append(
                foreign.scan(row_filter="id = 1")
                .to_arrow()
                .set_column(0, "id", [[7]])
                .cast(foreign.schema().as_arrow())
            )
            monkeypatch.setattr(writer, "run_in_tasks", real)
            return real(*given)

        second = batch(change("update", 20, 1, 1, "changed"))
        monkeypatch.setattr(writer, "run_in_tasks", interrupted)
        with pytest.raises(SinkUnreachable, match=r"somebody else writes to \S+\.t: "):
            sink.write(second)
        assert self.state(target) == {1: (0, "ours"), 7: (0, "ours")}
        sink.write(second)
        assert self.state(target) == {1: (1, "changed"), 7: (0, "ours")}

    @pytest.mark.parametrize("error", [CommitStateUnknownException("504"), ConnectionError("reset")])
    def test_a_commit_whose_answer_is_lost_is_not_made_twice(
        self, target: NativeIceberg, batch: Source, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def lost(*given: Any) -> None:
            real(*given)
            monkeypatch.setattr(iceberg, "commit", real)
            raise error

        sink, real = self.opened(target, mode="log"), iceberg.commit
        sink.write(batch(change("create", 10, 1, 0, "a")))
        second = batch(change("create", 20, 2, 0, "b"))
        monkeypatch.setattr(iceberg, "commit", lost)
        with pytest.raises(SinkUnreachable):
            sink.write(second)
        sink.write(second)
        assert sorted(row["id"] for row in target.all()) == [1, 2]

    def test_the_mark_is_known_after_all_snapshots_of_ours_have_expired(
        self, target: NativeIceberg, batch: Source
    ) -> None:
        self.opened(target, mode="log").write(batch(change("create", 10, 1, 0, "a")))
        last = batch(change("create", 20, 2, 0, "b"))
        self.opened(target, mode="log").write(last)
        foreign = target.opened()
        assert foreign is not None
        ours = [snapshot.snapshot_id for snapshot in foreign.snapshots()]
        foreign.delete("id = 1")
        foreign.maintenance.expire_snapshots().by_ids(ours).commit()
        commits = target.commits()
        self.opened(target, mode="log").write(last)
        assert (target.commits(), len(target.all())) == (commits, 1)


@pytest.fixture(scope="module")
def rest() -> Iterator[IcebergRest]:
    with IcebergRest() as server:
        yield server


@pytest.mark.skipif(find_iceberg_rest() is None, reason="no REST catalog of Iceberg: scripts/iceberg_rest.sh .venv")
class TestNativeIcebergInRest(TestNativeIceberg):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession, rest: IcebergRest) -> Lake:
        return CatalogIceberg(tmp_path, spark, type="rest", uri=rest.uri)


@pytest.mark.server
class TestNativeIcebergInPostgres:
    """The catalog's own tests: the rest does not depend on where the catalog is."""

    opened, state, batch = LakeSuite.opened, LakeSuite.state, LakeSuite.batch
    test_again = LakeSuite.test_a_batch_that_comes_again_changes_nothing
    test_columns = LakeSuite.test_columns_follow_the_source
    test_foreign = TestNativeIceberg.test_a_foreign_writer_beside_ours_is_not_overwritten

    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession, database: AnyDatabase) -> Lake:
        uri = database.url.replace("postgresql://", "postgresql+psycopg2://")
        return CatalogIceberg(tmp_path, spark, type="sql", uri=uri, warehouse=str(tmp_path))


class TestNativeIcebergPipeline(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Target:
        return NativeIceberg(tmp_path / "lake", spark)
