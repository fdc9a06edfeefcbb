"""The final comparison: every value of every table, by the server's own text of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dblog.core.schema import TableName, TableSchema
from tests.zoo.canon import Value, canonical
from tests.zoo.outputs import Event, Key

Rows = dict[Key, dict[str, Value]]


@dataclass(frozen=True)
class Truth:
    """A row of the source: the server's own text of each value, and the text by which values compare."""

    own: dict[str, str | None]
    shown: dict[str, Value]
    copied: dict[str, Value]
    """The text that a target of the same family shows."""

    @property
    def exact(self) -> Truth:
        return Truth(self.own, self.copied, self.copied)

    @property
    def unsigned(self) -> Truth:
        """As MariaDB has it, which stores 0 for -0."""
        return Truth(self.own, unsigned(self.shown), self.copied)


def unsigned(row: dict[str, Value]) -> dict[str, Value]:
    return {name: "0.0" if value == "-0.0" else value for name, value in row.items()}


def differences(
    table: TableName, source: Mapping[Key, Truth], target: Rows, raw: Mapping[Key, Mapping[str, str]]
) -> Iterator[str]:
    """What a target has otherwise. A value that does not fit the delivered type is null there; then its text must have
    come in `_raw_values`, and be the server's own."""
    for key in source.keys() - target.keys():
        yield f"{table}: {key} is missing"
    for key in target.keys() - source.keys():
        yield f"{table}: {key} is gone in the source"
    for key in source.keys() & target.keys():
        truth = source[key]
        for name, found in target[key].items():
            wanted = truth.shown[name]
            if found is None and wanted is not None and name in raw.get(key, {}):
                wanted, found = truth.own[name], raw[key][name]
            if wanted != found:
                yield f"{table} {key}: column {name!r} is {found!r:.200}, in the source {wanted!r:.200}"


def differences_of_dump_and_log(
    table: TableName, events: Mapping[Key, list[Event]], counter: str | None
) -> Iterator[str]:
    """What differs between a row of a dump and the change after it that changed the counter only."""
    for key, history in events.items():
        dumped = [event for event in history if event.op == "read"]
        changed = [event for event in history if event.op == "update"]
        if not dumped or not changed:
            yield f"{table} {key}: delivered as {[event.op for event in history]} only"
            continue
        one, other = dumped[-1], changed[-1]
        for name, value in one.row.items():
            if name != counter and name not in other.unchanged and value != other.row[name]:
                yield f"{table} {key}: column {name!r} is {value!r:.200} in a dump, {other.row[name]!r:.200} in the log"
        raw = {name: text for name, text in one.raw.items() if name not in other.unchanged}
        if raw != other.raw:
            yield f"{table} {key}: raw values are {one.raw} in a dump, {other.raw} in the log"


def keyed(schema: TableSchema, rows: list[dict[str, Value]]) -> Rows:
    found = {tuple(row[name] for name in schema.key): row for row in rows}
    assert len(found) == len(rows), f"{schema.table}: a key is there twice"
    return found


def shown(schema: TableSchema, texts: list[tuple[Any, ...]]) -> list[dict[str, Value]]:
    """Rows of texts, in the order of the columns."""
    return [
        {column.name: canonical(text, column.arrow) for column, text in zip(schema.columns, row, strict=True)}
        for row in texts
    ]
