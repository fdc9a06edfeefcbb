"""The differences between the versions of PySpark, without Spark: the calls are those of its traces."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from dblog.core.offset import Chunk, Cursor, Extent, Followed, Offset, Taken, Tally
from dblog.core.schema import TableName
from dblog.errors import ConfigError
from dblog.planning.settings import Counts
from dblog.spark import versions
from dblog.spark.options import read_options
from dblog.spark.source import ChangeReader
from dblog.spark.versions import (
    PLANNED_FROM,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    TrackingReader,
    check_planned,
    check_version,
)

SOURCE = Path(__file__).parents[3] / "src"
Json = dict[str, Any]


class Numbers:
    """A reader that delivers the numbers below `end`, five in a batch. It notes how it is called."""

    def __init__(self, end: int = 1000) -> None:
        self.end = end
        self.calls: list[tuple[Any, ...]] = []

    def initialOffset(self) -> Json:  # noqa: N802
        return {"pos": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        self.calls.append(("latestOffset", start["pos"]))
        return {"pos": min(start["pos"] + 5, self.end)} if start["pos"] < self.end else start

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        return {"events": len(self.calls)}

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        self.calls.append(("partitions", start["pos"], end["pos"]))
        return [InputPartition(n) for n in range(start["pos"], end["pos"])]

    def commit(self, end: Json) -> None:
        self.calls.append(("commit", end["pos"]))

    def stop(self) -> None:
        self.calls.append(("stop",))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise AssertionError


def tracked(end: int = 1000) -> tuple[TrackingReader, Numbers]:
    numbers = Numbers(end)
    return TrackingReader(numbers), numbers


def at(n: int) -> Json:
    """An offset of an earlier life, as Spark's log has it."""
    return {"pos": n, "events": 7}


def values(partitions: Sequence[InputPartition]) -> list[int]:
    return [p.value for p in partitions]


class TestCallOrders:
    """Each is a trace of PySpark 4.0 or 4.1."""

    def test_a_new_query(self) -> None:
        reader, numbers = tracked()
        first = reader.latestOffset()
        assert values(reader.partitions(reader.initialOffset(), first)) == [0, 1, 2, 3, 4]
        second = reader.latestOffset()
        reader.commit(first)
        assert values(reader.partitions(first, second)) == [5, 6, 7, 8, 9]
        assert numbers.calls == [
            ("latestOffset", 0),
            ("partitions", 0, 5),
            ("latestOffset", 5),
            ("commit", 5),
            ("partitions", 5, 10),
        ]

    def test_a_restart_when_every_batch_is_committed(self) -> None:
        reader, numbers = tracked()
        assert reader.partitions(at(5), at(5)) == []
        end = reader.latestOffset()
        reader.commit(at(5))
        assert values(reader.partitions(at(5), end)) == [5, 6, 7, 8, 9]
        assert numbers.calls == [("latestOffset", 5), ("commit", 5), ("partitions", 5, 10)]

    def test_a_restart_when_the_last_batch_is_not_committed(self) -> None:
        reader, numbers = tracked()
        assert reader.partitions(at(20), at(20)) == []
        assert values(reader.partitions(at(15), at(20))) == [15, 16, 17, 18, 19]
        end = reader.latestOffset()
        reader.commit(at(20))
        assert len(reader.partitions(at(20), end)) == 5
        assert numbers.calls[1:] == [("latestOffset", 20), ("commit", 20), ("partitions", 20, 25)]

    def test_a_restart_when_batch_0_is_not_committed(self) -> None:
        reader, numbers = tracked()
        reader.partitions(at(5), at(5))
        assert values(reader.partitions(reader.initialOffset(), at(5))) == [0, 1, 2, 3, 4]
        reader.latestOffset()
        assert numbers.calls == [("partitions", 0, 5), ("latestOffset", 5)]

    def test_triggers_without_data_give_spark_back_the_very_offset_it_has(self) -> None:
        reader, numbers = tracked(end=5)
        first = json.dumps(reader.latestOffset())
        reader.partitions(reader.initialOffset(), json.loads(first))
        assert [json.dumps(reader.latestOffset()) for _ in range(3)] == [first] * 3
        numbers.end = 7
        second = reader.latestOffset()
        assert values(reader.partitions(json.loads(first), second)) == [5, 6]

    def test_a_restart_without_new_data_gives_back_the_offset_of_the_earlier_life(self) -> None:
        reader, _ = tracked(end=5)
        reader.partitions(at(5), at(5))
        assert json.dumps(reader.latestOffset()) == json.dumps(at(5))

    def test_of_two_sources_in_a_query_one_is_not_asked_for_a_batch_when_it_has_nothing(self) -> None:
        (busy, _), (idle, numbers) = tracked(), tracked(end=10)
        for reader in (busy, idle):
            reader.partitions(at(10), at(10))
        ends = busy.latestOffset(), idle.latestOffset()
        assert ends[1] == at(10)
        busy.partitions(at(10), ends[0])
        numbers.end = 12
        assert idle.latestOffset()["pos"] == 12
        assert values(idle.partitions(at(10), {"pos": 12, "events": 2, "after": 10})) == [10, 11]

    def test_a_batch_may_be_planned_twice(self) -> None:
        reader, _ = tracked()
        end = reader.latestOffset()
        assert values(reader.partitions({"pos": 0}, end)) == values(reader.partitions({"pos": 0}, end))


class TestGuard:
    """A Spark that does not tell where the stream stands must not pass unnoticed."""

    def refused(self, reader: TrackingReader, start: Json, end: Json, numbers: Numbers) -> None:
        before = [c for c in numbers.calls if c[0] == "partitions"]
        with pytest.raises(ConfigError, match="does not tell the source where the stream stands"):
            reader.partitions(start, end)
        assert [c for c in numbers.calls if c[0] == "partitions"] == before

    def test_a_restarted_query_that_begins_like_a_new_one(self) -> None:
        reader, numbers = tracked()
        self.refused(reader, at(20), reader.latestOffset(), numbers)

    def test_a_restarted_query_that_repeats_its_batch_without_a_word(self) -> None:
        reader, numbers = tracked()
        self.refused(reader, at(15), at(20), numbers)

    def test_the_newest_offset_comes_too_late(self) -> None:
        """As with spark.sql.streaming.triggerAvailableNowWrapper.enabled."""
        reader, numbers = tracked()
        reader.latestOffset()
        self.refused(reader, at(20), at(20), numbers)

    def test_another_end_than_the_planned_one(self) -> None:
        reader, numbers = tracked()
        first = reader.latestOffset()
        reader.partitions({"pos": 0}, first)
        reader.latestOffset()
        self.refused(reader, first, {"pos": 11}, numbers)

    def test_an_offset_that_was_planned_and_left_out(self) -> None:
        reader, numbers = tracked()
        reader.latestOffset()
        self.refused(reader, {"pos": 0}, reader.latestOffset(), numbers)


@pytest.mark.parametrize("seed", range(50))
def test_killed_anywhere_every_batch_starts_where_the_one_before_it_ended(seed: int) -> None:
    """Plays Spark 4.0: an offset log, a commit log, and a driver that is killed between any two calls."""
    dice = random.Random(seed)
    offsets: list[Json] = []
    committed, end, delivered = 0, 0, []
    for _ in range(20):
        reader, numbers = tracked(end)
        calls = dice.randrange(1, 15)

        def life(reader: TrackingReader = reader, numbers: Numbers = numbers) -> Iterator[None]:
            nonlocal committed
            if offsets:
                reader.partitions(offsets[-1], offsets[-1])
                yield
            while True:
                if committed == len(offsets):
                    numbers.end += dice.choice([0, 3, 8])
                    found = json.loads(json.dumps(reader.latestOffset()))
                    yield
                    if offsets and found == offsets[-1]:
                        continue
                    if offsets:
                        reader.commit(offsets[-1])
                        yield
                    offsets.append(found)
                start = reader.initialOffset() if len(offsets) == 1 else offsets[-2]
                rows = values(reader.partitions(start, offsets[-1]))
                yield
                committed += 1
                delivered.extend(rows)
                yield

        played = life()
        for _ in range(calls):
            next(played)
        end = numbers.end
    assert len(delivered) > 20
    assert delivered == list(range(delivered[-1] + 1))


class TestPlannedFrom:
    """Spark has a batch in its log before it asks for the partitions: a wrong one is refused in later lives too."""

    def test_the_end_of_a_batch_names_the_position_it_was_planned_from(self) -> None:
        reader, _ = tracked()
        reader.partitions(at(20), at(20))
        end = reader.latestOffset()
        check_planned(at(20), end)
        check_planned(at(20), at(25))  # of a version that does not name it
        with pytest.raises(ConfigError, match="from 15 to 25, whose end was planned from 20") as refused:
            check_planned(at(15), end)
        assert "remove the newest file" in (refused.value.hint or "")

    def test_what_a_restarted_query_planned_as_a_new_one_stays_refused(self) -> None:
        reader, _ = tracked()
        with pytest.raises(ConfigError):
            check_planned(at(20), reader.latestOffset())

    def test_the_first_batch_of_a_stream(self) -> None:
        check_planned(Offset().to_json(), {**Offset(5).to_json(), PLANNED_FROM: None})

    def test_the_reader_of_changes_refuses_it_before_it_reads_anything(self) -> None:
        options = read_options({"url": "postgresql://a@db.example/b", "table": "t", "state": "off"})
        reader = ChangeReader(options, StructType([]))
        with pytest.raises(ConfigError, match="whose end was planned from None"):
            reader.partitions(Offset(20).to_json(), {**Offset(25).to_json(), PLANNED_FROM: None})


class TestReport:
    def test_an_offset_has_the_report_that_spark_does_not_ask_for(self) -> None:
        reader, _ = tracked()
        assert reader.latestOffset() == {"pos": 5, "events": 1, "after": 0}
        assert reader.latestOffset() == {"pos": 10, "events": 2, "after": 5}

    def test_no_key_of_the_report_is_one_of_an_offset(self) -> None:
        table = TableName("public", "t")
        chunk = Chunk("c", "d", table, Extent())
        full = Offset(
            1, (chunk,), (chunk,), (Cursor("d", table, 1),), (1,), (table,), Taken("s", 1), (Tally("d", table, 1, 1),),
            "place", {table: Followed()}, {table: "{}"},
        )  # fmt: skip
        report = {"captured": 1, **Counts().to_json(), PLANNED_FROM: 1}
        assert not set(report) & set(full.to_json())
        assert Offset.from_json({**full.to_json(), **report}) == full


@pytest.mark.parametrize("version", ["4.0.0", "4.0.5", "4.1.0.dev1", "4.3.0", "5.0.0"])
def test_versions_that_dblog_runs_on(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["3.5.9", "3.5.0+vendor", "2.4.8"])
def test_an_older_version_is_told_what_is_needed(version: str) -> None:
    with pytest.raises(ConfigError, match=rf"needs PySpark 4\.0 or newer, and this is PySpark {version[:3]}"):
        check_version(version)


# -- the rest of the code does not know versions ----------------------------------------------------------------------

TABLE_OF_CONNECTORS = "dblog/sinks/packages.py"
ONLY_IN_SOME = ("pyspark.sql.datasource", "pyspark.sql.streaming.datasource", "pyspark.pipelines")


def knows_versions(code: str) -> list[str]:
    """Where code asks for PySpark's version, imports what not every version has, or tries whether an import works."""
    found = []
    for node in ast.walk(ast.parse(code)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        found += [n for n in names if n.startswith(ONLY_IN_SOME) or n in ("pyspark.version", "pyspark.__version__")]
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "pyspark.__version__":
            found.append("pyspark.__version__")
        if isinstance(node, ast.Compare) and "spark.version" in ast.unparse(node):
            found.append("spark.version")
        if isinstance(node, ast.Try) and any("pyspark" in ast.unparse(n) for n in node.body if _imports(n)):
            found.append("try: import")
    return found


def _imports(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_only_one_module_knows_the_versions_of_pyspark() -> None:
    knowing = {str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if knows_versions(p.read_text())}
    assert knowing == {"dblog/spark/versions.py", TABLE_OF_CONNECTORS}
    assert knows_versions((SOURCE / TABLE_OF_CONNECTORS).read_text()) == ["pyspark.__version__"]


@pytest.mark.parametrize(
    "code",
    [
        "import pyspark\nif pyspark.__version__ >= '4.2':\n    pass",
        "from pyspark import __version__",
        "from pyspark.version import __version__",
        "if spark.version < '4':\n    pass",
        "try:\n    from pyspark.sql import anything\nexcept ImportError:\n    pass",
        "def f():\n    from pyspark.sql.streaming.datasource import ReadLimit",
        "from pyspark import pipelines",
    ],
)
def test_code_that_knows_versions_is_found(code: str) -> None:
    assert knows_versions(code)


def test_the_schema_for_arrow_has_its_times_in_utc() -> None:
    from pyspark.sql.types import StructField, StructType, TimestampType

    schema = versions.to_arrow_schema(StructType([StructField("at", TimestampType())]))
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")


OF_3_5 = {
    "__init__.py": ["__version__ = '3.5.9'", "class InheritableThread: pass"],
    "errors.py": [
        *("class PySparkException(Exception): pass", "class AnalysisException(PySparkException): pass"),
        "class PySparkRuntimeError(PySparkException): pass",
    ],
    "sql/__init__.py": ["class SparkSession: pass", "class DataFrame: pass"],
    "sql/types.py": ["class StructType: pass"],
    "sql/pandas/types.py": ["from_arrow_schema = to_arrow_schema = None"],
    "sql/streaming/query.py": ["class StreamingQuery: pass"],
}


def test_with_pyspark_3_5_dblog_is_imported_and_says_what_it_needs(tmp_path: Path) -> None:
    """A stand-in for PySpark 3.5, which has no `pyspark.sql.datasource`."""
    for name, lines in OF_3_5.items():
        path = tmp_path / "pyspark" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(SOURCE)])}

    def told(code: str) -> str:
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert run.returncode != 0
        return run.stderr.strip()

    needed = "needs PySpark 4.0 or newer, and this is PySpark 3.5.9\nhint: pip install 'pyspark>=4.0'"
    assert f"dblog.errors.ConfigError: dblog {needed}" in told("import dblog; dblog.session()")
    assert needed in told("import dblog; dblog.register(None)")
    assert needed in told("import pyspark_dblog")
    command = "from dblog.cli import main; import sys; sys.argv[1:] = {}; main()".format(
        ["run", "--url", "postgresql://a@db.example/b", "--table", "t", "--into", str(tmp_path / "out")]
    )
    assert told(command).startswith(f"error: dblog {needed}")
