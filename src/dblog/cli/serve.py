"""`dblog serve`: the HTTP API in its own process. (`dblog run --http` serves it in the process of a pipeline.)"""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager
from typing import Annotated

import typer

from dblog.cli.program import INTERRUPTED, PIPELINE, AsJson, StoreLocation, app, examples, notes, print_line
from dblog.cli.signals import stopping
from dblog.control.installed import check_installed
from dblog.errors import ConfigError

Http = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve the HTTP API on this address.", show_default=False)
]
TokenVariable = Annotated[
    str | None,
    typer.Option(
        "--token-env", metavar="VAR", help="Require the token in this environment variable from HTTP clients."
    ),
]

ReadTokenVariable = Annotated[
    str | None,
    typer.Option(
        "--read-token-env", metavar="VAR", help="Let clients with the token in this environment variable read only."
    ),
]


@app.command(
    epilog=examples("dblog serve", "DBLOG_TOKEN=... dblog serve --http 0.0.0.0:8080 --token-env DBLOG_TOKEN"),
    rich_help_panel=PIPELINE,
)
def serve(
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="Listen on this address.")] = "127.0.0.1:8080",
    token_env: TokenVariable = None,
    read_token_env: ReadTokenVariable = None,
    store: StoreLocation = None,
    as_json: AsJson = False,
) -> None:
    """Serve the HTTP API and its page for the pipelines of a state store, until Ctrl-C or SIGTERM."""
    served = api(http, store, token_of(token_env), token_of(read_token_env))
    with stopping() as stop, served as address:
        stop.listen()
        if as_json:
            print_line({"serving": address})
        notes().print(f"serving {address}; Ctrl-C ends")
        while stop.number is None:
            stop.wait(60.0)
    if stop.number == signal.SIGINT:
        raise typer.Exit(INTERRUPTED)


def token_of(variable: str | None) -> str | None:
    """The token in this environment variable. Raises ConfigError if the variable is not set."""
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise ConfigError(f"the environment variable {variable!r} is not set", hint="put the token into it")
    return token


def api(http: str, store: str | None, token: str | None, read_token: str | None = None) -> AbstractContextManager[str]:
    """The HTTP API, not yet started."""
    check_installed()
    from dblog.control.serve import serving

    api: AbstractContextManager[str] = serving(http, store, token, read_token=read_token)
    return api
