"""`dblog dumps`, `pause`, `resume`, `cancel`: show dumps, and control them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from dblog.cli.number_format import bar, count, duration, moment
from dblog.cli.program import (
    DUMPS,
    AsJson,
    PipelineName,
    StoreLocation,
    app,
    examples,
    notes,
    output,
    pipeline_of,
    print_json,
)
from dblog.errors import ConfigError

if TYPE_CHECKING:
    from dblog.state.requests import Dump, TableProgress

STYLES = {"running": "cyan", "paused": "yellow", "completed": "green", "cancelled": "dim", "failed": "red"}

DumpId = Annotated[str, typer.Argument(metavar="ID", help="Id of the dump, or the number at its start.")]
MaybeDumpId = Annotated[
    str | None, typer.Argument(metavar="ID", help="Id of the dump, or the number at its start.", show_default=False)
]


def numbers(dump: Dump) -> str:
    of = f" of about {count(dump.total)}" if dump.total is not None and not dump.state.ended else ""
    left = "" if dump.seconds_left is None or dump.state.ended else f", {duration(dump.seconds_left)} left"
    return f"{count(dump.read)}{of} rows read, {count(dump.emitted)} emitted, {count(dump.dropped)} dropped{left}"


@app.command(epilog=examples("dblog dumps", "dblog dumps 3", "dblog dumps --json"), rich_help_panel=DUMPS)
def dumps(
    dump_id: MaybeDumpId = None,
    last: Annotated[
        int, typer.Option(min=0, metavar="N", help="List at most this many dumps that have ended; 0 lists all.")
    ] = 20,
    location: StoreLocation = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """List the dumps with their state and progress; with an ID, show one in detail."""
    with pipeline_of(location, name) as pipeline:
        found = [pipeline.dump(dump_id)] if dump_id is not None else pipeline.dumps()
    if as_json:
        print_json(found[0].to_json() if dump_id is not None else [d.to_json() for d in found])
    elif dump_id is not None:
        _show_one(found[0])
    else:
        ended = [d for d in found if d.state.ended]
        hidden = {d.id for d in ended[:-last]} if last else set()
        output().print(dump_table(d for d in found if d.id not in hidden))
        if hidden:
            notes().print(f"and {count(len(hidden))} older: dblog dumps --last 0 shows all")
        if not found:
            notes().print(f"pipeline {pipeline.name!r} has no dumps")


def dump_table(found: Iterable[Dump]) -> Table:
    """A table with a dump on each line."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for title in ("ID", "STATE", "WHAT"):
        table.add_column(title, no_wrap=title != "WHAT")
    for title in ("READ", "EMITTED", "DROPPED"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("PROGRESS", no_wrap=True)
    table.add_column("LEFT", justify="right", no_wrap=True)
    for dump in found:
        state = state_of(dump)
        left = "" if dump.state.ended or dump.seconds_left is None else duration(dump.seconds_left)
        table.add_row(
            dump.id,
            Text(state, STYLES.get(state, "")),
            what(dump),
            count(dump.read),
            count(dump.emitted),
            count(dump.dropped),
            bar(_part(dump.read, dump.total, completed=dump.state == "completed")),
            left,
        )
    return table


def state_of(dump: Dump) -> str:
    from dblog.state.requests import Wish

    return "cancelling" if dump.wish is Wish.cancel and not dump.state.ended else str(dump.state)


def what(dump: Dump) -> str:
    """A short description of the request."""
    from dblog.core.dump import INITIAL, OWN

    request = dump.request
    if dump.id in OWN:
        return "first dump of the tables" if dump.id == INITIAL else "rows that the log left incomplete"
    match request.kind:
        case "keys":
            many = "1 key" if len(request.keys) == 1 else f"{count(len(request.keys))} keys"
            return f"{request.tables}, {many}"
        case "where":
            return f"{request.tables} where {request.where}"
    return request.tables or "all tables"


def _part(read: int, total: int | None, *, completed: bool) -> float | None:
    if completed:
        return 1.0
    return None if total is None else read / total if total else 0.0


def _show_one(dump: Dump) -> None:
    console = output()
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    progress = dump.progress
    for label, value in (
        ("dump", dump.id),
        ("state", Text(state_of(dump), STYLES.get(state_of(dump), ""))),
        ("reason", progress.reason),
        ("what", what(dump)),
        ("rows", numbers(dump)),
        ("requested", moment(dump.created_at)),
        ("started", moment(progress.started_at)),
        ("finished", moment(progress.finished_at)),
        ("active", duration(progress.active_seconds) if progress.active_seconds else ""),
    ):
        if value:
            facts.add_row(label, value)
    console.print(facts)
    if progress.tables:
        console.print()
        console.print(_table_progress(progress.tables.items()))
    for table, of in progress.tables.items():
        if of.missed:
            named = ", ".join(json.dumps(k[0] if len(k) == 1 else list(k), ensure_ascii=False) for k in of.missing)
            more = f" and {count(of.missed - len(of.missing))} more" if of.missed > len(of.missing) else ""
            console.print(f"\n{table}: no row has the key {named}{more}", soft_wrap=True)


def _table_progress(tables: Iterable[tuple[str, TableProgress]]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for title in ("TABLE", "STATE"):
        table.add_column(title, no_wrap=True)
    for title in ("READ", "EMITTED", "DROPPED", "OF ABOUT", "MISSING"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("PROGRESS", no_wrap=True)
    table.add_column("REASON")
    for name, of in tables:
        table.add_row(
            name,
            Text(str(of.state), STYLES.get(of.state, "")),
            count(of.read),
            count(of.emitted),
            count(of.dropped),
            count(of.total),
            count(of.missed),
            bar(_part(of.read, of.total, completed=of.state == "completed")),
            of.reason or "",
        )
    return table


@app.command(epilog=examples("dblog pause 3", "dblog pause --all"), rich_help_panel=DUMPS)
def pause(
    dump_id: MaybeDumpId = None,
    everything: Annotated[bool, typer.Option("--all", help="Pause all dumps, and those requested later.")] = False,
    location: StoreLocation = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Pause a dump, or all dumps. Changes from the log are still delivered."""
    _hold(dump_id, everything, True, location, name, as_json)


@app.command(epilog=examples("dblog resume 3", "dblog resume --all"), rich_help_panel=DUMPS)
def resume(
    dump_id: MaybeDumpId = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Undo pause --all; dumps that were paused by their id stay paused.")
    ] = False,
    location: StoreLocation = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Resume a paused dump, or all dumps, where they stopped."""
    _hold(dump_id, everything, False, location, name, as_json)


def _hold(
    dump_id: str | None, everything: bool, pausing: bool, location: str | None, name: str | None, as_json: bool
) -> None:
    from dblog.state.requests import Wish

    if (dump_id is None) != everything:
        verb = "pause" if pausing else "resume"
        raise ConfigError("name one dump, or use --all", hint=f"run dblog {verb} 3, or dblog {verb} --all")
    with pipeline_of(location, name) as pipeline:
        if dump_id is not None:
            _say_wish(pipeline.wish(dump_id, Wish.pause if pausing else Wish.run), as_json)
            return
        pipeline.change({"paused": pausing})
        single = [d.id for d in pipeline.dumps() if d.wish is Wish.pause and not d.state.ended]
    if as_json:
        print_json({"paused": pausing})
        return
    typer.echo(f"all dumps of pipeline {pipeline.name!r} " + ("are paused" if pausing else "may go on"))
    if single and not pausing:
        notes().print("still paused, by their own id: " + ", ".join(single))


@app.command(epilog=examples("dblog cancel 3"), rich_help_panel=DUMPS)
def cancel(dump_id: DumpId, location: StoreLocation = None, name: PipelineName = None, as_json: AsJson = False) -> None:
    """Cancel a dump for good. Rows that it has delivered are not removed."""
    from dblog.state.requests import Wish

    with pipeline_of(location, name) as pipeline:
        _say_wish(pipeline.wish(dump_id, Wish.cancel), as_json)


def _say_wish(dump: Dump, as_json: bool) -> None:
    if as_json:
        print_json(dump.to_json())
    else:
        typer.echo(f"dump {dump.id} is {state_of(dump)}")
