"""The command line: `dblog demo`, `dblog check`, `dblog version`.

Commands import what they need when they run, so that `dblog --help` answers at once. Errors of ours are shown as what
failed and what to do, without a traceback. Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration, 130
interrupted.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

import dblog
from dblog.errors import ConfigError, DBLogError

if TYPE_CHECKING:
    from dblog.sources.postgres.preflight import Problem

INTERRUPTED = 130

app = typer.Typer(
    name="dblog",
    help="Change data capture with full-state dumps (DBLog) as a Spark streaming source.",
    epilog="Start with: dblog demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The program."""
    try:
        app()
    except DBLogError as error:
        show(error)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def show(error: DBLogError) -> None:
    """What failed and what to do about it, on standard error."""
    console = Console(stderr=True, highlight=False)
    console.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
    if error.hint:
        console.print(Text.assemble(("hint: ", "bold"), error.hint), soft_wrap=True)


@app.command(
    epilog="Examples:\n\n  dblog demo\n\n  dblog demo --seconds 30 --rows 500000\n\n  dblog demo --keep /tmp/result"
)
def demo(
    seconds: Annotated[float, typer.Option(min=0, help="How long rows are changed once the streams run.")] = 12.0,
    rows: Annotated[int, typer.Option(min=6, help="Rows in the tables at the beginning.")] = 60_000,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Leave the Parquet result in this folder.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Let Spark speak, on standard error.")] = False,
) -> None:
    """Capture a busy PostgreSQL into Parquet and prove that nothing is lost.

    Starts an embedded PostgreSQL with a small shop, and Spark.
    Dumps and follows the shop's tables while they change.
    Compares the result with the source, row by row, and leaves nothing behind.
    Needs Java 17 or newer.
    """
    from dblog.demo.demo import Demo, run

    try:
        converged = run(Demo(seconds, rows, keep, verbose), Console(highlight=False))
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if not converged:
        raise typer.Exit(1)


@app.command(
    epilog="Examples:\n\n"
    "  dblog check --url postgresql://app:secret@db.example.com/shop --tables 'public.*'\n\n"
    "  DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog check --tables public.orders,public.customers\n\n"
    "  dblog check --tables 'public.*' --admin-sql > setup.sql"
)
def check(
    url: Annotated[
        str,
        typer.Option(
            envvar="DBLOG_URL", metavar="URL", help="The source, as postgresql://user:password@host/database."
        ),
    ],
    tables: Annotated[str, typer.Option(metavar="PATTERNS", help="Tables to follow, like 'public.*, !public.tmp_*'.")],
    slot: Annotated[str | None, typer.Option(metavar="NAME", help="The replication slot of the stream.")] = None,
    publication: Annotated[str | None, typer.Option(metavar="NAME", help="The publication of the stream.")] = None,
    admin_sql: Annotated[
        bool, typer.Option("--admin-sql", help="Print the whole set-up as SQL for an administrator, and do nothing.")
    ] = False,
) -> None:
    """Is a database ready for capture? Show every problem with its fix.

    Changes nothing. Exit code 1 means that a stream would refuse to start.
    """
    from dblog.sources.postgres import preflight
    from dblog.sources.postgres.connect import connect
    from dblog.spark.options import read_options

    given = {"url": url, "tables": tables, "slot": slot, "publication": publication}
    options = read_options({name: value for name, value in given.items() if value is not None})
    setup = options.source.setup()
    with closing(connect(options.address, application_name="dblog check")) as connection:
        if admin_sql:
            typer.echo(preflight.admin_sql(setup, connection.info.user), nl=False)
            return
        problems = preflight.check(connection, setup)
    console = Console(highlight=False)
    console.print(Text.assemble(("checked ", "bold"), str(options.address)), soft_wrap=True)
    console.print(Text("tables  " + ", ".join(map(str, setup.tables))), soft_wrap=True)
    for problem in problems:
        _show_problem(console, problem)
    fatal = sum(p.fatal for p in problems)
    console.print()
    if fatal:
        console.print(Text(f"not ready: {fatal} to fix first", "bold red"))
        raise typer.Exit(1)
    created = sum(p.creatable for p in problems)
    console.print(Text("ready" + (f": {created} things will be created at the start" if created else ""), "bold green"))


def _show_problem(console: Console, problem: Problem) -> None:
    mark, style = ("✗", "red") if problem.fatal else ("+", "cyan") if problem.creatable else ("!", "yellow")
    then = "  (will be created)" if problem.creatable else ""
    console.print()
    console.print(Text.assemble((f"{mark} ", style), problem.what, (then, "dim")), soft_wrap=True)
    for line in problem.fix.splitlines():
        console.print(Text("    " + line, "dim" if problem.creatable else ""), soft_wrap=True)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"dblog {dblog.__version__}")
