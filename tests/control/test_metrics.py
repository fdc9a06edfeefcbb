"""The metrics say what the store says, in a text that Prometheus can read."""

from __future__ import annotations

import re
import time

import httpx

from dblog.control.metrics import METRICS, Seen, render
from dblog.state.pipeline import Pipeline
from dblog.state.requests import Progress, Request, State, TableProgress, Wish
from dblog.state.store import Store
from tests.control.conftest import start

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

ESCAPES = {r"\\": "\\", r"\n": "\n", r"\"": '"'}


def parse(text: str) -> tuple[Samples, dict[str, str]]:
    """Samples by name and labels, and types, of Prometheus' text format; strict."""
    samples: Samples = {}
    types: dict[str, str] = {}
    helped: set[str] = set()
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if found := re.fullmatch(r"# HELP ([a-z_]+) [^\n]+", line):
            helped.add(found[1])
        elif found := re.fullmatch(r"# TYPE ([a-z_]+) (gauge|counter)", line):
            assert found[1] not in types
            types[found[1]] = found[2]
        else:
            found = re.fullmatch(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\n"])*",?)*)\} (\S+)', line)
            assert found, line
            assert found[1] in types, "a sample comes after its type"
            labels = [
                (name, re.sub(r"\\.", lambda e: ESCAPES[e[0]], value))
                for name, value in re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', found[2])
            ]
            key = found[1], tuple(sorted(labels))
            assert key not in samples
            samples[key] = float(found[3])
    assert helped == set(types)
    return samples, types


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, tuple(sorted({"pipeline": "shop", **labels}.items()))))


def test_every_figure_of_the_status_is_there(shop: Pipeline, client: httpx.Client) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples, types = parse(answer.text)
    assert list(types) == [m.name for m in METRICS]
    assert all((kind == "counter") == name.endswith("_total") for name, kind in types.items() if "dump_t" not in name)
    expected = {
        "dblog_up": 1,
        "dblog_lag_bytes": 100,
        "dblog_lag_seconds": 1.5,
        "dblog_capture_lag_seconds": 0.25,
        "dblog_events_total": 42,
        "dblog_dump_rows_total": 1000,
        "dblog_dropped_rows_total": 7,
        "dblog_windows_total": 5,
        "dblog_selects_total": 9,
        "dblog_select_seconds_total": 2.5,
        "dblog_last_select_seconds": 0.125,
        "dblog_spool_bytes": 65536,
        "dblog_slot_active": 1,
        "dblog_slot_retained_bytes": 4096,
        "dblog_slot_safe_bytes": None,
    }
    assert {name: value(samples, name) for name in expected} == expected
    assert 0 <= (value(samples, "dblog_status_age_seconds") or 0) < 30
    statuses = ("reserved", "extended", "unreserved", "lost")
    assert [value(samples, "dblog_slot_wal_status", status=s) for s in statuses] == [0, 1, 0, 0]


def test_the_tables_that_are_left_out_are_counted(store: Store, client: httpx.Client) -> None:
    start(store, "shop", left_out={"public.b": "no key"}, tables={"public.a": {}, "public.c": {}})
    samples, _ = parse(client.get("/metrics").text)
    assert [value(samples, name) for name in ("dblog_tables", "dblog_tables_left_out")] == [2, 1]


def test_dumps_are_counted_and_those_that_have_not_ended_are_shown(shop: Pipeline, client: httpx.Client) -> None:
    running, waiting, done = (shop.submit(Request()).id for _ in range(3))
    table = TableProgress(State.running, read=40, emitted=30, dropped=10, total=100)
    shop.mirror(running, Progress(State.running, active_seconds=2.0, tables={"public.orders": table}))
    shop.mirror(done, Progress(State.completed, tables={"public.orders": table}))
    shop.wish(waiting, Wish.pause)
    samples, _ = parse(client.get("/metrics").text)
    by_state = {state: value(samples, "dblog_dumps", state=state) for state in State}
    assert by_state == {"queued": 0, "running": 1, "paused": 1, "completed": 1, "cancelled": 0, "failed": 0}
    shown = ("read", "emitted", "dropped", "total", "seconds_left")
    assert [value(samples, f"dblog_dump_{what}", dump=running) for what in shown] == [40, 30, 10, 100, 3]
    assert [value(samples, f"dblog_dump_{what}", dump=waiting) for what in shown] == [0, 0, 0, None, None]
    assert not any(("dump", done) in labels for _, labels in samples)


def test_all_pipelines_are_in_it_whatever_their_names_and_states(shop: Pipeline, store: Store) -> None:
    odd = 'a\\n"b"\n,pipeline="shop"}'
    start(store, odd, state="failed", slot_health=None, lag_seconds=float("1e300"))
    Pipeline(store, "new").open()
    samples, _ = parse(render(Seen.of(Pipeline(store, name)) for name in ("shop", odd, "new")))
    assert [value(samples, "dblog_up", pipeline=name) for name in ("shop", odd, "new")] == [1, 0, 0]
    assert value(samples, "dblog_lag_seconds", pipeline=odd) == 1e300
    assert value(samples, "dblog_slot_active", pipeline=odd) is None
    said = {name for name, labels in samples if ("pipeline", "new") in labels}
    assert said == {"dblog_up", "dblog_state", "dblog_waiting_seconds", "dblog_dumps"}


def test_a_pipeline_that_waits_for_its_sink_shows(shop: Pipeline, client: httpx.Client) -> None:
    said = {"state": "waiting for sink", "since": time.time() - 30, "reason": "gone", "restarts": 3, "unready_after": 9}
    shop.deliver(said)
    samples, _ = parse(client.get("/metrics").text)
    assert value(samples, "dblog_up") == 1
    shown = ("running", "waiting for sink", "restarting", "failed")
    assert [value(samples, "dblog_state", state=s) for s in shown] == [0, 1, 0, 0]
    assert 30 <= (value(samples, "dblog_waiting_seconds") or 0) < 60
    assert value(samples, "dblog_restarts_total") == 3
    shop.deliver({**said, "state": "running", "since": None})
    samples, _ = parse(client.get("/metrics").text)
    assert [value(samples, "dblog_state", state=s) for s in shown] == [1, 0, 0, 0]
    assert value(samples, "dblog_waiting_seconds") == 0


def test_a_status_of_a_newer_database_is_shown_too(shop: Pipeline) -> None:
    shop.say({"state": "running", "slot_health": {"wal_status": "odd"}, "lag_seconds": None})
    samples, _ = parse(render([Seen.of(shop)]))
    assert value(samples, "dblog_slot_wal_status", status="odd") == 1
    assert value(samples, "dblog_slot_wal_status", status="lost") == 0
    assert value(samples, "dblog_lag_seconds") is None


def test_numbers_that_are_none_have_their_words() -> None:
    seen = Seen("x", {"state": "running", "lag_seconds": float("inf"), "lag_bytes": float("nan")}, [], 0.0)
    text = render([seen])
    assert 'dblog_lag_seconds{pipeline="x"} +Inf' in text
    assert 'dblog_lag_bytes{pipeline="x"} NaN' in text
