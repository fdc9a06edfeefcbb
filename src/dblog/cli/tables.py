"""`dblog tables`: show the captured tables, from the pipeline's status or from the database."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from dblog.cli.number_format import count
from dblog.cli.program import (
    PIPELINE,
    AsJson,
    PipelineName,
    StoreLocation,
    app,
    examples,
    notes,
    output,
    pipeline_of,
    print_json,
    url_option,
)
from dblog.errors import ConfigError


@app.command(
    epilog=examples(
        "dblog tables",
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog tables --tables 'public.*'",
        "dblog tables --json | jq keys",
    ),
    rich_help_panel=PIPELINE,
)
def tables(
    context: typer.Context,
    url: Annotated[str | None, url_option("Read from this database instead of the pipeline; needs --tables.")] = None,
    patterns: Annotated[
        str | None,
        typer.Option("--tables", metavar="PATTERNS", help="With --url, show the tables that match, like 'public.*'."),
    ] = None,
    store: StoreLocation = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Show the captured tables with their keys, columns and estimated rows."""
    typed = context.get_parameter_source("url")
    if patterns is None and typed is not None and typed.name != "COMMANDLINE":
        url = None  # DBLOG_URL is set for other commands
    if (url is None) != (patterns is None):
        raise ConfigError("--url and --tables need each other", hint="leave out both to show the pipeline's tables")
    if url is not None and patterns is not None:
        found = _from_database(url, patterns)
    else:
        with pipeline_of(store, name) as pipeline:
            status = pipeline.status()
        found = status.get("tables", {})
        if not found:
            notes().print(f"pipeline {pipeline.name!r} has not written its tables yet ({status['state']})")
    if as_json:
        print_json(found)
    else:
        output().print(_table(found))


def _from_database(url: str, patterns: str) -> dict[str, Any]:
    from dblog.spark.options import read_options

    source = read_options({"url": url, "tables": patterns}).source
    schemas = source.tables()
    return {
        str(table): {
            "version": schema.version,
            "key": list(schema.key),
            "columns": [[c.name, c.type] for c in schema.columns],
            "rows": source.estimate(table),
        }
        for table, schema in schemas.items()
    }


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("TABLE", no_wrap=True)
    table.add_column("ROWS", justify="right", no_wrap=True)
    for title in ("KEY", "COLUMNS", "SCHEMA"):
        table.add_column(title)
    for name, of in sorted(found.items()):
        columns = ", ".join(f"{column} {kind}" for column, kind in of.get("columns", ()))
        rows = of.get("rows")
        about = "?" if rows is None else f"~{count(rows)}"
        table.add_row(name, about, ", ".join(of.get("key", ())) or "none", columns, of.get("version", ""))
    return table
