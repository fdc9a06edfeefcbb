"""The demo into a lake, what it prints at its end, and whether its look at earlier versions could find a difference."""

from __future__ import annotations

import builtins
import random
import re
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

import dblog.demo.demo
import dblog.demo.lake
from dblog.cli import app
from dblog.core.schema import TableName
from dblog.demo.demo import Demo, run
from dblog.demo.shop import Pick, ShopTable, Stock, _cancel, _renumber
from dblog.demo.travel import MOST_BATCHES, _spread, earlier
from dblog.demo.versions import LAKES, LakeTable
from dblog.sinks.lake.marks import BatchMark, delta_mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAST_LINE = r"converged: (\d+) rows, (\d+) log events, (\d+) rows dropped as stale, 0 differences"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("sink", ["delta", "iceberg"])
def test_the_demo_into_a_lake_converges_and_its_line_shows_an_earlier_version(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sink: str
) -> None:
    monkeypatch.setattr(dblog.demo.demo, "local_spark", lambda work: nullcontext(spark))
    monkeypatch.setattr(dblog.demo.lake, "ROUNDS", 3)
    shown, lake = StringIO(), tmp_path / "lake"
    verdict = run(Demo("postgres", 1, 3000, lake, verbose=True, sink=sink), Console(file=shown, soft_wrap=True))
    said = shown.getvalue()
    assert verdict.converged, said
    assert re.fullmatch(LAST_LINE, said.splitlines()[-1]), said
    assert verdict.rows > 2000
    assert verdict.events > 100
    assert verdict.versions is not None
    assert verdict.versions >= 5, "three tables at the stocktaking, and more under load"
    assert f"the lake is kept in '{lake}'; the orders as they were at the stocktaking:" in said
    (line,) = re.findall(r"^ +DuckDB: (.*)$", said, re.MULTILINE)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    orders = LAKES[sink](lake, TableName("public", "orders"), "shop")
    (number,) = re.findall(r'^ +Spark: .*"versionAsOf", (\d+)', said, re.MULTILINE)
    (version,) = [version for version in orders.versions() if version.number == int(number)]
    assert version != orders.versions()[-1], "it is an earlier one"
    states = orders.read(["status"], version)["status"].to_pylist()
    assert "last" in states, "the change that ends the stocktaking"
    for status in set(states):
        assert re.search(rf"{status} +│ +{states.count(status)} │", done.stdout), done.stdout


@pytest.mark.parametrize(("sink", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_lake_whose_package_is_not_installed_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, sink: str, package: str
) -> None:
    plain = builtins.__import__

    def without(name: str, *given: Any, **more: Any) -> Any:
        if name.partition(".")[0] == package or f"native.{sink}" in name:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return plain(name, *given, **more)

    monkeypatch.delattr(dblog.demo.demo, "local_spark")
    monkeypatch.setattr(builtins, "__import__", without)
    done = CliRunner().invoke(app, ["demo", "--sink", sink])
    assert done.exit_code == 2
    assert f"sink '{sink}' needs {package}" in done.stderr
    assert f"pip install 'dblog[{sink}]'" in done.stderr


class Nothing:
    """A cursor whose statements find no row."""

    rowcount = 0

    def __init__(self) -> None:
        self.statements: list[str] = []

    def execute(self, statement: str, values: Any) -> None:
        self.statements.append(statement)


@pytest.mark.parametrize("act", [_cancel, _renumber])
def test_a_shopper_leaves_the_items_of_an_order_that_is_not_there_yet(act: Any) -> None:
    cursor = Nothing()
    act(cursor, Pick(random.Random(1), 10, 10, count(11)))
    assert len(cursor.statements) == 1, "its order may be committed before the second statement sees the items"


# -- earlier versions that are wrong --

ORDERS = ShopTable("orders", ("id",), ("id", "total"), 2)
ITEMS = ShopTable("order_items", ("order_id", "line"), ("order_id", "line"), 2)
Rows = Sequence[tuple[int, int]]


def lake(folder: Path, *batches: tuple[int, Rows, Rows]) -> dict[str, LakeTable]:
    """A lake with a version of both tables for each batch: its position, the orders and the items."""
    for number, (position, orders, items) in enumerate(batches):
        mark = {"userMetadata": delta_mark(BatchMark(number, position), "shop")}
        for table, rows in ((ORDERS, orders), (ITEMS, items)):
            columns = {name: pa.array([row[at] for row in rows], pa.int64()) for at, name in enumerate(table.columns)}
            deltalake.write_deltalake(
                str(folder / f"public.{table.name}"),
                pa.table(columns),
                mode="overwrite",
                commit_properties=deltalake.CommitProperties(custom_metadata=mark),
            )
    return {t.name: LAKES["delta"](folder, TableName("public", t.name), "shop") for t in (ORDERS, ITEMS)}


STOCK = Stock(10, 25, {"orders": [(1, 5), (2, 7)], "order_items": [(1, 1), (2, 1)]})
THEN: tuple[Rows, Rows] = [(1, 5), (2, 7)], [(1, 1), (2, 1)]
NOW: tuple[Rows, Rows] = [(1, 6)], [(1, 1)]


def test_versions_that_the_source_had_have_no_differences(tmp_path: Path) -> None:
    found = earlier([ORDERS, ITEMS], lake(tmp_path, (5, [(1, 5)], []), (20, *THEN), (30, *NOW)), STOCK)
    assert (found.versions, found.differences) == (4, ())


def test_a_version_that_differs_from_the_stock_is_found(tmp_path: Path) -> None:
    tables = lake(tmp_path, (20, [(1, 5), (2, 8)], THEN[1]), (30, *NOW))
    found = earlier([ORDERS, ITEMS], tables, STOCK)
    assert [(d.table, d.key, d.what) for d in found.differences] == [
        ("orders", (2,), "at the stocktaking (version 0): total is 8, in the source 7")
    ]


def test_a_later_version_is_not_taken_for_the_one_of_the_stocktaking(tmp_path: Path) -> None:
    found = earlier([ORDERS, ITEMS], lake(tmp_path, (20, *THEN), (30, *NOW)), replace(STOCK, position=30))
    assert {(d.table, d.key) for d in found.differences} == {
        ("orders", (1,)),
        ("orders", (2,)),
        ("order_items", (2, 1)),
    }


def test_a_batch_that_parts_an_order_from_its_items_is_found(tmp_path: Path) -> None:
    parted = (22, [(1, 5), (2, 7), (3, 1)], [(1, 1), (2, 1), (4, 1), (4, 2)])
    found = earlier([ORDERS, ITEMS], lake(tmp_path, (20, *THEN), parted, (24, *THEN), (30, *NOW)), STOCK)
    assert [(d.table, d.key, d.what) for d in found.differences] == [
        ("orders", (3,), "after the batch that ends at 22: it has no items"),
        ("order_items", (4,), "after the batch that ends at 22: their order does not exist"),
    ]


def test_batches_are_checked_from_the_end_of_the_dump_on_and_not_too_many() -> None:
    assert _spread([1, 2, 3, 4], 3) == [3, 4]
    many = _spread(range(1000), 0)
    assert MOST_BATCHES / 2 < len(many) <= MOST_BATCHES
