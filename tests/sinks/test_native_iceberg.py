"""The sink `iceberg`, written by Python tasks: on any PySpark, without a connector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog.errors import SinkUnreachable
from dblog.testing.iceberg_rest import IcebergRest, find_iceberg_rest
from tests.sinks.lakes import Lake, LakeSuite, NativeIceberg, RestIceberg, Source, change, read
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
        from dblog.sinks.lake.native import writer

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
        return RestIceberg(tmp_path, spark, rest.uri)


class TestNativeIcebergPipeline(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Target:
        return NativeIceberg(tmp_path / "lake", spark)
