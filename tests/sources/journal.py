"""The smallest source: a journal file as the database (`journal_file`), under URLs like journal:///var/shop.journal.

It has everything that a source must have, and nothing else: read it beside `docs/adding-a-source.md`. A position is a
byte in the file: the byte where a line ends is the position of its commit, and the byte where it begins is the
`_lsn` of its changes. `journal_family` tells dblog about it, and it passes the suite of sources (`suite`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Ints
from dblog.core.event import Op, change_schema
from dblog.core.names import Pattern, select_tables
from dblog.core.offset import Extent, Followed, Key
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import (
    ConfigError,
    KeyChanged,
    PositionLost,
    PreconditionFailed,
    SourceError,
    TableLocked,
    TableUnreadable,
    WatermarkError,
)
from dblog.sources.base import Admitted, Commits, Origin, Run, Survey, Wait
from dblog.sources.problems import Problem, refuse
from tests.sources.journal_file import Journal, Row, Table

SCHEMA = "journal"
"""A journal has no schemas: all its tables are in this one."""
TYPES = {"int": pa.int64(), "text": pa.string()}
OPS = {"insert": Op.create, "update": Op.update, "delete": Op.delete, "truncate": Op.truncate}


@dataclass(frozen=True)
class JournalSource:
    """A journal and the tables to follow (`sources.base.Source`)."""

    path: str
    patterns: tuple[Pattern, ...]
    before: bool = False
    writes: bool = True

    @property
    def _journal(self) -> Journal:
        return Journal(self.path)

    def _tables(self) -> dict[TableName, Table]:
        try:
            return {TableName(SCHEMA, name): table for name, table in self._journal.tables().items()}
        except FileNotFoundError:
            raise PreconditionFailed(f"there is no journal {self.path!r}", hint="name one in the option url") from None

    # -- set-up ----------------------------------------------------------------------------------------------

    @property
    def default_schema(self) -> str:
        return SCHEMA

    def problems(self) -> list[Problem]:
        """What keeps the tables that are named without wildcards from being followed."""
        there = self._tables()
        named = [p.literal for p in self.patterns if p.literal is not None and not p.exclude]
        absent = [Problem(f"table {str(t)!r} does not exist", "create it") for t in named if t not in there]
        return absent + [Problem(why, "define its key") for why in self.survey({}).left_out.values()]

    def prepare(self, *, followed: Collection[TableName] | None, wait: Wait | None = None) -> None:
        refuse(self.problems())

    def abandon(self) -> None:
        """A journal keeps nothing for a stream."""

    # -- tables ----------------------------------------------------------------------------------------------

    def tables(self) -> Mapping[TableName, TableSchema]:
        found = select_tables(self.patterns, self._tables())
        if not found:
            raise ConfigError(
                f"no table of the journal matches {self.patterns[0].text!r}", hint="see the option tables"
            )
        return self.describe(found)

    def describe(self, tables: Collection[TableName]) -> Mapping[TableName, TableSchema]:
        return {name: schema_of(name, table) for name, table in self._tables().items() if name in tables}

    def survey(self, followed: Mapping[TableName, Followed]) -> Survey:
        """Tables are known by their names, and never go."""
        there = self._tables()
        named = select_tables(self.patterns, there)
        bare = {name: f"table {str(name)!r} has no key" for name in named if not there[name].key}
        return Survey({name: Followed() for name in named if name not in bare}, left_out=bare)

    def admit(self, tables: Collection[TableName]) -> Admitted:
        """The journal has the changes of all tables, and the stream decodes those that the patterns name."""
        return Admitted({name: Followed() for name in self._tables() if name in tables}, self.latest())

    def follow(self, tables: Mapping[TableName, Followed]) -> None:
        """See `admit`."""

    # -- the log ---------------------------------------------------------------------------------------------

    def origin(self) -> Origin:
        """The coordinate is the journal's name, so that another file with the same path is noticed."""
        return Origin(self.latest(), (), self._journal.name)

    def latest(self) -> int:
        return self._journal.end()

    def check_position(self, position: int, coordinate: str | None) -> None:
        if self._journal.name != coordinate or self.latest() < position:
            raise PositionLost(
                f"{self.path!r} is not the journal that was read, up to {position}",
                hint="start with a new checkpoint, which dumps the tables again",
            )

    def stream(self, position: int, coordinate: str | None) -> JournalStream:
        self.check_position(position, coordinate)
        return JournalStream(self, position, coordinate)

    def coordinate(self, coordinate: str | None, commits: Commits, position: int) -> str | None:
        return coordinate

    def comparable(self, coordinate: str | None, other: str | None) -> bool:
        return coordinate == other

    def repeat(self, position: int, coordinate: str | None, end: str | None) -> None:
        """The journal has every batch where it was."""

    @property
    def decoding(self) -> str:
        return ""

    # -- watermarks and visibility ---------------------------------------------------------------------------

    def write_watermark(self, token: str) -> int:
        try:
            return self._journal.watermark(token)
        except OSError as error:
            raise WatermarkError(f"cannot write to {self.path!r}: {error.strerror}") from error

    def high_watermark(self) -> int:
        return self.latest()

    def invisible(self, xids: Ints, coordinate: str | None) -> tuple[int, ...]:
        """A line is visible as soon as it can be read."""
        return ()

    # -- chunks ----------------------------------------------------------------------------------------------

    def key(self, table: TableName) -> str:
        there = self._readable(table)
        return ", ".join(f"{name} {there.columns[name]}" for name in there.key)

    def last_key(self, table: TableName) -> Key | None:
        keys = sorted(self._readable(table).rows)
        return text_of(keys[-1]) if keys else None

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        there = self._readable(table)
        keys = [text_of(key) for key in within(there, Extent(after, upto))]
        cuts = keys[rows - 1 :: rows][:count]
        return cuts if len(cuts) == count else [*(cut for cut in cuts if cut != upto), upto]

    def select(self, table: TableName, extent: Extent, key: str | None) -> JournalSelection:
        there = self._readable(table)
        if key is not None and key != self.key(table):
            raise KeyChanged(f"the key of table {table} is not {key} any more")
        if extent.where is not None:
            self.check_condition(table, extent.where)
        return JournalSelection(schema_of(table, there), [there.rows[key] for key in within(there, extent)])

    def _readable(self, table: TableName) -> Table:
        if self._journal.lock(table.name).exists():
            raise TableLocked(f"table {table} is locked")
        found = self._tables().get(table)
        if found is None:
            raise TableUnreadable(f"table {table} does not exist")
        return found

    # -- requests, and for people ----------------------------------------------------------------------------

    def estimate(self, table: TableName) -> int | None:
        found = self._tables().get(table)
        return None if found is None else len(found.rows)

    def missing(self, table: TableName, keys: Sequence[Key]) -> list[Key]:
        there = self._readable(table)
        return [key for key in keys if value_of(there, key) not in there.rows]

    def check_condition(self, table: TableName, where: str) -> None:
        raise TableUnreadable("a journal has no conditions", hint="ask for the whole table, or for keys")

    def identity(self) -> Mapping[str, str]:
        return {"source": f"journal://{self.path}"}

    def probe(self, query: str) -> float:
        raise SourceError("a journal answers no queries", hint="leave out the probe")

    def health(self) -> Mapping[str, Any]:
        return {"latest": self.latest()}


class JournalStream:
    """The journal from a position on (`sources.base.LogStream`)."""

    def __init__(self, source: JournalSource, position: int, coordinate: str | None) -> None:
        self._source = source
        self._journal = Journal(source.path)
        self._position = position
        self._tables = self._journal.tables(upto=position)
        self._redefined = False
        self.coordinate = coordinate
        self.heard = time.monotonic()

    passing = False

    def read(self, timeout: float, *, eager: bool = False) -> list[Run]:
        deadline = time.monotonic() + timeout
        while self._journal.end() == self._position and time.monotonic() < deadline:
            time.sleep(0.005)
        self._source.check_position(self._position, self.coordinate)
        self.heard = time.monotonic()
        return [run for line in self._journal.lines(self._position) if (run := self._run(*line)) is not None]

    def _run(self, start: int, end: int, line: Mapping[str, Any]) -> Run | None:
        self._position = end
        if "define" in line:
            self._tables[line["define"]] = Table(line["columns"], tuple(line["key"]))
            self._redefined = True
            return None
        changes: dict[str, list[Row]] = {}
        for number, (op, name, old, new) in enumerate(line.get("changes", ())):
            if select_tables(self._source.patterns, [TableName(SCHEMA, name)]):
                key = {k: old[k] for k in self._tables[name].key} if op == "delete" else {}
                metadata = {"_op": int(OPS[op]), "_lsn": start, "_seq": number, "_txid": line["tx"]}
                changes.setdefault(name, []).append(
                    {**metadata, "_committed_at": line["at"], "_before": old, **(new or key)}
                )
        one = np.ones(1, np.int64)
        return Run(
            changes=[self._batch(name, rows) for name, rows in changes.items()],
            commits=Commits(
                one * end, one * line.get("tx", 0), one * sum(map(len, changes.values())), one * (end - start)
            ),
            token=line.get("watermark"),
            nbytes=end - start,
            committed_at=line["at"],
        )

    def _batch(self, name: str, rows: list[Row]) -> tuple[TableSchema, pa.RecordBatch]:
        schema = schema_of(TableName(SCHEMA, name), self._tables[name])
        return schema, pa.RecordBatch.from_pylist(rows, change_schema(schema.arrow, before=self._source.before))

    @property
    def idle_position(self) -> int:
        return self._position

    def redefined(self) -> bool:
        redefined, self._redefined = self._redefined, False
        return redefined

    def acknowledge(self, position: int) -> None:
        """A journal forgets nothing."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class JournalSelection:
    """Rows as they were when they were selected (`sources.base.Selection`)."""

    schema: TableSchema
    rows: list[Row]

    def read(self, take: Callable[[pa.RecordBatch], None]) -> None:
        take(pa.RecordBatch.from_pylist(self.rows, self.schema.arrow))


def schema_of(name: TableName, table: Table) -> TableSchema:
    return TableSchema(name, tuple(Column(c, kind, TYPES[kind]) for c, kind in table.columns.items()), table.key)


def text_of(key: tuple[Any, ...]) -> Key:
    return tuple(map(str, key))


def value_of(table: Table, key: Key) -> tuple[Any, ...]:
    """The values of a key's texts, which is what keys are ordered by."""
    if len(key) != len(table.key):
        raise TableUnreadable(f"{list(key)!r} is no key of {', '.join(table.key)}")
    return tuple(int(text) if table.columns[name] == "int" else text for name, text in zip(table.key, key, strict=True))


def within(table: Table, extent: Extent) -> list[tuple[Any, ...]]:
    """The keys of an extent, in order."""
    after, upto = (None if key is None else value_of(table, key) for key in (extent.after, extent.upto))
    asked = [key for text in extent.keys if (key := value_of(table, text)) in table.rows] if extent.keys else table.rows
    return sorted(key for key in asked if (after is None or key > after) and (upto is None or key <= upto))
