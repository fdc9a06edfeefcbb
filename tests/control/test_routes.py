"""Every route over a real server and a real store, with a pipeline that only writes what pipelines write."""

from __future__ import annotations

import asyncio
import html
import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from dblog.control.api import create_app
from dblog.errors import StateError
from dblog.state.pipeline import Pipeline
from dblog.state.requests import MOST_KEYS, MOST_TEXT, Progress, Request, State, TableProgress, Wish
from dblog.state.sqlite import SQLiteStore
from dblog.state.store import Document, Store
from tests.control.conftest import STATUS, start

API = "/api/v1"


def error_of(response: httpx.Response) -> str:
    problem = response.json()
    assert set(problem) == {"error", "hint"}
    return f"{response.status_code} {problem['error']}"


def test_the_status_is_what_the_pipeline_says(shop: Pipeline, client: httpx.Client) -> None:
    status = client.get(API + "/status").json()
    unsaid = {"since": None, "reason": None, "restarts": None, "sink": {}, "joining": [], "left_out": {}}
    unsaid |= {"failed_tables": {}, "ha": None, "lost_commits": None}
    unsaid |= dict.fromkeys(("raw_values", "planned", "batches", "batch_seconds", "last_batch_seconds"))
    assert {**STATUS, **unsaid, "pipeline": "shop", "updated_at": status["updated_at"]} == status
    assert abs(status["updated_at"] - time.time()) < 10


def test_a_status_may_say_little_or_more_than_is_known(shop: Pipeline, client: httpx.Client) -> None:
    shop.say({"state": "running", "mood": "fine"})
    status = client.get(API + "/status").json()
    assert (status["state"], status["mood"], status["lag_bytes"], status["tables"]) == ("running", "fine", None, {})


def test_tables_and_schemas(shop: Pipeline, client: httpx.Client) -> None:
    shop.saw_schema("ab12cd34", {"columns": [{"name": "id"}]})
    tables = client.get(API + "/tables").json()
    assert tables == {"pipeline": "shop", "tables": STATUS["tables"]}
    schemas = client.get(API + "/schemas").json()
    assert schemas == {"pipeline": "shop", "schemas": {"ab12cd34": {"columns": [{"name": "id"}]}}}


def test_nothing_is_known_of_a_store_that_nobody_has_used(store: Store, client: httpx.Client) -> None:
    assert client.get(API + "/pipelines").json() == {"pipelines": []}
    assert error_of(client.get(API + "/status")) == "404 no pipeline has used this state store yet"
    assert client.get("/health/ready").status_code == 503


# -- dumps ---------------------------------------------------------------------------------------------------


def test_a_dump_is_requested_and_found_where_the_answer_says(shop: Pipeline, client: httpx.Client) -> None:
    answer = client.post(API + "/dumps", json={"tables": "public.orders", "keys": [17, ["18"], True]})
    assert answer.status_code == 201
    assert answer.json()["state"] == "queued"
    assert answer.json()["kind"] == "keys"
    (dump,) = shop.dumps()
    assert dump.request.keys == (("17",), ("18",), ("true",))
    found = client.get(answer.headers["location"])
    assert found.json() == answer.json()
    assert found.json()["keys"] == [["17"], ["18"], ["true"]]
    assert client.get(f"{API}/dumps/{dump.id.split('-')[0]}").json()["id"] == dump.id
    (listed,) = client.get(API + "/dumps").json()["dumps"]
    assert listed == {**answer.json(), "keys": None}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({}, "all"),
        ({"tables": None, "keys": [], "where": None}, "all"),
        ({"tables": "public.*, !public.tmp_*"}, "table"),
        ({"tables": "public.orders", "where": "total > 5"}, "where"),
        ({"tables": "x" * MOST_TEXT}, "table"),
        ({"tables": "t", "keys": list(range(MOST_KEYS))}, "keys"),
    ],
)
def test_what_can_be_dumped(shop: Pipeline, client: httpx.Client, body: Any, kind: str) -> None:
    assert client.post(API + "/dumps", json=body).json()["kind"] == kind
    assert [d.request.kind for d in shop.dumps()] == [kind]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"keys": [1]}, "a request for keys or a condition needs a table"),
        ({"tables": "a", "keys": [1], "where": "x"}, "both keys and a condition"),
        ({"tables": "a.*", "keys": [1]}, "must name exactly one table"),
        ({"tables": "a..b"}, "where a name is expected"),
        ({"tables": "x" * (MOST_TEXT + 1)}, "4001 characters"),
        ({"tables": "t", "keys": [1] * (MOST_KEYS + 1)}, "10001 keys are too many"),
        ({"tables": "t", "keys": [1, [2, 3]]}, "some keys have more values than others"),
        ({"tables": "t", "keys": [None]}, "body.keys.0"),
        ({"tables": "t", "keys": [[]]}, "body.keys.0"),
        ({"tables": "t", "where": " "}, "the condition has 1 characters"),
        ({"tables": 5}, "body.tables"),
        ({"table": "t"}, "body.table"),
        ([], "body"),
    ],
)
def test_what_cannot_be_dumped(shop: Pipeline, client: httpx.Client, body: Any, error: str) -> None:
    answer = client.post(API + "/dumps", json=body)
    assert answer.status_code == 422
    assert error in answer.json()["error"]
    assert answer.json()["hint"]
    assert shop.dumps() == []


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", {"content-type": "application/json"}, 422),
        (b"", {"content-type": "application/json"}, 422),
        (b"{}", {"content-type": "text/plain"}, 422),
        (b'{"tables": "\xff"}', {"content-type": "application/json"}, 400),
        (b'{"tables": "t", "keys": [%s]}' % (b"1" * 5000), {"content-type": "application/json"}, 400),
        (b'{"tables": "\\ud800"}', {"content-type": "application/json"}, 422),
        (b'{"tables": "t", "keys": ["\\ud800"]}', {"content-type": "application/json"}, 422),
        (b'{"tables": "t", "where": "\\ud800"}', {"content-type": "application/json"}, 422),
        (b'{"\\ud800": 1}', {"content-type": "application/json"}, 422),
        (b"[" * 100_000, {"content-type": "application/json"}, 400),
    ],
)
def test_a_body_that_is_no_json(
    shop: Pipeline, client: httpx.Client, content: bytes, headers: dict[str, str], status: int
) -> None:
    assert error_of(client.post(API + "/dumps", content=content, headers=headers)).startswith(str(status))
    assert shop.dumps() == []


def test_the_progress_of_a_dump_is_mirrored(shop: Pipeline, client: httpx.Client) -> None:
    table = TableProgress(State.running, read=40, emitted=30, dropped=10, total=100, missing=(("1", "2"),), missed=1)
    shop.mirror("initial", Progress(State.running, started_at=5.0, active_seconds=2.0, tables={"public.orders": table}))
    dump = client.get(API + "/dumps/initial").json()
    assert (dump["kind"], dump["state"], dump["read"], dump["total"]) == ("initial", "running", 40, 100)
    assert (dump["seconds_left"], dump["created_at"], dump["started_at"]) == (3.0, None, 5.0)
    assert dump["progress"]["public.orders"] == {
        "state": "running",
        "read": 40,
        "emitted": 30,
        "dropped": 10,
        "total": 100,
        "reason": None,
        "missing": [["1", "2"]],
        "missed": 1,
    }


def test_a_dump_is_paused_resumed_and_cancelled(shop: Pipeline, client: httpx.Client) -> None:
    url = client.post(API + "/dumps", json={}).headers["location"]

    def wish() -> Wish:
        return shop.dumps()[0].wish

    for action, state, wished in (
        ("pause", "paused", Wish.pause),
        ("resume", "queued", Wish.run),
        ("cancel", "cancelled", Wish.cancel),
        ("cancel", "cancelled", Wish.cancel),
    ):
        answer = client.post(f"{url}/{action}")
        assert (answer.status_code, answer.json()["state"], wish()) == (200, state, wished)
    assert "is cancelled already" in error_of(client.post(url + "/pause"))
    assert client.post(url + "/resume").status_code == 409
    assert wish() is Wish.cancel
    for action in ("pause", "resume", "cancel"):
        assert error_of(client.post(f"{API}/dumps/77/{action}")).startswith("404 there is no dump '77'")
    assert client.get(API + "/dumps/77").status_code == 404


# -- settings ------------------------------------------------------------------------------------------------


def test_settings_are_changed_one_by_one(shop: Pipeline, client: httpx.Client) -> None:
    assert client.get(API + "/settings").json()["delay_seconds"] == 0
    assert client.patch(API + "/settings", json={"chunks": 3, "probe": "select 1"}).json()["chunks"] == 3
    assert client.patch(API + "/settings", json={"rows_per_second": 500}).json()["chunks"] == 3
    assert client.patch(API + "/settings", json={"probe": "none"}).json()["probe"] is None
    assert client.patch(API + "/settings", json={}).status_code == 200
    settings = shop.settings()
    assert (settings.chunks, settings.rows_per_second, settings.probe) == (3, 500.0, None)
    assert client.get(API + "/settings").json() == vars(settings)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"chunks": 0}, "422 setting 'chunks' has the value 0"),
        ({"chunks": 2, "speed": 9}, "422 unknown setting 'speed'"),
        ({"chunks": "3"}, "422 body.chunks"),
        ({"chunks": 2, "probe": "\ud800"}, "422 body.probe"),
        ({"chunks": 2, "\ud800": 1}, "422 unknown setting"),
        (None, "422 body"),
    ],
)
def test_a_wrong_setting_changes_nothing(shop: Pipeline, client: httpx.Client, change: Any, error: str) -> None:
    body = json.dumps(change)  # In ASCII: half a surrogate pair too.
    answer = client.patch(API + "/settings", content=body, headers={"content-type": "application/json"})
    assert error_of(answer).startswith(error)
    assert shop.settings().chunks is None


def test_all_dumps_are_paused_and_resumed(shop: Pipeline, client: httpx.Client) -> None:
    assert client.post(API + "/pause").json()["paused"] is True
    assert shop.settings().paused
    assert client.post(API + "/resume").json()["paused"] is False
    assert not shop.settings().paused


# -- several pipelines ---------------------------------------------------------------------------------------


def test_one_of_several_pipelines_has_to_be_named(shop: Pipeline, store: Store, client: httpx.Client) -> None:
    other = start(store, "a/b ü", lag_bytes=7)
    assert client.get(API + "/pipelines").json() == {
        "pipelines": [{"name": "a/b ü", "state": "running"}, {"name": "shop", "state": "running"}]
    }
    unnamed = client.get(API + "/status")
    assert error_of(unnamed) == "404 there are several pipelines"
    assert "shop" in unnamed.json()["hint"]
    assert client.get(API + "/status", params={"pipeline": "a/b ü"}).json()["lag_bytes"] == 7
    assert client.get(API + "/status", params={"pipeline": "none"}).status_code == 404
    client.post(API + "/pause", params={"pipeline": "a/b ü"})
    assert (other.settings().paused, shop.settings().paused) == (True, False)
    location = client.post(API + "/dumps", json={}, params={"pipeline": "a/b ü"}).headers["location"]
    assert client.get(location).json()["kind"] == "all"
    assert (len(other.dumps()), len(shop.dumps())) == (1, 0)


def test_a_misspelt_parameter_is_refused(shop: Pipeline, client: httpx.Client) -> None:
    assert error_of(client.post(API + "/pause?pipelin=shop")).startswith("422 query.pipelin")
    assert not shop.settings().paused


# -- health --------------------------------------------------------------------------------------------------


def test_healthy_is_when_every_pipeline_runs(shop: Pipeline, store: Store, client: httpx.Client) -> None:
    for path in ("/health", "/health/ready"):
        well = {"live": True, "ready": True, "store": True, "pipelines": {"shop": "running"}}
        well |= {"waiting": {}, "left_out": {}, "failed_tables": {}, "ha": {}}
        assert client.get(path).json() == well
    start(store, "other", state="stopped")
    for path in ("/health", "/health/ready"):
        assert client.get(path).status_code == 503
        assert client.get(path).json()["pipelines"] == {"shop": "running", "other": "stopped"}
        assert client.get(path, params={"pipeline": "shop"}).status_code == 200
        assert client.get(path, params={"pipeline": "other"}).status_code == 503
        assert client.get(path, params={"pipeline": "nobody"}).json()["ready"] is False
    assert client.get("/health/live").json() == {"live": True}


def test_status_health_and_metrics_name_the_leader(shop: Pipeline, store: Store, client: httpx.Client) -> None:
    store.put("leases/shop", {"holder": "db1:7", "epoch": 4, "seconds": 10.0, "renewed_at": time.time()})
    said = {"state": "running", "since": None, "reason": None, "restarts": 0, "unready_after": 60}
    shop.deliver({**said, "lease": "leases/shop"})
    for found in (client.get("/health").json()["ha"]["shop"], client.get(API + "/status").json()["ha"]):
        assert found.pop("lease_age") < 60
        assert found == {"leader": "db1:7", "epoch": 4, "lease_seconds": 10.0}
    assert 'dblog_leader_epoch{pipeline="shop"} 4' in client.get("/metrics").text


@pytest.mark.parametrize("state", ["waiting for sink", "restarting"])
def test_a_pipeline_that_waits_is_ready_for_a_while_and_then_it_is_not(
    shop: Pipeline, client: httpx.Client, state: str
) -> None:
    now = {"state": state, "since": time.time() - 5, "reason": "nobody is there", "restarts": 2}
    shop.deliver({**now, "unready_after": 60})
    found = client.get("/health/ready")
    assert (found.status_code, found.json()["pipelines"]) == (200, {"shop": state})
    assert found.json()["waiting"] == {"shop": {"since": now["since"], "reason": "nobody is there"}}
    shop.deliver({**now, "unready_after": 4})
    for path in ("/health", "/health/ready"):
        assert client.get(path).status_code == 503
    assert client.get("/health/live").status_code == 200
    status = client.get(API + "/status").json()
    assert {**status, **now} == status
    assert client.get(API + "/pipelines").json() == {"pipelines": [{"name": "shop", "state": state}]}

    # both processes write, and neither undoes what the other says
    shop.say({**STATUS, "position": 950})
    status = client.get(API + "/status").json()
    assert (status["state"], status["position"]) == (state, 950)
    shop.deliver({**now, "state": "running", "since": None, "reason": None, "unready_after": 4})
    status = client.get(API + "/status").json()
    assert (status["state"], status["since"], status["reason"], status["restarts"]) == ("running", None, None, 2)
    assert client.get("/health/ready").status_code == 200


def test_what_a_process_said_of_its_sink_before_it_was_killed_does_not_count(
    shop: Pipeline, store: Store, client: httpx.Client
) -> None:
    said = {"state": "waiting for sink", "since": 1.0, "reason": "gone", "restarts": 0, "unready_after": 60}
    store.put("pipelines/shop/delivery", {**said, "updated_at": time.time() - 60})
    assert client.get(API + "/status").json()["state"] == "running"
    store.put("pipelines/shop/status", {**STATUS, "updated_at": time.time() - 60})
    assert client.get(API + "/status").json()["state"] == "lost"


def test_a_failure_stands_although_the_sources_process_says_that_it_was_stopped(
    shop: Pipeline, client: httpx.Client
) -> None:
    said = {"state": "running", "since": None, "reason": None, "restarts": 0, "unready_after": 60}
    shop.deliver({**said, "failed": "Spark's JVM has ended"})
    shop.say({**STATUS, "state": "stopped"})
    status = client.get(API + "/status").json()
    assert (status["state"], status["error"]) == ("failed", "Spark's JVM has ended")
    shop.deliver(said)
    assert client.get(API + "/status").json()["state"] == "stopped"


def test_a_pipeline_may_wait_for_its_sink_before_its_source_has_said_anything(
    store: Store, client: httpx.Client
) -> None:
    pipeline = Pipeline(store, "new")
    pipeline.open()
    said = {"since": time.time() - 100, "reason": "gone", "restarts": 0, "unready_after": 60}
    pipeline.deliver({"state": "waiting for sink", **said})
    found = client.get("/health/ready")
    assert (found.status_code, found.json()["pipelines"]) == (503, {"new": "waiting for sink"})


def test_a_pipeline_that_fell_silent_is_not_ready(shop: Pipeline, store: Store, client: httpx.Client) -> None:
    status = shop.status()
    store.put("pipelines/shop/status", {**status, "updated_at": time.time() - 60})
    answer = client.get("/health/ready")
    assert (answer.status_code, answer.json()["pipelines"]) == (503, {"shop": "lost"})


def test_a_store_that_cannot_be_used_is_said(shop: Pipeline, place: str, client: httpx.Client) -> None:
    dump = shop.submit(Request())
    shop.store.close()
    Path(place).write_bytes(b"this is no database" * 100)
    for suffix in ("-wal", "-shm"):
        Path(place + suffix).unlink(missing_ok=True)
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(place).execute("select 1 from document")
    answers = [client.get(API + path) for path in ("/status", "/pipelines", "/dumps", "/settings", "/events")]
    answers += [client.post(API + path) for path in ("/pause", f"/dumps/{dump.id}/pause")]
    answers += [client.post(API + "/dumps", json={}), client.get("/metrics")]
    assert {answer.status_code for answer in answers} == {503}
    assert all("state.db" in answer.json()["error"] for answer in answers)
    ready = client.get("/health/ready")
    assert (ready.status_code, ready.json()["store"]) == (503, False)
    assert client.get("/health/live").status_code == 200


def test_a_store_that_fails_while_it_is_written_is_not_taken_for_a_refusal(shop: Pipeline, place: str) -> None:
    dump = shop.submit(Request())

    class Failing(SQLiteStore):
        fails = False

        def put(self, *_: Any, **__: Any) -> int:
            self.fails = True
            raise StateError("the disk is full")

        def list(self, prefix: str) -> dict[str, Document]:
            if self.fails:
                raise StateError("the disk is full")
            return super().list(prefix)

    app = create_app(lambda: Failing(Path(place)))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.post(f"{API}/dumps/{dump.id}/pause")

    assert error_of(asyncio.run(ask())) == "503 the disk is full"


# -- routes --------------------------------------------------------------------------------------------------


def test_what_is_not_there(client: httpx.Client) -> None:
    assert error_of(client.get("/nothing")).startswith("404")
    assert error_of(client.get("/health/")).startswith("404")
    wrong = client.delete(API + "/dumps")
    assert error_of(wrong).startswith("405")
    assert wrong.headers["allow"] == "GET, POST"
    assert client.post("/docs").headers["allow"]


def test_the_description_is_served(client: httpx.Client) -> None:
    description = client.get("/openapi.json").json()
    assert description["paths"]["/api/v1/dumps"]["post"]["responses"].keys() >= {"201", "404", "413", "422", "503"}


def test_the_page_of_routes_needs_no_other_host(client: httpx.Client) -> None:
    answer = client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    for path, routes in client.get("/openapi.json").json()["paths"].items():
        for method, route in routes.items():
            assert f"{method.upper()} {path}" in answer.text
            assert route["description"].splitlines()[0] in html.unescape(answer.text)
    assert "a condition on the table's rows, in the database's SQL" in html.unescape(answer.text)  # a field of a body
    assert "GET /docs" not in answer.text


def test_no_page_names_another_host(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    pages = [path for path, routes in paths.items() if "get" in routes and not re.search(r"\{|events", path)]
    for path in (*pages, "/docs", "/openapi.json", "/redoc", "/docs/oauth2-redirect"):
        text = client.get(path).text.replace(str(client.base_url).rstrip("/"), "")
        assert not re.search(r"""<script|<link|(src|href)=|https?://""", text), path


def test_the_page_names_only_its_own_files(client: httpx.Client) -> None:
    page = client.get("/").text
    named = re.findall(r"""(?:src|href)="([^"#]+)""", page)
    assert named
    assert not re.search(r"https?://|<style|<script>|style=| on\w+=", page)
    for name in named:
        assert client.get(name).status_code == 200
        for imported in re.findall(r"""from "\./([^"]+)";""", client.get(name).text):
            assert client.get(f"/page/{imported}").status_code == 200


def test_health_names_the_tables_that_are_left_out(store: Store, client: httpx.Client) -> None:
    start(store, "shop", left_out={"public.b": "no key", "public.a": "a view"})
    assert client.get("/health").json()["left_out"] == {"shop": ["public.a", "public.b"]}
    assert client.get("/health").status_code == 200


FAILED = {"reason": "value", "message": "it is NaN", "position": 7, "at": 1.5, "column": "n", "value": "NaN"}


def test_a_pipeline_with_tables_set_aside_is_degraded_and_ready(store: Store, client: httpx.Client) -> None:
    start(store, "shop", failed_tables={"public.b": FAILED})
    health = client.get("/health")
    assert health.status_code == 200
    assert health.json()["pipelines"] == {"shop": "degraded"}
    assert health.json()["failed_tables"] == {"shop": ["public.b"]}
    assert client.get(API + "/status").json()["failed_tables"] == {"public.b": {**FAILED, "key": None}}
    told = client.get("/metrics").text
    assert 'dblog_state{pipeline="shop",state="degraded"} 1' in told
    assert 'dblog_tables_failed{pipeline="shop"} 1' in told


def test_a_table_that_is_set_aside_is_taken_up_again(store: Store, client: httpx.Client) -> None:
    shop = start(store, "shop", failed_tables={"public.b": FAILED})
    answer = client.post(API + "/tables/public.b/retry")
    assert answer.status_code == 202
    assert answer.json() == {**FAILED, "key": None, "table": "public.b"}
    assert shop.retries() == {"public.b": (7, 1.5)}
    assert error_of(client.post(API + "/tables/public.a/retry")).startswith("404 table 'public.a'")
