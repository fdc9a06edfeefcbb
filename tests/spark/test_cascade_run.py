"""Foreign keys that act without a record in the log, through `dblog run` on real Spark, beside writers and a crash."""

from __future__ import annotations

import random
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql.err
import pytest
from deltalake import DeltaTable

from tests.cli.program import Process
from tests.engine.test_cascades import WORLD, change
from tests.families import OnMySQL

pytestmark = [pytest.mark.server, pytest.mark.spark]

FILE = """
[source]
url = "{url}"
tables = ["{name}.*"]
options = {{ chunkRows = 4 }}

[pipeline]
state = "state.db"
every = 0.2

[[sink]]
type = "sql"
url = "{url}"
schema = "{name}_copy"
records = "{name}_records"

[[sink]]
type = "delta"
path = "lake"
"""
TABLES = ("p", "c", "l", "g", "gl", "t")


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[OnMySQL]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    made = OnMySQL(request.getfixturevalue("mysql_servers")["mariadb"].start(), name)
    made.create()
    yield made
    for more in ("_copy", "_records"):
        made.server_execute(f"drop database if exists {name}{more}")
    made.drop()


class Writer(threading.Thread):
    """Runs random transactions until it is stopped."""

    def __init__(self, database: OnMySQL, seed: int) -> None:
        super().__init__(daemon=True)
        self._session = database.connect()
        self._dice = random.Random(seed)
        self._stopped = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._stopped.wait(0.1):
            with suppress(pymysql.err.MySQLError):  # a deadlock of two writers
                change(self._session, self._dice)
            self.count += 1

    def end(self) -> None:
        self._stopped.set()
        self.join()


def rows_of(database: OnMySQL, schema: str, table: str, columns: str) -> list[tuple[Any, ...]]:
    return sorted(database.execute(f"select {columns} from {schema}.{table}"), key=repr)


def test_cascades_reach_a_database_and_a_lake_beside_writers_and_a_crash(database: OnMySQL, tmp_path: Path) -> None:
    database.execute(*WORLD)
    dice = random.Random(5)
    session = database.connect()
    for _ in range(100):
        change(session, dice)
    file = tmp_path / "shop.toml"
    file.write_text(FILE.format(url=database.url, name=database.name))
    writers = [Writer(database, seed) for seed in (1, 2)]
    for writer in writers:
        writer.start()

    def moved(least: int) -> bool:
        return all(writer.count > least for writer in writers)

    def begun() -> bool:
        return (tmp_path / "lake").exists() and DeltaTable.is_deltatable(str(tmp_path / "lake" / f"{database.name}.c"))

    try:
        with Process(tmp_path, "run", file) as running:
            running.until(begun, 120)
            least = max(writer.count for writer in writers)
            running.until(lambda: moved(least + 30), 120)
            running.send(signal.SIGKILL)
            running.wait()
        least = max(writer.count for writer in writers)
        while not moved(least + 10):
            time.sleep(0.05)
    finally:
        for writer in writers:
            writer.end()
    with Process(tmp_path, "run", file, "--once") as last:
        assert last.wait(300) == 0, last.stderr
    for table in TABLES:
        listed = database.execute(
            "select column_name from information_schema.columns"
            f" where table_schema = '{database.name}' and table_name = '{table}' order by ordinal_position"
        )
        columns = [name for (name,) in listed]
        source = rows_of(database, database.name, table, ", ".join(columns))
        assert rows_of(database, f"{database.name}_copy", table, ", ".join(columns)) == source, table
        lake = DeltaTable(str(tmp_path / "lake" / f"{database.name}.{table}")).to_pyarrow_table().select(columns)
        assert sorted((tuple(row.values()) for row in lake.to_pylist()), key=repr) == source, table
