"""The state store in tables of a database, for pipelines and commands on several machines.

Every write is one transaction that begins with an update of the store's only row. So writers take turns, as with
SQLite; a writer holds the row for a few milliseconds. Readers never wait.

A connection that breaks is opened again and the call repeated, unless the commit may have reached the server: then the
call fails, and its caller reads what the store has.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dblog.errors import ConnectionLost, DBLogError, SourceError, StateError
from dblog.state.keys import bounded, checked, conflict, split, text
from dblog.state.sql.connections import IDLE, Connections
from dblog.state.sql.dialect import Dialect
from dblog.state.store import Document, Value

PATIENCE = 10.0
"""How long a call waits for the server, in seconds."""
FORMAT = 1
"""The version of the tables. A store with a higher number is refused."""

_T = TypeVar("_T")
_NO_STORE = "the tables were removed or emptied: stop all pipelines of this store, remove the rest of them, start again"


class SQLStore:
    """A `Store` in a database. The connection is opened when it is first needed, and again after an error or a fork."""

    def __init__(self, dialect: Dialect, *, patience: float = PATIENCE, idle: Connections = IDLE) -> None:
        self._dialect = dialect
        self._patience = patience
        self._idle = idle
        self._tables = dialect.tables
        self._connection: Any = None
        self._process = 0
        self._id = ""
        self._opened = 0
        """How many connections were opened. It is part of `stamp`: a new connection may have missed what this handle
        wrote."""
        self._written = 0
        """The writes of this handle since the connection was opened. `stamp` leaves them out."""
        self._read(lambda cursor: None)

    @property
    def id(self) -> str:
        return self._read(lambda cursor: self._id)

    def stamp(self) -> str:
        def read(cursor: Any) -> str:
            cursor.execute(f"SELECT id, writes FROM {self._tables.store}")
            row = cursor.fetchone()
            if row is None or row[0] != self._id:
                raise StateError(f"the state store {self._dialect} is another one now", hint=_NO_STORE)
            return f"{self._id} {self._opened} {row[1] - self._written}"

        return self._read(read)

    def get(self, key: str) -> Document | None:
        where = split(bounded(key))

        def read(cursor: Any) -> Document | None:
            cursor.execute(f"SELECT value, version FROM {self._tables.document} WHERE parent = %s AND name = %s", where)
            row = cursor.fetchone()
            return Document(json.loads(row[0]), row[1]) if row else None

        return self._read(read)

    def list(self, prefix: str) -> dict[str, Document]:
        checked(bounded(prefix))

        def read(cursor: Any) -> dict[str, Document]:
            cursor.execute(f"SELECT name, value, version FROM {self._tables.document} WHERE parent = %s", [prefix])
            return {_name(row[0]): Document(json.loads(row[1]), row[2]) for row in cursor.fetchall()}

        return dict(sorted(self._read(read).items()))

    def versions(self, prefix: str) -> dict[str, int]:
        checked(bounded(prefix))

        def read(cursor: Any) -> dict[str, int]:
            cursor.execute(f"SELECT name, version FROM {self._tables.document} WHERE parent = %s", [prefix])
            return {_name(name): version for name, version in cursor.fetchall()}

        return self._read(read)

    def put(self, key: str, value: Value, *, version: int | None = None) -> int:
        parent, name = split(bounded(key))
        content = text(value)

        def write(cursor: Any) -> int:
            asked = f"SELECT version FROM {self._tables.document} WHERE parent = %s AND name = %s"
            cursor.execute(asked, (parent, name))
            row = cursor.fetchone()
            present: int = row[0] if row else 0
            if version is not None and version != present:
                raise conflict(key, present, version)
            cursor.execute(self._dialect.put, (parent, name, present + 1, content))
            return present + 1

        return self._write(write)

    def add(self, prefix: str, value: Value) -> int:
        content = text(value)
        split(bounded(prefix + "/0123456789")[: len(prefix)])

        def write(cursor: Any) -> int:
            number = self._count(cursor, "add", prefix, 1)
            cursor.execute(self._dialect.put, (prefix, f"{number:010d}", 1, content))
            return number

        return self._write(write)

    def delete(self, key: str) -> None:
        parent, name = split(bounded(key))
        below = (key, key + "/", key + "0")  # "0" comes right after "/"

        def write(cursor: Any) -> None:
            tables = self._tables
            cursor.execute(f"DELETE FROM {tables.document} WHERE parent = %s AND name = %s", (parent, name))
            cursor.execute(f"DELETE FROM {tables.document} WHERE parent = %s OR (parent > %s AND parent < %s)", below)
            cursor.execute(f"DELETE FROM {tables.entry} WHERE log = %s OR (log > %s AND log < %s)", below)

        self._write(write)

    def append(self, log: str, values: Sequence[Value], *, keep: int) -> None:
        texts = [text(value) for value in values]
        if not texts:
            return
        split(bounded(log))
        step = max(1, keep // 10)

        def write(cursor: Any) -> None:
            last = self._count(cursor, "log", log, len(texts))
            before = last - len(texts)
            for begin in range(0, len(texts), 500):
                some = texts[begin : begin + 500]
                rows = [cell for n, each in enumerate(some, before + begin + 1) for cell in (log, n, each)]
                places = ", ".join(["(%s, %s, %s)"] * len(some))
                cursor.execute(f"INSERT INTO {self._tables.entry} VALUES {places}", rows)
            if last // step > before // step:
                cursor.execute(f"DELETE FROM {self._tables.entry} WHERE log = %s AND number <= %s", (log, last - keep))

        self._write(write)

    def tail(self, log: str, *, after: int | None = None, limit: int = 1000) -> Sequence[tuple[int, Value]]:
        split(bounded(log))
        order = "DESC" if after is None else "ASC"
        asked = (
            f"SELECT number, value FROM {self._tables.entry} WHERE log = %s AND number > %s"
            f" ORDER BY number {order} LIMIT %s"
        )

        def read(cursor: Any) -> list[tuple[int, Value]]:
            cursor.execute(asked, (log, after or 0, max(limit, 0)))
            return [(number, json.loads(value)) for number, value in cursor.fetchall()]

        found = self._read(read)
        return found[::-1] if after is None else found

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            self._idle.give(self._dialect.address, self._patience, connection)

    # -- calls -------------------------------------------------------------------------------------------------

    def _read(self, body: Callable[[Any], _T]) -> _T:
        return self._try(body, lambda cursor: None)

    def _write(self, body: Callable[[Any], _T]) -> _T:
        """Run the body in a transaction."""

        def write(cursor: Any) -> _T:
            cursor.execute(self._dialect.begin)
            try:
                cursor.execute(f"UPDATE {self._tables.store} SET writes = writes + 1 WHERE id = %s", [self._id])
                if cursor.rowcount != 1:
                    raise StateError(f"the state store {self._dialect} is another one now", hint=_NO_STORE)
                return body(cursor)
            except DBLogError:
                cursor.execute("ROLLBACK")
                raise

        def commit(cursor: Any) -> None:
            cursor.execute("COMMIT")
            self._written += 1

        return self._try(write, commit)

    def _try(self, body: Callable[[Any], _T], commit: Callable[[Any], None]) -> _T:
        """The body's result, after `commit`. If the connection breaks before the commit, try once more on a new one."""
        if self._process != os.getpid():
            self._connection = None  # the parent's
        old = self._connection is not None
        committing = False
        try:
            connection = self._connection or self._open()
            with self._dialect.failing("a call"), self._dialect.waiting(connection, self._patience):
                with connection.cursor() as cursor:
                    result = body(cursor)
                    committing = True
                    commit(cursor)
                return result
        except SourceError as error:
            self._break()
            if isinstance(error, ConnectionLost) and old and not committing:
                return self._try(body, commit)
            raise self._told(error) from error
        except StateError:
            raise  # of the body, which has ended its transaction
        except BaseException:
            self._break()
            raise

    def _break(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._idle.end(connection)
            self._idle.end_all(self._dialect.address)  # those that are kept have probably broken too

    def _told(self, error: SourceError) -> StateError:
        return StateError(f"the state store {self._dialect} cannot be used: {error.message}", hint=error.hint)

    def _count(self, cursor: Any, kind: str, key: str, numbers: int) -> int:
        """Take the next `numbers` numbers of a counter; return the last of them."""
        cursor.execute(
            f"SELECT last FROM {self._tables.counter} WHERE kind = %s AND {self._dialect.key} = %s", (kind, key)
        )
        row = cursor.fetchone()
        last: int = (row[0] if row else 0) + numbers
        cursor.execute(self._dialect.count, (kind, key, last))
        return last

    # -- the connection ----------------------------------------------------------------------------------------

    def _open(self) -> Any:
        kept = self._idle.take(self._dialect.address, self._patience)
        if kept is not None:
            try:
                return self._use(kept)
            except ConnectionLost:
                self._break()
        return self._use(self._dialect.connect(self._patience))

    def _use(self, connection: Any) -> Any:
        dialect = self._dialect
        self._connection, self._process, self._written = connection, os.getpid(), 0
        self._opened += 1
        with dialect.failing("opening it"), dialect.waiting(connection, self._patience), connection.cursor() as cursor:
            if not dialect.exists(cursor):
                self._create(cursor)
            self._id = read_id(dialect, cursor) or self._create(cursor)
        return connection

    def _create(self, cursor: Any) -> str:
        """Create what is missing of the tables, and the store's row."""
        with self._dialect.locked(cursor):
            for statement in self._dialect.create:
                cursor.execute(statement)
            made = read_id(self._dialect, cursor)
            if not made:
                made = uuid.uuid4().hex
                cursor.execute(f"INSERT INTO {self._tables.store} VALUES (%s, %s, 0)", (made, FORMAT))
        return made


def read_id(dialect: Dialect, cursor: Any) -> str:
    """The id of the store, empty if it has none yet. Raises StateError if it has a newer format."""
    cursor.execute(f"SELECT id, format FROM {dialect.tables.store}")
    row = cursor.fetchone()
    if row is not None and row[1] > FORMAT:
        raise StateError(
            f"the state store {dialect} has the format {row[1]}; this dblog reads formats up to {FORMAT}",
            hint="a newer dblog has written it: install the same version here, or name another database",
        )
    return str(row[0]) if row else ""


def check(dialect: Dialect, *, patience: float = PATIENCE) -> None:
    """Raise StateError if the store cannot be used. Creates nothing."""
    try:
        connection = dialect.connect(patience)
        try:
            with dialect.failing("checking it"), dialect.waiting(connection, patience), connection.cursor() as cursor:
                if dialect.exists(cursor):
                    read_id(dialect, cursor)
                elif not dialect.may_create(cursor):
                    raise StateError(
                        f"the state store {dialect} cannot be created: the user may not create its tables",
                        hint="create the schema 'dblog' and grant CREATE and USAGE on it, or name another database",
                    )
        finally:
            connection.close()
    except SourceError as error:
        raise StateError(f"the state store {dialect} cannot be used: {error.message}", hint=error.hint) from error


def _name(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else stored.decode()
