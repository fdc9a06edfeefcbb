"""Queries on databases of their own, of every family, and what most tests here do with them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MYSQL_SERVERS, SERVERS, Database
from tests.engine.query import Query
from tests.families import AnyDatabase, OnMySQL, OnPostgres
from tests.history import Row
from tests.proxy import Proxy

MakeQuery = Callable[..., Query]

POSTGRES = SERVERS
MYSQL = MYSQL_SERVERS
FAMILIES = [*POSTGRES[:1], *MYSQL[:1]]
"""For what does not depend on the server: one of each family is enough."""
EVERY = [*POSTGRES, *MYSQL]
USUAL = [*POSTGRES, *MYSQL[:1]]
"""MySQL and MariaDB are the same to all but those who read the log."""


def on(servers: list[str]) -> pytest.MarkDecorator:
    """The test runs on these servers instead of the usual ones."""
    return pytest.mark.parametrize("database", servers, indirect=True)


on_postgres = on(POSTGRES)
on_mysql = on(MYSQL)
on_families = on(FAMILIES)
on_every = on(EVERY)


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly every test ends by finding that there is nothing more."""
    monkeypatch.setattr("dblog.planning.planner.POLL_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def _large_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL sends transactions of more than 64 kB, the least that it allows, before they commit."""
    monkeypatch.setattr("dblog.sources.postgres.stream.IN_PROGRESS_MEMORY", "64kB")


@pytest.fixture(params=USUAL)
def database(request: pytest.FixtureRequest) -> Iterator[AnyDatabase]:
    """A database on a running server; the test runs on each of the usual ones unless it says `on`."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    fresh: AnyDatabase
    if request.param in POSTGRES:
        fresh = OnPostgres(request.getfixturevalue("servers")[request.param].start(), name)
    else:
        fresh = OnMySQL(request.getfixturevalue("mysql_servers")[request.param].start(), name)
    fresh.create()
    yield fresh
    fresh.drop()


@pytest.fixture
def proxy(database: AnyDatabase) -> Iterator[Proxy]:
    """A proxy in front of the server that can cut, pause and refuse connections."""
    with Proxy(database.server) as between:
        yield between


@pytest.fixture
def query(database: AnyDatabase, tmp_path: Path) -> Iterator[MakeQuery]:
    """Makes queries over the test's database; `query("t", chunkRows=5)`."""
    made: list[Query] = []

    def make(table: str = "t", **options: Any) -> Query:
        options = {"url": database.url, "spool": str(tmp_path / f"spool{len(made)}"), **options}
        if "tables" not in options:
            options["table"] = table
        made.append(Query(**options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def table(database: AnyDatabase) -> AnyDatabase:
    """The test's database, with a table `t` of the keys 1 to 60."""
    database.execute(
        "create table t (id int primary key, n int)", f"insert into t select i, 0 from {database.series(1, 60)}"
    )
    return database


def create_large(database: AnyDatabase, rows: int) -> None:
    """A table with a column that PostgreSQL keeps elsewhere, and out of its log when it does not change."""
    database.execute("create table t (id int primary key, n int, big text)")
    if isinstance(database, OnPostgres):
        database.execute("alter table t alter big set storage external")
    database.execute(f"insert into t select i, 0, concat({database.large}, i) from {database.series(1, rows)}")


@pytest.fixture
def window(database: AnyDatabase, query: MakeQuery) -> Query:
    """Keys 1 to 20 have been selected; the rest of the 60 rows have not. The window is open."""
    create_large(database, 60)
    stream = query(parallelism=2)
    stream.open_window()
    return stream


def check(stream: Query, database: AnyDatabase, table: str = "t") -> None:
    """Catch up: every event is in its order, and together they give the table's rows."""
    stream.catch_up()
    stream.history.check_order()
    stream.history.check_state(rows_of(database, table))


def rows_of(database: AnyDatabase | Database, table: str = "t") -> list[Row]:
    """All rows of a table, as the source has them."""
    home = database if isinstance(database, OnMySQL | OnPostgres) else OnPostgres(database.server, database.name)
    return home.rows(table)


def wait_for(ready: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)
