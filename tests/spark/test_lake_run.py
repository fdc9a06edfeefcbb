"""The README's first example, run on a real database: the lake follows, and everybody is told who writes it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblog.control.serve import serving
from dblog.pipelines.config import read_config
from dblog.pipelines.running import Stream, streams_of
from tests.cli.program import dblog, document
from tests.conftest import Database

pytestmark = [pytest.mark.server, pytest.mark.spark]

README = Path(__file__).parents[2] / "README.md"
WRITER = "native (Spark is started without a connector)"


def until(reached: Callable[[], bool], stream: Stream, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert stream.error is None, stream.error
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("postgres", ["pg18"], indirect=True)
def test_the_first_example_of_the_readme_runs_and_its_status_says_who_writes(
    spark: SparkSession, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table orders (id int primary key, n int); create table customers (id int primary key)")
    database.execute("insert into orders select i, 0 from generate_series(1, 50) i; insert into customers values (1)")
    password = database.url.split(":")[2].split("@")[0]
    monkeypatch.setenv("SHOP_PASSWORD", password)
    (text,) = re.findall(r"```toml\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    own = database.url.replace(f":{password}@", "@")
    file = tmp_path / "shop.toml"
    file.write_text(
        text.replace("postgresql://cdc@db.example/shop", own) + '\n[pipeline]\nstate = "state.db"\nevery = 0.2\n'
    )
    state = str(tmp_path / "state.db")

    def rows() -> list[tuple[int, int]]:
        folder = str(tmp_path / "lake" / "public.orders")
        if not DeltaTable.is_deltatable(folder):
            return []
        return sorted((row["id"], row["n"]) for row in DeltaTable(folder).to_pyarrow_table().to_pylist())

    assert document("check", file)["facts"] == {"delta": {"format": "delta", "writer": WRITER}}
    (stream,) = streams_of(read_config(file), lambda sink, text: None)
    stream.start(spark, once=False)
    try:
        until(lambda: rows() == [(i, 0) for i in range(1, 51)], stream)
        database.execute("update orders set n = 7 where id = 5; delete from orders where id = 6")
        until(lambda: rows() == [(i, 7 if i == 5 else 0) for i in range(1, 51) if i != 6], stream)
        assert {table.name: chosen for table, chosen in stream.sink.writers.items()} == {  # type: ignore[attr-defined]
            "orders": ("native", "Spark is started without a connector"),
            "customers": ("native", "Spark is started without a connector"),
        }
        status = document("status", "--state", state)
        assert status["state"] == "running"
        assert {"format": "delta", "writer": WRITER}.items() <= status["sink"].items()
        assert re.search(r"sink +format delta, writer native", dblog("status", "--state", state).stdout)
        with serving("127.0.0.1:0", state) as address:
            told = httpx.get(f"{address}/api/v1/status").json()["sink"]
            assert {"format": "delta", "writer": WRITER}.items() <= told.items()
    finally:
        stream.take_no_more()
        stream.stop(time.monotonic() + 30)
        stream.join(30)
    assert stream.error is None
