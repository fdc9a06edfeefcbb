"""The application `dblog`: the options that commands share, how errors are shown, and exit codes.

A DBLogError is shown on standard error with its hint, without a traceback. Exit codes: 0 success, 1 failure, 2 wrong
usage or configuration, 3 a pipeline, dump, slot or schema does not exist or a pipeline does not run, 130 interrupted.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from dblog.core.hints import as_flags
from dblog.errors import ConfigError, DBLogError, NotFound

if TYPE_CHECKING:
    from dblog.state.pipeline import Pipeline

FAILED, MISUSED, ABSENT, INTERRUPTED = 1, 2, 3, 130
PANELS = FIRST_LOOK, PIPELINE, DUMPS, DATABASE = "A first look", "The pipeline", "Dumps", "The database"
"""The groups of commands in `dblog --help`."""

_PASSWORD = re.compile(r"://[^/@:]*:[^@]+@|[?&](ssl)?password=")
"""Matches a URL that has a password."""
WIDE = 400
"""Width of output that is not a terminal, so that nothing is wrapped or cut."""


class Program(TyperGroup):
    """The application. Turns errors into messages and exit codes."""

    def list_commands(self, ctx: Any) -> list[str]:
        commands: Any = self.commands
        return sorted(super().list_commands(ctx), key=lambda name: PANELS.index(commands[name].rich_help_panel))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DBLogError as error:
            show(error)
            raise typer.Exit(exit_code(error)) from error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="dblog",
    cls=Program,
    help="Capture changes and full state of database tables with Spark (DBLog).",
    epilog="Start with: dblog demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from dblog import __version__

        typer.echo(f"dblog {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """The program."""
    app()


def exit_code(error: DBLogError) -> int:
    return MISUSED if isinstance(error, ConfigError) else ABSENT if isinstance(error, NotFound) else FAILED


def show(error: DBLogError) -> None:
    """Print an error and its hint on standard error."""
    console = notes()
    console.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
    if error.hint:
        console.print(Text.assemble(("hint: ", "bold"), as_flags(error.hint)), soft_wrap=True)


def examples(*lines: str) -> str:
    """The examples at the end of a command's help."""
    return "Examples:\n\n" + "\n\n".join(f"  {line}" for line in lines)


# -- options that several commands share ----------------------------------------------------------------------------

PipelineName = Annotated[
    str | None,
    typer.Option("--pipeline", metavar="NAME", help="Choose the pipeline, if several share the state store."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]


def _warn_of_password(context: typer.Context, parameter: typer.CallbackParam, url: str | None) -> str | None:
    """Warn about a password in an argument: other users can see it. They cannot see the environment."""
    source = context.get_parameter_source(parameter.name or "")
    if url and _PASSWORD.search(url) and source is not None and source.name == "COMMANDLINE":
        option = parameter.opts[0]
        text = f"warning: other users can see the password in {option} (with ps): set {parameter.envvar} instead"
        typer.echo(text, err=True)
    return url


StoreLocation = Annotated[
    str | None,
    typer.Option(
        "--state",
        envvar="DBLOG_STATE",
        metavar="LOCATION",
        help="Use this state store: a file, or a URL of ZooKeeper or a database. "
        "Default: a file in your home directory.",
        callback=_warn_of_password,
    ),
]


def url_option(about: str) -> Any:
    """The option --url."""
    return typer.Option(envvar="DBLOG_URL", metavar="URL", help=about, callback=_warn_of_password)


_URL = url_option("Connect to this source, like postgresql://user:password@host/database.")
_TABLES = typer.Option(metavar="PATTERNS", help="Follow the tables that match, like 'public.*, !public.tmp_*'.")
Url = Annotated[str, _URL]
Tables = Annotated[str, _TABLES]
UrlOrFile = Annotated[str | None, _URL]
TablesOrFile = Annotated[str | None, _TABLES]
"""Options that a command does not need if it is given a pipeline's file."""


# -- helpers of commands ---------------------------------------------------------------------------------------------


@contextmanager
def pipeline_of(location: str | None, name: str | None) -> Iterator[Pipeline]:
    """Open the state store and give the pipeline of this name, or the only one. Raises NotFound."""
    from dblog.state import open_store
    from dblog.state.pipeline import only_pipeline

    with closing(open_store(location)) as store:
        yield only_pipeline(store, name, by=_user())


def _user() -> str:
    """Who uses the command line, for the list of actions."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run a user that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


@contextmanager
def private_files(private: bool = True) -> Iterator[None]:
    """Make new files readable by the user only, in this process and its child processes, because they contain keys and
    rows. With False, the umask decides."""
    before = os.umask(0o077)
    try:
        if not private:
            os.umask(before)
        yield
    finally:
        os.umask(before)


def only_with_file(context: typer.Context, allowed: set[str]) -> None:
    """Raise ConfigError if an option was given that belongs into the pipeline's file."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "")
        if parameter.name not in {*allowed, "file"} and given is not None and given.name == "COMMANDLINE":
            raise ConfigError(f"{parameter.opts[0]} cannot be used with a file", hint="write it into the file")


def output() -> Console:
    """Standard output. Texts are never read as markup: names and keys come from the database."""
    return Console(width=None if sys.stdout.isatty() else WIDE, markup=False, highlight=False, emoji=False)


def notes() -> Console:
    """Standard error: remarks, progress, errors."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else WIDE, markup=False, highlight=False, emoji=False)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_line(value: Any) -> None:
    """Print a JSON document on a line of its own, as one of many."""
    typer.echo(json.dumps(value, ensure_ascii=False))
