"""The example of Declarative Pipelines, run twice: with AUTO CDC, and into Delta Lake without.

No release of a table format is a target for AUTO CDC on a PySpark that has it. The tables that Spark's own tests use
are: they live in memory, and so in a Spark Connect server that stays between the two runs. `scripts/tables.sh` fetches
them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.conftest import SERVERS, Database
from tests.spark.apps import ROOT
from tests.spark.home import QUICK_START
from tests.versions.minors import run_on

EXAMPLE = ROOT / "examples" / "declarative"
HOME = Path(pyspark.__file__).parent
TABLES = Path(sys.prefix) / "tables.jar"
"""The jar with tables that Spark can MERGE into."""
CATALOG = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"

pytestmark = [pytest.mark.server, pytest.mark.slow]

SHOP = """
create table customers (id int primary key, name text, city text);
create table orders (id int primary key, customer_id int, state text, total numeric(10, 2));
insert into customers select i, 'customer ' || i, 'Paris' from generate_series(1, 5) i;
insert into orders select i, i, 'open', i * 1.25 from generate_series(1, 5) i;
"""
LATER = (
    "update orders set state = 'paid' where id <= 2",
    "update orders set state = 'sent' where id = 1",
    "delete from orders where id in (3, 4)",
    "insert into orders values (4, 4, 'again', null), (6, 1, 'new', 9.75)",
    "update customers set id = 50 where id = 5",
)
ORDERS = {1: ["open", "paid", "sent"], 2: ["open", "paid"], 3: ["open"], 4: ["open", "again"], 5: ["open"], 6: ["new"]}
"""All that the orders have been."""


class Project:
    """A copy of the example, in a folder and for a database of its own."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder = folder
        self.database = database
        shutil.copytree(EXAMPLE, folder / "shop")
        for path in (folder / "shop").rglob("*.*"):
            path.write_text(path.read_text().replace("/tmp/dblog-shop", str(folder)))
        self.environment = {
            **os.environ,
            "SHOP_URL": database.url,
            "SHOP_SPOOL": str(folder / "spool"),
            "DBLOG_STATE": str(folder / "state.db"),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])),
            "JDK_JAVA_OPTIONS": f"-Xss16m {QUICK_START}",
        }

    def run(self, *arguments: str) -> None:
        command = [HOME / "bin/spark-pipelines", "run", *arguments]
        ended = subprocess.run(
            command, cwd=self.folder / "shop", env=self.environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, (ended.stderr + ended.stdout)[-5000:]

    def source(self, table: str) -> list[tuple[Any, ...]]:
        return sorted(self.database.execute(f"select * from {table}"))


def rows(found: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in found.collect()]


def states(history: list[dict[str, Any]], begin: str) -> dict[int, list[str]]:
    """What each order has been, one after the other."""
    found = defaultdict(list)
    for row in sorted(history, key=lambda row: row[begin]):
        found[row["id"]].append(row["state"])
    return dict(found)


# -- AUTO CDC --------------------------------------------------------------------------------------------------------


@contextmanager
def server(project: Project, jar: str) -> Iterator[str]:
    """A Spark Connect server whose catalog `lake` has tables that Spark can MERGE into; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "spark.master": "local[2]",
        "spark.jars": jar,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": project.folder / "warehouse",
        "spark.sql.catalog.lake": CATALOG,
    }
    command: list[Any] = [HOME / "bin/spark-submit"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    said = project.folder / "server.log"
    with said.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=project.environment, cwd=project.folder)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None, said.read_text()[-5000:]
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("postgres", SERVERS[:1], indirect=True)
def test_auto_cdc_keeps_the_tables_and_their_history(database: Database, tmp_path: Path) -> None:
    from pyspark.sql.connect.session import SparkSession

    assert TABLES.exists(), "scripts/tables.sh .venv fetches the tables that Spark can MERGE into"
    project = Project(tmp_path, database)
    with server(project, str(TABLES)) as address:
        spark = SparkSession.builder.remote(address).getOrCreate()
        spark.sql("create table lake.shop.made (id int)").collect()  # a database is there when it has a table
        for changes in ((SHOP,), LATER):
            for change in changes:
                database.execute(change)
            project.run("--remote", address)
            for table, columns in (("customers", 3), ("orders", 4)):
                found = spark.table(f"lake.shop.{table}").collect()
                assert sorted(tuple(row)[:columns] for row in found) == project.source(table)
        history = rows(spark.table("lake.shop.orders_history"))
        assert states(history, "__START_AT") == ORDERS
        open_now = {row["id"]: row["state"] for row in history if row["__END_AT"] is None}
        assert open_now == {row[0]: row[2] for row in project.source("orders")}
        assert {row["id"] for row in rows(spark.table("lake.shop.customers_history"))} == {1, 2, 3, 4, 5, 50}
        spark.stop()


# -- Delta Lake ------------------------------------------------------------------------------------------------------


def test_every_change_reaches_delta(tmp_path: Path) -> None:
    """On the PySpark that the example's connector is built for."""
    run_on("4.2", tmp_path, "tests/examples/declarative_delta.py")
