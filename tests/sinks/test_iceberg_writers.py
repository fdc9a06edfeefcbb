"""The sink `iceberg` by both writers, in one REST catalog, where there is a real Iceberg for this PySpark; `make lakes`
else."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog.testing.iceberg_rest import IcebergRest, find_iceberg_rest
from tests.sinks.lakes import CatalogIceberg, Lake, LakeSuite, Source, change, lake_session, needs, read
from tests.sinks.target import Row

pytestmark = [
    needs("iceberg"),
    pytest.mark.skipif(find_iceberg_rest() is None, reason="no REST catalog of Iceberg: scripts/iceberg_rest.sh .venv"),
]


class BySpark(CatalogIceberg):
    """Written by Spark, and read by pyiceberg."""

    writer = "spark"


@pytest.fixture(scope="module")
def rest() -> Iterator[IcebergRest]:
    with IcebergRest() as server:
        yield server


@pytest.fixture(scope="module")
def spark(rest: IcebergRest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("iceberg")
    yield from lake_session(BySpark(folder, None, type="rest", uri=rest.uri).make(folder), folder)


class TestIcebergInRest(LakeSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession, rest: IcebergRest) -> Lake:
        return BySpark(tmp_path, spark, type="rest", uri=rest.uri)

    @pytest.mark.parametrize("writes", ["copy-on-write", "merge-on-read"])
    @pytest.mark.parametrize("mode", ["current", "history"])
    def test_a_table_changes_from_one_writer_to_the_other(
        self, target: Lake, batch: Source, mode: str, writes: str
    ) -> None:
        def write(writer: str) -> None:
            self.opened(target, writer=writer, mode=mode).write(batches[-1])

        batches = [batch(*(read(10, i, 0, f"row {i}") for i in range(1, 6)))]
        write("native")
        name = target.table()
        for kind in ("update", "delete", "merge"):
            target.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.{kind}.mode' = '{writes}')")
        assert target.spark.table(name).count() == 5
        for number, writer in enumerate(["spark", "native", "spark", "native"]):
            lsn = 20 + number * 10
            batches.append(
                batch(
                    change("update", lsn, 1, lsn, None, unchanged=["note"]),
                    change("delete", lsn + 1, number + 2),
                    change("create", lsn + 2, lsn, lsn, "new"),
                )
            )
            write(writer)
            found, commits = target.all(), target.commits()
            assert shown([r.asDict() for r in target.spark.newSession().table(name).collect()]) == shown(found)
            for other in ("spark", "native"):
                write(other)
            assert target.commits() == commits
        now = [r for r in found if r.get("valid_to") is None]
        assert {(r["id"], r["n"], r["note"]) for r in now} == {
            (1, 50, "row 1"), (20, 20, "new"), (30, 30, "new"), (40, 40, "new"), (50, 50, "new"),
        }  # fmt: skip


def shown(rows: list[Row]) -> list[Row]:
    """Rows in an order, with times that compare: Spark's have no time zone."""
    made = [
        {n: v.astimezone(datetime.UTC) if isinstance(v, datetime.datetime) else v for n, v in row.items()}
        for row in rows
    ]
    return sorted(made, key=str)
