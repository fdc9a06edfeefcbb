"""The state store: requests, settings, progress, status and events, shared by pipelines, the CLI and the HTTP API."""

from __future__ import annotations

import os
import tempfile
import urllib.parse
from contextlib import closing
from pathlib import Path

from dblog.errors import ConfigError, StateError
from dblog.state.sqlite import SQLiteStore
from dblog.state.store import Store

__all__ = ["check_store", "open_store"]


def open_store(location: str | None = None) -> Store:
    """Open the state store at a path or `sqlite:///path`; create it if it does not exist. The default location is
    $DBLOG_STATE or, without that, a file of this user."""
    return SQLiteStore(_file(location))


def check_store(location: str | None = None) -> None:
    """Raise StateError or ConfigError if the state store at a location cannot be used. Creates nothing."""
    file = _file(location)
    if file.exists():
        with closing(SQLiteStore(file)):
            return
    there = next(folder for folder in file.absolute().parents if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise StateError(
            f"the state store {str(file)!r} cannot be created: {str(there)!r} is not a folder that can be written to",
            hint="name another file with --state, DBLOG_STATE or pipeline.state",
        )


def _file(location: str | None) -> Path:
    """The file of the state store at a location."""
    location = location or os.environ.get("DBLOG_STATE") or _own()
    scheme, separator, _ = location.partition("://")
    if not separator:
        return Path(location).expanduser()
    parts = urllib.parse.urlsplit(location)
    path = Path(urllib.parse.unquote(parts.path))
    if scheme != "sqlite" or parts.netloc or path.name == "":
        # The rest of the location may contain a password, so it is not shown.
        raise ConfigError(
            f"state stores of the kind {scheme!r} are not supported", hint="name a file: PATH or sqlite:///PATH"
        )
    return Path("/", *path.parts[1:])


def _own() -> str:
    """The default location of this user: in the home folder or, if that cannot be written to (as in many containers),
    in the folder for temporary files."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "dblog"
    there = next((f for f in (folder, *folder.parents) if f.exists()), folder)
    if not os.access(there, os.W_OK):
        folder = Path(tempfile.gettempdir()) / f"dblog-state-{os.getuid()}"
    return str(folder / "state.db")
