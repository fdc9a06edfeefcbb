"""The suite of sources over every family, and over the journal, which is the example of a source."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dblog.databases import families
from tests.conftest import MYSQL_SERVERS, started
from tests.families import AnyDatabase, OnMySQL, OnPostgres
from tests.history import Row
from tests.sources.journal_family import ENTRY
from tests.sources.journal_file import Journal
from tests.sources.suite import Change, SourceDatabase, SourceSuite


class SqlDatabase(SourceDatabase):
    """A database that speaks SQL."""

    def __init__(self, database: AnyDatabase) -> None:
        self.database = database
        self.schema = database.schema

    @property
    def url(self) -> str:
        return self.database.url

    def create(self, table: str) -> None:
        self.database.execute(f"create table {table} (id int primary key, n int, note text)")

    def commit(self, *changes: Change) -> None:
        self.database.transact(*map(self._sql, changes))

    def _sql(self, change: Change) -> str:
        table, row = change.table, {name: self._literal(value) for name, value in (change.row or {}).items()}
        match change.op:
            case "insert":
                return f"insert into {table} ({', '.join(row)}) values ({', '.join(row.values())})"
            case "update":
                return f"update {table} set {', '.join(f'{k} = {v}' for k, v in row.items())} where id = {row['id']}"
            case "delete":
                return f"delete from {table} where id = {row['id']}"
        return f"truncate table {table}"

    def _literal(self, value: Any) -> str:
        return (
            "null" if value is None else str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
        )

    def rows(self, table: str) -> list[Row]:
        return self.database.rows(table)

    def add_column(self, table: str, column: str) -> None:
        self.database.execute(f"alter table {table} add column {column} text")

    def keep_old_rows(self, table: str) -> None:
        pass

    def lock(self, table: str) -> AbstractContextManager[object]:
        return closing(self.database.lock(table))


class PostgresDatabase(SqlDatabase):
    def keep_old_rows(self, table: str) -> None:
        self.database.execute(f"alter table {table} replica identity full")

    def lose_log(self) -> None:
        self.database.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()"
        )


class MySQLDatabase(SqlDatabase):
    def _literal(self, value: Any) -> str:
        return super()._literal(value.replace("\\", "\\\\") if isinstance(value, str) else value)

    def lose_log(self) -> None:
        assert isinstance(self.database, OnMySQL)
        self.database.reset_log()


UNIQUE = "create table {} (id int not null, n int, note text, unique (id))"
"""A table without a primary key."""


class PostgresUnique(PostgresDatabase):
    """Tables that have a unique index for a key."""

    def create(self, table: str) -> None:
        self.database.execute(UNIQUE.format(table), f"alter table {table} replica identity using index {table}_id_key")


class MySQLUnique(MySQLDatabase):
    """Tables that have a unique index for a key."""

    def create(self, table: str) -> None:
        self.database.execute(UNIQUE.format(table))


PROMISED = "create table {} (id int, n int, note text)"
"""A table without any key."""


class PostgresPromised(PostgresDatabase):
    """Tables whose key is promised."""

    options: ClassVar[Mapping[str, str]] = {"keys": '{"*.*": ["id"]}'}

    def create(self, table: str) -> None:
        self.database.execute(PROMISED.format(table), f"alter table {table} replica identity full")


class MySQLPromised(MySQLDatabase):
    """Tables whose key is promised."""

    options: ClassVar[Mapping[str, str]] = {"keys": '{"*.*": ["id"]}'}

    def create(self, table: str) -> None:
        self.database.execute(PROMISED.format(table))


class JournalDatabase(SourceDatabase):
    schema = "journal"
    queries = False

    def __init__(self, path: Path) -> None:
        self.journal = Journal(path)
        self.journal.create()

    @property
    def url(self) -> str:
        return f"journal://{self.journal.path}"

    def create(self, table: str) -> None:
        self.journal.define(table, {"id": "int", "n": "int", "note": "text"}, ("id",))

    def commit(self, *changes: Change) -> None:
        self.journal.commit(*changes)

    def rows(self, table: str) -> list[Row]:
        return list(self.journal.tables()[table].rows.values())

    def add_column(self, table: str, column: str) -> None:
        there = self.journal.tables()[table]
        self.journal.define(table, {**there.columns, column: "text"}, there.key)

    def keep_old_rows(self, table: str) -> None:
        pass

    @contextmanager
    def lock(self, table: str) -> Iterator[None]:
        self.journal.lock(table).touch()
        yield
        self.journal.lock(table).unlink()

    def lose_log(self) -> None:
        self.journal.create()


@pytest.mark.server
class TestPostgres(SourceSuite):
    kind = PostgresDatabase

    @pytest.fixture
    def database(self, request: pytest.FixtureRequest) -> Iterator[SourceDatabase]:
        fresh = OnPostgres(request.getfixturevalue("servers")["pg18"].start(), f"test_{uuid.uuid4().hex[:12]}")
        fresh.create()
        yield self.kind(fresh)
        fresh.drop()


@pytest.mark.server
class TestMySQL(SourceSuite):
    """MySQL and MariaDB."""

    kind = MySQLDatabase

    @pytest.fixture(params=MYSQL_SERVERS)
    def database(self, request: pytest.FixtureRequest) -> Iterator[SourceDatabase]:
        server = started(request.getfixturevalue("mysql_servers"), request.param)
        fresh = OnMySQL(server, f"test_{uuid.uuid4().hex[:12]}")
        fresh.create()
        yield self.kind(fresh)
        fresh.drop()


class TestPostgresUnique(TestPostgres):
    kind = PostgresUnique


@pytest.mark.parametrize("database", MYSQL_SERVERS[:1], indirect=True)
class TestMySQLUnique(TestMySQL):
    kind = MySQLUnique


class TestPostgresPromised(TestPostgres):
    kind = PostgresPromised


@pytest.mark.parametrize("database", MYSQL_SERVERS[:1], indirect=True)
class TestMySQLPromised(TestMySQL):
    kind = MySQLPromised


class TestJournal(SourceSuite):
    @pytest.fixture
    def database(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceDatabase:
        monkeypatch.setattr(families, "_ENTRIES", dict(families._ENTRIES))
        families.register(ENTRY)
        return JournalDatabase(tmp_path / "shop.journal")
