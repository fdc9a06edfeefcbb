"""A catalog of Iceberg that pyiceberg opens."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchPropertyException, NotInstalledError
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from dblog.errors import ConfigError
from dblog.sinks.lake.native.iceberg_errors import SQL_ERRORS, TAKEN, reached

LOCK_SECONDS = 60
"""How long a commit waits for others that write to the same SQLite database."""


class OpenCatalog:
    """A catalog. It is opened when it is first used."""

    def __init__(self, name: str, options: Mapping[str, str], folder: Path | None = None) -> None:
        """`folder` is a local folder for the tables, for a catalog that is only used for them."""
        self.name = name
        self._options = dict(options)
        self._folder = folder
        self._opened: Catalog | None = None
        self._spaces: set[str] = set()
        self._using = threading.Lock()

    @property
    def tables(self) -> Catalog:
        """Raises ConfigError if the options are not those of a catalog."""
        with self._using, reached(f"the catalog {self.name!r}"):
            if self._opened is None:
                if self._folder is not None:
                    self._folder.mkdir(parents=True, exist_ok=True)
                try:
                    self._opened = self._load()
                except (ValueError, NoSuchPropertyException, NotInstalledError, ImportError) as error:
                    raise ConfigError(
                        f"the catalog {self.name!r} cannot be opened: {error}", hint="see docs/sinks/iceberg.md"
                    ) from None
                _set_up(self._opened, own=self._folder is not None)
            return self._opened

    def _load(self) -> Catalog:
        try:
            return load_catalog(self.name, **self._options)
        except SQL_ERRORS as error:
            if "already exists" not in str(error):
                raise
            return load_catalog(self.name, **self._options)  # another process has created its tables just now

    def close(self) -> None:
        """Close its connections. It is opened again when it is used again."""
        with self._using:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def create(self, identifier: tuple[str, str], schema: Schema, properties: Mapping[str, str]) -> Table:
        """Create a table, and its namespace if there is none."""
        catalog = self.tables
        space, name = identifier
        with self._using:
            if space not in self._spaces:
                with suppress(NamespaceAlreadyExistsError, *TAKEN):  # by another process at the same time
                    catalog.create_namespace_if_not_exists((space,))
                self._spaces.add(space)
        folder = None if self._folder is None else str(self._folder / _escaped(space) / _escaped(name))
        return catalog.create_table(identifier, schema, location=folder, properties=dict(properties))


def _set_up(catalog: Catalog, *, own: bool) -> None:
    """Let connections to SQLite wait while another one writes, which they do for five seconds only.

    In our `own` database readers and a writer do not wait for each other, and a commit does not wait for the disk: the
    files that it refers to do not either, so after a power failure the older state is the one whose files are whole.
    """
    engine = getattr(catalog, "engine", None)
    if engine is None or engine.dialect.name != "sqlite":
        return
    from sqlalchemy import event

    def connected(connection: Any, _: Any) -> None:
        connection.execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1000}")
        if own:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")

    event.listen(engine, "connect", connected)
    engine.dispose()  # so that the connections of its start are set up too


def _escaped(name: str) -> str:
    """A name as that of a folder: characters with a meaning in paths are escaped as in a URL."""
    return re.sub(r"^\.|[/%\0]", lambda found: f"%{ord(found[0]):02X}", name)
