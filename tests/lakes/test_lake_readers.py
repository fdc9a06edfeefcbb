"""What the native writer writes is read by delta-rs, pyiceberg and DuckDB: every type, and with conditions for which
they skip files by their statistics. Spark's connectors: `tests/sinks/connectors/readers.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import QueryBuilder
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, LessThan

from tests.lakes.native_lakes import LAKES, in_this_process, opened
from tests.sinks.lake_values import COLUMNS, Condition, batches, conditions, expected
from tests.sinks.lakes import Lake, NativeDelta, NativeIceberg, Source
from tests.sinks.pipeline import differences

WANTED = [{"id": n, **{name: values[n] for name, (_, values) in COLUMNS.items()}} for n in range(13)]


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


def written(lake: Lake) -> Any:
    sink = opened(lake)
    for batch in batches(Source(None)):  # type: ignore[arg-type]
        sink.write(batch)
    return lake.opened()  # type: ignore[attr-defined]


def check(asked: list[Condition], found: list[tuple[int, int]]) -> None:
    """`found` has the numbers of conditions, and the ids of rows for which they are true."""
    answers: dict[int, set[int]] = {number: set() for number in range(len(asked))}
    for number, key in found:
        answers[number].add(key)
    for number, condition in enumerate(asked):
        assert answers[number] == expected(WANTED, condition), condition


@pytest.mark.parametrize("kind", list(LAKES))
def test_every_value_is_read(kind: str, tmp_path: Path) -> None:
    lake = LAKES[kind](tmp_path, None)
    written(lake)
    found = {(row["id"],): row for row in lake.all()}
    assert not differences(found, {(row["id"],): row for row in WANTED})


def test_duckdb_finds_every_row_of_a_delta_table(tmp_path: Path) -> None:
    """Over Arrow: delta-rs says which files may have a row."""
    rows = written(NativeDelta(tmp_path, None)).to_pyarrow_dataset()
    duck = duckdb.connect()
    duck.register("rows", rows)
    asked = conditions()
    queries = [f"SELECT {n}, id FROM rows WHERE {name} {op} ?" for n, (name, op, _) in enumerate(asked)]
    check(asked, duck.execute(" UNION ALL ".join(queries), [value for *_, value in asked]).fetchall())


def test_duckdb_reads_the_files_of_an_iceberg_table(tmp_path: Path) -> None:
    """As Parquet files that pyiceberg lists: DuckDB's own reader of Iceberg is an extension that DuckDB downloads when
    it is first used, and PyPI does not have it for this release of DuckDB."""
    listed = [task.file.file_path for task in written(NativeIceberg(tmp_path, None)).scan().plan_files()]
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    duck.read_parquet(listed, union_by_name=True).create_view("rows")
    found = duck.sql("SELECT * FROM rows").to_arrow_table().to_pylist()
    assert not differences({(row["id"],): row for row in found}, {(row["id"],): row for row in WANTED})
    asked = conditions()
    queries = [f"SELECT {n}, id FROM rows WHERE {name} {op} ?" for n, (name, op, _) in enumerate(asked)]
    check(asked, duck.execute(" UNION ALL ".join(queries), [value for *_, value in asked]).fetchall())


def test_delta_rs_finds_every_row_of_a_delta_table(tmp_path: Path) -> None:
    engine = QueryBuilder().register("rows", written(NativeDelta(tmp_path, None)))
    asked = [c for c in conditions("ratio", "small") if isinstance(c[2], (int, float, str)) and c[0] != "flag"]
    found = []
    for number, (name, op, value) in enumerate(asked):
        text = str(value).replace("'", "''")
        shown = f"CAST('{text}' AS DOUBLE)" if isinstance(value, float) else f"'{text}'"
        query = f"SELECT id FROM rows WHERE {name} {op} {shown if not isinstance(value, int) else value}"
        found += [(number, key) for key in pa.table(engine.execute(query)).column("id").to_pylist()]
    check(asked, found)


def test_pyiceberg_finds_every_row_of_an_iceberg_table(tmp_path: Path) -> None:
    table = written(NativeIceberg(tmp_path, None))
    kinds: dict[str, Any] = {"=": EqualTo, "<": LessThan, ">=": GreaterThanOrEqual}
    asked, found = conditions(), []
    for number, (name, op, value) in enumerate(asked):
        shown = value.isoformat() if hasattr(value, "isoformat") else value
        rows = table.scan(row_filter=kinds[op](name, shown), selected_fields=("id",)).to_arrow()
        found += [(number, key) for key in rows["id"].to_pylist()]
    check(asked, found)
