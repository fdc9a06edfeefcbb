"""The common part of the sources of all families: sessions of a process, tables by patterns, chunks, requests.

A family adds its connections, its catalog and its statements (`Chunks`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, TypeVar

from dblog.core.condition import probe_statement
from dblog.core.names import Pattern, named_tables, select_tables
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
from dblog.sources.problems import Problem, why

WATERMARK = TableName("dblog", "watermark")

LOCK_SECONDS = 1
"""How long a statement waits for another session's exclusive lock, in seconds. Then it is given up and tried again
later, so that the log goes on."""
REST_SECONDS = 0.1
"""A session used within this time, in seconds, is not pinged before its next use."""
PEOPLE_SECONDS = 5
"""How long a user's own SQL (a condition, the probe) may run, in seconds."""

_T = TypeVar("_T")
_Session = TypeVar("_Session")
_Asked = TypeVar("_Asked", contravariant=True)

SESSIONS: dict[tuple[int, Any, str], Any] = {}
"""This process's sessions, by process id, source and role. They stay open between the tasks of a Spark worker. Two
streams share none, because each uses its own in threads of its own."""
_USED: dict[tuple[int, Any, str], float] = {}
"""When each session was last used."""
_KEYED: dict[tuple[int, Any, TableName, str], TableSchema] = {}


class Chunks(Protocol[_Asked]):
    """A family's statements about keys and chunks (its module `chunks`)."""

    def key_text(self, connection: _Asked, table: TableName, promised: Sequence[str]) -> str: ...
    def last_key(self, connection: _Asked, schema: TableSchema) -> Key | None: ...
    def cuts(self, connection: _Asked, schema: TableSchema, extent: Extent, rows: int, count: int) -> list[Key]: ...
    def estimate(self, connection: _Asked, table: TableName) -> int | None: ...
    def missing(self, connection: _Asked, schema: TableSchema, keys: Sequence[Key]) -> list[Key]: ...
    def explain(self, connection: _Asked, table: TableName, where: str) -> None: ...


class Relational(Generic[_Session]):
    """The common part of sources. A source is a frozen dataclass with these fields."""

    address: Any
    patterns: tuple[Pattern, ...]
    columns: tuple[str, ...] | None
    types: Any
    skips: bool

    @property
    def decoding(self) -> str:
        return f"{self.columns} {self.types}"

    @property
    def _chunks(self) -> Chunks[_Session]:
        raise NotImplementedError

    def _translating(self, doing: str) -> AbstractContextManager[None]:
        """Raise the driver's errors as ours."""
        raise NotImplementedError

    def _open(self, role: str) -> _Session:
        """Open a new session for a role."""
        raise NotImplementedError

    def _read_only_begin(self, session: _Session) -> Sequence[str]:
        """The statements that begin a read-only transaction, with a time limit of `PEOPLE_SECONDS` per statement."""
        raise NotImplementedError

    def _alive(self, session: _Session) -> bool:
        raise NotImplementedError

    def _close(self, session: _Session) -> None:
        raise NotImplementedError

    def _candidates(self, session: _Session) -> Mapping[TableName, bool]:
        """Everything that a pattern can bring, and whether it is of a kind that can be captured: a view is not."""
        raise NotImplementedError

    def _unfit(self, session: _Session, tables: Sequence[TableName]) -> dict[TableName, list[Problem]]:
        """Those of the tables that cannot be followed, and why."""
        raise NotImplementedError

    def _read_tables(self, session: _Session, names: Collection[TableName]) -> dict[TableName, TableSchema]:
        """The schemas of the existing tables of these names, from the present catalog."""
        raise NotImplementedError

    # -- tables ----------------------------------------------------------------------------------------------

    def names(self, role: str = "control") -> tuple[TableName, ...]:
        """The tables that match the patterns. A table that is named without wildcards is included even if it does not
        exist: the preflight reports it."""
        with self._translating("listing the tables"):
            found = self._with(self._candidates, role)
        named = named_tables(self.patterns)
        names = select_tables(self.patterns, {*found, *named})
        if not names:
            raise ConfigError(
                f"no table in the database matches {self.patterns[0].text!r}",
                hint="the option tables takes patterns like sales.* or sales.orders, separated by commas; "
                "a table that the user may not see is not found",
            )
        return names

    def describe(self, tables: Collection[TableName]) -> dict[TableName, TableSchema]:
        return self._describe(tables)

    def tables(self) -> Mapping[TableName, TableSchema]:
        return self._describe(self._demanded(None)[0])

    def unfit(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """Those of the tables that cannot be followed as they are now, and why."""
        there = [t for t, is_table in self._with(self._candidates).items() if is_table and t in tables]
        found = self._with(lambda session: self._unfit(session, there)) if there else {}
        return {table: why(problems) for table, problems in found.items()}

    def _demanded(
        self, followed: Collection[TableName] | None, role: str = "control", aside: Collection[TableName] = ()
    ) -> tuple[tuple[TableName, ...], dict[TableName, list[Problem]]]:
        """The tables that the preflight requires, and those that are left out, with the reasons.

        A new stream needs all tables that are named without wildcards, and of those that a pattern brings all that can
        be followed; if that is none, it needs all, and is refused. A stream that goes on needs those that it follows or
        that are named without wildcards; others may join later. Tables that are set aside are neither."""
        names = tuple(name for name in self.names(role) if name not in aside)
        needed = named_tables(self.patterns).union(followed or ())
        brought = [name for name in names if name not in needed] if self.skips or followed is not None else []
        unfit = self._with(lambda session: self._unfit(session, brought), role) if brought else {}
        if followed is not None:
            return tuple(name for name in names if name in needed), unfit
        fit = tuple(name for name in names if name not in unfit)
        return (fit, unfit) if fit else (names, {})

    def _describe(self, names: Collection[TableName], role: str = "control") -> dict[TableName, TableSchema]:
        with self._translating("reading the tables' schemas"):
            found = self._with(lambda session: self._read_tables(session, names), role)
        return {name: self._narrowed(schema) for name, schema in found.items()}

    def _narrowed(self, schema: TableSchema) -> TableSchema:
        """The schema with only the wanted columns and the key."""
        return schema if schema.table == WATERMARK else schema.only(self.columns)

    # -- chunks ----------------------------------------------------------------------------------------------

    def key(self, table: TableName) -> str:
        with self._translating(f"looking at the key of {table}"):
            return self._with(lambda session: self._chunks.key_text(session, table, self.types.keys.of(table)))

    def last_key(self, table: TableName) -> Key | None:
        schema = self._keyed(table)
        with self._reading(f"looking for the last key of {table}"):
            return self._with(lambda session: self._chunks.last_key(session, schema))

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        schema = self._keyed(table)
        with self._reading(f"looking for chunk boundaries of {table}"):
            return self._with(lambda session: self._chunks.cuts(session, schema, Extent(after, upto), rows, count))

    def small(self, tables: Sequence[TableName], rows: int) -> Mapping[TableName, tuple[str, Key | None]]:
        """None: each table is looked at alone."""
        return {}

    def _keyed(self, table: TableName) -> TableSchema:
        """The table's schema. It may be out of date, except for the key."""
        at = (os.getpid(), self, table, self.key(table))
        if at not in _KEYED:
            _KEYED.clear()  # few tables are dumped at the same time
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
                    f"the key {list(key)!r} has {len(key)} values; the key of {table} has {len(schema.key)} columns: "
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
            raise SourceError(f"the probe returned {found!r}", hint="it must return one row with one number") from None

    @contextmanager
    def _read_only(self, session: Any) -> Iterator[None]:
        """A transaction in which a user's own SQL can change neither rows nor the session's settings. If it fails, the
        session is closed."""
        with session.cursor() as cursor:
            for statement in self._read_only_begin(session):
                cursor.execute(statement)
            yield
            cursor.execute("rollback")

    # -- sessions --------------------------------------------------------------------------------------------

    def _ask(self, query: str, *parameters: object, role: str = "control") -> Any:
        """The first row of a query's result."""

        def ask(session: Any) -> Any:
            with self._translating("asking the database"), session.cursor() as cursor:
                cursor.execute(query, parameters or None)
                return cursor.fetchone()

        return self._with(ask, role)

    def _with(self, use: Callable[[_Session], _T], role: str = "control") -> _T:
        """Call `use` with this process's session for a role. If it fails, the session is closed; the next use opens a
        new one."""
        session = self._session(role)
        try:
            return use(session)
        except BaseException:
            self._forget(role)
            raise

    def _session(self, role: str) -> _Session:
        """This process's session for a role. A session that was idle is pinged first: the server may have been
        restarted, or may have closed it."""
        at = (os.getpid(), self, role)
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
        session = SESSIONS.pop((os.getpid(), self, role), None)
        if session is not None:
            self._close(session)

    @contextmanager
    def _reading(self, doing: str, *, everything: bool = False) -> Iterator[None]:
        """Raise TableUnreadable for errors that concern only the table or, with `everything`, only the user's
        request."""
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
