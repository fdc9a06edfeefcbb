"""The rules for values that their column's type cannot hold."""

from __future__ import annotations

import pytest

from dblog.core.schema import TableName
from dblog.core.value_rules import COLUMNS, OPTION, read_rules
from dblog.errors import ConfigError

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


def test_one_word_is_the_rule_of_all_columns() -> None:
    assert read_rules(OPTION.parse(" Text "), "public").of(ORDERS, "price") == "text"
    assert read_rules("null", "public").of(ORDERS, "price") == "null"


def test_the_first_entry_with_a_rule_for_the_column_decides() -> None:
    given = '{"orders": {"price": "text"}, "public.*": {"*": "stop", "note": "null"}, "*.*": "text"}'
    rules = read_rules(OPTION.parse(given), "public")
    asked = [(ORDERS, "price"), (ORDERS, "note"), (ORDERS, "other"), (ITEMS, "price"), (TableName("s", "t"), "a")]
    assert [rules.of(*column) for column in asked] == ["text", "null", "stop", "stop", "text"]


@pytest.mark.parametrize("wrong", ["nul", "[]", '{"t": "x"}', '{"t": {}}', '{"t": {"a": 1}}', '{"t": {"a": "x"}}', "{"])
def test_other_values_are_refused(wrong: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        OPTION.parse(wrong)


def test_a_pattern_cannot_exclude() -> None:
    with pytest.raises(ConfigError, match="excludes"):
        read_rules({"!public.t": "text"}, "public")


def test_a_file_has_a_rule_or_columns() -> None:
    assert COLUMNS.read("stop") == "stop"
    assert COLUMNS.read({"a": "text", "*": "stop"}) == {"a": "text", "*": "stop"}
    with pytest.raises((ValueError, TypeError)):
        COLUMNS.read("texts")
