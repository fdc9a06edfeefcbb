"""A pipeline in operation: its sink goes away and comes back, its query fails and is started again."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import Any

import httpx
import psutil
import pytest

from tests.cli.program import Process, document
from tests.cli.test_run_file import Shop, on_one, shop

__all__ = ["shop"]

START = 400.0
"""Seconds that a Spark may take to start and deliver, on a machine that is very busy."""
LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (INFO   |WARNING|ERROR  ) \S")


def status(shop: Shop) -> dict[str, Any]:
    found: dict[str, Any] = document("status", "--state", shop.folder / "state.db")
    return found


def served(life: Process) -> httpx.Client:
    life.until(lambda: "serving http" in life.stderr, START)
    (url,) = re.findall(r"serving (http\S+)", life.stderr)
    return httpx.Client(base_url=url, timeout=30)


def metric(client: httpx.Client, name: str) -> float:
    (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(value)


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
@on_one
class TestSinkAway:
    def test_a_sink_that_is_away_shows_in_status_health_and_metrics_until_it_is_back(self, shop: Shop) -> None:
        away = shop.folder / "good.away"
        shop.write(shop.keep("good"), more='http = "127.0.0.1:0"\nunready_after = 3')
        away.write_text("always\n")
        with shop.life() as life, served(life) as client:

            def waits() -> bool:
                return bool(client.get("/health").json()["pipelines"].get("shop") == "waiting for sink")

            # 1. away when the pipeline starts: the source's process is not there yet
            began = time.time()
            life.until(waits, START)
            self._looks_away(shop, client, began - START)
            life.until(lambda: client.get("/health/ready").status_code == 503, START)
            assert client.get("/health/ready").json()["waiting"]["shop"]["reason"] == "nobody is at home"
            assert client.get("/health/live").status_code == 200

            # 2. back
            away.unlink()
            life.until(lambda: len(shop.rows("good")) == 300, START)
            life.until(lambda: client.get("/health/ready").status_code == 200, START)
            now = status(shop)
            assert (now["state"], now["restarts"], "since" in now) == ("running", 0, False)
            assert metric(client, 'dblog_waiting_seconds{pipeline="shop"}') == 0

            # 3. away while it runs: the source's process goes on to write the rest of the status
            away.write_text("always\n")
            began = time.time()
            shop.database.execute("update t set n = 1 where id = 5")
            life.until(waits, START)
            self._looks_away(shop, client, began)
            before = status(shop)
            shop.database.execute("update t set n = 2 where id = 5")
            life.until(lambda: status(shop)["latest"] > before["latest"], START)
            assert status(shop)["since"] == before["since"], "it has been away all the time"
            life.until(lambda: client.get("/health/ready").status_code == 503, START)

            # 4. back again
            away.unlink()
            life.until(lambda: client.get("/health/ready").status_code == 200, START)
            life.until(lambda: len(shop.rows("good")) >= 301, START)
            life.send(signal.SIGTERM)
            assert life.wait(START) == 0
        assert life.stderr.count("WARNING good: the sink cannot be reached") == 2, "one line each time"
        assert life.stderr.count("good: the sink is reachable again after") == 2
        assert status(shop)["state"] == "stopped"

    def _looks_away(self, shop: Shop, client: httpx.Client, began: float) -> None:
        now = status(shop)
        assert (now["state"], now["reason"]) == ("waiting for sink", "nobody is at home")
        assert began - 1 <= now["since"] <= time.time()
        assert metric(client, 'dblog_state{pipeline="shop",state="waiting for sink"}') == 1
        assert metric(client, 'dblog_state{pipeline="shop",state="running"}') == 0
        assert metric(client, 'dblog_waiting_seconds{pipeline="shop"}') > 0
        assert client.get("/api/v1/status").json()["reason"] == "nobody is at home"


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
@on_one
class TestRestarts:
    def test_failures_that_may_pass_do_not_end_the_pipeline(self, shop: Shop) -> None:
        shop.write(shop.keep("good"), more='http = "127.0.0.1:0"')
        (shop.folder / "good.trouble").write_text("odd\n")
        with shop.life() as life, served(life) as client:
            # 1. an error of the sink's own, at the first batch with rows
            life.until(lambda: len(shop.rows("good")) == 300, START)
            life.until(lambda: status(shop)["state"] == "running", START)
            assert status(shop)["restarts"] == 1
            restart = r"WARNING good: the stream failed, restart 1 of 5 in 1 s: .*RuntimeError: odd"
            assert re.search(restart, life.stderr)
            life.until(lambda: "good: running again after" in life.stderr, START)

            # 2. the source's process dies while nothing happens, and the slot is free for the next one
            pid = status(shop)["pid"]
            os.kill(pid, signal.SIGKILL)
            life.until(lambda: status(shop)["state"] == "restarting", START)
            assert metric(client, 'dblog_state{pipeline="shop",state="restarting"}') == 1
            assert client.get("/health").json()["waiting"]["shop"]["reason"]
            life.until(lambda: status(shop)["state"] == "running" and status(shop)["pid"] != pid, START)

            # 3. a task's Python process dies while it delivers a change
            (shop.folder / "good.trouble").write_text("dead worker\n")
            shop.database.execute("update t set n = 1 where id = 5")
            life.until(lambda: len(shop.rows("good")) == 301, START)
            life.until(lambda: status(shop)["state"] == "running", START)
            assert metric(client, 'dblog_restarts_total{pipeline="shop"}') == 3

            # 4. what needs a person ends it
            (shop.folder / "good.trouble").write_text("for good\n")
            shop.database.execute("update t set n = 2 where id = 5")
            assert life.wait(START) == 1
        assert re.search(r"ERROR   good: the target refuses this; hint: ask its owner", life.stderr)
        assert life.stderr.count("the stream failed, restart") == 3
        end = status(shop)
        assert (end["state"], end["error"]) == ("failed", "the target refuses this\nhint: ask its owner")
        assert re.search("good: batch .* and 300 rows of dumps, .*; failed", life.stderr)
        lines = life.stderr.splitlines()
        assert all(LINE.match(line) for line in lines), [line for line in lines if not LINE.match(line)]
        for said in ("good: started", "good: all dumps have ended, 300 rows", "good: caught up with the log"):
            assert said in life.stderr
        assert shop.password not in life.stderr + life.stdout
        rows = shop.rows("good")
        assert sorted(row["id"] for row in rows if row["_op"] == "read") == list(range(1, 301))
        assert [(row["id"], row["n"]) for row in rows if row["_op"] == "update"] == [(5, 1)]

    def test_the_budget_of_restarts_ends_and_the_error_is_told(self, shop: Shop) -> None:
        shop.write(shop.keep("good"), more="restarts = 1")
        (shop.folder / "good.trouble").write_text("odd\nodder\noddest\n")
        with shop.life("--once", "--json") as life:
            assert life.wait(START) == 1
        assert life.stderr.count("the stream failed, restart 1 of 1 in 1 s") == 1
        told = [json.loads(line) for line in life.stdout.splitlines()]
        assert "RuntimeError: odder" in told[-1]["error"]
        assert status(shop)["state"] == "failed"
        with shop.life("--once") as again:
            assert again.wait(START) == 0, again.stderr
        assert again.stderr.count("the stream failed, restart 1 of 1 in 1 s") == 1
        assert sorted(row["id"] for row in shop.rows("good")) == list(range(1, 301))
        assert status(shop)["state"] == "stopped"

    def test_without_its_jvm_the_pipeline_ends_and_says_so(self, shop: Shop) -> None:
        shop.write(shop.keep("good"))
        with shop.life() as life:
            life.until(lambda: len(shop.rows("good")) == 300, START)
            (java,) = [p for p in psutil.Process(life.process.pid).children(recursive=True) if p.name() == "java"]
            java.kill()
            assert life.wait(START) == 1
        assert "ERROR   good: Spark's JVM has ended" in life.stderr
        assert "the stream failed, restart" not in life.stderr, "no query can be started any more"
        assert "Traceback" not in life.stderr
        assert status(shop)["state"] == "failed"
