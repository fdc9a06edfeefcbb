"""`dblog watch`: the events of the algorithm as they happen."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dblog.cli.number_format import count, duration
from dblog.cli.program import (
    PIPELINE,
    AsJson,
    PipelineName,
    StoreLocation,
    app,
    examples,
    notes,
    output,
    pipeline_of,
    print_line,
)
from dblog.errors import ConfigError

if TYPE_CHECKING:
    from dblog.state.store import Value

LOOK_SECONDS = 0.25

LINES = {
    "watermark_written": "watermark {token}",
    "watermark_seen": "watermark {token} at {position}",
    "round_opened": "{chunks} chunks are selected",
    "chunk_selected": "chunk {chunk} of {table} for dump {dump}: {rows} rows in {seconds}",
    "row_dropped": "key {key} of {table} in chunk {chunk}: the log has a newer {op} at {lsn}",
    "chunk_emitted": "chunk {chunk} of {table} for dump {dump}: {rows} rows, {dropped} dropped",
    "batch_planned": "up to {position}, {events} log events, {chunks} chunks",
    "offset_committed": "up to {position}, {events} log events",
    "dump_started": "dump {dump}",
    "dump_ended": "dump {dump} {state}{because}",
    "table_joins": "table {table} is followed and dumped{because}",
    "table_renamed": "table {table} is called {name} now",
    "table_left_out": "table {table} is left out{because}",
    "table_set_aside": "table {table} is set aside: {message}",
    "commits_lost": "delivered commits from {after} to {upto} are lost with {servers}: their rows are read again",
    "raw_value": "column {column} of table {table} has values that its type cannot hold",
    "events_lost": "{events} events are not in the log: there were too many",
}
"""The line for each kind of event, with its fields; `because` is its reason, `op` and `lsn` are of the newer event."""

STYLES = {
    "row_dropped": "yellow",
    "dump_started": "cyan",
    "dump_ended": "cyan",
    "table_renamed": "yellow",
    "table_left_out": "yellow",
    "table_set_aside": "red",
    "commits_lost": "red",
    "raw_value": "yellow",
    "events_lost": "yellow",
}


@app.command(
    epilog=examples(
        "dblog watch", "dblog watch --kind row_dropped --kind chunk_emitted", "dblog watch --json | jq .kind"
    ),
    rich_help_panel=PIPELINE,
)
def watch(
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND", help="Print only events of this kind. Repeatable. Kinds: " + ", ".join(LINES) + "."
        ),
    ] = None,
    last: Annotated[int, typer.Option(min=0, max=10_000, metavar="N", help="Print the last N events first.")] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Keep printing new events until Ctrl-C.")] = True,
    store: StoreLocation = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Print the events of the algorithm as they happen: watermarks, chunks, dropped rows, commits."""
    kinds = set(kind or LINES)
    if unknown := sorted(kinds - set(LINES)):
        raise ConfigError(f"there are no events of kind {unknown[0]!r}", hint="the kinds are " + ", ".join(LINES))
    with pipeline_of(store, name) as pipeline:
        entries = pipeline.events(limit=max(last, 1) if kind is None else 10_000)
        wanted = [value for _, value in entries if _is_wanted(value, kinds, all_of_them=kind is None)]
        source = pipeline.status().get("source")
        _show(wanted[-last:] if last else [], source, as_json)
        if not follow:
            return
        if not pipeline.running:
            state = pipeline.status()["state"]
            notes().print(f"pipeline {pipeline.name!r} does not run ({state}): there are no new events until it runs")
        after = entries[-1][0] if entries else 0
        while True:
            if not (entries := pipeline.events(after)):
                time.sleep(LOOK_SECONDS)
                continue
            after = entries[-1][0]
            _show(
                [value for _, value in entries if _is_wanted(value, kinds, all_of_them=kind is None)], source, as_json
            )


def _is_wanted(event: Value, kinds: Collection[str], *, all_of_them: bool) -> bool:
    return all_of_them or event.get("kind") in kinds


def _show(events: list[Value], source: str | None, as_json: bool) -> None:
    console = output()
    for event in events:
        if as_json:
            print_line(event)
            continue
        kind = str(event.get("kind", "?"))
        at = float(event.get("at", 0.0))
        clock = time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"
        line = Text.assemble((clock, "dim"), "  ", (f"{kind:17}", STYLES.get(kind, "")), "  ", told(event, source))
        console.print(line, soft_wrap=True)


def told(event: Value, source: str | None = None) -> str:
    """An event of the database `source` as a sentence. If its kind is not in `LINES`, its fields as JSON."""
    kind = event.get("kind")
    if kind not in LINES:
        return json.dumps({name: value for name, value in event.items() if name not in ("at", "kind")})
    return LINES[kind].format_map(_Words(event, source))


class _Words(dict[str, str]):
    """The fields of an event as texts; a field that is absent is a question mark."""

    def __init__(self, event: Value, source: str | None) -> None:
        from dblog.sources.family import shown_position

        super().__init__({name: self._word(name, value) for name, value in event.items()})
        by: Any = event.get("by") or {}
        self.update(op=str(by.get("op", "change")), lsn=shown_position(source, by.get("lsn")))
        if isinstance(event.get("position"), int):
            self["position"] = shown_position(source, event["position"])
        self["because"] = f": {event['reason']}" if event.get("reason") else ""

    def __missing__(self, name: str) -> str:
        return "?"

    @staticmethod
    def _word(name: str, value: Any) -> str:
        match name, value:
            case "token", str():
                return value[:8]
            case "seconds", int() | float():
                return duration(value)
            case "key", list():
                return json.dumps(value[0] if len(value) == 1 else value, ensure_ascii=False)
            case _, list():
                return count(len(value))
            case _, int():
                return count(value)
        return str(value)
