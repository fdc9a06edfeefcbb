"""What the page reads: all pipelines, samples of the last hours, estimates, tables."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from dblog.control.fleet import judged, lag_of, lost_in_seconds, points
from dblog.state.events import event
from dblog.state.history import KEEP_SAMPLES, SAMPLE_SECONDS, Sampler, sample, samples
from dblog.state.pipeline import Pipeline
from dblog.state.requests import Progress, Request, State, TableProgress
from dblog.state.store import Store
from tests.control.conftest import STATUS, start

API = "/api/v1"


def test_the_worst_pipeline_comes_first(store: Store, client: httpx.Client) -> None:
    start(store, "a_fine")
    start(store, "b_late", lag_seconds=90.0)
    start(store, "c_failed", state="failed", error="the target is full\nhint: make room")
    start(store, "d_stopped", state="stopped")
    start(store, "e_slower", lag_seconds=30.0)
    found = client.get(API + "/fleet").json()
    assert [m["name"] for m in found["pipelines"]] == ["c_failed", "b_late", "e_slower", "a_fine", "d_stopped"]
    assert [m["severity"] for m in found["pipelines"]] == ["bad", "warn", "good", "good", "idle"]
    failed = found["pipelines"][0]
    assert (failed["error"], failed["hint"]) == ("the target is full", "make room")
    assert abs(found["at"] - time.time()) < 60


@pytest.mark.parametrize(
    ("changed", "lost_in", "severity"),
    [
        ({}, None, "good"),
        ({"state": "lost"}, None, "bad"),
        ({"state": "restarting"}, None, "warn"),
        ({"state": "waiting for sink"}, None, "warn"),
        ({"state": "never started"}, None, "idle"),
        ({"slot_health": {"wal_status": "unreserved"}}, None, "bad"),
        ({"state": "stopped", "slot_health": {"wal_status": "lost"}}, None, "bad"),
        ({}, 600.0, "bad"),
        ({}, 7200.0, "warn"),
        ({}, 1e6, "good"),
        ({"lag_seconds": None}, None, "good"),
        ({"state": "stopped", "lag_seconds": 900.0}, None, "idle"),
        ({"failed": {"public.orders": "it broke"}}, None, "warn"),
    ],
)
def test_how_a_pipeline_does(changed: dict[str, Any], lost_in: float | None, severity: str) -> None:
    found, concerns = judged({**STATUS, **changed}, lost_in)
    assert found == severity
    assert bool(concerns) == (severity in ("bad", "warn"))


def test_the_lag_is_split_by_the_part_that_is_next() -> None:
    lag = lag_of({"position": 100, "planned": 130, "captured": 200, "latest": 1000})
    assert lag is not None
    assert (lag.capture, lag.spool, lag.sink) == (800, 70, 30)
    for said in ({"planned": None}, {"planned": 90}, {}):
        lag = lag_of({"position": 100, "captured": 200, "latest": 1000, **said})
        assert lag is not None
        assert (lag.capture, lag.spool, lag.sink) == (800, 100, 0)
    assert lag_of({"position": 100}) is None


def kept(at: float, retained: int) -> dict[str, Any]:
    return {"at": at, "retained_bytes": retained}


def test_the_loss_of_a_slot_is_forecast_from_the_growth_of_its_log() -> None:
    assert lost_in_seconds(3000, [kept(0, 1000), kept(300, 1600)]) == 1500
    assert lost_in_seconds(None, [kept(0, 1000), kept(300, 1600)]) is None
    assert lost_in_seconds(3000, [kept(0, 1600), kept(300, 1000)]) is None, "it shrinks"
    assert lost_in_seconds(3000, [kept(0, 1000), kept(10, 1600)]) is None, "too short to tell"
    assert lost_in_seconds(3000, [{"at": 1.0}, kept(300, 1600)]) is None


def test_rates_are_of_one_life() -> None:
    one = {"started_at": 1.0, "events": 100, "rows": 0, "batches": 4, "batch_seconds": 2.0}
    two = {"started_at": 1.0, "events": 160, "rows": 30, "batches": 6, "batch_seconds": 5.0}
    again = {"started_at": 9.0, "events": 5, "rows": 0, "batches": 1, "batch_seconds": 1.0}
    found = points([{"at": 10.0, **one}, {"at": 25.0, **two}, {"at": 40.0, **again}, {"at": 4000.0, **again}])
    assert [p.events_per_second for p in found] == [None, 4.0, None, None]
    assert (found[1].rows_per_second, found[1].batch_seconds) == (2.0, 1.5)
    assert found[1].dropped_per_second is None


def test_a_running_pipeline_adds_samples_that_stay_bounded(shop: Pipeline) -> None:
    sampler = Sampler()
    sampler.add(shop, STATUS)
    sampler.add(shop, STATUS)
    (only,) = samples(shop)
    assert only["lag_seconds"] == 1.5
    assert only["retained_bytes"] == 4096
    assert "waiting" not in only
    shop.store.append(
        shop.at("history"), [sample(STATUS, float(n)) for n in range(3 * KEEP_SAMPLES)], keep=KEEP_SAMPLES
    )
    assert len(shop.store.tail(shop.at("history"), limit=10**6)) < 1.2 * KEEP_SAMPLES


def test_the_history_has_as_many_samples_as_asked_for(shop: Pipeline, client: httpx.Client) -> None:
    now = time.time()
    values = [sample({**STATUS, "events": 10 * n}, now - (9 - n) * SAMPLE_SECONDS) for n in range(10)]
    shop.store.append(shop.at("history"), values, keep=KEEP_SAMPLES)
    found = client.get(API + "/history", params={"seconds": 3 * SAMPLE_SECONDS}).json()["points"]
    assert len(found) == 4
    assert found[-1]["events_per_second"] == pytest.approx(10 / SAMPLE_SECONDS, rel=0.01)
    assert client.get(API + "/history", params={"seconds": 0}).status_code == 422


def test_one_pipeline_has_more_numbers_and_no_tables(shop: Pipeline, client: httpx.Client) -> None:
    shop.say({**STATUS, "planned": 940, "left_out": {"public.v": "it has no key"}, "role": "leader", "epoch": 3})
    found = client.get(API + "/overview").json()
    assert (found["tables"], found["left_out"], found["position"], found["planned"]) == (2, 1, 900, 940)
    assert found["not_followed"] == {"public.v": "it has no key"}
    assert (found["role"], found["epoch"], found["slow"]) == ("leader", 3, "capture")


def dumped(pipeline: Pipeline, rows: int, seconds: float) -> str:
    dump = pipeline.submit(Request("public.orders"))
    table = TableProgress(State.completed, rows, rows - 1, 1, rows)
    progress = Progress(State.completed, None, 50.0, 60.0, seconds, {"public.orders": table})
    pipeline.mirror(dump.id, progress)
    return dump.id


def test_an_estimate_has_the_rows_and_the_speed_of_the_last_dump(shop: Pipeline, client: httpx.Client) -> None:
    def estimate(**query: Any) -> dict[str, Any]:
        answer: dict[str, Any] = client.get(API + "/estimate", params=query).json()
        return answer

    assert estimate(tables="public.orders")["seconds"] is None
    dumped(shop, 1000, 10.0)
    found = estimate(tables="public.orders")
    assert (found["rows"], found["rows_per_second"], found["seconds"]) == (1234, 100.0, 12.34)
    assert estimate(tables="orders")["tables"] == ["public.orders"]
    everything = estimate()
    assert (everything["count"], everything["rows"]) == (2, None), "the size of one table is not known"
    assert estimate(tables="public.orders", keys=3)["rows"] == 3
    assert estimate(tables="public.none")["count"] == 0
    shop.change({"rows_per_second": 50})
    assert estimate(tables="public.orders")["rows_per_second"] == 50
    assert client.get(API + "/estimate", params={"tables": "a.b.c"}).status_code == 422


def test_tables_come_in_pages(shop: Pipeline, client: httpx.Client) -> None:
    tables = {
        f"public.t{n:03d}": {
            "version": "v",
            "key": ["id"],
            "columns": [["id", "int"]],
            "rows": n % 7,
            "operations": {"update": n},
        }
        for n in range(120)
    }
    shop.say({**STATUS, "tables": tables})

    def page(**query: Any) -> Any:
        return client.get(API + "/tables/page", params=query).json()

    assert page()["count"] == 120
    assert [r["name"] for r in page(skip=118)["rows"]] == ["public.t118", "public.t119"]
    assert page(sort="changes", descending=True, limit=1)["rows"][0]["operations"] == {"update": 119}
    assert page(sort="rows", descending=True, limit=1)["rows"][0]["rows"] == 6
    assert page(search="T11")["count"] == 10
    assert client.get(API + "/tables/names").json()["tables"] == sorted(tables)
    assert client.get(API + "/tables/page", params={"limit": 1000}).status_code == 422


def test_a_table_has_its_schemas_and_dumps(shop: Pipeline, client: httpx.Client) -> None:
    first, second = dumped(shop, 10, 1.0), dumped(shop, 20, 1.0)
    for version, at in (("ab12cd34", 5.0), ("00000000", 9.0)):
        shop.saw_schema(version, {"table": "public.orders", "key": ["id"], "columns": [["id", "int"]], "seen_at": at})
    shop.saw_schema("ffffffff", {"table": "public.items", "key": ["id"], "columns": [], "seen_at": 1.0})
    found = client.get(API + "/tables/one", params={"table": "public.orders"}).json()
    assert [(s["version"], s["current"]) for s in found["schemas"]] == [("ab12cd34", True), ("00000000", False)]
    assert {u["dump"] for u in found["dumps"]} == {first, second}
    assert found["row"]["last_dump"]["dropped"] == 1
    assert client.get(API + "/tables/one", params={"table": "public.none"}).status_code == 404


def test_a_table_has_the_rows_that_were_dropped(shop: Pipeline, client: httpx.Client) -> None:
    facts = {"chunk": "c", "dump": "initial", "by": {"op": "update", "lsn": 7, "seq": 1}}
    shop.tell([event("row_dropped", float(n), {**facts, "table": "public.orders", "key": [str(n)]}) for n in range(90)])
    shop.tell([event("row_dropped", 99.0, {**facts, "table": "public.items", "key": ["1", "2"]})])
    found = client.get(API + "/tables/one", params={"table": "public.orders"}).json()["dropped"]
    assert [row["key"] for row in found[:2]] == [["89"], ["88"]]
    assert len(found) == 50
    (one,) = client.get(API + "/tables/one", params={"table": "public.orders", "key": "73"}).json()["dropped"]
    assert one["by"] == {"op": "update", "lsn": 7, "seq": 1}


def test_the_list_of_pipelines_has_short_trends(shop: Pipeline, client: httpx.Client) -> None:
    values = [sample({**STATUS, "events": 10 * n}, time.time() - (99 - n) * SAMPLE_SECONDS) for n in range(100)]
    shop.store.append(shop.at("history"), values, keep=KEEP_SAMPLES)
    answer = client.get(API + "/fleet")
    (found,) = answer.json()["pipelines"]
    assert {name: len(column) for name, column in found["recent"].items()} == {
        "lag_seconds": 40,
        "events_per_second": 40,
        "rows_per_second": 40,
    }
    assert None not in found["recent"]["events_per_second"]
    assert len(answer.content) < 3000


def test_a_brief_list_of_dumps_has_no_tables(shop: Pipeline, client: httpx.Client) -> None:
    dumped(shop, 10, 1.0)
    (found,) = client.get(API + "/dumps", params={"brief": True}).json()["dumps"]
    assert (found["progress"], found["table_count"], found["tables_ended"], found["read"]) == ({}, 1, 1, 10)
    (whole,) = client.get(API + "/dumps").json()["dumps"]
    assert list(whole["progress"]) == ["public.orders"]
