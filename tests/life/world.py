"""The database that a stream follows: its tables, what they hold, and the ledger of everything that was changed.

Every change goes through a `Transaction` here, which writes the ledger in the same transaction of the database. What a
table holds is also known here, so that a writer knows what it changes without asking. Writers lock keys, and
definitions lock tables, in this process; so the version numbers of a key grow with its commits. Locks are kept until
it is known what became of the transaction.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import psycopg2
import pymysql.err

from tests.families import AnyDatabase, OnPostgres
from tests.life.checker import Entry

Values = dict[str, Any]
Id = tuple[Any, ...]

LEDGER, FENCE = "ledger", "fence"
LARGE = 3000
"""Characters of a large value: more than PostgreSQL keeps in the row."""
GONE = (psycopg2.OperationalError, psycopg2.InterfaceError, pymysql.err.OperationalError, pymysql.err.InterfaceError)
"""A server that is away says this in one way or another; also a deadlock."""


@lru_cache(maxsize=512)
def large(n: int) -> str:
    """The large value with this number: it does not compress."""
    text, part = f"{n}:", str(n)
    while len(text) < LARGE:
        part = hashlib.sha512(part.encode()).hexdigest()
        text += part
    return text[:LARGE]


def as_text(value: Any) -> str | None:
    """A value as the ledger has it. A large one is named by its number, if it is whole."""
    if value is None:
        return None
    text = str(value)
    if len(text) >= LARGE:
        number = text.partition(":")[0]
        whole = number.isdigit() and large(int(number)) == text
        return f"large {number}" if whole else f"broken {text[:20]}"
    return text


@dataclass
class Table:
    """A table as this process knows it. `columns` are those besides the key and `version`, with their kinds: int, text
    or large."""

    name: str
    columns: dict[str, str]
    key: tuple[str, ...] = ("id",)
    keys: int = 40
    """Writers use ids from 1 to here."""
    extra: str = ""
    """What stands behind the columns when the table is created."""
    rows: dict[Id, Values] = field(default_factory=dict)
    elsewhere: str | None = None
    """The name that the table has at the moment in the database, where that is another one."""

    @property
    def at(self) -> str:
        return self.elsewhere or self.name

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.key, "version", *self.columns)

    def id(self, number: int) -> Id:
        return (number,) if len(self.key) == 1 else ("abcde"[number % 5], number)

    @property
    def match(self) -> str:
        return " and ".join(f"{k} = %s" for k in self.key)

    def create_sql(self, types: dict[str, str], name: str | None = None) -> str:
        kinds = {"id": "int", "k": types["key"], "version": "bigint not null"}
        columns = [f"{c} {kinds[c]}" for c in (*self.key, "version")]
        columns += [f"{c} {types[kind]}" for c, kind in self.columns.items()]
        return (
            f"create table {name or self.name} ({', '.join(columns)}, primary key ({', '.join(self.key)})){self.extra}"
        )


TYPES = {
    "postgres": {"int": "int", "text": "varchar(60)", "large": "text", "key": "varchar(10)"},
    "mysql": {"int": "int", "text": "varchar(60)", "large": "mediumtext", "key": "varchar(10)"},
}


class Locks:
    """Keys and whole tables, taken all at once: nobody waits while holding any."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._keys: set[tuple[str, Id]] = set()
        self._users: dict[str, int] = {}
        self._owned: set[str] = set()

    @contextmanager
    def keys(self, keys: set[tuple[str, Id]]) -> Iterator[None]:
        tables = {table for table, _ in keys}
        with self._free:
            self._free.wait_for(lambda: not (tables & self._owned or keys & self._keys))
            self._keys |= keys
            for table in tables:
                self._users[table] = self._users.get(table, 0) + 1
        try:
            yield
        finally:
            with self._free:
                self._keys -= keys
                for table in tables:
                    self._users[table] -= 1
                self._free.notify_all()

    @contextmanager
    def tables(self, names: set[str]) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not (names & self._owned))
            self._owned |= names
            self._free.wait_for(lambda: not any(self._users.get(name) for name in names))
        try:
            yield
        finally:
            with self._free:
                self._owned -= names
                self._free.notify_all()


class World:
    """A database, with tables that are followed and a ledger that is not."""

    def __init__(self, database: AnyDatabase, tables: Iterable[Table]) -> None:
        self.database = database
        self.on_postgres = isinstance(database, OnPostgres)
        self.types = TYPES["postgres" if self.on_postgres else "mysql"]
        self.tables = {table.name: table for table in tables}
        self.locks = Locks()
        self._versions = itertools.count(1)
        self._txs = itertools.count(1)
        self._last = 0
        self._open: dict[int, int] = {}
        self._lock = threading.Lock()
        self.failed: list[BaseException] = []
        self.server = 0
        """Grows when another server takes over: sessions with the one before are of no use."""
        self.domains = False
        """MariaDB: whether transactions of different tables have different GTID domains."""

    def create(self) -> None:
        self.database.durable()
        text = "text" if self.on_postgres else "mediumtext"
        self.database.execute(
            f"create table {LEDGER} (version bigint primary key, tx bigint not null, tab varchar(60) not null, "
            f"op varchar(10) not null, k varchar(60), r {text})"
        )
        self.tables[FENCE] = Table(FENCE, {}, keys=1)
        for table in self.tables.values():
            self.create_table(table)
        self.fence()

    def create_table(self, table: Table, name: str | None = None) -> None:
        self.database.execute(table.create_sql(self.types, name))
        if self.on_postgres:
            for column, kind in table.columns.items():
                if kind == "large":
                    self.database.execute(f"alter table {name or table.name} alter {column} set storage external")

    # -- versions -------------------------------------------------------------------------------------------

    def next_version(self) -> int:
        with self._lock:
            self._last = next(self._versions)
            return self._last

    def begin(self) -> int:
        """The number of a transaction that may have any version from now on."""
        tx = next(self._txs)
        with self._lock:
            self._open[tx] = self._last
        return tx

    def end(self, tx: int) -> None:
        with self._lock:
            self._open.pop(tx, None)

    @property
    def settled(self) -> int:
        """Everything up to this version is committed or will never be."""
        with self._lock:
            return min(self._open.values(), default=self._last)

    @property
    def reached(self) -> int:
        """No version above this one exists."""
        return self._last

    # -- reading --------------------------------------------------------------------------------------------

    def ledger(self, after: int = 0) -> list[Entry]:
        """The entries with a version above `after`."""
        sql = f"select version, tx, tab, op, k, r from {LEDGER} where version > {after} order by version"
        rows = self.database.execute(sql)
        return [
            Entry(version, tx, table, op, None if key is None else tuple(json.loads(key)), row and json.loads(row))
            for version, tx, table, op, key, row in rows
        ]

    def read(self, table: Table) -> dict[Id, Values]:
        """What the source has in a table now."""
        rows = self.database.execute(f"select {', '.join(table.names)} from {table.at}")
        found = [dict(zip(table.names, row, strict=True)) for row in rows]
        return {tuple(row.pop(k) for k in table.key): row for row in found}

    def state(self) -> dict[tuple[str, tuple[str, ...]], dict[str, str | None]]:
        return {
            (name, tuple(map(str, key))): {c: as_text(v) for c, v in row.items()}
            for name, table in self.tables.items()
            for key, row in self.read(table).items()
        }

    def reload(self) -> None:
        """Take what the tables hold from the database: after transactions of which it is not known what became."""
        for table in self.tables.values():
            table.rows = self.read(table)
        with self._lock:
            ((highest,),) = self.database.execute(f"select coalesce(max(version), 0) from {LEDGER}")
            self._versions = itertools.count(max(self._last, highest) + 1)

    # -- writing --------------------------------------------------------------------------------------------

    def session(self, *, waits: bool = False) -> Any:
        """A connection. `waits`: on PostgreSQL, its commits wait for a standby where one is configured."""
        if isinstance(self.database, OnPostgres):
            options = "-c synchronous_commit=on" if waits else "-c synchronous_commit=local"
            return psycopg2.connect(self.database.url, options=options)
        session = self.database.connect(autocommit=False)
        self.database._opened.remove(session)
        session.cursor().execute("set session transaction isolation level read committed")
        session.commit()
        return session

    def group(self, table: str) -> int:
        """Tables whose transactions have one GTID domain; a transaction changes tables of one group."""
        return 0 if table == FENCE else 1 + (sorted(self.tables).index(table) % 2)

    def write(self, session: Session, keys: set[tuple[str, Id]], act: Callable[[Transaction], None]) -> bool:
        """Run a transaction that touches at most these keys; whether it is committed."""
        with self.locks.keys(keys):
            while True:
                tx = Transaction(self, session)
                try:
                    if self.domains and session.domain is None:
                        session.execute(
                            f"set session gtid_domain_id = {max([self.group(t) for t, _ in keys], default=0)}"
                        )
                    act(tx)
                    return tx.commit()
                except Undo:
                    try:
                        session.rollback()
                    except GONE:
                        session.close()  # the server has rolled it back
                    return False
                except GONE as error:
                    if self._known(session, error):
                        continue  # a deadlock: nothing has happened
                    self._find_out(session, keys)
                    return False
                finally:
                    self.end(tx.number)

    def _known(self, session: Session, error: Exception) -> bool:
        """Whether the transaction is certainly rolled back."""
        deadlock = isinstance(error, psycopg2.errors.DeadlockDetected) or error.args[:1] in ((1213,), (1205,))
        if deadlock:
            with suppress(*GONE):
                session.rollback()
                return True
        return False

    def _find_out(self, session: Session, keys: set[tuple[str, Id]]) -> None:
        """The session broke: read what the keys hold now, as soon as the server is back."""
        deadline = time.monotonic() + 120
        while True:
            try:
                session.renew()
                for name, key in keys:
                    table = self.tables[name]
                    columns = ", ".join(table.names[len(table.key) :])
                    row = session.execute(f"select {columns} from {table.at} where {table.match}", key)
                    table.rows.pop(key, None)
                    if row:
                        table.rows[key] = dict(zip(table.names[len(table.key) :], row[0], strict=True))
                session.rollback()
                return
            except GONE:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def fence(self) -> int:
        """Commit one more change to a followed table; its version. Earlier commits are before it in the log."""
        session = Session(self)
        versions: list[int] = []

        def act(tx: Transaction) -> None:
            tx.put(FENCE, (1,))
            versions.append(tx.entries[-1].version)

        while not self.write(session, {(FENCE, (1,))}, act):
            pass
        session.close()
        return versions[-1]

    def note_emptied(self, table: Table, session: Session | None = None) -> None:
        """Enter into the ledger that a table was emptied, in the transaction of the session or in one of its own."""
        tx = self.begin()
        writer = session or Session(self)
        writer.note([Entry(self.next_version(), tx, table.name, "truncate")])
        writer.commit()
        table.rows = {}
        if session is None:
            writer.close()
        self.end(tx)

    def note_rows(self, table: Table, op: str, rows: dict[Id, Values | None]) -> None:
        """Enter changes into the ledger that a definition has made."""
        tx = Transaction(self, session := Session(self))
        for key, row in rows.items():
            tx.changed(table.name, op, key, row)
        tx.commit()
        session.close()
        self.end(tx.number)


class Undo(Exception):
    """Roll the transaction back."""


class Session:
    """A connection of a writer. It is opened when it is needed."""

    def __init__(self, world: World, *, waits: bool = False, domain: int | None = None) -> None:
        """`domain`: the GTID domain of its transactions, on MariaDB."""
        self._world, self._waits, self.domain = world, waits, domain
        self._session: Any = None
        self._server = world.server

    def execute(self, sql: str, parameters: Any = None) -> Any:
        if self._session is None or self._server != self._world.server:
            self.renew()
        with self._session.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    def note(self, entries: list[Entry]) -> None:
        """Write entries of the ledger."""
        for n in range(0, len(entries), 200):
            values: list[Any] = []
            some = entries[n : n + 200]
            for e in some:
                key = None if e.key is None else json.dumps([str(k) for k in e.key])
                values += [e.version, e.tx, e.table, e.op, key, None if e.row is None else json.dumps(dict(e.row))]
            self.execute(f"insert into {LEDGER} values " + ", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(some)), values)

    def commit(self) -> None:
        if self._session is not None:
            self._session.commit()

    def rollback(self) -> None:
        if self._session is not None:
            self._session.rollback()

    def renew(self) -> None:
        self.close()
        self._server = self._world.server
        self._session = self._world.session(waits=self._waits)
        if self.domain is not None:
            self._session.cursor().execute(f"set session gtid_domain_id = {self.domain}")

    def close(self) -> None:
        if self._session is not None:
            with suppress(*GONE, pymysql.err.Error):
                self._session.close()
        self._session = None


class Transaction:
    """Changes rows, and remembers what the ledger must say of it."""

    def __init__(self, world: World, session: Session) -> None:
        self._world, self._session = world, session
        self.number = world.begin()
        self.entries: list[Entry] = []
        self._rows: dict[tuple[str, Id], Values | None] = {}
        self._saved: list[tuple[list[Entry], dict[tuple[str, Id], Values | None]]] = []

    def row(self, table: str, key: Id) -> Values | None:
        """What the row holds now, as this transaction sees it."""
        if (table, key) in self._rows:
            return self._rows[table, key]
        return self._world.tables[table].rows.get(key)

    def sql(self, text: str, parameters: Any = None) -> Any:
        return self._session.execute(text, parameters)

    def insert(self, table: str, key: Id, **values: Any) -> None:
        self.insert_many(table, {key: values})

    def insert_many(self, table: str, rows: dict[Id, Values]) -> None:
        t = self._world.tables[table]
        some = [
            (key, {"version": self._world.next_version(), **{c: given.get(c) for c in t.columns}})
            for key, given in rows.items()
        ]
        for n in range(0, len(some), 200):
            part = some[n : n + 200]
            places = ", ".join(["(" + ", ".join(["%s"] * len(t.names)) + ")"] * len(part))
            flat = [v for key, row in part for v in (*key, *row.values())]
            self.sql(f"insert into {t.at} ({', '.join(t.names)}) values {places}", flat)
        for key, row in some:
            self.changed(table, "create", key, row)

    def update(self, table: str, key: Id, **values: Any) -> None:
        t = self._world.tables[table]
        old = self.row(table, key)
        assert old is not None
        values = {"version": self._world.next_version(), **values}
        sets = ", ".join(f"{c} = %s" for c in values)
        count = self.sql(f"update {t.at} set {sets} where {t.match}", (*values.values(), *key))
        assert count == 1, f"{table} {key} is not there: the model is wrong"
        self.changed(table, "update", key, {**old, **values})

    def put(self, table: str, key: Id, **values: Any) -> None:
        (self.insert if self.row(table, key) is None else self.update)(table, key, **values)

    def delete(self, table: str, key: Id) -> None:
        t = self._world.tables[table]
        count = self.sql(f"delete from {t.at} where {t.match}", key)
        assert count == 1, f"{table} {key} is not there: the model is wrong"
        self.changed(table, "delete", key, None)

    def move(self, table: str, key: Id, to: Id, **values: Any) -> None:
        """Change the key of a row; in the log this is a delete and a create."""
        t = self._world.tables[table]
        row = self.row(table, key)
        assert row is not None
        self._note(table, "delete", key, None)
        values = {"version": self._world.next_version(), **values}
        sets = ", ".join(f"{c} = %s" for c in (*t.key, *values))
        count = self.sql(f"update {t.at} set {sets} where {t.match}", (*to, *values.values(), *key))
        assert count == 1, f"{table} {key} is not there: the model is wrong"
        self._rows[table, key] = None
        self.changed(table, "create", to, {**row, **values})

    def savepoint(self) -> None:
        self.sql(f"savepoint s{len(self._saved)}")
        self._saved.append((list(self.entries), dict(self._rows)))

    def rollback_to_savepoint(self) -> None:
        self.entries, self._rows = self._saved.pop()
        self.sql(f"rollback to savepoint s{len(self._saved)}")

    def commit(self) -> bool:
        self._session.note(self.entries)
        self._session.commit()
        for (table, key), row in self._rows.items():
            rows = self._world.tables[table].rows
            rows.pop(key, None)
            if row is not None:
                rows[key] = row
        return True

    def changed(self, table: str, op: str, key: Id, row: Values | None) -> None:
        """Remember a change that a statement has made."""
        self._rows[table, key] = row
        self._note(table, op, key, row)

    def _note(self, table: str, op: str, key: Id, row: Values | None) -> None:
        version = self._world.next_version() if row is None else row["version"]
        text = None if row is None else {c: as_text(v) for c, v in row.items()}
        self.entries.append(Entry(version, self.number, table, op, key, text))
