"""`dblog check`: is a database ready for capture, and are the sinks of a pipeline?"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
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
)
from dblog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from dblog.core.schema import TableName
    from dblog.errors import DBLogError
    from dblog.sources.mysql.source import MySQL
    from dblog.sources.postgres.source import Postgres
    from dblog.sources.problems import Problem

PROGRAM = "dblog check"


@app.command(
    epilog=examples(
        "dblog check --url postgresql://app:secret@db.example.com/shop --tables 'public.*'",
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog check --tables public.orders,public.customers",
        "dblog check --tables 'public.*' --admin-sql > setup.sql",
        "dblog check shop.toml",
        "dblog check --url mysql://app:secret@db.example.com --tables 'shop.*'",
    ),
    rich_help_panel=DATABASE,
)
def check(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A pipeline's file: its source and its sinks.", show_default=False),
    ] = None,
    url: UrlOrFile = None,
    tables: TablesOrFile = None,
    slot: Annotated[str | None, typer.Option(metavar="NAME", help="The replication slot of the stream.")] = None,
    publication: Annotated[str | None, typer.Option(metavar="NAME", help="The publication of the stream.")] = None,
    watermark: Annotated[
        str | None, typer.Option(metavar="HOW", help="table, or none for a stream that writes nothing to the source.")
    ] = None,
    admin_sql: Annotated[
        bool, typer.Option("--admin-sql", help="Print the whole set-up as SQL for an administrator, and do nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Is a database ready for capture, and is a pipeline's FILE right? Show every problem with its fix.

    Changes nothing. Exit code 1 means that a stream would refuse to start.
    """
    from dblog.spark.options import read_options

    if file is not None:
        only_with_file(context, {"admin_sql", "as_json"})
        _check_file(file, admin_sql=admin_sql, as_json=as_json)
        return
    if url is None or tables is None:
        raise ConfigError("there is neither a file nor both of --url and --tables", hint="dblog check shop.toml")
    given = {"url": url, "tables": tables, "slot": slot, "publication": publication, "watermark": watermark}
    options = read_options({name: value for name, value in given.items() if value is not None})
    with preflight_of(options.source) as there:
        if admin_sql:
            _print_sql(there.admin_sql(), as_json)
            return
        problems = there.problems()
    told = {"source": str(options.address), **there.identity, "tables": [str(t) for t in there.tables]}
    _tell(str(options.address), there.tables, problems, {}, told, as_json=as_json)


def _check_file(path: Path, *, admin_sql: bool, as_json: bool) -> None:
    from dblog.pipelines.config import read_config
    from dblog.pipelines.running import check_routes, streams_of

    streams = streams_of(read_config(path), lambda sink, text: None)
    problems: dict[tuple[str, str], Problem] = {}
    scripts = []
    for stream in streams:  # each has a slot of its own
        with preflight_of(stream.read.source) as there:
            scripts.append(there.admin_sql() if admin_sql else "")
            problems |= {(p.what, p.fix): p for p in there.problems()}
    if admin_sql:
        _print_sql("\n".join(dict.fromkeys("".join(scripts).splitlines())) + "\n", as_json)
        return
    check_routes(streams)
    sinks = {stream.sink_name: stream.check() for stream in streams}
    source = str(streams[0].read.address)
    told = {"source": source, "tables": [str(t) for t in there.tables]}
    _tell(source, there.tables, list(problems.values()), sinks, told, as_json=as_json)


def _print_sql(sql: str, as_json: bool) -> None:
    print_json({"sql": sql}) if as_json else typer.echo(sql, nl=False)


def _tell(
    source: str,
    tables: Sequence[TableName],
    problems: Sequence[Problem],
    sinks: Mapping[str, DBLogError | None],
    told: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Show what was found; ends the command with 1 when a stream could not run."""
    fatal = sum(p.fatal for p in problems) + sum(error is not None for error in sinks.values())
    if as_json:
        found = {"ready": not fatal, **told, "problems": [asdict(p) for p in problems]}
        errors = {n: None if e is None else {"error": e.message, "hint": e.hint} for n, e in sinks.items()}
        print_json({**found, **({"sinks": errors} if sinks else {})})
    else:
        _show(source, tables, problems, sinks, fatal)
    if fatal:
        raise typer.Exit(FAILED)


@dataclass(frozen=True)
class Preflight:
    """The preflight of one family, over an open connection."""

    identity: Mapping[str, str | int]
    tables: Sequence[TableName]
    problems: Callable[[], Sequence[Problem]]
    admin_sql: Callable[[], str]


def preflight_of(source: MySQL | Postgres) -> AbstractContextManager[Preflight]:
    """The preflight of a source."""
    from dblog.sources.mysql.source import MySQL

    return _mysql(source) if isinstance(source, MySQL) else _postgres(source)


@contextmanager
def _postgres(source: Postgres) -> Iterator[Preflight]:
    from dblog.sources.postgres import preflight
    from dblog.sources.postgres.connect import connect

    setup = source.setup()
    with closing(connect(source.address, application_name=PROGRAM)) as connection:
        yield Preflight(
            {"slot": setup.slot, "publication": setup.publication},
            setup.tables,
            lambda: preflight.check(connection, setup),
            lambda: preflight.admin_sql(setup, connection.info.user, preflight.check(connection, setup)),
        )


@contextmanager
def _mysql(source: MySQL) -> Iterator[Preflight]:
    from dblog.sources.mysql import preflight
    from dblog.sources.mysql.connect import connect

    setup = source.setup()
    with closing(connect(source.address, program=PROGRAM)) as connection:
        yield Preflight(
            {"server_id": setup.server_id},
            setup.tables,
            lambda: preflight.check(connection, setup),
            lambda: preflight.admin_sql(setup, preflight.user(connection), preflight.check(connection, setup)),
        )


def _show(
    source: str,
    tables: Sequence[TableName],
    problems: Sequence[Problem],
    sinks: Mapping[str, DBLogError | None],
    fatal: int,
) -> None:
    console = output()
    console.print(Text.assemble(("checked ", "bold"), source), soft_wrap=True)
    console.print(Text("tables  " + ", ".join(map(str, tables))), soft_wrap=True)
    if fit := [name for name, error in sinks.items() if error is None]:
        console.print(Text("sinks   " + ", ".join(fit)), soft_wrap=True)
    for problem in problems:
        mark, style = ("✗", "red") if problem.fatal else ("+", "cyan") if problem.creatable else ("!", "yellow")
        then = "  (will be created)" if problem.creatable else ""
        console.print()
        console.print(Text.assemble((f"{mark} ", style), problem.what, (then, "dim")), soft_wrap=True)
        for line in problem.fix.splitlines():
            console.print(Text("    " + line, "dim" if problem.creatable else ""), soft_wrap=True)
    for name, error in sinks.items():
        if error is not None:
            console.print()
            console.print(Text.assemble(("✗ ", "red"), f"sink {name}: {error.message}"), soft_wrap=True)
            for line in (error.hint or "").splitlines():
                console.print(Text("    " + line), soft_wrap=True)
    console.print()
    if fatal:
        console.print(Text(f"not ready: {fatal} to fix first", "bold red"))
        return
    created = sum(p.creatable for p in problems)
    things = f": {created} {'thing' if created == 1 else 'things'} will be created at the start" if created else ""
    console.print(Text(f"ready{things}", "bold green"))
