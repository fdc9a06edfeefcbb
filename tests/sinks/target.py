"""What a sink writes to, as the tests see it.

A sink's tests describe its target by a class of their own, and get the whole suite for it:

    class Table(Target):
        sink = "sql"
        ...

    class TestSql(SinkSuite):
        @pytest.fixture
        def target(self, ...) -> Target: ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from dblog.core.schema import Column, TableName
from dblog.core.settings import read_settings
from dblog.pipelines import sink_kinds
from dblog.sinks.base import Sink, SinkContext
from dblog.storage.object_storage import NO_SETTINGS, ObjectStorage

Key = tuple[Any, ...]
Row = dict[str, Any]

OWN = {"memory": "tests.sinks.memory:MemorySink"}
"""Sinks of the tests."""


class Target(ABC):
    """What the tests ask of a target. Tables are named as the route names them: as the source does unless told."""

    sink: str
    """The type in [[sink]]."""
    exactly_once: bool = True
    """A batch that is written again changes nothing."""
    history: bool = False
    """Every event is kept, not only the last state of a row."""
    odd_names: bool = True
    """Whether it can have columns with dots and spaces in their names."""
    objects: ObjectStorage = NO_SETTINGS
    """How the sink reaches object storage."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The rest of [[sink]], values as TOML gives them."""

    @abstractmethod
    def rows(self, table: TableName) -> dict[Key, Row]:
        """The current state by key, with the table's columns at least; nothing when there is no such table yet. Where
        `history` is, what the events come to (`replayed`)."""

    def events(self, table: TableName) -> list[dict[str, Any]]:
        """Where `history` is: `op`, `lsn`, `seq` and `key` of every event, in the order they were written."""
        raise NotImplementedError

    def away(self) -> AbstractContextManager[None]:
        """For `AwaySuite`: nobody can reach it while the block runs."""
        raise NotImplementedError

    def shown(self, column: Column, value: Any) -> Any:
        """What `rows` has for a value that was delivered in a column: the same, unless it has no such type."""
        return value

    def make(self, folder: Path, **settings: Any) -> Sink:
        """A sink that writes here."""
        kind = sink_class(self.sink)
        given = read_settings(f"sink {self.sink!r}", {**self.settings(), **settings}, kind.settings)
        return kind(given, SinkContext("test", folder, self.objects))


def sink_class(name: str) -> type[Sink]:
    if name not in OWN:
        return sink_kinds.sink_class(name)
    module, _, attribute = OWN[name].partition(":")
    found: type[Sink] = getattr(import_module(module), attribute)
    return found


def replayed(events: Iterable[Mapping[str, Any]]) -> dict[Key, Row]:
    """The state that events come to: each has `op`, `lsn`, `seq`, `key`, `row` (all columns, the key's too) and
    `unchanged` (names of columns, or None)."""
    rows: dict[Key, Row] = {}
    for event in sorted(events, key=lambda e: (e["lsn"], e["seq"])):
        match event["op"]:
            case "truncate":
                rows.clear()
            case "delete":
                rows.pop(event["key"], None)
            case _:
                old = rows.get(event["key"], {}) if event["op"] != "create" else {}
                kept = {name: old.get(name) for name in event.get("unchanged") or ()}
                rows[event["key"]] = {**event["row"], **kept}
    return rows
