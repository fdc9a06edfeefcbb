"""`dblog status`: state, lag, log position, replication slot and open dumps of a pipeline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dblog.cli.dumps import dump_table
from dblog.cli.number_format import ago, count, duration, moment, size
from dblog.cli.program import (
    PIPELINE,
    AsJson,
    PipelineName,
    StoreLocation,
    app,
    examples,
    output,
    pipeline_of,
    print_json,
    print_line,
)

if TYPE_CHECKING:
    from dblog.state.pipeline import Pipeline
    from dblog.state.requests import Dump

STYLES = {"running": "green", "degraded": "bold yellow", "failed": "bold red", "lost": "bold red"}
REFRESH_SECONDS = 1.0
MOST_LEFT_OUT = 10
"""How many tables that are left out are named."""


@app.command(epilog=examples("dblog status", "dblog status --watch", "dblog status --json"), rich_help_panel=PIPELINE)
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    store: StoreLocation = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Show the pipeline's state, lag, log position, replication slot and open dumps."""
    with pipeline_of(store, name) as pipeline:
        if not watch:
            now, open_dumps = _look(pipeline)
            print_json(_document(now, open_dumps)) if as_json else output().print(_page(now, open_dumps))
        elif as_json:
            while True:
                print_line(_document(*_look(pipeline)))
                time.sleep(REFRESH_SECONDS)
        else:
            with Live(_page(*_look(pipeline)), console=output(), auto_refresh=False) as live:
                while True:
                    time.sleep(REFRESH_SECONDS)
                    live.update(_page(*_look(pipeline)), refresh=True)


def _look(pipeline: Pipeline) -> tuple[dict[str, Any], list[Dump]]:
    return pipeline.status(), [d for d in pipeline.dumps() if not d.state.ended]


def _document(now: dict[str, Any], open_dumps: list[Dump]) -> dict[str, Any]:
    return {**now, "dumps": [d.to_json() for d in open_dumps]}


def _page(now: dict[str, Any], open_dumps: list[Dump]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    state = _state(now)
    grid.add_row("pipeline", Text.assemble(now["pipeline"], "  ", (state, STYLES.get(state, "yellow"))))
    for label, text in _facts(now):
        grid.add_row(label, text)
    return Group(grid, "", dump_table(open_dumps)) if open_dumps else grid


def _state(now: dict[str, Any]) -> str:
    """The state to show. A pipeline that has no table yet and waits for something is `waiting`, not `running`."""
    starting = now["state"] == "running" and now.get("waiting") and not now.get("tables")
    return "waiting" if starting else str(now["state"])


def _facts(now: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """The lines of the page, from the status that the pipeline has written so far."""
    from dblog.sources.family import shown_position
    from dblog.state.pipeline import ALIVE

    def position(name: str) -> str:
        return shown_position(now.get("source"), now.get(name))

    if now.get("error"):
        yield "error", Text(str(now["error"]), "red")
    if "since" in now:
        yield now["state"], Text(f"since {moment(now['since'])}, {ago(now['since'])}: {now['reason']}", "yellow")
    if now.get("restarts"):
        yield "restarts", f"{count(now['restarts'])} since it was started"
    if (ha := now.get("ha")) is not None:
        late = ha["lease_age"] > ha["lease_seconds"]
        renewed = f"epoch {ha['epoch']}, lease renewed {duration(ha['lease_age'])} ago"
        yield "leader", Text(f"{ha['leader'] or 'nobody'}, {renewed}", "yellow" if late or not ha["leader"] else "")
    if now["state"] not in ALIVE and "updated_at" in now:
        yield "last seen", ago(now["updated_at"])
    if "source" in now:
        yield "source", f"{now['source']}{_tables(now)}{_reader(now)}"
    if now.get("sink"):
        yield "sink", Text(", ".join(f"{name} {text}" for name, text in now["sink"].items()))
    if "started_at" in now:
        yield "process", f"{now.get('pid', '?')} on {now.get('host', '?')}, started {ago(now['started_at'])}"
    if "lag_seconds" in now or "lag_bytes" in now:
        captured = now.get("capture_lag_seconds")
        behind = f"; the log arrives {duration(captured)} after the commit" if captured is not None else ""
        yield "lag", f"{duration(now.get('lag_seconds'))}, {size(now.get('lag_bytes'))}{behind}"
    if "position" in now:
        reached = f"{position('position')} delivered, {position('captured')} captured"
        yield "position", f"{reached}, {position('latest')} is the end of the log"
    if "wal_status" in (now.get("slot_health") or {}):
        yield "slot", _slot(now["slot_health"])
    if "events" in now or "rows" in now:
        dropped = f"{count(now.get('dropped'))} dropped as stale"
        yield "delivered", f"{count(now.get('events'))} log events, {count(now.get('rows'))} dump rows; {dropped}"
    if now.get("selects"):
        mean = now.get("select_seconds", 0.0) / now["selects"]
        times = f"{duration(mean)} each, the last {duration(now.get('last_select_seconds'))}"
        yield "dump work", f"{count(now.get('windows'))} windows, {count(now['selects'])} selects, {times}"
    if "spool_bytes" in now:
        yield "spool", size(now["spool_bytes"])
    if now.get("waiting"):
        yield "waiting", Text(str(now["waiting"]), "yellow")
    if now.get("joining"):
        yield "joining", Text(f"{', '.join(now['joining'])}: when open transactions have ended", "yellow")
    if now.get("lost_commits"):
        yield "lost", Text(now["lost_commits"], "yellow")
    for table, found in now.get("failed_tables", {}).items():
        at = f"up to {shown_position(now.get('source'), found['position'])}"
        yield "set aside", Text(f"{table}, {found['reason']}, delivered {at}: {found['message']}", "red")
        yield "", Text(f"dblog retry {table} takes it up again", "red")
    left_out = list(now.get("left_out", {}).items())
    for table, why in left_out[:MOST_LEFT_OUT]:
        yield "left out", Text(f"{table}: {why}", "yellow")
    if len(left_out) > MOST_LEFT_OUT:
        yield "", Text(f"and {len(left_out) - MOST_LEFT_OUT} more tables: dblog status --json names all", "yellow")


def _slot(health: dict[str, Any]) -> Text:
    sound = health.get("active") and health.get("wal_status") in ("reserved", "extended")
    safe = health.get("safe_bytes")
    left = "" if safe is None else f", {size(safe)} until the server removes log that the slot needs"
    active = "active" if health.get("active") else "not active"
    if health.get("read_by") == "catch-up":
        active = "catching up"
    kept = size(health.get("retained_bytes"))
    return Text(f"{active}, {health.get('wal_status', '?')}, {kept} of log kept{left}", "" if sound else "yellow")


def _reader(now: dict[str, Any]) -> str:
    """The name of the stream in the database: its slot or its server id."""
    for name, word in (("slot", "slot"), ("server_id", "server id")):
        if name in now:
            return f", {word} {now[name]}"
    return ""


def _tables(now: dict[str, Any]) -> str:
    many = len(now.get("tables", {}))
    if not many and _state(now) == "waiting":
        return ""
    return ", 1 table" if many == 1 else f", {count(many)} tables"
