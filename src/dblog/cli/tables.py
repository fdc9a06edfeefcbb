"""`dblog tables`: the captured tables, as the pipeline or the database describes them."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer
from rich.table import Table

from dblog.cli.program import (
    PIPELINE,
    AsJson,
    PipelineName,
    StatePlace,
    app,
    examples,
    notes,
    output,
    pipeline_of,
    print_json,
)
from dblog.cli.words import count
from dblog.errors import ConfigError

# What the planner believes; of a partitioned table the sum over its partitions. -1: nobody has counted yet.
_ESTIMATES = """
select n.nspname, c.relname, (
    select sum(l.reltuples)::bigint from pg_catalog.pg_class l
    where l.relkind = 'r' and l.reltuples >= 0
      and (l.oid = c.oid or l.oid in (select relid from pg_catalog.pg_partition_tree(c.oid)))
)
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where (n.nspname, c.relname) in %s
"""


@app.command(
    epilog=examples(
        "dblog tables",
        "dblog tables --url postgresql://app:secret@db.example.com/shop --tables 'public.*'",
        "dblog tables --json | jq keys",
    ),
    rich_help_panel=PIPELINE,
)
def tables(
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask this database, not the pipeline; needs --tables.")
    ] = None,
    patterns: Annotated[
        str | None, typer.Option("--tables", metavar="PATTERNS", help="With --url: which tables, like 'public.*'.")
    ] = None,
    store: StatePlace = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Show the captured tables with their keys, columns and estimated rows."""
    if (url is None) != (patterns is None):
        raise ConfigError("--url and --tables go together", hint="without both, the pipeline's tables are shown")
    if url is not None and patterns is not None:
        found = _from_database(url, patterns)
    else:
        with pipeline_of(store, name) as pipeline:
            status = pipeline.status()
        found = status.get("tables", {})
        if not found:
            notes().print(f"pipeline {pipeline.name!r} has not said yet what it captures ({status['state']})")
    if as_json:
        print_json(found)
    else:
        output().print(_table(found))


def _from_database(url: str, patterns: str) -> dict[str, Any]:
    from dblog.sources.postgres.connect import connect, translating
    from dblog.spark.options import read_options

    options = read_options({"url": url, "tables": patterns})
    schemas = options.source.tables()
    with (
        closing(connect(options.address, application_name="dblog tables")) as connection,
        translating("estimating the tables' rows"),
        connection.cursor() as cursor,
    ):
        cursor.execute(_ESTIMATES, (tuple(tuple(t) for t in schemas) or (("", ""),),))
        rows = {(schema, table): estimate for schema, table, estimate in cursor.fetchall()}
    return {
        str(table): {
            "version": schema.version,
            "key": list(schema.key),
            "columns": [[c.name, c.type] for c in schema.columns],
            "rows": rows.get((table.schema, table.name)),
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
