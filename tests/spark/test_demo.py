"""The demo as a user sees it, and whether its verdict could be bad: a proof that cannot fail proves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import dblog.demo.database
import dblog.demo.demo
import dblog.demo.shop
import dblog.demo.streams
from dblog.cli import app
from dblog.demo.database import DATABASES
from dblog.demo.demo import Demo, run
from dblog.demo.shop import Shop, ShopTable
from dblog.demo.verify import compare, examine
from dblog.errors import DBLogError, SchemaChanged
from dblog.spark.failure import cause
from dblog.testing.mysql_server import find_mariadb, find_mysql
from tests.spark.home import quick_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SOURCE = Path(__file__).parents[2] / "src"
LAST_LINE = r"converged: (\d+) rows, (\d+) log events, (\d+) rows dropped as stale, 0 differences"


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`dblog demo` in a process of its own, whose temporary files are in `folder`."""
    environment = {
        **os.environ,
        **quick_spark(),
        "PYTHONPATH": str(SOURCE),
        "TMPDIR": str(folder),
        "DBLOG_STATE": str(folder / "state.db"),
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", "from dblog.cli import main; main()", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for temporary files, open like /tmp: the server's account makes and removes files in it too."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.mark.slow
def test_the_demo_converges_and_leaves_only_what_it_was_asked_to_keep(scratch: Path, tmp_path: Path) -> None:
    process = start(scratch, "--seconds", "5", "--rows", "20000", "--keep", str(tmp_path / "kept"))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    assert err == ""
    last = re.fullmatch(LAST_LINE, out.splitlines()[-1])
    assert last, out
    rows, events, dropped = map(int, last.groups())
    assert rows > 15_000
    assert events > 500
    assert dropped > 0
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["customers", "order_items", "orders"]
    assert _left(scratch) == []


@pytest.mark.slow
def test_an_interrupted_demo_cleans_up_and_says_so_by_its_exit_code(scratch: Path) -> None:
    process = start(scratch, "--seconds", "300")
    assert process.stdout is not None
    assert any("shoppers change the tables" in line for line in process.stdout)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err == "interrupted\n"
    assert _left(scratch) == []


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.skipif(find_mariadb() is None, reason="MariaDB is not installed: scripts/mariadb.sh")
def test_the_demo_converges_on_mariadb(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dblog.demo.demo, "local_spark", lambda work: nullcontext(spark))
    monkeypatch.setattr(dblog.demo.streams, "ROUNDS", 3)
    shown = StringIO()
    verdict = run(Demo("mariadb", seconds=1, rows=3000, verbose=True), Console(file=shown))
    assert re.fullmatch(LAST_LINE, shown.getvalue().splitlines()[-1]), shown.getvalue()
    assert verdict.converged
    assert verdict.rows > 2000
    assert verdict.events > 100
    assert verdict.dropped > 0


@pytest.mark.server
@pytest.mark.skipif(find_mysql() is None, reason="MySQL is not installed: scripts/mysql.sh")
def test_mysql_understands_the_words_of_the_shop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dblog.demo.shop, "ACTS_PER_SECOND", 1000)
    database = DATABASES["mysql"]()
    try:
        database.start()
        shop = Shop(database, 3000)
        shop.build()
        begin = database.latest()
        shop.open()
        time.sleep(1)
        shop.close()
        shop.raise_failure()
        assert begin < shop.last_change() < database.latest()
        customers, orders, items = (shop.rows(table) for table in shop.tables)
    finally:
        database.server.stop()
    assert {(row[1], row[4]) for row in customers} > {("customer 3", '["seed", "n3"]'), ("customer 4", None)}
    assert max(row[-1] for row in orders) > NOW
    assert max(orders)[0] == max(items)[0] > 1000


@pytest.mark.parametrize(("source", "hint"), [("mariadb", "apt-get install mariadb-server"), ("mysql", "mysql.sh")])
def test_a_server_that_is_not_installed_is_told_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, source: str, hint: str
) -> None:
    monkeypatch.setattr(dblog.demo.database, f"find_{source}", lambda: None)
    monkeypatch.delattr(dblog.demo.demo, "local_spark")
    done = CliRunner().invoke(app, ["demo", "--source", source])
    assert done.exit_code == 2
    assert "which is not installed" in done.stderr
    assert hint in done.stderr


TABLE = ShopTable("orders", ("id",), ("id", "total", "at"), 3)
NOW = datetime(2024, 5, 1, tzinfo=UTC)


def deliver(spark: SparkSession, folder: Path, *batches: list[tuple[Any, ...]]) -> None:
    """Write batches of (id, total, op, lsn, seq) as the demo's streams do."""
    for number, batch in enumerate(batches):
        rows = [
            (key, total, None if total is None else NOW, op, lsn, seq, i)
            for i, (key, total, op, lsn, seq) in enumerate(batch)
        ]
        columns = "id long, total int, at timestamp, _op string, _lsn long, _seq int, _row long"
        spark.createDataFrame(rows, columns).coalesce(1).write.parquet(str(folder / f"batch={number}"))


def test_a_result_that_equals_the_source_has_no_differences(spark: SparkSession, tmp_path: Path) -> None:
    deliver(
        spark,
        tmp_path / "r",
        [(1, 5, "create", 10, 0), (2, 7, "read", 19, 99)],
        [(1, 6, "update", 20, 0), (2, None, "delete", 20, 1), (3, 1, "create", 20, 2)],
    )
    found = examine(spark, TABLE, [(1, 6, NOW), (3, 1, NOW)], tmp_path / "r")
    assert (found.rows, found.events, found.dumped, found.differences) == (2, 4, 1, ())


def test_a_stale_row_delivered_late_is_found_even_if_the_last_state_is_right(
    spark: SparkSession, tmp_path: Path
) -> None:
    deliver(spark, tmp_path / "r", [(1, 6, "update", 20, 0)], [(1, 5, "read", 15, 99)])
    found = examine(spark, TABLE, [(1, 6, NOW)], tmp_path / "r")
    assert [d.what for d in found.differences] == ["read of batch 1 was delivered after a newer event"]


def test_a_row_out_of_order_within_a_batch_is_found(spark: SparkSession, tmp_path: Path) -> None:
    deliver(spark, tmp_path / "r", [(1, 6, "update", 20, 1), (1, 5, "update", 20, 0)])
    found = examine(spark, TABLE, [(1, 6, NOW)], tmp_path / "r")
    assert len(found.differences) == 1


def test_missing_resurrected_and_wrong_rows_are_differences() -> None:
    source = [(1, 5, NOW), (2, 6, NOW)]
    found = compare(TABLE, source, [(2, 7, NOW), (3, 1, NOW)])
    assert [(d.key, d.what) for d in found] == [
        ((1,), "is missing from the result"),
        ((2,), "total is 7, in the source 6"),
        ((3,), "is no longer in the source"),
    ]


def test_the_cause_of_a_failed_query_is_our_own_error_with_its_hint() -> None:
    report = (
        "[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):\n"
        "dblog.errors.SchemaChanged: table public.orders no longer has the columns\nhint: restart the query\n at x"
    )
    error = cause(report)
    assert isinstance(error, SchemaChanged)
    assert (error.message, error.hint) == ("table public.orders no longer has the columns", "restart the query")


def test_a_failure_that_is_not_ours_is_shown_by_its_first_line() -> None:
    error = cause("Job aborted\n at java.lang.Thread")
    assert type(error) is DBLogError
    assert error.message == "Job aborted"


def _left(folder: Path) -> list[str]:
    """What is left there, once the JVM has had a moment to go too."""
    deadline = time.monotonic() + 20
    while (left := [path.name for path in folder.iterdir()]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
