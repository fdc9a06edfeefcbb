"""What a family of databases offers beside its `Source`: how to make one, to check a server, to show a position.

`dblog.databases.families` says which family a URL belongs to. Everything outside a family's own folders works through
the two protocols, `Family` here and `Source` in `dblog.sources.base`, and knows no family by name.
"""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from dblog.core.names import Pattern
from dblog.core.option_values import OptionValues
from dblog.core.promised_keys import PromisedKeys
from dblog.core.schema import TableName
from dblog.core.value_rules import ValueRules
from dblog.databases.families import Address, Entry, entries, entry_of, import_object
from dblog.errors import ConfigError
from dblog.sources.base import LogStream, Source
from dblog.sources.problems import Problem

OURS = "dblog_"
"""How the names of our replication slots begin, unless a user chose another name."""


@dataclass(frozen=True)
class SourceOptions:
    """What a source is made from: checked options of a stream."""

    address: Address
    patterns: tuple[Pattern, ...]
    """The tables to follow, with the default schema applied."""
    slot: str
    """The name of the stream, and of its replication slot where the family has such."""
    columns: tuple[str, ...] | None = None
    """Only these columns, and the key, of every table; None for all."""
    before: bool = False
    """Whether changes must come with the old row, where the log has it."""
    writes: bool = True
    """Whether watermarks are written to the database (`Source.writes`)."""
    decimals: str = "decimal"
    """"decimal", or "string" to deliver exact numbers as text."""
    values: ValueRules = field(default_factory=ValueRules)
    """The rules for values that their column's type cannot hold."""
    keys: PromisedKeys = field(default_factory=PromisedKeys)
    """The keys that users promise for tables without one."""
    skips: bool = True
    """Whether tables that a pattern brings and that cannot be followed are left out. Otherwise a new stream is
    refused."""
    folder: str | None = None
    """A folder of this machine for files that the source keeps while it runs: that of the spool. None if the spool is
    elsewhere."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """What `Family.own_options` returned."""


@dataclass(frozen=True)
class Preflight:
    """Checks of a server over a connection that stays open while they are used."""

    identity: Mapping[str, str | int]
    """What the stream is called on the server: its replication slot, its server id."""
    tables: Sequence[TableName]
    """The tables that the stream would follow: without those that are left out, which have `Problem.left_out`."""
    problems: Callable[[], Sequence[Problem]]
    """Find everything that is wrong with the server and the tables. Changes nothing."""
    admin_sql: Callable[[], str]
    """The whole set-up as a script for an administrator."""


@dataclass(frozen=True)
class Slot:
    """A logical replication slot of a database."""

    name: str
    plugin: str
    temporary: bool
    active: bool
    active_pid: int | None
    """The server's process that reads it."""
    wal_status: str | None
    safe_bytes: int | None
    """How much log may still be written before the server removes what the slot needs; None without a limit."""
    retained_bytes: int | None
    """Log that the server keeps for it."""
    position: int | None
    """The log is acknowledged up to here."""


class Slots(Protocol):
    """The replication slots of one database, over a connection that stays open while they are used."""

    @property
    def database(self) -> str:
        """The name of the database."""
        ...

    def list(self) -> Sequence[Slot]:
        """All logical replication slots of the database."""
        ...

    def drop(self, name: str, publication: str) -> bool:
        """Drop a slot that nobody reads, then its publication; whether there was one. Raises NotFound, SourceError."""
        ...

    def end_reader(self, name: str) -> bool:
        """End the session that reads a slot; whether there was one. Raises SourceError."""
        ...

    def drop_sql(self, name: str) -> str:
        """The statement with which an administrator drops a slot."""
        ...


class Family(Protocol):
    """One family of databases. Has no state, and is picklable: it goes to Spark's workers with the options.

    `sources.simple.SimpleFamily` has defaults for all members but the abstract ones."""

    @abstractmethod
    def parse(self, url: str) -> Address:
        """Read the option `url`. Raises ConfigError, without showing a secret."""
        ...

    @abstractmethod
    def default_schema(self, address: Address) -> str:
        """The schema of a table that is named without one."""
        ...

    def slot(self, address: Address, table: TableName | None, tables: str) -> str:
        """The name of a stream that was given none. It follows either one `table` or the patterns of the text `tables`.
        Must be the same at every start of the stream: `slot_name` makes one. Spool, state and, where the family has
        such, the replication slot are found by it."""
        ...

    def own_options(self, values: OptionValues, address: Address, slot: str) -> Mapping[str, Any]:
        """Check the options that only this family has (`Entry.options`). What it returns is `SourceOptions.own`. Raises
        ConfigError."""
        ...

    @abstractmethod
    def source(self, options: SourceOptions) -> Source:
        """Make the source. Opens no connection: the source does, when it is used."""
        ...

    def preflight(
        self, options: SourceOptions, *, followed: Collection[TableName] | None = None
    ) -> AbstractContextManager[Preflight]:
        """Open the checks of `dblog check` and of a pipeline's start. `followed` are the tables that a stream has
        followed so far; None for a new stream. Raises SourceError when the server cannot be reached."""
        ...

    def temporary_stream(self, options: SourceOptions, publication: str | None) -> AbstractContextManager[LogStream]:
        """Open the log from now on for `dblog events`: nothing is left on the server afterwards. `publication` is what
        its option `--publication` names: raise ConfigError where the family has no publications."""
        ...

    def all_tables(self, options: SourceOptions) -> str:
        """The patterns of the tables that `dblog init` looks at."""
        ...

    def shown(self, position: int) -> str:
        """A position of the log as people write it for this database."""
        ...

    def slots(self, address: Address) -> AbstractContextManager[Slots]:
        """Open the replication slots of the database, for `dblog slots`. Raises ConfigError where there are none."""
        ...


def source_entry(url: str) -> Entry:
    """The family of a source's URL. Raises ConfigError when there is none that can be read."""
    found = entry_of(url)
    if found is None or found.source is None:
        examples = " or ".join(e.example for e in entries() if e.source is not None)
        raise ConfigError(
            "option 'url' is not the URL of a database that is known here", hint=f"write it as {examples}"
        )
    return found


def family_of(url: str) -> Family:
    """The code of a URL's family, imported now. Raises ConfigError."""
    found: Family = import_object(source_entry(url).source or "")
    return found


def shown_position(url: object, position: int | None) -> str:
    """A position as people write it for the database that a URL names, which may be masked. Where the family is not
    known here, the number itself."""
    if position is None:
        return "?"
    known = entry_of(str(url))
    return str(position) if known is None or known.source is None else family_of(str(url)).shown(position)


def slot_name(database: str, tables: str) -> str:
    """A name for a stream, from its database and its tables: at most 63 lower-case letters, digits and underscores."""
    slug = re.sub(r"[^a-z0-9]+", "_", tables.lower()).strip("_")[:40]
    return f"{OURS}{slug}_{digest(database, tables)}"


def digest(*parts: str) -> str:
    """Six characters that differ when the parts do."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:6]
