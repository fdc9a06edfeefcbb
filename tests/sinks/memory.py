"""A sink to try the suite itself: the current state in a SQLite file, exactly once.

It brings a batch to the driver, which no real sink does.
"""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dblog.core.schema import TableName, TableSchema
from dblog.core.settings import Setting, text
from dblog.errors import SinkError, SinkUnreachable
from dblog.sinks.base import Batch, Sink, TableBatch
from dblog.sinks.net_effect import net
from dblog.sinks.settings import SCHEMA_CHANGES
from tests.sinks.target import Key, Row, Target

TABLES = """
create table if not exists state (name text, key blob, row blob, primary key (name, key));
create table if not exists columns (name text, columns blob, primary key (name));
create table if not exists taken (batch integer);
"""
PATH = Setting("path", "the file", text())


class MemorySink(Sink):
    """Keeps the current state."""

    settings = (PATH, SCHEMA_CHANGES)

    def check(self) -> None:
        self._connect().close()

    def write(self, batch: Batch) -> None:
        with closing(self._connect()) as file, file:
            if file.execute("select 1 from taken where batch >= ?", [batch.id]).fetchone():
                return
            file.execute("delete from taken")
            file.execute("insert into taken values (?)", [batch.id])
            for table in batch.tables:
                self._take(file, table)

    def _take(self, file: sqlite3.Connection, table: TableBatch) -> None:
        name, names = str(table.schema.table), self._columns(file, table.schema)
        if table.truncated is not None:
            file.execute("delete from state where name = ?", [name])
        frame = net(table)
        for change in [] if frame is None else frame.toLocalIterator():
            row = change.asDict()
            key = pickle.dumps(tuple(row[k] for k in table.schema.key))
            if row["_op"] == "delete":
                file.execute("delete from state where (name, key) = (?, ?)", [name, key])
                continue
            held = file.execute("select row from state where (name, key) = (?, ?)", [name, key]).fetchone()
            old = pickle.loads(held[0]) if held and not row["_whole"] else {}
            kept = {n: old.get(n) for n in row["_unchanged"] or ()}
            new = {n: v for n, v in {**row, **kept}.items() if n in names}
            file.execute("insert or replace into state values (?, ?, ?)", [name, key, pickle.dumps(new)])

    def _columns(self, file: sqlite3.Connection, schema: TableSchema) -> set[str]:
        """Those that the target has; it grows if it may."""
        mode = self.given["schema_changes"]
        held = file.execute("select columns from columns where name = ?", [str(schema.table)]).fetchone()
        names = set(pickle.loads(held[0])) if held else set(schema.names)
        if more := sorted(set(schema.names) - names):
            if mode == "fail":
                raise SinkError(f"table {schema.table} has the new columns {more}", hint="set schema_changes = evolve")
            names |= set(more) if mode == "evolve" else set()
        file.execute("insert or replace into columns values (?, ?)", [str(schema.table), pickle.dumps(names)])
        return names

    def _connect(self) -> sqlite3.Connection:
        if Path(self.given["path"] + ".away").exists():
            raise SinkUnreachable("the file is away")
        file = sqlite3.connect(self.given["path"])
        file.executescript(TABLES)
        return file


class MemoryTarget(Target):
    sink = "memory"

    def __init__(self, path: Path) -> None:
        self.path = path

    def settings(self) -> dict[str, Any]:
        return {"path": str(self.path)}

    def rows(self, table: TableName) -> dict[Key, Row]:
        found = self._read("select key, row from state where name = ?", table)
        return {pickle.loads(key): pickle.loads(row) for key, row in found}

    def _read(self, query: str, table: TableName) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=30)) as file:
            file.executescript(TABLES)
            return file.execute(query, [str(table)]).fetchall()

    @contextmanager
    def away(self) -> Iterator[None]:
        sign = Path(f"{self.path}.away")
        sign.touch()
        try:
            yield
        finally:
            sign.unlink()
