"""What a lake says about its writers: short, however many tables there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dblog.core.schema import TableName
from dblog.core.settings import check_settings
from dblog.pipelines.report import LONGEST_FACT, MOST_FACTS, facts_of
from dblog.sinks.base import Batch, Sink, SinkContext
from dblog.sinks.lake import DeltaSink
from dblog.sinks.lake.chosen import shown
from dblog.sinks.noop import NoopSink


def tables(*names: str) -> list[TableName]:
    return [TableName("public", name) for name in names]


def test_one_reason_is_said_once() -> None:
    assert shown(dict.fromkeys(tables("a", "b", "c", "d"), ("native", "why"))) == "native (why)"


def test_tables_with_another_writer_are_named_but_only_a_few() -> None:
    many = dict.fromkeys(tables(*(f"t{n}" for n in range(500))), ("native", "small"))
    one = {TableName("public", "big"): ("spark", "large")}
    assert shown(many | one) == (
        "native for public.t0, public.t1, public.t2 and 497 more (small); spark for public.big (large)"
    )


def test_many_reasons_do_not_make_it_long() -> None:
    writers = {table: ("spark", f"reason {table.name}") for table in tables(*(f"t{n}" for n in range(500)))}
    said = shown(writers)
    assert said.endswith("; 496 more for other reasons")
    assert len(said) < 300


@pytest.mark.parametrize(
    ("settings", "writer"),
    [
        ({"path": "lake"}, "native (Spark is started without a connector)"),
        ({"path": "lake", "writer": "native"}, 'native (writer = "native")'),
        ({"path": "lake", "writer": "spark"}, 'spark (writer = "spark")'),
        ({"catalog": "prod"}, "spark (a catalog of Spark's has the tables)"),
        (
            {"path": "lake", "package": "io.delta:x:1"},
            "native; spark for tables that have more than 8 GB or features that the native writer does not know",
        ),
    ],
)
def test_before_the_first_batch_the_settings_say_who_will_write(
    settings: dict[str, Any], writer: str, tmp_path: Path
) -> None:
    given, problems = check_settings("sink", settings, DeltaSink.settings)
    assert not problems
    assert DeltaSink(given, SinkContext("shop", tmp_path)).facts() == {"format": "delta", "writer": writer}


class Talker(Sink):
    def write(self, batch: Batch) -> None: ...

    def facts(self) -> dict[str, str]:
        return {f"fact{n}": "secret " + "x" * 10_000 for n in range(100)}


def test_a_sink_that_says_a_lot_is_cut_and_secrets_are_hidden(tmp_path: Path) -> None:
    found = facts_of(Talker({}, SinkContext("shop", tmp_path)), lambda text: text.replace("secret", "***"))
    assert len(found) == MOST_FACTS
    assert all(len(text) == LONGEST_FACT and text.startswith("*** xxx") for text in found.values())


def test_a_sink_need_not_say_anything(tmp_path: Path) -> None:
    assert facts_of(NoopSink({}, SinkContext("shop", tmp_path)), str) == {}
