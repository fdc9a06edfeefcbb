"""The pages of the sinks that carry events say what is true."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog.sinks.base import Sink
from dblog.sinks.debezium import Debezium
from dblog.sinks.formats import envelope
from dblog.sinks.http import HttpSink
from dblog.sinks.kafka import KafkaSink
from dblog.sinks.ndjson import NdjsonSink, StdoutSink
from dblog.sinks.python import PythonSink
from tests.unit.sinks.test_cascade_formats import cascade_events
from tests.unit.sinks.test_formats import ROW, SCHEMA, changes, given, typed, values

PAGES = Path(__file__).parents[3] / "docs" / "sinks"


@pytest.mark.parametrize(
    ("page", "kind"), [("ndjson", NdjsonSink), ("http", HttpSink), ("python", PythonSink), ("kafka", KafkaSink)]
)
def test_every_setting_is_on_the_sinks_page_as_the_code_has_it(page: str, kind: type[Sink]) -> None:
    rows = [line for line in (PAGES / f"{page}.md").read_text().splitlines() if line.startswith("| `")]
    wanted = []
    for setting in kind.settings:
        default = "" if setting.required or setting.default is None else setting.default
        shown = str(default).lower() if isinstance(default, bool) else default
        wanted.append(f"| `{setting.name}` | {setting.kind.takes} | {setting.about} | {shown} |")
    assert rows[: len(wanted)] == wanted


def test_the_page_names_what_standard_output_takes() -> None:
    assert [setting.name for setting in StdoutSink.settings] == ["format", "before"]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)


def test_the_examples_of_formats_have_the_members_that_events_have() -> None:
    enveloped, debezium, cascade = (json.loads(block) for block in blocks("formats.md", "json"))
    rows = typed(changes({"op": "update", **ROW}))
    (value,) = values(envelope(rows, SCHEMA))
    assert list(enveloped) == list(value)
    (value,) = values(Debezium("shop")(rows, SCHEMA))
    assert list(debezium) == list(value)
    assert list(debezium["source"]) == list(value["source"])
    (event, _), _ = cascade_events(envelope)
    assert list(cascade["cascade"]) == list(event["cascade"])
    assert cascade.keys() <= event.keys()
    assert all(cascade[name] == event[name] for name in ("op", "key", "before", "after"))


def test_the_formatter_of_the_page_does_what_it_says() -> None:
    (code,) = blocks("formats.md", "python")
    made: dict[str, Any] = {}
    exec(code, made)
    found = pa.Table.from_batches(given(made["short"], typed(changes({"op": "update", **ROW}, {"op": "truncate"}))))
    assert found["value"].to_pylist() == ["1 update", "- truncate"]
    assert found["key"].to_pylist() == ["1", None]
