"""The examples as a user runs them, on small servers of their own: what they say at the end, and what they leave."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from io import StringIO
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from dblog.core.schema import TableName, TableSchema
from dblog.sinks.base import Batch, TableBatch
from dblog.testing.mysql_server import find_mariadb
from examples import scenery
from examples.activity import __main__ as activity
from examples.activity.activity import into
from examples.migration import __main__ as migration
from examples.replication import __main__ as replication
from examples.replication.documents import LOCK, Documents, renew
from examples.scenery import Database, Scene, differences, main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
with_mariadb = pytest.mark.skipif(find_mariadb() is None, reason="MariaDB is not installed: scripts/mariadb.sh")


class Stage(Scene):
    """A scene on the tests' Spark, whose databases are remembered and whose words are kept."""

    def __init__(self, stack: ExitStack, spark: SparkSession, folder: Path) -> None:
        self.said = StringIO()
        self.databases: dict[str, Database] = {}
        super().__init__(stack, Console(file=self.said, width=200), folder, seconds=1.5)
        self.spark = spark

    def postgres(self, name: str) -> Database:
        self.databases[name] = super().postgres(name)
        return self.databases[name]

    def mariadb(self, name: str) -> Database:
        self.databases[name] = super().mariadb(name)
        return self.databases[name]

    @property
    def last_line(self) -> str:
        return self.said.getvalue().splitlines()[-1]


def empty(index: Database, name: str) -> None:
    """A batch in which a table is emptied, after its copy has taken it."""
    index.run(f"delete from copies.{name}")
    schema = TableSchema(TableName("", name), (), ("id",))
    with closing(index.connect()) as connection, connection.cursor() as cursor:
        renew(cursor, TableBatch(schema.table, schema, None, None, (1, 1), incomplete=False))


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack, spark, tmp_path_factory.mktemp("examples"))


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
class TestRuns:
    """All on one pair of servers."""

    @with_mariadb
    def test_orders_and_customers_of_two_databases_become_documents(self, stage: Stage) -> None:
        assert replication.run(stage), stage.said.getvalue()
        last = re.fullmatch(
            r"converged: (\d+) documents from 2 databases, (\d+) changes meanwhile, 0 differences", stage.last_line
        )
        assert last, stage.said.getvalue()
        assert int(last[2]) > 50
        customers, orders, index = (stage.databases[name] for name in ("crm", "shop", "search"))
        names = dict(customers.select("select id, name from customers"))
        wanted = {order: names.get(who) for order, who in orders.select("select id, customer_id from orders")}
        assert dict(index.select("select id, body->>'customer' from documents")) == wanted
        assert len(wanted) == int(last[1]) > 500
        assert None in wanted.values()
        words = {word for (word,) in index.select("select unnest(tsvector_to_array(words)) from documents")}
        assert {"ada", "bergen", "tea", "cocoa"} < words
        assert not index.select("select from information_schema.columns where column_name = 'card'")
        empty(index, "customers")
        assert index.select("select body->>'customer', count(*) from documents group by 1") == [(None, len(wanted))]
        empty(index, "orders")
        assert index.select("select from documents") == []

    def test_two_pipelines_make_documents_one_after_the_other(self, stage: Stage) -> None:
        index = stage.postgres("locked")
        index.run((ROOT / "examples/replication/index.sql").read_text())
        documents = Documents({"url": index.url, "source": "orders"})
        with closing(index.connect()) as other, other.cursor() as cursor, ThreadPoolExecutor(1) as pool:
            cursor.execute("select pg_advisory_lock(%s)", [LOCK])
            writing = pool.submit(documents.write, Batch(0, 1, ()))
            while not index.select("select from pg_locks where not granted"):
                assert not writing.done()
            assert index.select("select batch from dblog.batches") == [(0,)]  # the copy does not wait
            cursor.execute("select pg_advisory_unlock(%s)", [LOCK])
            writing.result()
        documents.close()

    @with_mariadb
    def test_an_old_schema_becomes_a_new_one_and_is_verified_while_people_write(self, stage: Stage) -> None:
        assert migration.run(stage), stage.said.getvalue()
        last = re.fullmatch(
            r"converged: (\d+) rows in 3 new tables from 2 old ones, (\d+) changes meanwhile, 0 differences",
            stage.last_line,
        )
        assert last, stage.said.getvalue()
        assert int(last[2]) > 50
        assert re.search(
            r"people still write; old and new are compared: \d+ rows were late, 0 are wrong", stage.said.getvalue()
        )
        old, new = stage.databases["legacy"], stage.databases["migrated"]
        clients = old.select("select cno, name, vip, zip from clients")
        customers = new.select(
            "select id, first_name, last_name, vip, postcode from customers join addresses on id = customer_id"
        )
        assert sorted(customers) == sorted(
            (cno, *name.split(), vip == "Y", f"{code:05}") for cno, name, vip, code in clients
        )
        purchases = old.select("select pno, cents, state from purchases where test = 0")
        orders = new.select("select id, total * 100, state from orders")
        assert sorted(orders) == sorted((pno, cents, ("new", "paid", "sent")[state]) for pno, cents, state in purchases)
        assert 2 * len(clients) + len(purchases) == int(last[1]) > 1000

    def test_what_happens_in_a_database_is_counted_by_the_second(self, stage: Stage) -> None:
        assert activity.run(stage), stage.said.getvalue()
        last = re.fullmatch(r"converged: (\d+) changes counted, 0 differences", stage.last_line)
        assert last, stage.said.getvalue()
        file = stage.folder / "activity.db"
        assert activity.read(file, "select sum(n) from activity") == [(int(last[1]),)]
        shop = stage.databases["activity"]
        [(visits, orders)] = shop.select("select sum(visits), (select count(*) from orders) from customers")
        counted = {(table, op): number for table, op, number in activity.read(file, activity.TOTALS)}
        assert counted["customers", "update"] == visits > 20
        assert counted["orders", "create"] - counted.get(("orders", "delete"), 0) == orders
        by_second = activity.read(file, activity.BY_SECOND)
        assert len(by_second) >= 3
        created = [second[2] for second in by_second]
        assert sum(created[:2]) > 0
        assert created[-1] == 0  # the new version


@pytest.mark.spark
def test_a_batch_of_counts_that_comes_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    columns = "second timestamp, table string, op string, count long"
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first = spark.createDataFrame([(at, "orders", "create", 2), (at, "orders", "delete", 1)], columns)
    second = spark.createDataFrame([(at, "orders", "create", 5)], columns)
    write = into(tmp_path / "activity.db")
    for number, totals in enumerate((first, second, second)):
        write(totals, number)
    found = activity.read(tmp_path / "activity.db", "select * from activity order by op")
    assert found == [("2026-01-02 03:04:05", "orders", "create", 5), ("2026-01-02 03:04:05", "orders", "delete", 1)]


def test_rows_that_are_wrong_missing_or_too_many_are_differences() -> None:
    assert differences({1: ("a",), 2: ("b",), 3: ("c",)}, {1: ("a",), 2: ("x",), 4: ("d",)}) == {2, 3, 4}


def test_a_row_that_is_late_is_no_suspect_in_the_end_and_one_that_is_wrong_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenery, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(scenery, "LOOK_SECONDS", 0.01)
    looks = count()
    with ExitStack() as stack:
        scene = Scene(stack, Console(file=StringIO()), tmp_path, 0)
        found = scene.suspects("compared", lambda: {1: (1,), 2: (2,)}, lambda: {1: (next(looks),), 2: (3,)})
    assert found == {2}


def run_main(example: Callable[[Scene], bool], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["example", "--verbose"])
    with pytest.raises(SystemExit) as ended:
        main(example, "about")
    return int(ended.value.code or 0)


def test_a_difference_is_the_last_line_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(lambda scene: scene.verdict("7 rows", set()), monkeypatch) == 0
    assert run_main(lambda scene: scene.verdict("7 rows", {1, 2}), monkeypatch) == 1
    assert capsys.readouterr().out.splitlines() == [
        "converged: 7 rows, 0 differences",
        "diverged: 7 rows, 2 differences",
    ]


@pytest.mark.parametrize("example", [replication.run, migration.run])
def test_a_missing_mariadb_is_told_before_spark_starts(
    example: Callable[[Scene], bool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenery, "find_mariadb", lambda: None)
    monkeypatch.setattr(Scene, "postgres", lambda scene, name: Database("postgresql://nowhere"))
    monkeypatch.delattr(scenery, "local_spark")
    assert run_main(example, monkeypatch) == 2
    assert "apt-get install mariadb-server" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["replication", "activity", "migration"])
def test_the_page_names_the_command_and_every_file(name: str) -> None:
    page = (ROOT / "examples" / "README.md").read_text()
    assert f"make example USE={name}" in page
    files = [p.name for p in (ROOT / "examples" / name).iterdir() if p.is_file() and p.name != "__main__.py"]
    assert files
    for file in files:
        assert f"({name}/{file})" in page
