"""`dblog retry`: take a table up again that is set aside."""

from __future__ import annotations

from typing import Annotated

import typer

from dblog.cli.program import PIPELINE, AsJson, PipelineName, StoreLocation, app, examples, pipeline_of, print_json


@app.command(epilog=examples("dblog retry public.orders", "dblog retry public.orders --json"), rich_help_panel=PIPELINE)
def retry(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table, as dblog status shows it.")],
    location: StoreLocation = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Take a table up again that is set aside. It is emptied, dumped and followed while the other tables go on.

    Fix the cause first: otherwise the table is set aside again. The request waits until the pipeline runs.
    """
    with pipeline_of(location, name) as pipeline:
        found = pipeline.retry(table)
    if as_json:
        print_json(dict(found))
    else:
        typer.echo(f"table {found['table']} is taken up again; it was set aside because of: {found['message']}")
