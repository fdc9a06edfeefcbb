"""The page on the control plane says what is true: routes, settings, events, metrics."""

from __future__ import annotations

import re
from pathlib import Path

from dblog.control import events
from dblog.control.api import create_app
from dblog.control.guard import MOST_BYTES
from dblog.control.metrics import METRICS
from dblog.core.throttle import SETTINGS
from dblog.state import open_store
from dblog.state.events import EventKind
from dblog.state.pipeline import KEEP_ENDED, KEEP_ENDED_SECONDS, KEEP_EVENTS, SILENT_SECONDS

PAGE = (Path(__file__).parents[2] / "docs/control.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_column(title: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", section(title), re.MULTILINE)


def test_the_routes_are_those_of_the_app() -> None:
    paths = create_app(open_store).openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert sorted(first_column("Routes")) == sorted(routes)


def test_the_settings_are_those_of_the_throttle() -> None:
    rows = [f"| `{s.name}` | {s.takes} | {s.about} | {s.shown_default} |" for s in SETTINGS]
    assert [line for line in section("Settings").splitlines() if line.startswith("| `")] == rows


def test_the_events_are_all_there_are() -> None:
    rows = [f"| `{k}` | {', '.join(f'`{name}`' for name in k.fields)} | {k.about} |" for k in EventKind]
    assert [line for line in section("Events").splitlines() if line.startswith("| `")] == rows


def test_the_metrics_are_all_there_are() -> None:
    rows = [f"| `{m.name}` | {m.kind} | {m.about} |" for m in METRICS]
    assert [line for line in section("Metrics").splitlines() if line.startswith("| `")] == rows


def test_the_limits_are_those_of_the_code() -> None:
    assert (events.HEARTBEAT_SECONDS, events.MOST_SUBSCRIBERS, KEEP_EVENTS) == (15, 100, 10_000)
    assert (MOST_BYTES, SILENT_SECONDS) == (1 << 20, 10)
    assert (KEEP_ENDED, KEEP_ENDED_SECONDS) == (500, 90 * 86_400)
    for said in (
        "After 15 s of silence",
        "a hundred subscribers",
        "the last ten thousand",
        "1 MiB",
        "silent for 10 s",
        "the last 500",
        "90 days",
    ):
        assert said in PAGE
