"""`dblog forget`: remove a pipeline from the state store."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from dblog.cli.program import PIPELINE, AsJson, StoreLocation, app, examples, print_json
from dblog.errors import StateError


@app.command(
    epilog=examples("dblog forget shop", "dblog forget shop_ndjson --state /var/lib/dblog/state.db"),
    rich_help_panel=PIPELINE,
)
def forget(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")],
    store: StoreLocation = None,
    as_json: AsJson = False,
) -> None:
    """Remove a pipeline from the state store: requests, settings, progress, events and status.

    Refuses a pipeline that runs. Checkpoints, replication slots and delivered data stay as they are.
    """
    from dblog.state import open_store
    from dblog.state.pipeline import only_pipeline

    with closing(open_store(store)) as opened:
        pipeline = only_pipeline(opened, name)
        if pipeline.running:
            raise StateError(f"pipeline {name!r} runs", hint="stop it first: it would add itself to the store again")
        pipeline.forget()
    print_json({"forgotten": name}) if as_json else typer.echo(f"forgot pipeline {name}")
