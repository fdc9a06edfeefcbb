"""What the native writer writes is read by Spark's connectors: every type, and with conditions for which they skip
files by their statistics."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog.testing.iceberg_rest import IcebergRest
from tests.sinks.connectors.conftest import in_rest
from tests.sinks.lake_values import COLUMNS, Condition, batches, conditions, expected
from tests.sinks.lakes import Lake, NativeDelta, Source
from tests.sinks.pipeline import differences

pytestmark = pytest.mark.spark
AT_ONCE = 60
"""How many conditions are in one query. Each has a scan of its own."""


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_spark_reads_what_the_native_writer_writes(
    kind: str, spark: SparkSession, tmp_path: Path, rest: IcebergRest
) -> None:
    lake: Lake = NativeDelta(tmp_path, spark) if kind == "delta" else in_rest(tmp_path, spark, rest)
    sink = lake.make(tmp_path, writer="native")
    sink.open(spark)
    for batch in batches(Source(spark)):
        sink.write(batch)
    wanted = {(n,): {"id": n, **{name: values[n] for name, (_, values) in COLUMNS.items()}} for n in range(13)}
    found = spark.newSession().table(lake.table()).toArrow().to_pylist()
    assert not differences({(row["id"],): row for row in found}, wanted)
    assert not differences({(row["id"],): row for row in lake.all()}, wanted)
    # A NaN is the greatest value for Spark. Delta's bounds include it, those of Iceberg leave it out.
    asked = conditions(*(["ratio", "small"] if kind == "delta" else []))
    # Spark does not find 0.0 as -0.0 in the dictionary of any Parquet file, nor the other way round.
    asked = [c for c in asked if not (isinstance(c[2], float) and c[2] == 0.0 and c[1] == "=")]
    for at in range(0, len(asked), AT_ONCE):
        some = asked[at : at + AT_ONCE]
        queries = [f"SELECT {n} AS number, id FROM {lake.table()} WHERE {sql(c)}" for n, c in enumerate(some)]
        answers: dict[int, set[int]] = {n: set() for n in range(len(some))}
        for row in spark.newSession().sql(" UNION ALL ".join(queries)).collect():
            answers[row.number].add(row.id)
        for number, condition in enumerate(some):
            assert answers[number] == expected(list(wanted.values()), condition), condition
    for name, (_, values) in COLUMNS.items():
        nulls = {
            row.id for row in spark.newSession().table(lake.table()).where(f"{name} IS NULL").select("id").collect()
        }
        assert nulls == {n for n, value in enumerate(values) if value is None}, name


def sql(condition: Condition) -> str:
    name, op, value = condition
    return f"{name} {op} {literal(value)}"


def literal(value: Any) -> str:
    match value:
        case str():
            shown = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{shown}'"
        case bool():
            return str(value)
        case float():
            return f"DOUBLE('{value}')"
        case Decimal():
            return f"{value}BD"
        case datetime.datetime():
            kind = "TIMESTAMP_LTZ" if value.tzinfo else "TIMESTAMP_NTZ"
            return f"{kind} '{value.replace(tzinfo=None).isoformat(' ')}'"
        case datetime.date():
            return f"DATE '{value.isoformat()}'"
    return f"{value}L"
