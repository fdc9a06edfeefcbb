"""The state store: requests, settings, progress, status and events, shared by pipelines, the CLI and the HTTP API."""

from __future__ import annotations

import os
import tempfile
import urllib.parse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from dblog.errors import ConfigError, StateError
from dblog.state.store import Store

if TYPE_CHECKING:
    from dblog.state.sql.dialect import Dialect

__all__ = ["check_store", "open_store"]

PATIENCE = 10.0
"""How long a call waits for the store (for another writer, or for the server), in seconds."""
ZOOKEEPER = "zookeeper"
KINDS = "PATH, sqlite:///PATH, zookeeper://HOST,HOST/PATH, postgresql://... or mysql://..."


def open_store(location: str | None = None, *, patience: float = PATIENCE) -> Store:
    """Open the state store at a path or a URL; create it if it does not exist. The default location is $DBLOG_STATE or,
    without that, a file of this user. No call waits for much more than `patience` seconds."""
    location, scheme = _read(location)
    if scheme == ZOOKEEPER:
        from dblog.state.zookeeper.store import ZooKeeperStore

        return ZooKeeperStore(location, patience=patience)
    if (dialect := _dialect(location)) is not None:
        from dblog.state.sql.store import SQLStore

        return SQLStore(dialect, patience=patience)
    from dblog.state.sqlite import SQLiteStore

    return SQLiteStore(_file(location), patience=patience)


def check_store(location: str | None = None, *, patience: float = PATIENCE) -> None:
    """Raise StateError or ConfigError if the state store at a location cannot be used. Creates nothing."""
    location, scheme = _read(location)
    if scheme == ZOOKEEPER:
        from dblog.state.zookeeper.store import check

        return check(location, patience=patience)
    if (dialect := _dialect(location)) is not None:
        from dblog.state.sql.store import check as check_tables

        return check_tables(dialect, patience=patience)
    return _check_file(_file(location))


def _read(location: str | None) -> tuple[str, str]:
    """The location, by default that of the environment or the user, and the scheme of its URL (empty for a path)."""
    location = location or os.environ.get("DBLOG_STATE") or _own()
    scheme, separator, _ = location.partition("://")
    return location, scheme if separator else ""


def _dialect(location: str) -> Dialect | None:
    """The dialect of a database's URL; None if no family of databases with a state store has its scheme."""
    from dblog.databases.families import entry_of, import_object

    entry = entry_of(location)
    if entry is None or entry.state is None:
        return None
    try:
        found: Dialect = import_object(entry.state)(location)
    except ConfigError as error:
        raise ConfigError(error.message.replace("option 'url'", "the state store's URL"), hint=error.hint) from None
    return found


def _check_file(file: Path) -> None:
    from dblog.state.sqlite import SQLiteStore

    if file.exists():
        with closing(SQLiteStore(file)):
            return
    there = next(folder for folder in file.absolute().parents if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise StateError(
            f"the state store {str(file)!r} cannot be created: {str(there)!r} is not a folder that can be written to",
            hint="name another file with --state, DBLOG_STATE or pipeline.state",
        )


def _file(location: str) -> Path:
    """The file of the state store at a location."""
    scheme, separator, _ = location.partition("://")
    if not separator:
        return Path(location).expanduser()
    parts = urllib.parse.urlsplit(location)
    path = Path(urllib.parse.unquote(parts.path))
    if scheme != "sqlite" or parts.netloc or path.name == "":
        # The rest of the location may contain a password, so it is not shown.
        raise ConfigError(f"state stores of the kind {scheme!r} are not supported", hint=f"name {KINDS}")
    return Path("/", *path.parts[1:])


def _own() -> str:
    """The default location of this user: in the home folder or, if that cannot be written to (as in many containers),
    in the folder for temporary files."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "dblog"
    there = next((f for f in (folder, *folder.parents) if f.exists()), folder)
    if not os.access(there, os.W_OK):
        folder = Path(tempfile.gettempdir()) / f"dblog-state-{os.getuid()}"
    return str(folder / "state.db")
