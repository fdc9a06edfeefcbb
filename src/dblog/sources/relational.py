"""What the sources of every family do alike: sessions of a process, the tables that patterns name, chunks, requests.

A family brings its connections, its catalog and its statements (`Chunks`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, TypeVar

from dblog.core.condition import probe_statement
from dblog.core.names import Pattern, select_tables
from dblog.core.offset import Extent, Key
from dblog.core.schema import TableName, TableSchema
from dblog.errors import (
    ConfigError,
    ConnectionLost,
    DecodeError,
    KeyChanged,
    PreconditionFailed,
    SchemaChanged,
    SourceError,
    TableLocked,
    TableUnreadable,
)

WATERMARK = TableName("dblog", "watermark")

LOCK_SECONDS = 1
"""How long a statement waits for somebody's exclusive lock before it lets the log go on and is tried again later."""
REST_SECONDS = 0.1
"""A session that was used so recently is believed to be there."""
PEOPLE_SECONDS = 5
"""How long a statement that people wrote may run."""

_T = TypeVar("_T")
_Session = TypeVar("_Session")
_Asked = TypeVar("_Asked", contravariant=True)

SESSIONS: dict[tuple[int, Any, str], Any] = {}
"""Those of this process, by address and role. Spark's workers live on between tasks, and so do these."""
_USED: dict[tuple[int, Any, str], float] = {}
"""When each was last used."""
_KEYED: dict[tuple[int, Any, TableName, str], TableSchema] = {}


class Chunks(Protocol[_Asked]):
    """A family's statements about keys and chunks (its module `chunks`)."""

    def primary_key(self, connection: _Asked, table: TableName) -> str: ...
    def last_key(self, connection: _Asked, schema: TableSchema) -> Key | None: ...
    def cuts(self, connection: _Asked, schema: TableSchema, extent: Extent, rows: int, count: int) -> list[Key]: ...
    def estimate(self, connection: _Asked, table: TableName) -> int | None: ...
    def missing(self, connection: _Asked, schema: TableSchema, keys: Sequence[Key]) -> list[Key]: ...
    def explain(self, connection: _Asked, table: TableName, where: str) -> None: ...


class Relational(Generic[_Session]):
    """The common part of sources, which are frozen dataclasses with these fields."""

    address: Any
    patterns: tuple[Pattern, ...]
    columns: tuple[str, ...] | None
    types: Any

    @property
    def decoding(self) -> str:
        return f"{self.columns} {self.types}"

    @property
    def _chunks(self) -> Chunks[_Session]:
        raise NotImplementedError

    def _translating(self, doing: str) -> AbstractContextManager[None]:
        """Raises the driver's errors as ours."""
        raise NotImplementedError

    def _open(self, role: str) -> _Session:
        """A new session for a role."""
        raise NotImplementedError

    def _read_only_begin(self, session: _Session) -> Sequence[str]:
        """The statements that begin a read-only transaction in which a statement has `PEOPLE_SECONDS`."""
        raise NotImplementedError

    def _alive(self, session: _Session) -> bool:
        raise NotImplementedError

    def _close(self, session: _Session) -> None:
        raise NotImplementedError

    def _candidates(self, session: _Session) -> Collection[TableName]:
        """Every table that could be captured."""
        raise NotImplementedError

    def _read_tables(self, session: _Session, names: Collection[TableName]) -> dict[TableName, TableSchema]:
        """Those of the tables that exist, as the catalog describes them now."""
        raise NotImplementedError

    # -- tables ----------------------------------------------------------------------------------------------

    def names(self, role: str = "control") -> tuple[TableName, ...]:
        """The tables that the patterns name. A table named without wildcards is kept even if it does not exist: the
        preflight says so."""
        with self._translating("listing the tables"):
            found = self._with(self._candidates, role)
        named = {p.literal for p in self.patterns if p.literal is not None and not p.exclude}
        names = select_tables(self.patterns, {*found, *named})
        if not names:
            raise ConfigError(
                f"no table of the database matches {self.patterns[0].text!r}",
                hint="the option tables takes patterns like sales.* or sales.orders, separated by commas; "
                "a table that the user may not see is not found",
            )
        return names

    def _describe(self, names: Collection[TableName], role: str = "control") -> dict[TableName, TableSchema]:
        with self._translating("reading the tables' schemas"):
            found = self._with(lambda session: self._read_tables(session, names), role)
        return {name: self._narrowed(schema) for name, schema in found.items()}

    def _narrowed(self, schema: TableSchema) -> TableSchema:
        """The schema with only the columns that are wanted."""
        if self.columns is None or schema.table == WATERMARK:
            return schema
        wanted = {*self.columns, *schema.key}
        return TableSchema(schema.table, tuple(c for c in schema.columns if c.name in wanted), schema.key)

    # -- chunks ----------------------------------------------------------------------------------------------

    def key(self, table: TableName) -> str:
        with self._translating(f"looking at the key of {table}"):
            return self._with(lambda session: self._chunks.primary_key(session, table))

    def last_key(self, table: TableName) -> Key | None:
        schema = self._keyed(table)
        with self._reading(f"looking for the last key of {table}"):
            return self._with(lambda session: self._chunks.last_key(session, schema))

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        schema = self._keyed(table)
        with self._reading(f"looking for chunk boundaries of {table}"):
            return self._with(lambda session: self._chunks.cuts(session, schema, Extent(after, upto), rows, count))

    def _keyed(self, table: TableName) -> TableSchema:
        """The table's schema, of which only the key must be true now."""
        at = (os.getpid(), self, table, self.key(table))
        if at not in _KEYED:
            _KEYED.clear()  # there are never many at work
            _KEYED[at] = self._describe((table,))[table]
        return _KEYED[at]

    # -- requests --------------------------------------------------------------------------------------------

    def estimate(self, table: TableName) -> int | None:
        with self._translating(f"estimating the size of {table}"):
            return self._with(lambda session: self._chunks.estimate(session, table))

    def missing(self, table: TableName, keys: Sequence[Key]) -> list[Key]:
        schema = self._keyed(table)
        for key in keys:
            if len(key) != len(schema.key):
                raise TableUnreadable(
                    f"the key {list(key)!r} has {len(key)} values; that of {table} has {len(schema.key)}: "
                    + ", ".join(schema.key)
                )
        with self._reading(f"looking for keys of {table}", everything=True):
            return self._with(lambda session: self._chunks.missing(session, schema, keys))

    def check_condition(self, table: TableName, where: str) -> None:
        def explain(session: _Session) -> None:
            with self._read_only(session):
                self._chunks.explain(session, table, where)

        with self._reading(f"checking the condition for {table}", everything=True):
            self._with(explain, "people")

    def probe(self, query: str) -> float:
        try:
            statement = probe_statement(query)
        except ConfigError as error:
            raise SourceError(error.message, hint=error.hint) from error

        def ask(session: Any) -> Any:
            with self._translating("asking the probe"), self._read_only(session), session.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchone()

        found = self._with(ask, "probe")
        try:
            (value,) = found
            return float(value)
        except (TypeError, ValueError):
            raise SourceError(f"the probe gave {found!r}", hint="it must give one row with one number") from None

    @contextmanager
    def _read_only(self, session: Any) -> Iterator[None]:
        """A transaction in which a statement that people wrote changes nothing: no rows, and no settings of the session
        that the next statement would meet. If it fails, the session is closed."""
        with session.cursor() as cursor:
            for statement in self._read_only_begin(session):
                cursor.execute(statement)
            yield
            cursor.execute("rollback")

    # -- sessions --------------------------------------------------------------------------------------------

    def _ask(self, query: str, *parameters: object, role: str = "control") -> Any:
        """The first row of an answer."""

        def ask(session: Any) -> Any:
            with self._translating("asking the database"), session.cursor() as cursor:
                cursor.execute(query, parameters or None)
                return cursor.fetchone()

        return self._with(ask, role)

    def _with(self, use: Callable[[_Session], _T], role: str = "control") -> _T:
        """Use this process's session for a role; one that fails is closed, so that the next use opens a new one."""
        session = self._session(role)
        try:
            return use(session)
        except BaseException:
            self._forget(role)
            raise

    def _session(self, role: str) -> _Session:
        """This process's session for a role. One that has rested is asked whether it is still there: a server may have
        been started again, or have ended it for its idleness."""
        at = (os.getpid(), self.address, role)
        session: _Session | None = SESSIONS.get(at)
        rested = time.monotonic() - _USED.get(at, 0.0) > REST_SECONDS
        if session is not None and (not self._alive(session) or (rested and not self._answers(session))):
            self._forget(role)
            session = None
        if session is None:
            session = SESSIONS[at] = self._open(role)
        _USED[at] = time.monotonic()
        return session

    def _answers(self, session: Any) -> bool:
        try:
            with self._translating("asking whether the server is there"), session.cursor() as cursor:
                cursor.execute("select 1")
                return True
        except SourceError:
            return False

    def _forget(self, role: str) -> None:
        session = SESSIONS.pop((os.getpid(), self.address, role), None)
        if session is not None:
            self._close(session)

    @contextmanager
    def _reading(self, doing: str, *, everything: bool = False) -> Iterator[None]:
        """Tell apart what concerns only the table, or with `everything` the part of it that somebody asked for."""
        try:
            with self._translating(doing):
                yield
        except (ConnectionLost, TableLocked, KeyChanged, TableUnreadable, DecodeError):
            raise
        except (SchemaChanged, PreconditionFailed) as error:
            raise TableUnreadable(error.message, hint=error.hint) from error
        except SourceError as error:
            if not everything:
                raise
            raise TableUnreadable(error.message, hint=error.hint) from error
