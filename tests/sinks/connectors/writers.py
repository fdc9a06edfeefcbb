"""A table changes from one writer to the other between batches, and a batch comes again by the other one: every reader
sees it once."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog.core.schema import Column, TableSchema
from dblog.errors import SinkError
from dblog.testing.iceberg_rest import IcebergRest
from tests.lakes.native_lakes import shown
from tests.sinks.connectors.conftest import in_rest
from tests.sinks.lakes import ID, NAME, Lake, NativeDelta, Source, change, read
from tests.sinks.pipeline import same
from tests.sinks.target import Row

pytestmark = pytest.mark.spark

MOMENT = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456)
VALUES: list[tuple[str, pa.DataType, Any, Any]] = [
    ("n", pa.int32(), 0, 7),
    ("note", pa.string(), "ü", None),
    ("two words", pa.string(), "a", "b"),
    ("price", pa.decimal128(12, 2), Decimal("1.50"), Decimal("-9999999999.99")),
    ("ratio", pa.float64(), float("nan"), -0.5),
    ("day", pa.date32(), datetime.date(1500, 2, 3), datetime.date(2024, 2, 29)),
    ("local", pa.timestamp("us"), MOMENT, datetime.datetime(1500, 1, 1)),
    ("moment", pa.timestamp("us", tz="UTC"), MOMENT.replace(tzinfo=datetime.UTC), None),
    ("names", pa.list_(pa.string()), ["a", None], []),
    ("raw", pa.binary(), b"\0\xff", b""),
    ("flag", pa.bool_(), True, False),
]
"""The columns, with two values each."""
SCHEMA = TableSchema(NAME, (ID, *(Column(name, str(kind), kind) for name, kind, _, _ in VALUES)), ("id",))
FIRST, SECOND = ([case[number] for case in VALUES] for number in (2, 3))


class Both:
    @pytest.fixture
    def target(self) -> Lake:
        raise NotImplementedError

    @pytest.fixture
    def batch(self, spark: SparkSession) -> Source:
        return Source(spark)

    def write(self, target: Lake, writer: str, batch: Any, **settings: Any) -> None:
        """By a sink object of its own, as another process has it."""
        sink = target.make(target.folder, writer=writer, maintain="off", **settings)
        sink.open(target.spark)
        sink.write(batch)

    def by_spark(self, target: Lake) -> list[Row]:
        return [r.asDict(recursive=True) for r in target.spark.newSession().table(target.table()).collect()]

    @pytest.mark.parametrize("mode", ["current", "history", "log"])
    def test_a_table_changes_from_one_writer_to_the_other(self, target: Lake, batch: Source, mode: str) -> None:
        self.write(target, "native", batch(*(read(10, i, *FIRST) for i in range(1, 7)), schema=SCHEMA), mode=mode)
        for number, (writer, other) in enumerate([("spark", "native"), ("native", "spark"), ("spark", "native")]):
            lsn = 20 + number * 10
            left_out = [7, *[None] * (len(VALUES) - 1)]
            given = batch(
                change("update", lsn, 1, *left_out, unchanged=[name for name, *_ in VALUES[1:]]),
                change("delete", lsn + 1, number + 2),
                change("create", lsn + 2, lsn, *SECOND),
                read(lsn + 3, 6, *FIRST),
                schema=SCHEMA,
            )
            self.write(target, writer, given, mode=mode)
            commits, found = target.commits(), shown(target, NAME)
            assert alike(self.by_spark(target), target.all()), f"after {writer}"
            for again in (other, writer):
                self.write(target, again, given, mode=mode)
            assert (target.commits(), str(shown(target, NAME))) == (commits, str(found))
        rows = target.all()
        changed = {1: [7, *FIRST[1:]]}
        last = {**dict.fromkeys((5, 6), FIRST), **dict.fromkeys((20, 30, 40), SECOND), **changed}
        if mode == "log":
            assert len(rows) == 6 + 3 * 4
            return
        now = {r["id"]: [r[name] for name, *_ in VALUES] for r in rows if r.get("valid_to") is None}
        assert now.keys() == last.keys()
        assert all(same(now[key], last[key]) for key in now), (now, last)
        assert mode == "current" or len(rows) == 6 + 3 + 3, "six from the dump, three of row 1, three are new"

    def test_each_writer_follows_the_columns_that_the_other_has_changed(self, target: Lake, batch: Source) -> None:
        columns = [ID, Column("n", "", pa.int32()), Column("two words", "", pa.string())]
        for number, writer in enumerate(["native", "spark", "native"]):
            columns.append(Column(f"c{number}", "", pa.timestamp("us") if number == 1 else pa.string()))
            values = [number, "x", *[None if c.arrow != pa.string() else "new" for c in columns[3:]]]
            schema = TableSchema(NAME, tuple(columns), ("id",))
            given = batch(
                change("update", 10 + number, 1, *values), change("create", 20, number + 2, *values), schema=schema
            )
            if number == 2 and target.sink == "delta":
                with pytest.raises(SinkError, match="columnMapping"):
                    self.write(target, writer, given)
                writer = "spark"
            self.write(target, writer, given)
            assert len(self.by_spark(target)) == number + 2
        found = {r["id"]: (r["n"], r["two words"], r["c0"], r["c1"], r["c2"]) for r in self.by_spark(target)}
        assert found == {
            1: (2, "x", "new", None, "new"), 2: (0, "x", "new", None, None),
            3: (1, "x", "new", None, None), 4: (2, "x", "new", None, "new"),
        }  # fmt: skip


def alike(mine: list[Row], theirs: list[Row]) -> bool:
    """Whether two readers found the same rows."""

    def order(row: Row) -> Any:
        return row["_lsn"], row["_seq"], row["id"]

    return all(
        a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
        for a, b in zip(sorted(mine, key=order), sorted(theirs, key=order), strict=True)
    )


class TestDelta(Both):
    """Read by Spark and by delta-rs."""

    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession) -> Lake:
        return NativeDelta(tmp_path / "lake", spark)


class TestIceberg(Both):
    """Read by Spark and by pyiceberg, in a REST catalog."""

    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession, rest: IcebergRest) -> Lake:
        return in_rest(tmp_path / "lake", spark, rest)
