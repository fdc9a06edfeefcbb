"""The sink `parquet`: files of changes, one folder for each batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import SinkError
from dblog.sinks.base import Batch, TableBatch
from dblog.sinks.folder import folder_name
from dblog.work.rows import Typed
from tests.sinks.suite import AwaySuite, SinkSuite
from tests.sinks.target import Key, Row, Target, replayed

METADATA = ("_op", "_lsn", "_seq", "_txid", "_committed_at", "_dump", "_schema", "_unchanged", "_raw_values")
KEYS = (("id",), ("a", "b"), ("from",), ("key",))
"""Of the suite's tables."""


class Files(Target):
    sink = "parquet"
    history = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def settings(self) -> dict[str, Any]:
        return {"path": str(self.folder)}

    def written(self, table: TableName) -> list[Row]:
        home = self.folder / folder_name(table)
        found = {int(path.name.partition("=")[2]): path for path in home.glob("batch=*")}
        files = [file for _, path in sorted(found.items()) for file in sorted(path.glob("part-*.parquet"))]
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]

    def events(self, table: TableName) -> list[dict[str, Any]]:
        written = self.written(table)
        key = next((key for key in KEYS for row in written[:1] if set(key) <= set(row)), ())
        return [
            {
                "op": row["_op"],
                "lsn": row["_lsn"],
                "seq": row["_seq"],
                "key": tuple(row[name] for name in key),
                "row": {name: value for name, value in row.items() if name not in METADATA},
                "unchanged": row["_unchanged"],
            }
            for row in written
        ]

    def rows(self, table: TableName) -> dict[Key, Row]:
        return replayed(self.events(table))

    @contextmanager
    def _nothing_there(self) -> Iterator[None]:
        """Where the folder was is a file, as an address behind which there is no folder."""
        aside = self.folder.with_name("aside")
        if self.folder.exists():
            self.folder.rename(aside)
        self.folder.write_text("")
        yield
        self.folder.unlink()
        if aside.exists():
            aside.rename(self.folder)

    def away(self) -> Any:
        return self._nothing_there()


class TestParquet(SinkSuite, AwaySuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Files(tmp_path / "lake")


# -- what a batch is -------------------------------------------------------------------------------------------------


T = TableSchema(TableName("public", "t"), (Column("id", "integer", pa.int32()),), ("id",))


def batch(spark: SparkSession, number: int, position: int, schema: TableSchema = T) -> Batch:
    """A batch with one row."""
    kind = from_arrow_schema(Typed(schema, before=False).arrow)
    rows = [(1, *schema.names[1:], "create", position, 0, 7, None, None, "v", None, None)]
    return Batch(number, position, (TableBatch(T.table, schema, spark.createDataFrame(rows, kind), None, None, False),))


def test_a_folder_of_an_earlier_stream_is_not_taken_for_this_ones(spark: SparkSession, tmp_path: Path) -> None:
    target = Files(tmp_path / "lake")
    sink = target.make(tmp_path)
    sink.open(spark)
    sink.write(batch(spark, 3, 100))
    sink.write(batch(spark, 3, 100))
    assert len(target.written(T.table)) == 1
    with pytest.raises(SinkError, match="earlier stream") as refused:
        sink.write(batch(spark, 3, 200))
    assert "new folder" in str(refused.value)
    assert len(target.written(T.table)) == 1


@pytest.mark.parametrize("place", ["_writing/batch=1", "batch=1"])
def test_what_was_not_finished_is_written_again(spark: SparkSession, tmp_path: Path, place: str) -> None:
    target = Files(tmp_path / "lake")
    sink = target.make(tmp_path)
    sink.open(spark)
    sink.write(batch(spark, 1, 50))
    home = target.folder / "public.t"
    (home / "batch=1/_dblog").unlink()  # as a crash leaves it
    (home / "batch=1").rename(home / place)
    assert len(target.written(T.table)) == (place == "batch=1")
    sink.write(batch(spark, 1, 100))
    assert [(row["id"], row["_lsn"]) for row in target.written(T.table)] == [(1, 100)]
    assert not list((home / "_writing").iterdir())


def test_spark_reads_all_batches_as_one_table(spark: SparkSession, tmp_path: Path) -> None:
    target = Files(tmp_path / "lake")
    sink = target.make(tmp_path)
    sink.open(spark)
    sink.write(batch(spark, 1, 50))
    wider = TableSchema(T.table, (*T.columns, Column("more", "text", pa.string())), T.key)
    sink.write(batch(spark, 2, 100, wider))
    found = spark.read.option("mergeSchema", "true").parquet(str(target.folder / "public.t"))
    assert set(found.columns) == {"id", *METADATA, "more", "batch"}
    assert sorted((row.batch, row.id, row.more) for row in found.collect()) == [(1, 1, None), (2, 1, "more")]
