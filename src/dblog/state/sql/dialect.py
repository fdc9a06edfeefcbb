"""What a database family offers for the state store: connections, its tables, and statements that families spell
differently. `dblog.databases.families` names the dialect of each family."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from dblog.databases.families import Address


@dataclass(frozen=True)
class Tables:
    """The names of the tables, quoted for SQL."""

    store: str
    """One row: the id of the store, the format of its tables, and how many writes it has had."""
    document: str
    entry: str
    """The entries of logs."""
    counter: str
    """The last number given for each key. It stays when documents are deleted, so no number is given twice."""

    @staticmethod
    def named(prefix: str) -> Tables:
        return Tables(*(f"{prefix}{name}" for name in ("store", "document", "entry", "counter")))


class Dialect(Protocol):
    """The state store's side of one database, made from its URL. `str` shows the URL without secrets."""

    @property
    def address(self) -> Address: ...

    tables: Tables
    create: Sequence[str]
    """Statements that create the tables; none fails if a table exists."""
    put: str
    """Insert a document or replace it: parent, name, version, value."""
    count: str
    """Insert a counter or replace it: kind, key, last."""
    key: str
    """The column of that name in `counter`, quoted."""
    begin: str

    def connect(self, patience: float) -> Any:
        """Open a connection on which every statement commits by itself. No call waits for more than `patience` seconds
        for the server."""
        ...

    def failing(self, doing: str) -> AbstractContextManager[None]:
        """Translate the driver's errors of the body into errors of ours, without secrets."""
        ...

    def waiting(self, connection: Any, patience: float) -> AbstractContextManager[None]:
        """Break the connection if the body takes more than `patience` seconds."""
        ...

    def exists(self, cursor: Any) -> bool:
        """Whether the tables exist."""
        ...

    def may_create(self, cursor: Any) -> bool:
        """Whether the user may create the tables, as far as the server says so."""
        ...

    def locked(self, cursor: Any) -> AbstractContextManager[None]:
        """Hold the lock under which tables are created."""
        ...
