"""`dblog demo` and `dblog version`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import dblog
from dblog.cli.program import FAILED, FIRST_LOOK, INTERRUPTED, AsJson, app, examples, print_json
from dblog.control.installed import check_installed


class DemoSource(StrEnum):
    postgres = "postgres"
    mariadb = "mariadb"
    mysql = "mysql"


class DemoSink(StrEnum):
    parquet = "parquet"
    delta = "delta"
    iceberg = "iceberg"


@app.command(
    epilog=examples(
        "dblog demo",
        "dblog demo --ui",
        "dblog demo --source mariadb",
        "dblog demo --sink delta --keep /tmp/lake",
        "dblog demo --seconds 30 --rows 500000 --keep /tmp/result",
    ),
    rich_help_panel=FIRST_LOOK,
)
def demo(
    source: Annotated[DemoSource, typer.Option(help="Run on this database.")] = DemoSource.postgres,
    sink: Annotated[DemoSink, typer.Option(help="Write Parquet files, or a lake of this format.")] = DemoSink.parquet,
    seconds: Annotated[float, typer.Option(min=0, help="Change rows for this many seconds.")] = 12.0,
    rows: Annotated[int, typer.Option(min=6, help="Create this many rows before the streams start.")] = 60_000,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the result in this folder.")] = None,
    ui: Annotated[
        bool, typer.Option("--ui", help="Serve the page, and change rows until Ctrl-C instead of --seconds.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Spark's own output on standard error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Capture a changing database into Parquet files or a lake, and check that no row is lost.

    Starts Spark and an embedded PostgreSQL, or the machine's MariaDB or MySQL, with the tables of a small shop.
    Dumps and follows the tables while they change.
    Compares the result with the source, row by row; of a lake, earlier versions too. Removes all its files at the end.
    Needs Java 17 or newer. To install MariaDB: apt-get install mariadb-server.
    """
    from dblog.spark.java import check_java

    check_java()  # before Spark is imported, which takes a second
    from dblog.demo.demo import Demo, run

    page = _page if ui else None
    if ui:
        check_installed()
    try:
        verdict = run(Demo(source, seconds, rows, keep, verbose, sink, page), Console(highlight=False, stderr=as_json))
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        found = {name: value for name, value in asdict(verdict).items() if value is not None}
        print_json({"converged": verdict.converged, **found})
    if not verdict.converged:
        raise typer.Exit(FAILED)


def _page(store: str) -> AbstractContextManager[str]:
    """The page over a state store, at any free port of this machine."""
    from dblog.control.serve import serving

    page: AbstractContextManager[str] = serving("127.0.0.1:0", store)
    return page


@app.command(rich_help_panel=FIRST_LOOK)
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    print_json({"version": dblog.__version__}) if as_json else typer.echo(f"dblog {dblog.__version__}")
