"""A database in one file, the journal: each line is JSON, and is committed when its end of line is written.

    {"journal": "9f2c"}                                            the first line: which journal this is
    {"define": "orders", "columns": {"id": "int", "note": "text"}, "key": ["id"]}
    {"tx": 7, "at": 1700000000000000, "changes": [["insert", "orders", null, {"id": 1, "note": "a"}]]}
    {"watermark": "0b6c1f7e"}

A change is what happened, the table, the old row and the new row. A table is what the lines about it say.
"""

from __future__ import annotations

import fcntl
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Line = tuple[int, int, dict[str, Any]]
"""Where a line begins and ends in the file, and what it says."""


@dataclass
class Table:
    """A table as it is after some line."""

    columns: dict[str, str]
    key: tuple[str, ...]
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)

    def key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)

    def apply(self, op: str, old: Row | None, new: Row | None) -> None:
        """Do to the rows what a change says."""
        if op == "truncate":
            self.rows.clear()
        if old is not None:
            del self.rows[self.key_of(old)]
        if new is not None:
            self.rows[self.key_of(new)] = new


class Journal:
    """The file. Any number of processes may append to it and read it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def create(self) -> None:
        """Begin a new journal, in place of the one that is there."""
        self.path.write_text(json.dumps({"journal": uuid.uuid4().hex}) + "\n")

    @property
    def name(self) -> str:
        """Which journal this is."""
        return str(next(self.lines())[2]["journal"])

    def lines(self, start: int = 0) -> Iterator[Line]:
        """The committed lines from this byte of the file on."""
        with self.path.open("rb") as file:
            file.seek(start)
            for text in file:
                if not text.endswith(b"\n"):
                    return  # somebody is writing it
                yield start, start + len(text), json.loads(text)
                start += len(text)

    def end(self) -> int:
        """Where the last committed line ends."""
        return self.path.read_bytes().rfind(b"\n") + 1

    def wait(self, position: int, timeout: float) -> None:
        """Wait until a line ends behind this byte, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.end() <= position and time.monotonic() < deadline:
            time.sleep(0.005)

    def tables(self, upto: int | None = None) -> dict[str, Table]:
        """All tables as they are now, or after the line that ends at `upto`."""
        found: dict[str, Table] = {}
        for start, _, line in self.lines():
            if upto is not None and start >= upto:
                break
            if "define" in line:
                before = found.get(line["define"])
                found[line["define"]] = Table(line["columns"], tuple(line["key"]), before.rows if before else {})
            for op, name, old, new in line.get("changes", ()):
                found[name].apply(op, old, new)
        return found

    def define(self, table: str, columns: dict[str, str], key: tuple[str, ...]) -> None:
        """Create a table, or give it other columns."""
        with self._appending() as append:
            append({"define": table, "columns": columns, "key": key})

    def commit(self, *changes: tuple[str, str, Row | None]) -> None:
        """Commit changes as one transaction: what to do, the table, and the row (a delete needs only its key)."""
        with self._appending() as append:
            tables, lines = self.tables(), []
            for op, name, row in changes:
                table = tables[name]
                old = None if row is None else table.rows.get(table.key_of(row))
                new = None if row is None or op == "delete" else {**(old or {}), **row}
                table.apply(op, old, new)
                lines.append((op, name, old, new))
            append({"tx": time.time_ns() % 2**31, "at": time.time_ns() // 1000, "changes": lines})

    def watermark(self, token: str) -> int:
        """Write a watermark; where its line ends."""
        with self._appending() as append:
            append({"watermark": token, "at": time.time_ns() // 1000})
        return self.end()

    @contextmanager
    def _appending(self) -> Iterator[Any]:
        """One writer at a time."""
        with self.path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield lambda line: file.write(json.dumps(line) + "\n")

    def lock(self, table: str) -> Path:
        """The file that keeps everybody from reading the table, while it is there."""
        return self.path.with_name(f"{self.path.name}.{table}.lock")
