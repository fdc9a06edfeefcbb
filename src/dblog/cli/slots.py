"""`dblog slots`: list and drop the replication slots of a database, which keep log on the server."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from dblog.cli.number_format import size
from dblog.cli.program import (
    DATABASE,
    FAILED,
    AsJson,
    StoreLocation,
    Url,
    app,
    examples,
    notes,
    output,
    print_json,
    url_option,
)
from dblog.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from dblog.sources.family import Slot, Slots
    from dblog.state.pipeline import Pipeline

slots = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
app.add_typer(slots, name="slots", rich_help_panel=DATABASE)


@slots.callback(
    invoke_without_command=True,
    epilog=examples("DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog slots", "dblog slots drop dblog_shop"),
)
def list_without_asking(
    ctx: typer.Context,
    url: Annotated[str | None, url_option("Connect to this source, if no command is given.")] = None,
    location: StoreLocation = None,
    as_json: AsJson = False,
) -> None:
    """List the replication slots of a database, or drop a slot of DBLog."""
    if ctx.invoked_subcommand is not None:
        return
    if url is None:
        raise ConfigError("no database is named", hint="add --url, or set DBLOG_URL")
    list_slots(url, location, as_json)


@slots.command(
    "list",
    epilog=examples(
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog slots list", "dblog slots list --json"
    ),
)
def list_slots(url: Url, location: StoreLocation = None, as_json: AsJson = False) -> None:
    """List the replication slots of a database, their readers, and how much log each keeps on the server."""
    with _slots(url) as there:
        found = there.list()
    owners = {s: p.name for s, p in _owners(location).items()}
    if as_json:
        print_json([{**asdict(s), "ours": is_ours(s.name, owners), "pipeline": owners.get(s.name)} for s in found])
        return
    output().print(_table(found, owners))
    if not found:
        notes().print("the database has no replication slots")


@slots.command(
    "drop", epilog=examples("dblog slots drop dblog_public_orders_1a2b3c", "dblog slots drop dblog_shop --yes")
)
def drop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the replication slot.")],
    url: Url,
    publication: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Also drop this publication. Default: the one with the slot's name."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    location: StoreLocation = None,
    as_json: AsJson = False,
) -> None:
    """Drop a replication slot of DBLog that no process reads, and its publication.

    The stream that used the slot cannot continue from its checkpoint any more: it must dump the tables again.
    """
    with _slots(url) as there:
        owners = _owners(location)
        if not is_ours(name, owners):
            raise SourceError(
                f"replication slot {name!r} does not belong to dblog, by its name and the state store",
                hint=f"if you are sure: {there.drop_sql(name)}",
            )
        if name in owners and owners[name].running:
            raise SourceError(
                f"replication slot {name!r} belongs to pipeline {owners[name].name!r}, which runs",
                hint="stop the pipeline first",
            )
        if not yes:
            _confirm(f"drop replication slot {name!r} of database {there.database!r}?")
        published = there.drop(name, publication or name)
    if as_json:
        print_json({"dropped": name, "publication": (publication or name) if published else None})
    else:
        typer.echo(f"dropped slot {name}" + (f" and publication {publication or name}" if published else ""))


def _slots(url: str) -> AbstractContextManager[Slots]:
    from dblog.sources.family import family_of

    family = family_of(url)
    return family.slots(family.parse(url))


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("there is no terminal to confirm on", hint="add --yes to drop the slot without a question")
    if not typer.confirm(question, err=True):
        raise typer.Exit(FAILED)


def is_ours(name: str, owners: dict[str, str] | dict[str, Pipeline]) -> bool:
    from dblog.sources.family import OURS

    return name.startswith(OURS) or name in owners


def _owners(location: str | None) -> dict[str, Pipeline]:
    """The pipelines in the state store, by their slots."""
    from dblog.state import open_store
    from dblog.state.pipeline import Pipeline, pipelines

    store = open_store(location)
    known = [Pipeline(store, name) for name in pipelines(store)]
    return {slot: p for p in known if (slot := p.status().get("slot"))}


def _table(found: Sequence[Slot], owners: dict[str, str]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for title in ("SLOT", "OURS", "PIPELINE", "PLUGIN", "READ BY", "STATUS"):
        table.add_column(title, no_wrap=True)
    for title in ("KEEPS", "SAFE"):
        table.add_column(title, justify="right", no_wrap=True)
    for slot in found:
        reader = f"pid {slot.active_pid}" if slot.active else "nobody"
        healthy = slot.wal_status in ("reserved", "extended")
        table.add_row(
            slot.name + (" (temporary)" if slot.temporary else ""),
            "yes" if is_ours(slot.name, owners) else "no",
            owners.get(slot.name, ""),
            slot.plugin,
            Text(reader, "" if slot.active else "yellow"),
            Text(slot.wal_status or "?", "" if healthy else "red"),
            size(slot.retained_bytes),
            "no limit" if slot.safe_bytes is None else size(slot.safe_bytes),
        )
    return table
