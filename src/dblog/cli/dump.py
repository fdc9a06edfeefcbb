"""`dblog dump`: request a dump and, with --wait, show its progress until it ends."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn

from dblog.cli.dumps import numbers, state_of
from dblog.cli.program import (
    DUMPS,
    FAILED,
    INTERRUPTED,
    AsJson,
    PipelineName,
    StoreLocation,
    app,
    examples,
    notes,
    pipeline_of,
    print_json,
)
from dblog.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from dblog.state.pipeline import Pipeline
    from dblog.state.requests import Dump

LOOK_SECONDS = 0.25
PATIENCE_SECONDS = 30.0
"""How long `--wait` waits for a pipeline that does not run, for example during a restart, in seconds."""


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
        typer.Argument(
            metavar="TABLES",
            help="Dump these tables, or those that match a pattern like 'public.*'.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Dump all tables of the pipeline.")] = False,
    keys: Annotated[
        str | None, typer.Option(metavar="K,K,...", help="Dump only the rows with these keys of one column.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="Dump only the row with this key; write a composite key as a JSON list. Repeatable."
        ),
    ] = None,
    keys_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Dump only the rows with the keys in this file, a JSON value on each line; - reads standard input.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Dump only the rows that meet this condition, in the database's SQL."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the dump ends, and show its progress.")] = False,
    location: StoreLocation = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Request a dump of tables, of some of their rows, or of all tables, and print its id.

    The pipeline reads the rows in chunks between watermarks, and delivers them into its stream.
    If it does not run, the request is queued until it does.
    With --wait, exit code 1 means that the dump failed or was cancelled; Ctrl-C leaves it running.
    """
    from dblog.state.requests import State, read_request

    if bool(tables) == everything:
        raise ConfigError(
            "tables and --all cannot be used together" if tables else "no table is named",
            hint="run dblog dump public.orders, or dblog dump --all",
        )
    request = read_request(", ".join(tables) if tables else None, list(_keys(keys, key, keys_file)), where)
    with pipeline_of(location, name) as pipeline:
        if wait and not pipeline.running:
            state = pipeline.status()["state"]
            raise NotFound(
                f"pipeline {pipeline.name!r} does not run ({state}), so --wait would not end",
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
    if not pipeline.running:
        state = pipeline.status()["state"]
        notes().print(
            f"pipeline {pipeline.name!r} does not run ({state}): the dump is queued and starts when it runs",
            soft_wrap=True,
        )


def _keys(listed: str | None, single: Iterable[str] | None, file: str | None) -> Iterable[Any]:
    """The requested keys. Numbers are kept as texts, so that no digit is lost."""
    if listed is not None:
        parts = [part.strip() for part in listed.split(",")]
        if not all(parts):
            raise ConfigError(f"--keys has the value {listed!r}", hint="separate the keys by commas, like 1,2,3")
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
            f"{where} is {text!r}, which is not JSON", hint='write a key as 17 or "a", a composite key as ["a", 17]'
        ) from None


def _wait(pipeline: Pipeline, dump_id: str) -> Dump:
    """Show the progress of a dump until it ends."""
    from dblog.state.pipeline import ALIVE

    columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}", markup=False)]
    seen = time.monotonic()
    try:
        with Progress(*columns, console=notes(), transient=True) as progress:
            task = progress.add_task(f"dump {dump_id}", total=None, done="")
            while not (now := pipeline.dump(dump_id)).state.ended:
                status = pipeline.status()
                if status["state"] in ALIVE:
                    seen = time.monotonic()
                elif time.monotonic() - seen > PATIENCE_SECONDS:
                    raise NotFound(
                        f"pipeline {pipeline.name!r} does not run any more ({status['state']})",
                        hint=f"dump {dump_id} goes on when the pipeline runs again: dblog dumps {dump_id}",
                    )
                waiting = status.get("waiting")
                done = f"{numbers(now)}, {state_of(now)}" + (f" ({waiting})" if waiting else "")
                progress.update(task, total=now.total, completed=now.read, done=done)
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        notes().print(f"dump {dump_id} goes on: dblog dumps {dump_id} shows it, dblog cancel {dump_id} ends it")
        raise typer.Exit(INTERRUPTED) from None
    notes().print(f"dump {now.id} {now.state}: {numbers(now)}")
    return now
