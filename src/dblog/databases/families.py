"""The registry of database families: which family a URL belongs to, and which code reads or writes it.

An entry is a few strings. The family's code is imported when a URL needs it, because Spark starts many Python processes
and each needs at most one family. `dblog.sources.family` defines what the code of a source must offer;
`docs/adding-a-source.md` explains how to write one.

A package that is installed beside dblog adds an entry through the entry point group `dblog.families`. The name of the
entry point is the URL's scheme, and its value is the `Entry`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

from dblog.errors import ConfigError

GROUP = "dblog.families"
"""The entry point group that other packages use."""


class Address(Protocol):
    """Where a database is and how to log in. Frozen, hashable and picklable; `str` and `repr` show no secret."""

    @property
    def database(self) -> str:
        """The name of the database; may be empty."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """Passwords and other texts that must never be shown. They are removed from error messages."""
        ...

    @property
    def endpoint(self) -> tuple[str, str, str]:
        """Host, port and database as texts, which identify the database. The default spool folder is named by them."""
        ...


@dataclass(frozen=True)
class Entry:
    """One family of databases. `source`, `target` and `state` name code as "module:attribute"."""

    name: str
    """The family's name for users."""
    schemes: tuple[str, ...]
    """The schemes of its URLs: the part before `://`."""
    example: str
    """An example of a URL."""
    options: tuple[str, ...] = ()
    """The options of a stream that only this family has."""
    source: str | None = None
    """A `dblog.sources.family.Family`; None if the family cannot be a source."""
    target: str | None = None
    """A `dblog.sinks.sql.target.Target`, made from a URL; None if the sink `sql` cannot write to the family."""
    state: str | None = None
    """A `dblog.state.sql.dialect.Dialect`, made from a URL; None if the family cannot have the state store."""


POSTGRES = Entry(
    "PostgreSQL",
    ("postgresql", "postgres"),
    "postgresql://user:password@host:5432/database",
    options=("publication", "arrays", "catchUp", "streamInProgress", "failover"),
    source="dblog.sources.postgres.family:FAMILY",
    target="dblog.sinks.sql.postgres:PostgresTarget",
    state="dblog.state.sql.postgres:PostgresDialect",
)
MYSQL = Entry(
    "MySQL and MariaDB",
    ("mysql", "mariadb"),
    "mysql://user:password@host:3306/database",
    options=("serverId", "dates", "cascades"),
    source="dblog.sources.mysql.family:FAMILY",
    target="dblog.sinks.sql.mysql:MySQLTarget",
    state="dblog.state.sql.mysql:MySQLDialect",
)
_ENTRIES: dict[str, Entry] = {scheme: entry for entry in (POSTGRES, MYSQL) for scheme in entry.schemes}
"""The entries by scheme: those of dblog, and those that `register` has added in this process."""


def register(entry: Entry) -> None:
    """Add a family in this process, for tests. An installed package uses an entry point instead, because that works in
    Spark's worker processes too. Raises ConfigError if another family has one of the schemes."""
    for scheme in entry.schemes:
        if _ENTRIES.get(scheme, entry) != entry:
            raise ConfigError(
                f"the scheme {scheme!r} of {entry.name} already belongs to {_ENTRIES[scheme].name}",
                hint="choose another scheme",
            )
    _ENTRIES.update(dict.fromkeys(entry.schemes, entry))


def entry_of(url: str) -> Entry | None:
    """The family of a URL, by its scheme; None if no family has this scheme. Raises ConfigError if the package of the
    family cannot be loaded."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return None
    if scheme not in _ENTRIES:
        for found in entry_points(group=GROUP, name=scheme):
            try:
                entry = found.load()
            except (ImportError, AttributeError) as error:
                raise ConfigError(
                    f"the family of {scheme}:// cannot be loaded from {found.value!r}: {error}",
                    hint="install its package again, with its dependencies",
                ) from error
            register(entry)
    return _ENTRIES.get(scheme)


def entries() -> Iterator[Entry]:
    """All families that are registered in this process so far."""
    return iter(dict.fromkeys(_ENTRIES.values()))


def import_object(path: str) -> Any:
    """The object that "module:attribute" names."""
    return pkgutil.resolve_name(path)
