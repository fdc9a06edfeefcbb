"""What sinks write from tasks, or on the driver, is what they write when Spark reads the tables."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dblog.capture.spool import Spool
from dblog.core.schema import TableName
from dblog.core.settings import read_settings
from dblog.errors import SinkError
from dblog.pipelines.sink_kinds import sink_class
from dblog.sinks import ndjson, task_job
from dblog.sinks.base import Batch, Sink, SinkContext, TableBatch
from dblog.sinks.parquet import EXACT
from dblog.spark import ranges
from tests.sinks.endpoint import Endpoint
from tests.sinks.spooled import ALL, SpooledBatch

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs/sinks/protocol.md"
OTHER = replace(ALL, table=TableName("public", "u"))


@pytest.fixture
def spooled(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SpooledBatch:
    """Two tables, one of them with changes in several parts and with dump rows."""
    monkeypatch.setattr(ranges, "PART_ROWS", 4)
    made = SpooledBatch(spark, Spool(str(tmp_path / "spool")))
    for first in range(1, 13, 3):
        made.change(first, first + 1, first + 2)
    made.change(5, table=OTHER)
    made.dump(*range(10, 25))
    made.dump(*range(25, 40))
    return made


@pytest.fixture(params=["driver", "tasks"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the batch is written."""
    if request.param == "tasks":
        monkeypatch.setattr(task_job, "DRIVER_BYTES", -1)
        monkeypatch.setattr(ndjson, "DRIVER_BYTES", -1)
    return str(request.param)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


def no_frame() -> Any:
    raise AssertionError("a DataFrame is made")


def without_frames(batch: Batch) -> Batch:
    """The batch, for a sink that must not ask for DataFrames."""

    def table(given: TableBatch) -> TableBatch:
        frames = (None if frame is None else no_frame for frame in given._frames.values())
        return TableBatch(given.source, given.schema, *frames, given.truncated, given.incomplete, given.arrow)

    return replace(batch, tables=tuple(map(table, batch.tables)))


def made(spark: SparkSession, kind: str, folder: Path, **settings: Any) -> Sink:
    found = sink_class(kind)
    folder.mkdir(exist_ok=True)
    sink = found(read_settings("sink", settings, found.settings), SinkContext("shop", folder))
    sink.open(spark)
    return sink


def files(folder: Path, pattern: str) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob(pattern))}


@pytest.mark.usefixtures("place")
def test_noop_makes_no_dataframe(spark: SparkSession, spooled: SpooledBatch, tmp_path: Path) -> None:
    made(spark, "noop", tmp_path).write(without_frames(spooled.batch()))


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("form", ["envelope", "debezium"])
def test_the_files_of_ndjson_are_the_same(
    spark: SparkSession, spooled: SpooledBatch, tmp_path: Path, form: str
) -> None:
    made(spark, "ndjson", tmp_path, path="mine", format=form).write(without_frames(spooled.batch(3)))
    made(spark, "ndjson", tmp_path, path="sparks", format=form).write(spooled.batch(3, arrow=False))
    mine, sparks = files(tmp_path / "mine", "*"), files(tmp_path / "sparks", "*")
    assert list(mine) == list(sparks)
    lines = [path for path in mine if path.endswith(".ndjson")]
    assert len(lines) == 5, "two parts of changes and two of dump rows, and another table"
    assert all(mine[name].read_text() == sparks[name].read_text() for name in lines)


@pytest.mark.usefixtures("place")
def test_stdout_has_the_same_lines(spark: SparkSession, spooled: SpooledBatch, tmp_path: Path) -> None:
    said = []
    for arrow in (True, False):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            made(spark, "stdout", tmp_path).write(spooled.batch(arrow=arrow))
        said.append([json.loads(line) for line in output.getvalue().splitlines()])
    mine, sparks = said
    assert len(mine) == 13 + 27
    assert [line["lsn"] for line in mine] == [line["lsn"] for line in sparks]
    assert sorted(map(str, mine)) == sorted(map(str, sparks))


def test_a_small_batch_goes_to_stdout_without_spark(spark: SparkSession, spooled: SpooledBatch, tmp_path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        made(spark, "stdout", tmp_path).write(without_frames(spooled.batch()))
    assert len(output.getvalue().splitlines()) == 40


def test_the_requests_of_http_are_the_same(
    spark: SparkSession, spooled: SpooledBatch, tmp_path: Path, endpoint: Endpoint
) -> None:
    seen: list[set[tuple[str, str]]] = []
    for arrow in (True, False):
        endpoint.requests.clear()
        batch = spooled.batch(7, arrow=arrow)
        made(spark, "http", tmp_path, url=endpoint.url, size=4).write(without_frames(batch) if arrow else batch)
        keys = [request.key for request in endpoint.requests]
        mine = [key for key in keys if "public.t-changes" in key]
        assert mine == sorted(mine), "the changes of a table come in order"
        assert max(map(keys.index, mine)) < min(n for n, key in enumerate(keys) if "public.t-rows" in key)
        seen.append({(request.key, str(request.events)) for request in endpoint.requests})
    assert seen[0] == seen[1]
    assert len(seen[0]) == 3 + 3 + 4 + 1


@pytest.fixture
def exact(spark: SparkSession) -> Iterator[None]:
    """Spark with the settings that the sink `parquet` asks for."""
    for name, value in EXACT.items():
        spark.conf.set(name, value)
    yield
    for name in EXACT:
        spark.conf.unset(name)


@pytest.mark.usefixtures("place", "exact")
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_the_files_of_parquet_have_the_same_rows_and_types(
    spark: SparkSession, spooled: SpooledBatch, tmp_path: Path, compression: str
) -> None:
    given = {"compression": compression}
    made(spark, "parquet", tmp_path, path="mine", **given).write(without_frames(spooled.batch(3)))
    made(spark, "parquet", tmp_path, path="sparks", **given).write(spooled.batch(3, arrow=False))
    for table, parts in (("public.t", 4), ("public.u", 1)):
        homes = [tmp_path / name / table / "batch=3" for name in ("mine", "sparks")]
        assert [len(list(home.glob("part-*.parquet"))) for home in homes] == [parts, parts]
        assert (homes[0] / "_dblog").read_text() == (homes[1] / "_dblog").read_text()
        assert not [path for path in homes[0].iterdir() if not path.name.startswith(("part-", "_dblog"))]
        mine, sparks = ([pq.ParquetFile(p) for p in sorted(home.glob("part-*"))] for home in homes)
        for one, other in zip(mine, sparks, strict=True):
            assert columns(one) == columns(other)
            assert one.schema_arrow == other.schema_arrow
            assert str(one.read().to_pylist()) == str(other.read().to_pylist())
        frames = [spark.read.parquet(str(home)) for home in homes]
        assert frames[0].schema == frames[1].schema
        assert sorted(map(str, frames[0].collect())) == sorted(map(str, frames[1].collect()))


def columns(file: pq.ParquetFile) -> list[Any]:
    """What a file says of its columns."""
    kinds = [file.schema.column(n) for n in range(len(file.schema))]
    return [(c.path, c.physical_type, c.logical_type.to_json(), c.max_definition_level) for c in kinds]


def test_an_empty_table_shows_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    made_up = SpooledBatch(spark, Spool(str(tmp_path / "spool")))
    made_up.dump()
    made(spark, "parquet", tmp_path, path="mine").write(without_frames(made_up.batch()))
    found = spark.read.parquet(str(tmp_path / "mine/public.t"))
    assert found.count() == 0
    assert set(ALL.names) < set(found.columns)


@pytest.mark.parametrize("mode", ["ignore", "fail"])
def test_new_columns_of_parquet_are_left_out_or_refused(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    narrow = replace(ALL, columns=ALL.columns[:3])
    sink = made(spark, "parquet", tmp_path, path="mine", schema_changes=mode)
    for number, table in enumerate((narrow, ALL)):
        one = SpooledBatch(spark, Spool(str(tmp_path / f"spool-{number}")))
        one.change(number, table=table)
        if table is ALL and mode == "fail":
            with pytest.raises(SinkError, match="'price'"):
                sink.write(without_frames(one.batch(number)))
        else:
            sink.write(without_frames(one.batch(number)))
    found = spark.read.parquet(str(tmp_path / "mine/public.t"))
    assert found.columns[:4] == ["id", "flag", "small", "_op"]
    assert found.count() == (2 if mode == "ignore" else 1)


@pytest.mark.parametrize("kind", ["ndjson", "parquet"])
def test_a_row_of_two_dumps_comes_once(
    spark: SparkSession, tmp_path: Path, kind: str, events: Callable[[Path], list[int]]
) -> None:
    made_up = SpooledBatch(spark, Spool(str(tmp_path / "spool")))
    made_up.dump(1, 2)
    made_up.dump(2, 3, dump="d7")
    made(spark, kind, tmp_path, path="mine").write(made_up.batch())
    assert events(tmp_path / "mine") == [1, 2, 3]


@pytest.mark.usefixtures("place")
def test_the_sink_of_the_page_that_writes_from_tasks_does(
    spark: SparkSession, spooled: SpooledBatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its module is beside the pipeline's file, where only the driver would find it."""
    module = re.sub(r"\W", "_", f"page_{request.node.name}")
    (tmp_path / f"{module}.py").write_text(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1])
    given = {"target": f"{module}:Files", "settings": {"path": str(tmp_path / "mine")}}
    sink = made(spark, "python", tmp_path, **given)
    for _ in range(2):
        sink.write(without_frames(spooled.batch(3)))
    written = sorted((tmp_path / "mine/public.t").iterdir())
    rows = [row["id"] for path in written for row in pq.ParquetFile(path).read().to_pylist()]
    assert rows[:12] == list(range(1, 13))
    assert sorted(rows[12:]) == list(range(13, 40))
    assert len(written) == 4


@pytest.fixture
def events() -> Callable[[Path], list[int]]:
    def found(folder: Path) -> list[int]:
        lines = [json.loads(line) for path in folder.rglob("*.ndjson") for line in path.read_text().splitlines()]
        rows = [row for path in folder.rglob("*.parquet") for row in pq.ParquetFile(path).read().to_pylist()]
        return sorted([line["key"]["id"] for line in lines] + [row["id"] for row in rows])

    return found
