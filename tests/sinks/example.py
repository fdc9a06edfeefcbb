"""The sink that the documents show, taken from there, and its target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dblog.core.schema import TableName
from dblog.sinks.base import Batch, Place, Sink
from dblog.sinks.settings import Setting, text
from tests.sinks.target import Key, Row, Target, replayed

PAGE = Path(__file__).parents[2] / "docs/sinks/protocol.md"
SHOWN = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
_made: dict[str, Any] = {}
exec(compile(SHOWN, PAGE, "exec"), _made)


class FoldersSink(Sink):
    """A class of a user's as a sink."""

    settings = (Setting("path", "the folder", text()),)

    def __init__(self, given: Mapping[str, Any], place: Place) -> None:
        super().__init__(given, place)
        self._folders = _made["Folders"](given)

    def write(self, batch: Batch) -> None:
        self._folders.write(batch)


class FoldersTarget(Target):
    sink = "example"
    history = True

    def __init__(self, path: Path, key: Mapping[str, tuple[str, ...]]) -> None:
        self.path = path
        self.key = key

    def settings(self) -> dict[str, Any]:
        return {"path": str(self.path)}

    def rows(self, table: TableName) -> dict[Key, Row]:
        return replayed(self.events(table))

    def events(self, table: TableName) -> list[dict[str, Any]]:
        key = self.key.get(table.name, ("id",))
        files = sorted((self.path / str(table)).glob("*/*/part-*.parquet"))
        done = [f for f in files if (f.parent / "_SUCCESS").exists()]
        return [_event(row, key) for file in done for row in pq.read_table(file, partitioning=None).to_pylist()]


def _event(row: Row, key: tuple[str, ...]) -> dict[str, Any]:
    event = {name: row[f"_{name}"] for name in ("op", "lsn", "seq", "unchanged")}
    event["key"] = None if row["_op"] == "truncate" else tuple(row[k] for k in key)
    event["row"] = {name: value for name, value in row.items() if not name.startswith("_")}
    return event
