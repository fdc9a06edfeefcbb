"""What the sinks of a lake do before a connector is asked: types that fit, statements, versions, connectors."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from dblog.core.settings import read_settings
from dblog.errors import ConfigError, SinkError
from dblog.sinks.base import Batch, Sink, TableBatch
from dblog.sinks.lake import DeltaSink, IcebergSink
from dblog.sinks.lake.by_spark import current, history
from dblog.sinks.lake.columns import Fit, check_names, fits, quoted
from dblog.sinks.lake.marks import BatchMark
from dblog.sinks.packages import RELEASES, package_of
from dblog.sinks.parquet import ParquetSink
from tests.sinks.lakes import Delta, Iceberg, Source, T, at, change, read
from tests.sinks.target import Row

# -- columns ---------------------------------------------------------------------------------------------------------

INT, LONG, TEXT = IntegerType(), LongType(), StringType()


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        (INT, INT, True),
        (ShortType(), INT, True),
        (INT, LONG, True),
        (LONG, INT, False),
        (INT, DoubleType(), True),
        (LONG, DoubleType(), False),
        (LONG, DecimalType(20, 0), True),
        (LONG, DecimalType(20, 2), False),
        (DecimalType(10, 2), DecimalType(12, 2), True),
        (DecimalType(10, 2), DecimalType(12, 4), True),
        (DecimalType(10, 2), DecimalType(11, 4), False),
        (DecimalType(10, 0), LONG, False),
        (FloatType(), DoubleType(), True),
        (DoubleType(), FloatType(), False),
        (DateType(), TimestampNTZType(), True),
        (DateType(), TimestampType(), False),
        (TimestampNTZType(), TimestampType(), False),
        (INT, TEXT, False),
        (TEXT, INT, False),
        (ArrayType(INT), ArrayType(LONG), True),
        (ArrayType(LONG), ArrayType(INT), False),
    ],
)
def test_a_type_fits_when_every_value_is_kept(kind: DataType, target: DataType, expected: bool) -> None:
    assert fits(kind, target) is expected


def test_what_does_not_fit_is_made_to_or_left_out_or_refused() -> None:
    source = {"id": INT, "N": LONG, "new": TEXT}
    target = {"id": LONG, "n": INT, "dropped": TEXT}
    evolve = Fit("t", source, target, "evolve")
    assert (evolve.new, evolve.wider, evolve.left_out) == ({"new": TEXT}, {"N": LONG}, set())
    ignore = Fit("t", source, target, "ignore")
    assert (ignore.new, ignore.wider, ignore.left_out) == ({}, {}, {"new", "N"})
    with pytest.raises(SinkError, match=r"'new' \(string\), 'N' \(bigint\)") as refused:
        Fit("t", source, target, "fail")
    assert "evolve" in str(refused.value)
    with pytest.raises(SinkError, match="'n' of t is string, and cannot become int"):
        Fit("t", {"n": INT}, {"n": TEXT}, "evolve")
    assert Fit("t", {"id": INT}, target, "fail").left_out == set()


def test_a_name_is_there_once_in_whatever_case() -> None:
    check_names("t", ["id", "Ids"], ["_lsn"])
    for names in (["id", "ID"], ["id", "_LSN"]):
        with pytest.raises(ConfigError, match=repr(names[1])):
            check_names("t", names, ["_lsn"])


# -- marks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "position", "taken"), [(5, 100, True), (4, 90, True), (6, 110, False), (6, 100, False), (2, 110, False)]
)
def test_a_batch_has_been_taken_when_neither_its_id_nor_its_position_is_beyond_the_mark(
    batch: int, position: int, taken: bool
) -> None:
    assert BatchMark(5, 100).has(Batch(batch, position, ())) is taken


# -- statements ------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_statements_are_spark_sql_whatever_columns_are_called(spark: SparkSession) -> None:
    odd = ["id", "two words", "a.b", "q`q", "it's", "back\\slash"]
    parser = spark._jsparkSession.sessionState().sqlParser()  # type: ignore[attr-defined]
    make = Source(spark)
    for events in ([change("create", 1, 1, 1)], [change("truncate", 1)]):
        (table,) = make(*events).tables
        name = "delta." + quoted("/a/b`c d")
        parser.parsePlan(current.merge(name, "global_temp.v", table, odd))
        parser.parsePlan(history.merge(name, "global_temp.v", ["id"], odd, [(1, 2, 3)] if table.truncated else []))


@pytest.mark.spark
def test_a_float_key_is_written_where_an_equal_one_is_found(spark: SparkSession) -> None:
    (table,) = Source(spark)(change("create", 1, 1, 1)).tables
    assert "t.`id` =" not in current.merge("t", "s", table, ["id", "n"]).partition("UPDATE SET")[2]
    schema = replace(T, columns=(replace(T.columns[0], arrow=pa.float64()), *T.columns[1:]))
    floats = TableBatch(table.source, schema, None, None, None, incomplete=False)
    assert "t.`id` =" in current.merge("t", "s", floats, ["id", "n"]).partition("UPDATE SET")[2]


# -- versions --------------------------------------------------------------------------------------------------------


class Versions:
    """The target of a history, kept by the test: what the MERGE does is done by hand."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.rows: list[Row] = []

    def write(self, batch: Batch, now: int) -> None:
        from pyspark.sql import functions as f

        (table,) = batch.tables
        emptied = history.truncates_of(table, now)
        kind = "id int, n int, note string, _lsn bigint, _seq int, valid_from timestamp, valid_to timestamp"
        columns = [name.split()[0] for name in kind.split(", ")]
        target = self.spark.createDataFrame([tuple(row[c] for c in columns) for row in self.rows], kind)
        values = {c: f.col(c) for c in T.names}
        told = history.versions(table, target, T.names, values, emptied, now).collect()
        closing = {row.id: row.valid_to for row in told if row["_close"]}
        for row in self.rows:
            if row["valid_to"] is None and row["id"] in closing:
                row["valid_to"] = max(closing[row["id"]], row["valid_from"])
            elif row["valid_to"] is None and emptied and (row["_lsn"], row["_seq"]) < emptied[0][:2]:
                row["valid_to"] = datetime.datetime.fromtimestamp(emptied[0][2] / 1e6)
        self.rows += [row.asDict() for row in told if not row["_close"]]

    def of(self, key: int) -> list[tuple[Any, ...]]:
        def seconds(value: datetime.datetime | None) -> Any:
            return None if value is None else round(value.astimezone(datetime.UTC).timestamp() - at(0).timestamp())

        found = sorted((row for row in self.rows if row["id"] == key), key=lambda row: (row["_lsn"], row["_seq"]))
        return [(r["n"], r["note"], seconds(r["valid_from"]), seconds(r["valid_to"])) for r in found]


@pytest.mark.spark
def test_a_row_has_one_version_after_the_other(spark: SparkSession) -> None:
    batch, target = Source(spark), Versions(spark)
    now = int(at(100).timestamp() * 1e6)
    target.write(batch(change("create", 10, 1, 0, "a"), read(11, 2, 0, "b"), read(11, 3, 0, "c")), now)
    target.write(
        batch(
            change("update", 20, 1, 1, None, unchanged=["note"]),
            change("update", 21, 1, 2, "aa"),
            change("update", 22, 1, 3, None, unchanged=["note"]),
            change("delete", 23, 2),
            read(24, 3, 0, "c"),
        ),
        now,
    )
    assert target.of(1) == [(0, "a", 10, 20), (1, "a", 20, 21), (2, "aa", 21, 22), (3, "aa", 22, None)]
    assert target.of(2) == [(0, "b", 100, 100)]
    assert target.of(3) == [(0, "c", 100, None)]
    target.write(
        batch(
            change("update", 30, 1, 4, None, unchanged=["note"]),
            change("truncate", 31),
            change("create", 32, 1, 5, None),
            read(33, 3, 0, "c"),
        ),
        now,
    )
    assert target.of(1)[-3:] == [(3, "aa", 22, 30), (4, "aa", 30, 31), (5, None, 32, None)]
    assert [version[:2] for version in target.of(3)] == [(0, "c"), (0, "c")]
    assert [version[3] is None for version in target.of(3)] == [False, True]


# -- connectors ------------------------------------------------------------------------------------------------------


def test_the_connector_is_the_one_for_this_pyspark_or_the_one_that_is_given() -> None:
    assert package_of("delta", None, "4.2.1") == RELEASES["delta"]["4.2"]
    assert package_of("delta", "a:b:1", "4.3.0") == "a:b:1"
    assert package_of("delta", "none", "4.3.0") is None
    with pytest.raises(ConfigError, match=r"'delta' is known to run on PySpark 9\.9\.0, only on 4\.2") as unknown:
        package_of("delta", None, "9.9.0")
    assert "package" in str(unknown.value)
    assert "everything else works" in str(unknown.value)


@pytest.mark.parametrize(("kind", "sink"), [(DeltaSink, "delta"), (IcebergSink, "iceberg")])
def test_a_lake_needs_a_place(kind: Any, sink: str, tmp_path: Path) -> None:
    target = (Delta if sink == "delta" else Iceberg)(tmp_path, None)
    target.make(tmp_path, package="a:b:1").check()
    given = read_settings("sink", {"package": "a:b:1"}, kind.settings)
    with pytest.raises(ConfigError, match="'path' or 'catalog'"):
        kind(given, target.make(tmp_path).context).check()


def test_settings_of_spark_are_those_of_the_connector(tmp_path: Path) -> None:
    delta = Delta(tmp_path, None).make(tmp_path, package="a:b:1").spark_settings
    assert delta["spark.jars.packages"] == "a:b:1"
    assert "spark.jars.packages" not in Delta(tmp_path, None).make(tmp_path, package="none").spark_settings
    in_a_bucket = Delta(tmp_path, None).make(tmp_path, package="a:b:1", path="s3://bucket/lake").spark_settings
    assert in_a_bucket["spark.jars.packages"].startswith("a:b:1,org.apache.hadoop:hadoop-aws:")
    iceberg = Iceberg(tmp_path, None).make(tmp_path, package="a:b:1", catalog="ice", options={"io": "x"}).spark_settings
    assert {n.removeprefix("spark.sql.catalog.ice"): v for n, v in iceberg.items() if "catalog.ice" in n} == {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": str(tmp_path),
        ".io": "x",
        ".cache-enabled": "false",
    }


@pytest.mark.spark
def test_a_session_without_the_connector_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for target in (Delta(tmp_path, spark), Iceberg(tmp_path, spark)):
        with pytest.raises(ConfigError, match="does not have the connector") as refused:
            target.make(tmp_path, package="a:b:1").open(spark)
        assert "spark.jars.packages = a:b:1" in str(refused.value)


@pytest.mark.spark
@pytest.mark.slow
def test_a_package_that_cannot_be_fetched_is_said_to_be(tmp_path: Path) -> None:
    code = f"""
import dblog
from dblog.sinks.packages import fetching
with fetching("no.such:connector_2.13:1"):
    dblog.session(spark__jars__packages="no.such:connector_2.13:1", spark__jars__ivy="{tmp_path / "ivy"}")
"""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode != 0
    assert (
        "ConfigError: Spark did not start: the packages 'no.such:connector_2.13:1' could not be fetched" in ended.stderr
    )
    assert "unresolved dependency: no.such#connector_2.13;1" in ended.stderr
    assert "all else works without" in ended.stderr


# -- pages -----------------------------------------------------------------------------------------------------------

PAGES = Path(__file__).parents[2] / "docs" / "sinks"


@pytest.mark.parametrize(("page", "kind"), [("parquet", ParquetSink), ("delta", DeltaSink)])
def test_every_setting_is_on_the_sinks_page_as_the_code_has_it(page: str, kind: type[Sink]) -> None:
    rows = [line for line in (PAGES / f"{page}.md").read_text().splitlines() if line.startswith("| `")]
    wanted = []
    for setting in kind.settings:
        default = "" if setting.required or setting.default is None else setting.shown_default
        wanted.append(f"| `{setting.name}` | {setting.kind.takes} | {setting.about} | {default} |")
    assert rows[: len(wanted)] == wanted
