"""`dblog run`: run a pipeline from a file, or from flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dblog.cli.flags import Format, config_of_flags
from dblog.cli.program import PIPELINE, AsJson, StoreLocation, UrlOrFile, app, examples, only_with_file
from dblog.cli.serve import Http, TokenVariable, token_of
from dblog.cli.settings import pairs
from dblog.core.masking import has_password
from dblog.errors import ConfigError

if TYPE_CHECKING:
    from dblog.pipelines.config import Config


@app.command(
    epilog=examples(
        "dblog run shop.toml",
        "dblog run shop.toml --once",
        "dblog run shop.toml --standby",
        "dblog run shop.toml --master spark://spark.example:7077",
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog run --table public.orders --into /lake/orders",
        "dblog run --tables 'public.*' --into /lake/shop --format json --once",
        "dblog run --tables 'public.*' --into /lake/shop --every 10 --http 127.0.0.1:8080",
        "dblog run --table public.orders --format noop --checkpoint /tmp/orders --option chunkRows=5000",
    ),
    rich_help_panel=PIPELINE,
)
def run(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Run the pipeline of this TOML file.", show_default=False),
    ] = None,
    url: UrlOrFile = None,
    tables: Annotated[
        str | None,
        typer.Option(metavar="PATTERNS", help="Follow the tables that match, like 'public.*, !public.tmp_*'."),
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="Follow one table.")] = None,
    into: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write files to this folder, in a folder for each table.")
    ] = None,
    output: Annotated[
        Format,
        typer.Option(
            "--format",
            help="Write Parquet files, files of JSON lines, JSON lines on standard output (console), or nothing.",
        ),
    ] = Format.parquet,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Keep checkpoint and spool in this folder. Default: _checkpoint in --into."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Deliver everything that is there now, then exit.")] = False,
    every: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Start a batch at this interval. Default: when the last batch has ended.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set an option of the Spark source. Repeatable.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--pipeline", metavar="NAME", help="Name the pipeline. Default: the slot's name.")
    ] = None,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Take part in the election: run as the leader, or wait until the leader ends."),
    ] = False,
    store: StoreLocation = None,
    http: Http = None,
    token_env: TokenVariable = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="MASTER", help="Run Spark's tasks there: local[4], spark://host:7077, yarn, k8s://https://host:443."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Spark's own output on standard error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the pipeline of a FILE or, without a FILE, the pipeline of the flags.

    Ctrl-C or SIGTERM stops it after the current batch; a second Ctrl-C stops it at once. The next start continues from
    the checkpoint. Progress is logged to standard error; --json also prints each batch as a JSON line on standard
    output. With --standby several instances may run on several machines: one leads, the others wait. Needs Java 17 or
    newer.
    """
    from dblog.cli.runner import run_pipeline
    from dblog.pipelines.secrets import Secret

    if file is not None:
        from dblog.pipelines.config import read_config

        only_with_file(context, {"once", "standby", "store", "http", "token_env", "master", "verbose", "as_json"})
        config = read_config(file)
    else:
        given = {"url": url, "table": table, "tables": tables, "state": store, "pipeline": name}
        config = _from_flags(given, option or (), output, into, checkpoint, every, once=once)
    token = config.token if token_env is None else token_of(token_env)
    hidden = Secret(store) if store and has_password(store) else store
    config = replace(
        config,
        state=config.state or hidden,
        secrets=(*config.secrets, hidden) if isinstance(hidden, Secret) else config.secrets,
        http=http or config.http,
        token=token,
        master=master or config.master,
        standby=standby or config.standby,
    )
    run_pipeline(config, once=once, verbose=verbose, as_json=as_json)


def _from_flags(
    given: dict[str, str | None],
    option: Sequence[str],
    output: Format,
    into: str | None,
    checkpoint: str | None,
    every: float | None,
    *,
    once: bool,
) -> Config:
    if given["url"] is None:
        raise ConfigError("no database is named", hint="give a file (dblog init writes one), or --url")
    if once and every is not None:
        raise ConfigError("--once and --every cannot be used together", hint="leave out one of the two")
    options = {**given, **pairs(list(option), "an option")}
    read = {name: value for name, value in options.items() if value is not None}
    return config_of_flags(read, output, into, checkpoint, every)
