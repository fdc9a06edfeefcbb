"""The setting `values` of a pipeline's file: the rule for values that their column's type cannot hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog.core.schema import TableName
from dblog.core.value_rules import ValueRules
from dblog.errors import ConfigError
from dblog.pipelines.config import read_config
from dblog.spark.options import read_options

SOURCE = '[source]\nurl = "postgresql://cdc@db.example/shop"\ntables = ["public.*"]\n'
SINKS = '[[sink]]\ntype = "noop"\nname = "one"\n[[sink]]\ntype = "noop"\nname = "two"\n'
ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


def rules(folder: Path, text: str) -> list[ValueRules]:
    """The rules of each sink's stream."""
    path = folder / "shop.toml"
    path.write_text(text)
    config = read_config(path)
    given = [{**config.source, **({"values": s.values} if s.values else {})} for s in config.sinks]
    return [read_options(options).values for options in given]


def test_without_rules_nothing_stops(tmp_path: Path) -> None:
    assert {r.of(ORDERS, "price") for r in rules(tmp_path, SOURCE + SINKS)} == {"null"}


def test_a_table_has_a_rule_and_others_have_that_of_the_source(tmp_path: Path) -> None:
    tables = (
        '[[table]]\nmatch = "orders"\nvalues = { price = "text" }\n[[table]]\nmatch = "public.i*"\nvalues = "null"\n'
    )
    for found in rules(tmp_path, SOURCE + 'values = "stop"\n' + tables + SINKS):
        asked = [(ORDERS, "price"), (ORDERS, "note"), (ITEMS, "price"), (TableName("public", "t"), "a")]
        assert [found.of(*column) for column in asked] == ["text", "stop", "null", "stop"]


def test_the_first_entry_of_a_table_counts_for_the_sinks_that_it_names(tmp_path: Path) -> None:
    tables = '[[table]]\nmatch = "orders"\nsinks = ["one"]\n[[table]]\nmatch = "orders"\nvalues = "text"\n'
    one, two = rules(tmp_path, SOURCE + tables + SINKS)
    assert (one.of(ORDERS, "price"), two.of(ORDERS, "price")) == ("null", "text")


@pytest.mark.parametrize("wrong", ['"texts"', "{ price = 1 }", "{}", "[]"])
def test_a_wrong_rule_is_named(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match="values"):
        rules(tmp_path, SOURCE + f'[[table]]\nmatch = "orders"\nvalues = {wrong}\n' + SINKS)


def test_the_option_is_not_set_among_the_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.options\.values cannot be set"):
        rules(tmp_path, SOURCE + 'options = { values = "text" }\n' + SINKS)
