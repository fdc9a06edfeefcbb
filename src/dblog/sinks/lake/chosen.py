"""Says in a short text which writer has written the tables of a lake, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dblog.core.schema import TableName

MOST_REASONS = 4
MOST_TABLES = 3
"""How many reasons, and how many tables for each, are named."""


def shown(writers: Mapping[TableName, tuple[str, str]]) -> str:
    """The writers of tables with their reasons, the most frequent first. Its length does not grow with the tables."""
    groups: dict[tuple[str, str], list[TableName]] = {}
    for table, choice in writers.items():
        groups.setdefault(choice, []).append(table)
    if len(groups) == 1:
        ((writer, reason),) = groups
        return f"{writer} ({reason})"
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    parts = [f"{writer} for {_some(tables)} ({reason})" for (writer, reason), tables in ordered[:MOST_REASONS]]
    if rest := sum(len(tables) for _, tables in ordered[MOST_REASONS:]):
        parts.append(f"{rest} more for other reasons")
    return "; ".join(parts)


def _some(tables: Sequence[TableName]) -> str:
    named = ", ".join(str(table) for table in tables[:MOST_TABLES])
    return named if len(tables) <= MOST_TABLES else f"{named} and {len(tables) - MOST_TABLES} more"
