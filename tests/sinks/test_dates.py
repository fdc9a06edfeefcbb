"""Dates and moments at the ends of their types: every sink has them as they are, or says which it cannot hold."""

from __future__ import annotations

import json
import random
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from dblog.core.event import BEFORE, DUMP_SEQ
from dblog.core.schema import Column, TableName, TableSchema
from dblog.core.settings import read_settings
from dblog.errors import SinkError
from dblog.sinks.base import Batch, Sink, SinkContext, TableBatch
from dblog.sinks.ndjson import NdjsonSink, StdoutSink
from dblog.sinks.parquet import ParquetSink
from dblog.sinks.python import PythonSink
from dblog.work.rows import Typed

pytestmark = pytest.mark.spark

NAIVE, MOMENT = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
COLUMNS = (
    Column("id", "integer", pa.int32()),
    Column("d.1", "date", pa.date32()),
    Column("n", "timestamp without time zone", NAIVE),
    Column("z", "timestamp with time zone", MOMENT),
    Column("ds", "date[]", pa.list_(pa.date32())),
    Column("zs", "timestamp with time zone[]", pa.list_(MOMENT)),
)
T = TableSchema(TableName("public", "t"), COLUMNS, ("id",))
DAY = 86_400_000_000
LEAST_DAY, GREATEST_DAY, LEAST, GREATEST = -(2**31), 2**31 - 1, -(2**63), 2**63 - 1
DAYS = [LEAST_DAY, LEAST_DAY + 1, -719_529, -719_528, -719_163, -719_162, -1, 0, 2_932_896, 2_932_897, GREATEST_DAY]
MICROS = [LEAST, LEAST + 1, *(d * DAY + m for d in DAYS[2:-1] for m in (0, 1, DAY - 1)), GREATEST - 1, GREATEST]


def values() -> tuple[list[int], list[int]]:
    chance = random.Random(7)
    days = [*DAYS, *(chance.randrange(LEAST_DAY, GREATEST_DAY) for _ in range(100))]
    micros = [*MICROS, *(chance.randrange(LEAST, GREATEST) for _ in range(100))]
    size = max(len(days), len(micros))
    return (days * 3)[:size], (micros * 3)[:size]


def a_frame(spark: SparkSession, days: list[int], micros: list[int], *, before: bool = False) -> DataFrame:
    """Rows of a dump, as the stream has them: made by Arrow, because Python has no object for most."""
    size = len(days)
    given: dict[str, pa.Array] = {
        "id": pa.array(range(size), pa.int32()),
        "d.1": pa.array(days, pa.int32()).cast(pa.date32()),
        "n": pa.array(micros, pa.int64()).cast(NAIVE),
        "z": pa.array(micros, pa.int64()).cast(MOMENT),
        "ds": pa.array([None if n % 3 == 1 else [d, None] for n, d in enumerate(days)], pa.list_(pa.int32())),
        "zs": pa.array([None if n % 3 == 2 else [m] * (n % 3) for n, m in enumerate(micros)], pa.list_(pa.int64())),
        "_op": pa.repeat("read", size),
        "_lsn": pa.repeat(9, size),
        "_seq": pa.repeat(DUMP_SEQ, size).cast(pa.int32()),
    }
    shape = Typed(T, before).arrow
    given |= {c.name: given[c.name].cast(c.arrow) for c in T.columns}
    if before:
        given[BEFORE] = pa.StructArray.from_arrays([given[c.name] for c in T.columns], fields=list(T.arrow))
    columns = [given[f.name].cast(f.type) if f.name in given else pa.nulls(size, f.type) for f in shape]
    kind = from_arrow_schema(shape, prefer_timestamp_ntz=True)
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=shape), kind)


def a_batch(frame: DataFrame) -> Batch:
    return Batch(0, 1000, (TableBatch(T.table, T, None, frame, None, False),))


def made(kind: type[Sink], folder: Path, **given: Any) -> Sink:
    return kind(read_settings("sink", given, kind.settings), SinkContext("test", folder))


def date_text(day: int) -> str:
    if day in (LEAST_DAY, GREATEST_DAY):
        return "-infinity" if day < 0 else "infinity"
    month = np.datetime64(day, "D").astype("datetime64[M]")
    year, of_year = divmod(int(month.astype(np.int64)) + 1970 * 12, 12)
    of_month = day - int(month.astype("datetime64[D]").astype(np.int64)) + 1
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{of_year + 1:02}-{of_month:02}"


def moment_text(micros: int, zone: str) -> str:
    if micros in (LEAST, GREATEST):
        return "-infinity" if micros < 0 else "infinity"
    day, of_day = divmod(micros, DAY)
    seconds, fraction = divmod(of_day, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
    return f"{date_text(day)}T{clock}{zone}"


def texts() -> list[dict[str, Any]]:
    """What a row is as text."""
    return [
        {
            "id": n,
            "d.1": date_text(day),
            "n": moment_text(micro, ""),
            "z": moment_text(micro, "Z"),
            "ds": None if n % 3 == 1 else [date_text(day), None],
            "zs": None if n % 3 == 2 else [moment_text(micro, "Z")] * (n % 3),
        }
        for n, (day, micro) in enumerate(zip(*values(), strict=True))
    ]


def test_lines_have_every_moment(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As do `kafka` and `http`, which are given the same texts."""
    made(NdjsonSink, tmp_path, path=str(tmp_path / "lines")).write(a_batch(a_frame(spark, *values())))
    lines = [line for file in (tmp_path / "lines").rglob("*.ndjson") for line in file.read_text().splitlines()]
    assert sorted((json.loads(line)["after"] for line in lines), key=lambda row: row["id"]) == texts()
    printed = StringIO()
    monkeypatch.setattr(sys, "stdout", printed)
    made(StdoutSink, tmp_path).write(a_batch(a_frame(spark, *values())))
    assert sorted(printed.getvalue().splitlines()) == sorted(lines)


def test_parquet_has_every_moment(spark: SparkSession, tmp_path: Path) -> None:
    sink = made(ParquetSink, tmp_path, path=str(tmp_path / "files"))
    sink.open(spark)
    before = {name: spark.conf.get(name, None) for name in sink.spark_settings}
    for name, value in sink.spark_settings.items():
        spark.conf.set(name, value)
    frame = a_frame(spark, *values())
    try:
        sink.write(a_batch(frame))
    finally:
        for name, value in before.items():
            spark.conf.set(name, value) if value is not None else spark.conf.unset(name)
    found = (
        spark.read.parquet(str(tmp_path / "files" / "public.t" / "batch=0"))
        .select(*(f"`{c}`" for c in frame.columns))
        .toArrow()
    )
    assert found.sort_by("id").equals(frame.toArrow().sort_by("id"))


CODE = """
rows = []
def take(batch):
    for table in batch.tables:
        assert "string" in str(table.schema.column("d.1").arrow)
        rows.extend(row.asDict(recursive=True) for row in table.rows.collect())
def collect(batch):
    batch.tables[0].rows.collect()
def collect_there(batch):
    batch.tables[0].rows.rdd.map(lambda row: row[1]).collect()
def mistake(batch):
    raise ValueError("out of stock")
def overflow(batch):
    raise ValueError("list index out of range")
"""


@pytest.fixture
def python(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    name = f"own_dates_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(CODE)

    def sink(function: str, **given: Any) -> Sink:
        return made(PythonSink, tmp_path, target=f"{name}:{function}", **given)

    return sink


def test_a_python_sink_is_given_texts_where_it_asks_for_them(spark: SparkSession, python: Any) -> None:
    sink = python("take", dates="text", before=True)
    sink.write(a_batch(a_frame(spark, *values(), before=True)))
    found = sorted(sink._target.find().__globals__["rows"], key=lambda row: row["id"])
    assert [{name: row[name] for name in T.names} for row in found] == texts()
    assert [row["_before"] for row in found] == texts()
    assert {row["_op"] for row in found} == {"read"}


ODD = {
    "date": ([0, LEAST_DAY], [0, 0], "has \"-infinity\" in column 'd.1'"),
    "timestamp": ([0, 0], [0, 2_932_897 * DAY], "has \"+10000-01-01T00:00:00.000000\" in column 'n'"),
    "before": ([0, 0], [0, -719_163 * DAY], "has \"0000-12-31T00:00:00.000000\" in column 'n'"),
    "infinity": ([0, 0], [0, GREATEST], "has \"infinity\" in column 'n'"),
}


@pytest.mark.parametrize("how", ODD)
@pytest.mark.parametrize("function", ["collect", "collect_there"])
def test_a_date_that_python_cannot_hold_is_named(spark: SparkSession, python: Any, how: str, function: str) -> None:
    days, micros, said = ODD[how]
    if function == "collect_there" and how != "date":
        pytest.skip("one is enough")
    with pytest.raises(SinkError) as refused:
        python(function).write(a_batch(a_frame(spark, days, micros)))
    assert f"table public.t {said} of the row with the key (1)" in refused.value.message
    assert 'dates = "text"' in (refused.value.hint or "")


def test_an_error_of_the_users_own_stays_as_it_is(spark: SparkSession, python: Any) -> None:
    with pytest.raises(ValueError, match="out of stock"):
        python("mistake").write(a_batch(a_frame(spark, [LEAST_DAY], [0])))
    with pytest.raises(ValueError, match="list index out of range"):
        python("overflow").write(a_batch(a_frame(spark, [0], [0])))
