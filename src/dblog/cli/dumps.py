"""Dumps on request: `dblog dump`, `dumps`, `pause`, `resume`, `cancel`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from dblog.cli.program import (
    DUMPS,
    FAILED,
    INTERRUPTED,
    AsJson,
    PipelineName,
    StatePlace,
    app,
    examples,
    notes,
    output,
    pipeline_of,
    print_json,
)
from dblog.cli.words import bar, count, duration, moment
from dblog.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from dblog.state.pipeline import Pipeline
    from dblog.state.requests import Dump, TableProgress

LOOK_SECONDS = 0.25
PATIENCE_SECONDS = 30.0
"""So long may a pipeline be away, for a restart say, before nobody waits for its dump any more."""

STYLES = {"running": "cyan", "paused": "yellow", "completed": "green", "cancelled": "dim", "failed": "red"}

DumpId = Annotated[str, typer.Argument(metavar="ID", help="The dump's id, or the number in front of it.")]
MaybeDumpId = Annotated[
    str | None, typer.Argument(metavar="ID", help="The dump's id, or the number in front of it.", show_default=False)
]


@app.command(
    epilog=examples(
        "dblog dump public.orders --wait",
        "dblog dump 'public.*, !public.tmp_*'",
        "dblog dump public.orders --keys 17,18,19",
        "dblog dump public.order_lines --key '[17, 1]' --key '[17, 2]'",
        "dblog dump public.orders --where \"placed_at >= '2024-01-01'\"",
    ),
    rich_help_panel=DUMPS,
)
def dump(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLES", help="Tables, or patterns of them.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All tables of the pipeline.")] = False,
    keys: Annotated[
        str | None, typer.Option(metavar="K,K,...", help="Only the rows with these keys, of one column.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Only this row, too; a composite key is a JSON list. Repeatable."),
    ] = None,
    keys_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Only the rows with the keys in a file of JSON lines; - reads stdin."),
    ] = None,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Only the rows under a condition.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show the progress until the dump ends.")] = False,
    place: StatePlace = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Ask for a dump of tables, of some rows, or of everything. Prints its id.

    The pipeline reads the rows beside the log and delivers them into the stream.
    Without a running pipeline the dump is queued until it runs.
    With --wait, exit code 1 means that the dump did not complete; after Ctrl-C it goes on.
    """
    from dblog.state.requests import State, read_request

    if bool(tables) == everything:
        raise ConfigError(
            "tables and --all exclude each other" if tables else "nothing to dump is named",
            hint="dblog dump public.orders, or dblog dump --all",
        )
    request = read_request(", ".join(tables) if tables else None, list(_keys(keys, key, keys_file)), where)
    with pipeline_of(place, name) as pipeline:
        if wait and not pipeline.running:
            state = pipeline.status()["state"]
            raise NotFound(
                f"pipeline {pipeline.name!r} does not run ({state}), so there is nothing to wait for",
                hint="start it, or leave out --wait: the dump is then queued until the pipeline runs",
            )
        submitted = pipeline.submit(request)
        if not wait:
            _say_submitted(pipeline, submitted, as_json)
            return
        if not as_json:
            typer.echo(submitted.id)
        ended = _wait(pipeline, submitted.id)
    if as_json:
        print_json(ended.to_json())
    if ended.state is not State.completed:
        why = ended.progress.reason or "; ".join(
            f"{t}: {p.reason}" for t, p in ended.progress.tables.items() if p.reason
        )
        notes().print(f"dump {ended.id} {ended.state}" + (f": {why}" if why else ""), soft_wrap=True)
        raise typer.Exit(FAILED)


def _say_submitted(pipeline: Pipeline, submitted: Dump, as_json: bool) -> None:
    if as_json:
        print_json(submitted.to_json())
    else:
        typer.echo(submitted.id)
    state = pipeline.status()["state"]
    if state != "running":
        notes().print(
            f"pipeline {pipeline.name!r} does not run ({state}): the dump is queued and starts when it runs",
            soft_wrap=True,
        )


def _keys(listed: str | None, single: Iterable[str] | None, file: str | None) -> Iterable[Any]:
    """Keys as they were written. Numbers stay the texts they are."""
    if listed is not None:
        parts = [part.strip() for part in listed.split(",")]
        if not all(parts):
            raise ConfigError(
                f"--keys has the value {listed!r}", hint="allowed are keys separated by commas, like 1,2,3"
            )
        yield from parts
    for text in single or ():
        yield _json_key(text, "--key") if text.lstrip().startswith(("[", '"')) else text
    if file is not None:
        found = [_json_key(line, f"line {n} of {file!r}") for n, line in enumerate(_lines(file), 1) if line.strip()]
        if not found:
            raise ConfigError(f"there are no keys in {file!r}", hint="write one key per line, as JSON")
        yield from found


def _lines(file: str) -> list[str]:
    try:
        return sys.stdin.read().splitlines() if file == "-" else Path(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the keys: {error}", hint="name a file of JSON lines in UTF-8") from None


def _json_key(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_int=str, parse_float=str)
    except ValueError:
        raise ConfigError(
            f"{where} is {text!r}, which is not JSON", hint='write a key as 17 or "a", a composite one as ["a", 17]'
        ) from None


def _wait(pipeline: Pipeline, dump_id: str) -> Dump:
    """Show the progress of a dump until it ends."""
    columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}", markup=False)]
    seen = time.monotonic()
    try:
        with Progress(*columns, console=notes(), transient=True) as progress:
            task = progress.add_task(f"dump {dump_id}", total=None, done="")
            while not (now := pipeline.dump(dump_id)).state.ended:
                status = pipeline.status()
                if status["state"] == "running":
                    seen = time.monotonic()
                elif time.monotonic() - seen > PATIENCE_SECONDS:
                    raise NotFound(
                        f"pipeline {pipeline.name!r} does not run any more ({status['state']})",
                        hint=f"dump {dump_id} goes on when the pipeline does: dblog dumps {dump_id}",
                    )
                waiting = status.get("waiting")
                done = f"{_numbers(now)}, {state_of(now)}" + (f" ({waiting})" if waiting else "")
                progress.update(task, total=now.total, completed=now.read, done=done)
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        notes().print(f"dump {dump_id} goes on: dblog dumps {dump_id} shows it, dblog cancel {dump_id} ends it")
        raise typer.Exit(INTERRUPTED) from None
    notes().print(f"dump {now.id} {now.state}: {_numbers(now)}")
    return now


def _numbers(dump: Dump) -> str:
    of = f" of about {count(dump.total)}" if dump.total is not None and not dump.state.ended else ""
    left = "" if dump.seconds_left is None or dump.state.ended else f", {duration(dump.seconds_left)} left"
    return f"{count(dump.read)}{of} rows read, {count(dump.emitted)} emitted, {count(dump.dropped)} dropped{left}"


@app.command(epilog=examples("dblog dumps", "dblog dumps 3", "dblog dumps --json"), rich_help_panel=DUMPS)
def dumps(
    dump_id: MaybeDumpId = None,
    last: Annotated[int, typer.Option(min=0, metavar="N", help="So many of those that have ended; 0 for all.")] = 20,
    place: StatePlace = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Show the dumps: what was asked for, what became of it, how far it is. With an ID, all of one."""
    with pipeline_of(place, name) as pipeline:
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
    """The dumps, one on each line."""
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
    """What was asked for, in short."""
    from dblog.state.pipeline import OWN

    request = dump.request
    if dump.id in OWN:
        return "first dump of the tables" if dump.id == OWN[0] else "rows that the log left incomplete"
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
        ("rows", _numbers(dump)),
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
    everything: Annotated[bool, typer.Option("--all", help="All dumps, also those to come.")] = False,
    place: StatePlace = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Pause a dump, or all. The log flows on, and a dump goes on where it stopped."""
    _hold(dump_id, everything, True, place, name, as_json)


@app.command(epilog=examples("dblog resume 3", "dblog resume --all"), rich_help_panel=DUMPS)
def resume(
    dump_id: MaybeDumpId = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Take back pause --all. Dumps that were paused one by one stay paused.")
    ] = False,
    place: StatePlace = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Let a paused dump go on, or all."""
    _hold(dump_id, everything, False, place, name, as_json)


def _hold(
    dump_id: str | None, everything: bool, pausing: bool, place: str | None, name: str | None, as_json: bool
) -> None:
    from dblog.state.requests import Wish

    if (dump_id is None) != everything:
        verb = "pause" if pausing else "resume"
        raise ConfigError("name one dump, or all of them", hint=f"dblog {verb} 3, or dblog {verb} --all")
    with pipeline_of(place, name) as pipeline:
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
        notes().print("still paused on their own: " + ", ".join(single))


@app.command(epilog=examples("dblog cancel 3"), rich_help_panel=DUMPS)
def cancel(dump_id: DumpId, place: StatePlace = None, name: PipelineName = None, as_json: AsJson = False) -> None:
    """End a dump for good. What it has delivered stays delivered."""
    from dblog.state.requests import Wish

    with pipeline_of(place, name) as pipeline:
        _say_wish(pipeline.wish(dump_id, Wish.cancel), as_json)


def _say_wish(dump: Dump, as_json: bool) -> None:
    if as_json:
        print_json(dump.to_json())
    else:
        typer.echo(f"dump {dump.id} is {state_of(dump)}")
