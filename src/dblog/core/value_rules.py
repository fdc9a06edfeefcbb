"""What is delivered where the type of a column cannot hold one of its values: a rule for each column.

    null   null, and the database's text of the value in `_raw_values` (`core.raw_values`); the default
    text   the column is text for all rows, if it has a type with such values
    stop   the table's stream stops with ValueRefused

The same rule decides for the log and for dumps, because both decode with the columns of `TableSchema`. A key column is
never null: under the rule `null` it stops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dblog.core.names import Pattern, parse_patterns
from dblog.core.schema import NULL, STOP, TEXT, TableName
from dblog.core.settings import Kind
from dblog.errors import ConfigError

RULES = (NULL, TEXT, STOP)
ALL = "*"
"""Instead of a column's name: all other columns of the table."""


@dataclass(frozen=True)
class TableRule:
    """The rules of the tables that a pattern matches."""

    pattern: Pattern
    rule: str | None
    """For all columns; None if only some columns have a rule."""
    columns: tuple[tuple[str, str], ...] = ()
    """Column and rule."""

    def of(self, column: str) -> str | None:
        return dict(self.columns).get(column, self.rule)


@dataclass(frozen=True)
class ValueRules:
    """The rules of all columns. The first entry that matches the table and names a rule for the column decides."""

    tables: tuple[TableRule, ...] = ()
    default: str = NULL

    def of(self, table: TableName, column: str) -> str:
        for entry in self.tables:
            if entry.pattern.matches(table) and (found := entry.of(column)) is not None:
                return found
        return self.default


def columns_or_rule(value: Any) -> str | dict[str, str]:
    """A rule, or a table of columns with a rule each, as a file or JSON has it. Raises ValueError, TypeError."""
    if isinstance(value, str):
        if value not in RULES:
            raise ValueError
        return value
    if not isinstance(value, dict) or not value:
        raise TypeError
    if not all(isinstance(name, str) and rule in RULES for name, rule in value.items()):
        raise ValueError
    return dict(value)


def _parsed(given: str) -> str | dict[str, Any]:
    """The option: a rule, or a JSON object of tables."""
    word = given.strip().lower()
    if word in RULES:
        return word
    value = json.loads(given)
    if not isinstance(value, dict):
        raise TypeError
    return {table: columns_or_rule(found) for table, found in value.items()}


TAKES = 'null, text, stop, or JSON like {"public.orders": {"price": "text"}, "*.*": "stop"}'
OPTION = Kind(TAKES, _parsed)
COLUMNS = Kind('null, text, stop, or a table of columns like { price = "text" }', columns_or_rule, table=True)


def read_rules(value: str | Mapping[str, Any], default_schema: str) -> ValueRules:
    """The rules that the option `values` names. Raises ConfigError."""
    if isinstance(value, str):
        return ValueRules(default=value)
    entries = []
    for table, found in value.items():
        patterns = parse_patterns(table, "values", default_schema=default_schema)
        if any(p.exclude for p in patterns):
            raise ConfigError(f"option 'values' excludes tables: {table!r}", hint="name the tables that it applies to")
        named = {ALL: found} if isinstance(found, str) else found
        rule, columns = named.get(ALL), tuple((name, kind) for name, kind in named.items() if name != ALL)
        entries += [TableRule(pattern, rule, columns) for pattern in patterns]
    return ValueRules(tuple(entries))
