"""Files of JSON lines, and lines on standard output."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog.core.schema import TableName, TableSchema
from dblog.core.settings import read_settings
from dblog.errors import ConfigError, SinkError, SinkUnreachable
from dblog.sinks import ndjson
from dblog.sinks.base import Batch, Sink, SinkContext
from dblog.sinks.folder import folder_name
from dblog.sinks.ndjson import NdjsonSink, StdoutSink
from tests.sinks.batches import T, batch, change, frame, read
from tests.sinks.envelopes import EnvelopeTarget
from tests.sinks.suite import AwaySuite, SinkSuite
from tests.sinks.target import Target


class Files(EnvelopeTarget):
    sink = "ndjson"

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self._settings = settings

    def settings(self) -> dict[str, Any]:
        return {"path": str(self.folder), **self._settings}

    def texts(self, table: TableName) -> list[str]:
        return [line for path in files(self.folder / folder_name(table)) for line in lines(path)]

    @contextmanager
    def away(self) -> Iterator[None]:
        """A disk that is away leads nowhere."""
        disk, hidden = self.folder.parent, self.folder.parent.with_suffix(".hidden")
        disk.mkdir(exist_ok=True)
        disk.rename(hidden)
        disk.symlink_to(disk)
        yield
        disk.unlink()
        hidden.rename(disk)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!.]*"))


def lines(path: Path) -> list[str]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode().splitlines()


class TestNdjson(SinkSuite, AwaySuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Files(tmp_path / "disk" / "events")


class Printed(EnvelopeTarget):
    """What this process has printed, and before it those that were killed (`tests.sinks.app`)."""

    sink = "stdout"
    exactly_once = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def settings(self) -> dict[str, Any]:
        return {}

    def texts(self, table: TableName) -> list[str]:
        said = [*sorted(self.folder.glob("sink-*.said")), self.folder / "stdout"]
        whole = (line for path in said for line in path.read_text().splitlines(keepends=True))
        beginning = f'{{"schema":"{table.schema}","table":"{table.name}",'
        return [line for line in whole if line.startswith(beginning) and line.endswith("}\n")]


class TestStdout(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
        with (tmp_path / "stdout").open("w") as output:
            monkeypatch.setattr(ndjson, "sys", SimpleNamespace(stdout=output))  # the process's own is pytest's
            yield Printed(tmp_path)


# What no database is needed for


pytestmark = [pytest.mark.spark]


def sink(folder: Path, kind: type[Sink] = NdjsonSink, **given: Any) -> Sink:
    if kind is NdjsonSink:
        given.setdefault("path", "out")
    return kind(read_settings("sink", given, kind.settings), SinkContext("shop", folder))


def names(folder: Path) -> list[str]:
    """Of all files, hidden ones too."""
    return sorted(path.name for path in (folder / "out" / "public.t").iterdir())


def keys(folder: Path) -> list[int]:
    return [json.loads(line)["key"]["id"] for path in files(folder / "out" / "public.t") for line in lines(path)]


def test_files_are_in_the_order_of_their_names(spark: SparkSession, tmp_path: Path) -> None:
    changes = frame(spark, [change("create", n, n) for n in range(1, 9)], partitions=3)
    rows = frame(spark, [read(9, n) for n in range(20, 24)], partitions=2)
    sink(tmp_path).write(batch(7, changes, rows))
    assert names(tmp_path) == [f"{7:020d}-{part:05d}.ndjson" for part in range(5)]
    assert keys(tmp_path) == [*range(1, 9), *range(20, 24)]


def test_the_folder_of_a_table_is_the_same_for_a_path_and_for_an_address(spark: SparkSession, tmp_path: Path) -> None:
    """An address is decoded, the name of a table is not: "a.b"."c" and "a"."b.c" must not share a folder."""
    schema = TableSchema(TableName("a.b", "c"), T.columns, T.key)
    events = batch(1, frame(spark, [change("create", 1, 1)], schema), schema=schema)
    for path in (str(tmp_path / "path"), f"file://{tmp_path}/address"):
        sink(tmp_path, path=path).write(events)
    assert [p.name for name in ("path", "address") for p in (tmp_path / name).iterdir()] == ["a%2Eb.c"] * 2


def test_a_part_without_events_has_no_file(spark: SparkSession, tmp_path: Path) -> None:
    sink(tmp_path).write(batch(0, frame(spark, [change("create", 1, 1)], partitions=3)))
    assert len(names(tmp_path)) == 1


def test_a_batch_that_is_given_again_replaces_its_files_also_when_it_has_fewer(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark has other partitions when the pipeline is started on another machine."""
    given = [read(9, n) for n in range(10)]
    sink(tmp_path).write(batch(3, rows=frame(spark, given[:4], partitions=1)))
    sink(tmp_path).write(batch(4, rows=frame(spark, given, partitions=4)))
    sink(tmp_path).write(batch(4, rows=frame(spark, given, partitions=2)))
    assert sorted(keys(tmp_path)) == sorted([*range(4), *range(10)])
    assert len(names(tmp_path)) == 3


def test_what_a_task_left_when_it_was_killed_is_cleared_away(spark: SparkSession, tmp_path: Path) -> None:
    given = batch(3, rows=frame(spark, [read(9, 1)]))
    sink(tmp_path).write(given)
    left = tmp_path / "out" / "public.t" / f".{3:020d}-00000-abc.ndjson"
    left.write_text('{"half a li')
    other = left.with_name(f".{4:020d}-00000-abc.ndjson")
    other.touch()
    sink(tmp_path).write(given)
    assert names(tmp_path) == [other.name, f"{3:020d}-00000.ndjson"]


def test_a_failed_write_is_cleared_away_by_the_next(spark: SparkSession, tmp_path: Path) -> None:
    writer = sink(tmp_path, format="failing_format_of_test:odd")
    (tmp_path / "failing_format_of_test.py").write_text(
        "import pyarrow as pa\n"
        "def odd(rows, schema):\n"
        "    text = rows.column('note')\n"
        "    return pa.RecordBatch.from_arrays([text, text], names=['key', 'value'])\n"
    )
    with pytest.raises(SinkError, match="line break") as wrong:
        writer.write(
            batch(1, frame(spark, [change("create", 1, 1, "a"), change("create", 2, 2, "b\nc")], partitions=2))
        )
    assert wrong.value.hint
    assert [name[0] for name in names(tmp_path)] == ["."]
    writer.write(batch(1, frame(spark, [change("create", 1, 1, "a"), change("create", 2, 2, "b")], partitions=2)))
    assert [line for path in files(tmp_path / "out" / "public.t") for line in lines(path)] == ["a", "b"]
    assert len(names(tmp_path)) == 2


def test_an_event_without_a_value_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "some_format_of_test.py").write_text(
        "import pyarrow as pa\n"
        "def some(rows, schema):\n"
        "    text = rows.column('note')\n"
        "    return pa.RecordBatch.from_arrays([text, text], names=['key', 'value'])\n"
    )
    given = [change("create", 1, 1, "a"), change("create", 2, 2, None), change("create", 3, 3, "c")]
    sink(tmp_path, format="some_format_of_test:some").write(batch(0, frame(spark, given)))
    (path,) = files(tmp_path / "out" / "public.t")
    assert path.read_text() == "a\nc\n"


def test_files_may_be_compressed(spark: SparkSession, tmp_path: Path) -> None:
    sink(tmp_path, compression="gz").write(batch(0, frame(spark, [change("create", 1, 1), change("delete", 2, 1)])))
    assert names(tmp_path) == [f"{0:020d}-00000.ndjson.gz"]
    assert keys(tmp_path) == [1, 1]


def test_a_folder_may_be_an_address(spark: SparkSession, tmp_path: Path) -> None:
    sink(tmp_path, path=f"file://{tmp_path}/out").write(batch(0, frame(spark, [change("create", 1, 1)])))
    assert keys(tmp_path) == [1]


@pytest.mark.parametrize(
    ("path", "error"),
    [("nosuch://there/out", ConfigError), ("a-file", SinkError), ("a-file/below", SinkError)],
)
def test_a_folder_that_cannot_be_made_is_said_to_be(tmp_path: Path, path: str, error: type[Exception]) -> None:
    (tmp_path / "a-file").touch()
    with pytest.raises(error) as wrong:
        sink(tmp_path, path=path).check()
    assert not isinstance(wrong.value, SinkUnreachable)
    assert path in str(wrong.value)


def test_names_of_folders_tell_tables_apart() -> None:
    odd = [
        TableName("a", "b.c"),
        TableName("a.b", "c"),
        TableName("a", "b/c"),
        TableName("a", "b%2Fc"),
        TableName("", "x"),
    ]
    assert [folder_name(name) for name in odd] == ["a.b%2Ec", "a%2Eb.c", "a.b%2Fc", "a.b%252Fc", "x"]
    assert folder_name(TableName("shöp", "two words")) == "shöp.two words"


def test_standard_output_has_all_tables_in_commit_order(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = batch(
        0,
        frame(spark, [change("create", n, n) for n in (1, 4, 5)], partitions=2),
        frame(spark, [read(9, n) for n in (7, 8)]),
    )
    other = TableSchema(TableName("public", "u"), T.columns, T.key)
    theirs = batch(0, frame(spark, [change("create", n, n) for n in (2, 3, 6)], partitions=2), schema=other)
    sink(tmp_path, StdoutSink).write(Batch(0, 10, (*mine.tables, *theirs.tables)))
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["key"]["id"] for e in found][:6] == [1, 2, 3, 4, 5, 6]
    assert sorted(e["key"]["id"] for e in found[6:]) == [7, 8]
    assert [e["table"] for e in found[:6]] == ["t", "u", "u", "t", "t", "u"]


def test_standard_output_has_one_table_in_order(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = frame(spark, [change("create", n, n, "é") for n in range(50)], partitions=4)
    sink(tmp_path, StdoutSink, format="debezium").write(batch(0, given, frame(spark, [read(60, 99)])))
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["after"]["id"] for e in found] == [*range(50), 99]
    assert found[0]["after"]["note"] == "é"


def test_old_rows_are_asked_for_when_they_are_wanted(tmp_path: Path) -> None:
    for kind in (NdjsonSink, StdoutSink):
        assert not sink(tmp_path, kind).before
        assert sink(tmp_path, kind, before=True).before


def test_a_format_that_is_not_there_is_found_before_anything_begins(tmp_path: Path) -> None:
    for kind in (NdjsonSink, StdoutSink):
        with pytest.raises(ConfigError, match="is not an import path"):
            sink(tmp_path, kind, format="nosuch").check()
