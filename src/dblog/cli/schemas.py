"""`dblog schemas`: the table schemas with which events were captured, and their differences."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dblog.cli.number_format import moment
from dblog.cli.program import (
    PIPELINE,
    AsJson,
    PipelineName,
    StoreLocation,
    app,
    examples,
    output,
    pipeline_of,
    print_json,
)
from dblog.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from dblog.core.schema import TableSchema

Stored = Mapping[str, Any]


@app.command(
    epilog=examples(
        "dblog schemas",
        "dblog schemas public.orders",
        "dblog schemas --diff ab12cd34 ef56ab78",
        "dblog schemas --json | jq keys",
    ),
    rich_help_panel=PIPELINE,
)
def schemas(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Show how the schema of this table changed.")
    ] = None,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option("--diff", metavar="A B", help="Show what changed from schema version A to version B."),
    ] = None,
    store: StoreLocation = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """List the table schemas with which events were captured. The column `_schema` of an event has the version."""
    if table is not None and diff is not None:
        raise ConfigError("a table and --diff cannot be used together", hint="leave out one of the two")
    with pipeline_of(store, name) as pipeline:
        known = dict(sorted(pipeline.schemas().items(), key=lambda s: (s[1]["table"], s[1].get("seen_at") or 0.0)))
    if diff is not None:
        _show_difference(_version(known, diff[0]), _version(known, diff[1]), known, as_json=as_json)
    elif table is not None:
        _show_history(table, {v: s for v, s in known.items() if s["table"] == table}, known, as_json=as_json)
    elif as_json:
        print_json(known)
    else:
        output().print(_list(known))


def _version(known: Mapping[str, Stored], given: str) -> str:
    """The version with this name, or the only one that starts with it."""
    found = [version for version in known if version.startswith(given)]
    if len(found) != 1:
        what = "there is no schema version" if not found else "there are several schema versions"
        raise NotFound(f"{what} {given!r}", hint="dblog schemas lists them")
    return found[0]


def _show_difference(old: str, new: str, known: Mapping[str, Stored], *, as_json: bool) -> None:
    lines = _differences(known[old], known[new])
    if as_json:
        print_json({"from": old, "to": new, "differences": lines})
    else:
        output().print("\n".join(lines) or "no difference", soft_wrap=True)


def _show_history(table: str, mine: Mapping[str, Stored], known: Mapping[str, Stored], *, as_json: bool) -> None:
    if not mine:
        tables = ", ".join(dict.fromkeys(s["table"] for s in known.values()))
        raise NotFound(f"there is no schema of {table!r}", hint=f"there are schemas of {tables}" if tables else None)
    versions = list(mine)
    changes = {versions[0]: ["first seen"]}
    changes |= {new: _differences(mine[old], mine[new]) for old, new in pairwise(versions)}
    if as_json:
        print_json([{"version": v, "seen_at": mine[v].get("seen_at"), "differences": c} for v, c in changes.items()])
        return
    grid = Table(box=None, header_style="dim", pad_edge=False)
    for title in ("VERSION", "SEEN", "WHAT CHANGED"):
        grid.add_column(title, no_wrap=title != "WHAT CHANGED")
    for version, lines in changes.items():
        for first, line in enumerate(lines or ["the order of the columns"]):
            grid.add_row(*(("", "") if first else (version, moment(mine[version].get("seen_at")))), line)
    output().print(grid)


def _list(known: Mapping[str, Stored]) -> Table:
    grid = Table(box=None, header_style="dim", pad_edge=False)
    for title in ("TABLE", "VERSION", "SEEN", "KEY", "COLUMNS"):
        grid.add_column(title, no_wrap=title not in ("KEY", "COLUMNS"))
    for version, of in known.items():
        columns = ", ".join(f"{column} {kind}" for column, kind in of["columns"])
        grid.add_row(of["table"], version, moment(of.get("seen_at")), ", ".join(of["key"]), columns)
    return grid


def _differences(old: Stored, new: Stored) -> list[str]:
    moved = [f"the table is {new['table']}, no longer {old['table']}"] if old["table"] != new["table"] else []
    return moved + _schema(old).differences(_schema(new))


def _schema(stored: Stored) -> TableSchema:
    """The stored schema, without Arrow types, which are not stored."""
    import pyarrow as pa

    from dblog.core.schema import Column, TableName, TableSchema

    columns = tuple(Column(name, kind, pa.null()) for name, kind in stored["columns"])
    return TableSchema(TableName("", stored["table"]), columns, tuple(stored["key"]))
