"""`dblog check`: is a database ready for capture, and are the sinks of a pipeline?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dblog.cli.program import (
    DATABASE,
    FAILED,
    AsJson,
    TablesOrFile,
    UrlOrFile,
    app,
    examples,
    only_with_file,
    output,
    print_json,
    private_files,
)
from dblog.cli.settings import pairs
from dblog.errors import ConfigError, DBLogError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dblog.core.schema import TableName
    from dblog.pipelines.readiness import Findings


@app.command(
    epilog=examples(
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog check --tables 'public.*'",
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog check --tables public.orders,public.customers",
        "dblog check --tables 'public.*' --admin-sql > setup.sql",
        "dblog check shop.toml",
        "DBLOG_URL=mysql://app:secret@db.example.com dblog check --tables 'shop.*'",
    ),
    rich_help_panel=DATABASE,
)
def check(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="Check the source and the sinks of this pipeline's file.", show_default=False
        ),
    ] = None,
    url: UrlOrFile = None,
    tables: TablesOrFile = None,
    slot: Annotated[str | None, typer.Option(metavar="NAME", help="Check with this replication slot.")] = None,
    publication: Annotated[str | None, typer.Option(metavar="NAME", help="Check with this publication.")] = None,
    watermark: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Check for watermarks in a table, or for none: a stream that writes nothing to the source.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set an option of the Spark source. Repeatable.")
    ] = None,
    admin_sql: Annotated[
        bool, typer.Option("--admin-sql", help="Print the set-up as SQL for an administrator, and change nothing.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Name every table, and print every line of every fix.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether a database, or the pipeline of a FILE, is ready for capture; show every problem with its fix.

    Changes nothing. Tables that a pattern brings and that cannot be followed are named: a stream starts without them.
    Exit code 1 means that a stream would refuse to start.
    """
    from dblog.pipelines.readiness import Findings, StreamFindings
    from dblog.spark.options import read_options

    if file is not None:
        only_with_file(context, {"admin_sql", "as_json", "verbose"})
        _check_file(file, admin_sql=admin_sql, as_json=as_json, verbose=verbose)
        return
    if url is None or tables is None:
        raise ConfigError("no database is named", hint="give a file (dblog check shop.toml), or --url and --tables")
    given = {"url": url, "tables": tables, "slot": slot, "publication": publication, "watermark": watermark}
    given |= pairs(option or [], "an option")
    options = read_options({name: value for name, value in given.items() if value is not None})
    with options.family.preflight(options.of_source) as there:
        if admin_sql:
            _print_sql(there.admin_sql(), as_json)
            return
        found = Findings(streams={"": StreamFindings(tuple(there.tables), tuple(there.problems()))})
    told = {"source": str(options.address), **there.identity, "tables": [str(t) for t in there.tables]}
    _tell(str(options.address), there.tables, found, told, as_json=as_json, verbose=verbose)


def _check_file(path: Path, *, admin_sql: bool, as_json: bool, verbose: bool) -> None:
    from dblog.pipelines.config import read_config
    from dblog.pipelines.readiness import Findings, StreamFindings, check_streams, check_surroundings
    from dblog.pipelines.running import streams_of

    config = read_config(path)
    streams = streams_of(config, lambda sink, text: None)
    if admin_sql:
        scripts = []
        for stream in streams:  # each has its own slot
            with stream.read.family.preflight(stream.read.of_source) as there:
                scripts.append(there.admin_sql())
        _print_sql("\n".join(dict.fromkeys("".join(scripts).splitlines())) + "\n", as_json)
        return
    with private_files(config.private):  # a sink may create its folder
        surroundings = check_surroundings(config, config.token)
        try:
            found = Findings(surroundings, check_streams(streams))
        except DBLogError as error:
            if not error.retryable:
                raise
            sinks = {stream.sink_name: StreamFindings(sink=stream.check()) for stream in streams}
            found = Findings({"source": error, **surroundings}, sinks)
    source, tables = str(streams[0].read.address), found.streams[streams[0].sink_name].tables
    told = {"source": source, "tables": [str(t) for t in tables]}
    _tell(source, tables, found, told, as_json=as_json, verbose=verbose)


def _print_sql(sql: str, as_json: bool) -> None:
    print_json({"sql": sql}) if as_json else typer.echo(sql, nl=False)


def _tell(
    source: str,
    tables: Sequence[TableName],
    found: Findings,
    told: Mapping[str, Any],
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    """Show what was found. Exits with code 1 if a stream could not run."""
    if as_json:
        left_out = [str(table) for table in found.left_out]
        document = {"ready": not found.fatal, **told, "left_out": left_out}
        document["problems"] = [{**asdict(p), "table": p.table and str(p.table)} for p in found.problems]
        if found.surroundings:
            document["surroundings"] = {name: _error(error) for name, error in found.surroundings.items()}
            document["sinks"] = {name: _error(stream.sink) for name, stream in found.streams.items()}
            document["facts"] = {name: dict(stream.facts) for name, stream in found.streams.items() if stream.facts}
        print_json(document)
    else:
        _show(source, tables, found, verbose=verbose)
    if found.fatal:
        raise typer.Exit(FAILED)


def _error(error: DBLogError | None) -> dict[str, str | None] | None:
    return None if error is None else {"error": error.message, "hint": error.hint}


def _show(source: str, tables: Sequence[TableName], found: Findings, *, verbose: bool) -> None:
    from dblog.core.names import MOST_NAMES, shortened
    from dblog.sources.problems import MOST_FIXES, paragraphs

    console = output()
    names, fixes = (None, None) if verbose else (MOST_NAMES, MOST_FIXES)
    console.print(Text.assemble(("checked ", "bold"), source), soft_wrap=True)
    if tables:
        console.print(Text("tables  " + shortened(list(map(str, tables)), names)), soft_wrap=True)
    sinks = {f"sink {name}": stream.sink for name, stream in found.streams.items()} if found.surroundings else {}
    if fit := [name.removeprefix("sink ") for name, error in sinks.items() if error is None]:
        console.print(Text("sinks   " + ", ".join(fit)), soft_wrap=True)
    for name, stream in found.streams.items():
        if stream.facts:
            facts = ", ".join(f"{about} {text}" for about, text in stream.facts.items())
            console.print(Text(f"sink    {name}: {facts}"), soft_wrap=True)
    for paragraph in paragraphs(found.problems):
        problem = paragraph.first
        mark, style = ("✗", "red") if problem.fatal else ("+", "cyan") if problem.creatable else ("!", "yellow")
        mark = "- left out:" if problem.left_out else mark
        then = "  (will be created)" if problem.creatable else ""
        console.print()
        console.print(Text.assemble((f"{mark} ", style), paragraph.what, (then, "dim")), soft_wrap=True)
        if which := paragraph.tables(names):
            console.print(Text("  " + which), soft_wrap=True)
        for line in paragraph.fixes(fixes):
            console.print(Text("    " + line, "dim" if problem.creatable else ""), soft_wrap=True)
    for name, error in {**found.surroundings, **sinks}.items():
        if error is not None:
            console.print()
            console.print(Text.assemble(("✗ ", "red"), f"{name}: {error.message}"), soft_wrap=True)
            for line in (error.hint or "").splitlines():
                console.print(Text("    " + line), soft_wrap=True)
    console.print()
    if found.fatal:
        console.print(Text(f"not ready: {found.fatal} to fix first", "bold red"))
        return
    said = [f"{len(tables)} {'table' if len(tables) == 1 else 'tables'}"]
    said += [f"{len(found.left_out)} left out"] if found.left_out else []
    if created := sum(p.creatable for p in found.problems):
        said.append(f"{created} {'thing' if created == 1 else 'things'} will be created at the start")
    console.print(Text(f"ready: {'; '.join(said)}", "bold green"))
