"""The smallest source: a journal file as the database (`journal_file`), under URLs like journal:///var/shop.journal.

It has the members that a source must have; the defaults of `dblog.sources.simple` are the rest. Read it beside
`docs/adding-a-source.md`. A position is a byte in the file: the byte where a line ends is the position of its commit,
and the byte where it begins is the `_lsn` of its changes. `journal_family` tells dblog about it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Ints
from dblog.core.event import Op, change_schema
from dblog.core.names import select_tables
from dblog.core.offset import Extent, Followed, Key
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import PositionLost, PreconditionFailed, TableLocked, TableUnreadable, WatermarkError
from dblog.sources.base import Admitted, Commits, Origin, Run
from dblog.sources.family import SourceOptions
from dblog.sources.simple import SimpleSelection, SimpleSource, SimpleStream
from tests.sources.journal_file import Journal, Row, Table

SCHEMA = "journal"
"""A journal has no schemas: all its tables are in this one."""
TYPES = {"int": pa.int64(), "text": pa.string()}
OPS = {"insert": Op.create, "update": Op.update, "delete": Op.delete, "truncate": Op.truncate}


class JournalSource(SimpleSource):
    """A journal and the tables to follow."""

    default_schema = SCHEMA

    @property
    def _journal(self) -> Journal:
        journal = Journal(self.options.address.endpoint[2])
        if not journal.path.exists():
            raise PreconditionFailed(f"there is no {self.options.address}", hint="name one in the option url")
        return journal

    def catalog(self) -> Mapping[TableName, TableSchema]:
        there = self._journal.tables()
        return {TableName(SCHEMA, name): schema_of(name, table, self.options) for name, table in there.items()}

    def admit(self, tables: Collection[TableName]) -> Admitted:
        """The journal has the changes of all tables at all times."""
        return Admitted({table: Followed() for table in self.describe(tables)}, self.latest())

    def origin(self) -> Origin:
        """The coordinate is the journal's name, so that another file with the same path is noticed."""
        return Origin(self.latest(), (), self._journal.name)

    def latest(self) -> int:
        return self._journal.end()

    def check_position(self, position: int, coordinate: str | None) -> None:
        if self._journal.name != coordinate or self.latest() < position:
            raise PositionLost(f"{self.options.address} is not the journal that was read", hint="use a new checkpoint")

    def stream(self, position: int, coordinate: str | None) -> JournalStream:
        self.check_position(position, coordinate)
        return JournalStream(self, position, coordinate)

    def write_watermark(self, token: str) -> int:
        try:
            return self._journal.watermark(token)
        except OSError as error:
            raise WatermarkError(f"cannot write to {self.options.address}: {error.strerror}") from error

    def invisible(self, xids: Ints, coordinate: str | None) -> tuple[int, ...]:
        """A line is visible as soon as it can be read."""
        return ()

    def last_key(self, table: TableName) -> Key | None:
        keys = within(self._readable(table), Extent())
        return text_of(keys[-1]) if keys else None

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        keys = [text_of(key) for key in within(self._readable(table), Extent(after, upto))]
        cuts = keys[rows - 1 :: rows][:count]
        return cuts if len(cuts) == count else [*(cut for cut in cuts if cut != upto), upto]

    def select(self, table: TableName, extent: Extent, key: str | None) -> SimpleSelection:
        there = self._readable(table)
        self.check_select(table, extent, key)
        rows = [] if extent.empty else [there.rows[each] for each in within(there, extent)]
        schema = schema_of(table.name, there, self.options)
        return SimpleSelection(schema, pa.RecordBatch.from_pylist(rows, schema.arrow))

    def _readable(self, table: TableName) -> Table:
        if self._journal.lock(table.name).exists():
            raise TableLocked(f"table {table} is locked")
        found = self._journal.tables().get(table.name)
        if found is None:
            raise TableUnreadable(f"table {table} does not exist")
        return found


class JournalStream(SimpleStream):
    """The journal from a position on."""

    def __init__(self, source: JournalSource, position: int, coordinate: str | None) -> None:
        super().__init__(position, coordinate)
        self._source = source
        self._tables = source._journal.tables(upto=position)

    def read(self, timeout: float, *, eager: bool = False) -> list[Run]:
        journal = self._source._journal
        journal.wait(self.idle_position, timeout)
        self._source.check_position(self.idle_position, self.coordinate)
        self.heard = time.monotonic()
        return [run for line in journal.lines(self.idle_position) if (run := self._run(*line)) is not None]

    def _run(self, start: int, end: int, line: Mapping[str, Any]) -> Run | None:
        self.idle_position = end
        if "define" in line:
            self._tables[line["define"]] = Table(line["columns"], tuple(line["key"]))
            self.defined = True
            return None
        changes: dict[str, list[Row]] = {}
        for number, (op, name, old, new) in enumerate(line.get("changes", ())):
            if select_tables(self._source.options.patterns, [TableName(SCHEMA, name)]):
                key = {k: old[k] for k in self._tables[name].key} if op == "delete" else {}
                metadata = {"_op": int(OPS[op]), "_lsn": start, "_seq": number, "_txid": line["tx"]}
                row = {**metadata, "_committed_at": line["at"], "_before": old, **(new or key)}
                changes.setdefault(name, []).append(row)
        commits = np.array([[end], [line.get("tx", 0)], [sum(map(len, changes.values()))], [end - start]])
        batches = [self._batch(name, rows) for name, rows in changes.items()]
        return Run(batches, Commits(*commits), line.get("watermark"), end - start, line["at"])

    def _batch(self, name: str, rows: list[Row]) -> tuple[TableSchema, pa.RecordBatch]:
        schema = schema_of(name, self._tables[name], self._source.options)
        columns = change_schema(schema.arrow, before=self._source.options.before)
        return schema, pa.RecordBatch.from_pylist(rows, columns)


def schema_of(name: str, table: Table, options: SourceOptions) -> TableSchema:
    columns = tuple(Column(column, kind, TYPES[kind]) for column, kind in table.columns.items())
    return TableSchema(TableName(SCHEMA, name), columns, table.key).only(options.columns)


def text_of(key: tuple[Any, ...]) -> Key:
    return tuple(map(str, key))


def value_of(table: Table, key: Key) -> tuple[Any, ...]:
    """The values of a key's texts, which is what keys are ordered by."""
    try:
        pairs = zip(table.key, key, strict=True)
        return tuple(int(text) if table.columns[name] == "int" else text for name, text in pairs)
    except ValueError:
        raise TableUnreadable(f"{list(key)!r} is no key of {', '.join(table.key)}") from None


def within(table: Table, extent: Extent) -> list[tuple[Any, ...]]:
    """The keys of an extent, in order."""
    after, upto = (None if key is None else value_of(table, key) for key in (extent.after, extent.upto))
    asked = {value_of(table, key) for key in extent.keys} & table.rows.keys() if extent.keys else table.rows
    return sorted(key for key in asked if (after is None or key > after) and (upto is None or key <= upto))
