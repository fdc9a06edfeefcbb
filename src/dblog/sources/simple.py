"""Defaults for a source that has few abilities: a new source extends these classes and writes their abstract members.

A default either uses the members that are written, or refuses what it cannot do. The defaults know a table by its name
alone: if a table is dropped and created again, the log must show a truncate in between. A database that does not do so
writes its own `survey`. `docs/adding-a-source.md` lists all members.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dblog.core.names import named_tables, qualified, select_tables
from dblog.core.offset import Extent, Followed, Key
from dblog.core.option_values import OptionValues
from dblog.core.schema import TableName, TableSchema
from dblog.databases.families import Address
from dblog.errors import ConfigError, KeyChanged, SourceError, TableUnreadable
from dblog.sources.base import Commits, LogStream, Selection, Source, Survey, Wait
from dblog.sources.family import Family, Preflight, Slots, SourceOptions, slot_name
from dblog.sources.problems import Problem, left_out, refusal, refuse
from dblog.sources.table_failures import TableFailure


@dataclass(frozen=True)
class SimpleSource(Source, ABC):
    """A source, made from the options of a stream. The threads are those that `Source` names; a default calls other
    members in its own thread, so the status thread calls `latest` too (`health`)."""

    options: SourceOptions

    @abstractmethod
    def catalog(self) -> Mapping[TableName, TableSchema]:
        """Every table that could be followed, as it is now, with the columns that the options choose
        (`TableSchema.only`). A table without a key has `key=()`. Called by the driver and by executors."""

    # -- set-up ----------------------------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """As the option `watermark` says."""
        return self.options.writes

    def problems(self, followed: Collection[TableName] | None = None) -> list[Problem]:
        """Why the stream cannot start: a table that is named without wildcards is absent or has no key, or a table that
        it has followed so far has none any more. Other tables without a key are left out, unless there is no other
        table or the option `unsuitable` says otherwise."""
        there, named = self.catalog(), named_tables(self.options.patterns)
        names = select_tables(self.options.patterns, {*there, *named})
        needed = named.union(followed or ())
        absent = [
            Problem(f"table {str(t)!r} does not exist", "create it", table=t, reason="they do not exist")
            for t in names
            if t in needed and t not in there
        ]
        bare = {t: [_without_key(t)] for t in names if t in there and not there[t].key}
        out = {t: wrong for t, wrong in bare.items() if t not in needed}
        if followed is None and (not self.options.skips or len(out) == len(names)):
            out = {}
        return absent + [p for t, wrong in bare.items() if t not in out for p in wrong] + list(left_out(out))

    def prepare(
        self, *, followed: Collection[TableName] | None, aside: Collection[TableName] = (), wait: Wait | None = None
    ) -> None:
        """Raise the `problems`, without those of tables that are set aside. Creates nothing."""
        refuse([p for p in self.problems(followed) if p.table not in aside])

    def abandon(self) -> None:
        """The database keeps nothing for a stream."""

    # -- tables ----------------------------------------------------------------------------------------------

    def tables(self) -> Mapping[TableName, TableSchema]:
        """From the `catalog`, without those that are left out."""
        there, out = self.catalog(), {p.table for p in self.problems() if p.left_out}
        found = select_tables(self.options.patterns, there)
        if not found:
            raise ConfigError(
                f"no table of {self.options.address} matches {self.options.patterns[0].text!r}",
                hint="the option tables takes patterns, separated by commas",
            )
        return {table: there[table] for table in found if table not in out}

    def describe(self, tables: Collection[TableName]) -> Mapping[TableName, TableSchema]:
        """From the `catalog`."""
        return {table: schema for table, schema in self.catalog().items() if table in tables}

    def survey(self, followed: Mapping[TableName, Followed]) -> Survey:
        """Compare with the `catalog`: a followed table that is not there is gone. One that has lost its key is
        unfit."""
        there = self.catalog()
        named = select_tables(self.options.patterns, {*there, *followed})
        bare = [table for table in named if table in there and not there[table].key]
        return Survey(
            {table: Followed() for table in named if table in there and (table not in bare or table in followed)},
            gone=frozenset(table for table in named if table not in there),
            left_out={table: _without_key(table).what for table in bare if table not in followed},
            unfit={table: refusal([_without_key(table)]) for table in bare if table in followed},
        )

    def unfit(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """From the `catalog`: those without a key."""
        there = self.catalog()
        return {table: _without_key(table).what for table in tables if table in there and not there[table].key}

    def follow(self, tables: Mapping[TableName, Followed], *, since: int | None = None) -> None:
        """Nothing to remember: the stream decodes the log for every table that the patterns name."""

    def failures(self) -> Mapping[TableName, TableFailure]:
        """None: a value that cannot be decoded ends the stream."""
        return {}

    # -- the log ---------------------------------------------------------------------------------------------

    def coordinate(self, coordinate: str | None, commits: Commits, position: int) -> str | None:
        """The same for all positions: that of `origin`, which names the log. `check_position` compares it."""
        return coordinate

    def comparable(self, coordinate: str | None, other: str | None) -> bool:
        """Whether they are the same."""
        return coordinate == other

    def repeat(self, position: int, coordinate: str | None, end: str | None, upto: int) -> LogStream | None:
        """None: the log has every batch at the positions that it had, or `stream` raises PositionLost."""
        return None

    @property
    def decoding(self) -> str:
        """Every option that may concern rows."""
        return f"{self.options.columns} {self.options.decimals} {sorted(self.options.own.items())}"

    # -- watermarks and chunks -------------------------------------------------------------------------------

    def high_watermark(self) -> int:
        """The end of the log: `latest`."""
        return self.latest()

    def key(self, table: TableName) -> str:
        """From the `catalog`: the key's columns with their types."""
        schema = self.catalog().get(table)
        if schema is None:
            raise TableUnreadable(f"table {table} does not exist")
        return ", ".join(f"{name} {schema.column(name).type}" for name in schema.key)

    def small(self, tables: Sequence[TableName], rows: int) -> Mapping[TableName, tuple[str, Key | None]]:
        """None: each table is asked about alone."""
        return {}

    def check_select(self, table: TableName, extent: Extent, key: str | None) -> None:
        """For `select`: raise KeyChanged unless this is the table's key, and what `check_condition` raises."""
        if key is not None and key != self.key(table):
            raise KeyChanged(f"the key of table {table} is not {key} any more")
        if extent.where is not None and not extent.empty:
            self.check_condition(table, extent.where)

    # -- what requests need, and for people ------------------------------------------------------------------

    def estimate(self, table: TableName) -> int | None:
        """None: not known."""
        return None

    def missing(self, table: TableName, keys: Sequence[Key]) -> list[Key]:
        """Select each key alone."""
        return [key for key in keys if self._count(self.select(table, Extent(keys=(key,)), None)) == 0]

    def _count(self, selection: Selection) -> int:
        batches: list[pa.RecordBatch] = []
        selection.read(batches.append)
        return sum(batch.num_rows for batch in batches)

    def check_condition(self, table: TableName, where: str) -> None:
        """Refuse every condition."""
        raise TableUnreadable("this database takes no conditions", hint="ask for the whole table, or for keys")

    def identity(self) -> Mapping[str, str]:
        """The masked URL."""
        return {"source": str(self.options.address)}

    def probe(self, query: str) -> float:
        """Refuse every query."""
        raise SourceError("this database answers no queries", hint="leave out the probe")

    def health(self) -> Mapping[str, Any]:
        """The end of the log: `latest`."""
        return {"latest": self.latest()}


class SimpleStream(LogStream, ABC):
    """A log that is read from one position on, of one server. `read` sets `idle_position`, `heard` and `defined`."""

    passing = False
    coordinate: str | None = None
    idle_position: int = 0
    heard: float = 0.0
    defined = False
    """Whether `read` has met another definition of a table, or a new table."""

    def __init__(self, position: int, coordinate: str | None) -> None:
        self.idle_position = position
        self.coordinate = coordinate
        self.heard = time.monotonic()

    def redefined(self) -> bool:
        """Whether `defined` was set since the last call. Where `read` never sets it, a new table or column is noticed
        every `heartbeatSeconds`."""
        defined, self.defined = self.defined, False
        return defined

    def acknowledge(self, position: int) -> None:
        """The database keeps its log by itself."""

    def close(self) -> None:
        """The database has no connections."""


@dataclass(frozen=True)
class SimpleSelection:
    """Rows that have been read (`Selection`)."""

    schema: TableSchema
    rows: pa.RecordBatch

    def read(self, take: Callable[[pa.RecordBatch], None]) -> None:
        take(self.rows)


class SimpleFamily(Family, ABC):
    """A family whose `source` is a `SimpleSource`."""

    @abstractmethod
    def source(self, options: SourceOptions) -> SimpleSource: ...

    def slot(self, address: Address, table: TableName | None, tables: str) -> str:
        """From the names of the database and of the tables."""
        names = qualified(tables, self.default_schema(address)) if table is None else str(table)
        return slot_name(address.database, names)

    def own_options(self, values: OptionValues, address: Address, slot: str) -> Mapping[str, Any]:
        """The family has none."""
        return {}

    @contextmanager
    def preflight(
        self, options: SourceOptions, *, followed: Collection[TableName] | None = None
    ) -> Iterator[Preflight]:
        """The `problems` of the source, and no SQL."""
        source = self.source(options)
        yield Preflight({}, tuple(source.tables()), lambda: source.problems(followed), lambda: "")

    @contextmanager
    def temporary_stream(self, options: SourceOptions, publication: str | None) -> Iterator[LogStream]:
        """The `stream` of the source, from its `origin` on."""
        if publication is not None:
            raise ConfigError("this database has no publications", hint="leave out --publication")
        source = self.source(options)
        source.prepare(followed=None)
        origin = source.origin()
        with closing(source.stream(origin.position, origin.coordinate)) as log:
            yield log

    def all_tables(self, options: SourceOptions) -> str:
        """Those of all schemas."""
        return "*.*"

    def shown(self, position: int) -> str:
        """The number."""
        return str(position)

    def slots(self, address: Address) -> AbstractContextManager[Slots]:
        """There are none."""
        raise ConfigError("this database has no replication slots", hint="dblog slots is for databases that have them")


def _without_key(table: TableName) -> Problem:
    fix = "give it a key, or leave it out of the option tables"
    return Problem(f"table {str(table)!r} has no key", fix, table=table, reason="no key")
