"""Queries on databases of their own, and what most tests here do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2.extras
import pytest

from tests.conftest import Database
from tests.engine.query import Query
from tests.history import Row

MakeQuery = Callable[..., Query]


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly every test ends by finding that there is nothing more."""
    monkeypatch.setattr("dblog.planner.POLL_SECONDS", 0.05)


@pytest.fixture
def query(database: Database, tmp_path: Path) -> Iterator[MakeQuery]:
    """Makes queries over the test's database; `query("public.t", chunkRows=5)`."""
    made: list[Query] = []

    def make(table: str = "public.t", **options: Any) -> Query:
        options = {"url": database.url, "spool": str(tmp_path / f"spool{len(made)}"), **options}
        if "tables" not in options:
            options["table"] = table
        made.append(Query(**options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def table(database: Database) -> Database:
    """The test's database, with a table `t` of the keys 1 to 60."""
    database.execute("create table t (id int primary key, n int)")
    database.execute("insert into t select i, 0 from generate_series(1, 60) i")
    return database


def check(stream: Query, database: Database, table: str = "public.t") -> None:
    """Catch up: every event is in its order, and together they give the table's rows."""
    stream.catch_up()
    stream.history.check_order()
    stream.history.check_state(rows_of(database, table))


def rows_of(database: Database, table: str = "public.t") -> list[Row]:
    """All rows of a table, as the source has them."""
    connection = database.connect()
    with connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
        cursor.execute(f"select * from {table}")
        rows = [dict(row) for row in cursor.fetchall()]
    connection.close()
    return rows
