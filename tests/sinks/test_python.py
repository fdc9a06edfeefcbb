"""A function or a class of the user's as a sink."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog.core.settings import read_settings
from dblog.errors import ConfigError
from dblog.sinks.base import Batch, SinkContext
from dblog.sinks.python import PythonSink
from tests.sinks.batches import batch, change, frame, read

PAGE = Path(__file__).parents[2] / "docs" / "sinks" / "python.md"
NOTHING = Batch(3, 10, ())

Make = Callable[..., PythonSink]


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    """Writes a module that only this test has, and makes the sink: `make(code, "name", settings={...})`."""
    module = re.sub(r"\W", "_", f"own_{request.node.name}_{tmp_path.parent.name}")

    def made(code: str, name: str, **given: Any) -> PythonSink:
        (tmp_path / f"{module}.py").write_text(code)
        given = {"target": f"{module}:{name}", **given}
        return PythonSink(read_settings("sink", given, PythonSink.settings), SinkContext("shop", tmp_path))

    return made


@pytest.mark.spark
def test_the_example_of_the_page_counts_each_event_once(spark: SparkSession, tmp_path: Path, make: Make) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (name,) = re.findall(r'target = "activity:(\w+)"', PAGE.read_text())
    assert len(code.splitlines()) <= 22
    sink = make(code, name, settings={"file": str(tmp_path / "activity.db")})
    sink.check()
    sink.open(spark)
    changes = frame(spark, [change("create", 1, 1), change("update", 2, 1), change("create", 3, 2)])
    first = batch(0, changes, frame(spark, [read(9, n) for n in range(5, 9)]))
    sink.write(first)
    sink.write(first)
    sink.write(batch(1, frame(spark, [change("delete", 11, 1)])))
    sink.close()
    found = sqlite3.connect(tmp_path / "activity.db").execute("select * from activity order by 1, 3").fetchall()
    assert found == [
        (0, "public.t", "create", 2), (0, "public.t", "read", 4), (0, "public.t", "update", 1),
        (1, "public.t", "delete", 1),
    ]  # fmt: skip


def test_a_function_is_called_with_each_batch(make: Make) -> None:
    sink = make("seen = []\ndef take(batch):\n    seen.append(batch)\n", "take")
    sink.check()
    sink.open(None)  # type: ignore[arg-type]
    sink.write(NOTHING)
    sink.close()
    assert sink._target.find().__globals__["seen"] == [NOTHING]


WHOLE = """
class Own:
    said = []
    def __init__(self, settings): self.said.append(("made", settings))
    def open(self, spark): self.said.append(("open", spark))
    def write(self, batch): self.said.append(("write", batch.id))
    def close(self): self.said.append(("close",))
class Short:
    def __init__(self, settings): pass
    def write(self, batch): Own.said.append("short")
class Mute:
    def __init__(self, settings): pass
"""


def test_a_class_is_made_once_with_its_settings_opened_and_closed(make: Make) -> None:
    sink = make(WHOLE, "Own", settings={"depth": 3, "at": {"x": [1]}})
    sink.check()
    said = sink._target.find().said
    assert said == []
    sink.open("spark")  # type: ignore[arg-type]
    sink.write(NOTHING)
    sink.write(NOTHING)
    sink.close()
    assert said == [
        ("made", {"depth": 3, "at": {"x": [1]}}), ("open", "spark"), ("write", 3), ("write", 3), ("close",),
    ]  # fmt: skip


def test_a_class_needs_neither_open_nor_close(make: Make) -> None:
    sink = make(WHOLE, "Short")
    sink.check()
    sink.open(None)  # type: ignore[arg-type]
    sink.write(NOTHING)
    sink.close()
    assert sink._target.find().write.__globals__["Own"].said == ["short"]


@pytest.mark.parametrize(
    ("code", "name", "settings", "said"),
    [
        (WHOLE, "Mute", {}, "no method 'write'"),
        (WHOLE, "Nobody", {}, "has no 'Nobody'"),
        ("def take(batch): pass", "take", {"a": 1}, "is a function"),
        ("import no_such_module_at_all", "take", {}, "No module named 'no_such_module_at_all'"),
        ("def take(:", "take", {}, "SyntaxError"),
        ("take = 5", "take", {}, "'int'"),
    ],
)
def test_what_is_wrong_is_found_before_anything_begins(
    make: Make, code: str, name: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as wrong:
        make(code, name, settings=settings).check()
    assert f":{name}'" in wrong.value.message
    assert wrong.value.hint


def test_settings_may_be_secret(make: Make) -> None:
    with pytest.raises(ConfigError) as wrong:
        make("", "x", settings="s3cret")
    assert "s3cret" not in str(wrong.value)


def test_old_rows_are_asked_for_when_they_are_wanted(make: Make) -> None:
    assert not make("", "x").before
    assert make("", "x", before=True).before
