"""Alerts and dashboard ask for metrics and labels that `/metrics` has, and for values that they can have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dblog.control.metrics import METRICS, STATES, WAL_STATUSES, Seen, render
from dblog.state.requests import Dump, Progress, Request, State, TableProgress
from tests.unit.test_docs_cli import commands

FOLDER = Path(__file__).parents[3] / "deploy"
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus/dblog.rules.yml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana/dblog.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VALUES = {
    "dblog_state": ("state", STATES),
    "dblog_dumps": ("state", tuple(map(str, State))),
    "dblog_slot_wal_status": ("status", WAL_STATUSES),
}
"""The values of labels, by metric."""
PROMETHEUS_OWN = {"up": {"job", "instance"}}
"""Metrics that Prometheus makes itself, with their labels."""


def exposed() -> dict[str, set[str]]:
    """The labels of each metric, as `/metrics` shows them for a pipeline that says everything."""
    figures = ("lag_bytes", "lag_seconds", "capture_lag_seconds", "events", "rows", "dropped", "windows", "selects")
    figures += ("select_seconds", "last_select_seconds", "spool_bytes", "restarts", "updated_at", "since", "raw_values")
    slot = {"active": True, "retained_bytes": 1, "safe_bytes": 1, "wal_status": "reserved", "cascades_ignored": 0}
    status = {
        "state": "running",
        **dict.fromkeys(figures, 1.0),
        "slot_health": slot,
        "ha": {"leader": "a", "epoch": 3, "lease_seconds": 10.0, "lease_age": 1.0},
        "tables": {},
        "left_out": [],
        "failed_tables": [],
    }
    tables = {"public.orders": TableProgress(State.running, read=1, total=10)}
    dump = Dump("1-a", Request(), progress=Progress(State.running, active_seconds=1.0, tables=tables))
    text = render([Seen("shop", status, [dump], 2.0)])
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


EXPOSED = exposed()


def test_every_metric_is_exposed_here() -> None:
    assert set(EXPOSED) == {metric.name for metric in METRICS}


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression, with the title of what has it."""
    for rule in ALERTS:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]


def asked(expression: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """The metrics of an expression, each with the conditions on its labels: name, operator, value."""
    for name, conditions in re.findall(r"\b(dblog_\w+|up)\b(?:\{([^}]*)\})?", expression):
        yield name, re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', conditions)


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_an_expression_asks_for_metrics_labels_and_values_that_there_are(title: str, expression: str) -> None:
    known = {**EXPOSED, **PROMETHEUS_OWN}
    found = list(asked(expression))
    assert found
    for name, conditions in found:
        assert name in known, f"{title}: {name}"
        for label, operator, value in conditions:
            assert label in known[name], f"{title}: {name} has no label {label!r}"
            if value != "$pipeline" and name in VALUES and label == VALUES[name][0]:
                given = value.split("|") if "~" in operator else [value]
                assert set(given) <= set(VALUES[name][1]), f"{title}: {given}"
    joined = re.findall(r"\b(?:on|by)\s*\(([^)]*)\)", expression)
    assert {label.strip() for each in joined for label in each.split(",")} <= {"pipeline"}


def kind(name: str) -> str:
    return next(metric.kind for metric in METRICS if metric.name == name)


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_rates_are_of_counters_and_differences_of_gauges(title: str, expression: str) -> None:
    for function, name in re.findall(r"\b(rate|increase|delta|predict_linear)\((dblog_\w+)", expression):
        assert kind(name) == ("counter" if function in ("rate", "increase") else "gauge"), title
    inside = re.findall(r"\b(?:rate|increase)\((dblog_\w+)", expression)
    for name in re.findall(r"dblog_\w+_total", expression):
        assert name in inside or kind(name) == "gauge", f"{title}: a counter says little by itself: {name}"


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {name for panel in PANELS for target in panel["targets"] for name, _ in asked(target["expr"])}
    assert shown == {metric.name for metric in METRICS}


def test_labels_in_texts_are_labels_of_the_metric() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            labels = set.union(*(EXPOSED[name] for name, _ in asked(target["expr"])))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, panel["title"]
    for rule in ALERTS:
        labels = set.union(*({**EXPOSED, **PROMETHEUS_OWN}[name] for name, _ in asked(rule["expr"])))
        text = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, rule["alert"]


def test_every_alert_says_what_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) > 8
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        for name in re.findall(r"`dblog (\w+)`", rule["annotations"]["description"]):
            assert name in commands()


def test_the_dashboard_can_be_laid_out() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells)), "two panels overlap"
    assert all(target["datasource"]["uid"] == "${datasource}" for panel in PANELS for target in panel["targets"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_prometheus_accepts_the_alerts_and_they_fire_when_they_should() -> None:
    for command in (["check", "rules", "dblog.rules.yml"], ["test", "rules", "dblog.test.yml"]):
        done = subprocess.run(
            ["promtool", *command], check=False, capture_output=True, text=True, cwd=FOLDER / "prometheus"
        )
        assert done.returncode == 0, done.stdout + done.stderr
