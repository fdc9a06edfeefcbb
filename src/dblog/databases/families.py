"""The registry of database families: which family a URL belongs to, and which code reads or writes it.

An entry is a few strings: the family's code is imported when a URL asks for it, because Spark starts many Python
processes and each needs at most one family. `dblog.sources.family` says what the code of a source must offer, and
`docs/adding-a-source.md` how to write one.

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
        """What must never be shown: passwords. Error messages are searched for them."""
        ...

    @property
    def endpoint(self) -> tuple[str, str, str]:
        """Host, port and database as text: what tells this database from others. Names the default spool folder."""
        ...


@dataclass(frozen=True)
class Entry:
    """One family of databases. `source` and `target` name code as "module:attribute"."""

    name: str
    """What people call the family."""
    schemes: tuple[str, ...]
    """What its URLs begin with, before `://`."""
    example: str
    """A URL as people write it."""
    options: tuple[str, ...] = ()
    """The options of a stream that only this family has."""
    source: str | None = None
    """A `dblog.sources.family.Family`; None when the family cannot be read."""
    target: str | None = None
    """A `dblog.sinks.sql.target.Target`, made from a URL; None when the sink `sql` cannot write to the family."""


POSTGRES = Entry(
    "PostgreSQL",
    ("postgresql", "postgres"),
    "postgresql://user:password@host:5432/database",
    options=("publication", "arrays"),
    source="dblog.sources.postgres.family:FAMILY",
    target="dblog.sinks.sql.postgres:PostgresTarget",
)
MYSQL = Entry(
    "MySQL and MariaDB",
    ("mysql", "mariadb"),
    "mysql://user:password@host:3306/database",
    options=("serverId", "dates"),
    source="dblog.sources.mysql.family:FAMILY",
    target="dblog.sinks.sql.mysql:MySQLTarget",
)
_ENTRIES: dict[str, Entry] = {scheme: entry for entry in (POSTGRES, MYSQL) for scheme in entry.schemes}
"""By scheme: those of dblog, and those that `register` has added to this process."""


def register(entry: Entry) -> None:
    """Add a family to this process. A test does this; an installed package uses an entry point, which reaches Spark's
    worker processes too. Raises ConfigError when another family has one of the schemes."""
    for scheme in entry.schemes:
        if _ENTRIES.get(scheme, entry) != entry:
            raise ConfigError(
                f"the scheme {scheme!r} of {entry.name} is that of {_ENTRIES[scheme].name}",
                hint="choose another scheme",
            )
    _ENTRIES.update(dict.fromkeys(entry.schemes, entry))


def entry_of(url: str) -> Entry | None:
    """The family that a URL belongs to, by its scheme; None for one that nobody has registered. Raises ConfigError when
    the package that registered it cannot be loaded."""
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
                    hint="install its package again, with what it needs",
                ) from error
            register(entry)
    return _ENTRIES.get(scheme)


def entries() -> Iterator[Entry]:
    """Every family that this process knows by now."""
    return iter(dict.fromkeys(_ENTRIES.values()))


def import_object(path: str) -> Any:
    """The object that "module:attribute" names."""
    return pkgutil.resolve_name(path)
