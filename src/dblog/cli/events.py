"""`dblog events`: print the decoded changes of a database, without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dblog.cli.program import DATABASE, Tables, Url, app, examples, notes
from dblog.cli.signals import terminable

if TYPE_CHECKING:
    from dblog.sources.base import LogStream, Run

ACKNOWLEDGE_SECONDS = 0.25
"""How often the log is acknowledged, in seconds. An acknowledgement also makes a server send a commit that it holds
back."""


@app.command(
    epilog=examples(
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog events --tables public.orders",
        "dblog events --tables 'public.*' --count 10 | jq .after",
    ),
    rich_help_panel=DATABASE,
)
def events(
    url: Url,
    tables: Tables,
    publication: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Read through this publication; without it, create one and drop it at the end."
        ),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="Exit after this many events.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, which is the default.")] = False,
) -> None:
    """Print the changes of tables as JSON lines when they are committed, until Ctrl-C.

    Starts with the changes that are committed from now on. On PostgreSQL, reads through a temporary replication slot
    and, without --publication, a temporary publication; both are removed at the end.
    """
    from dblog.spark.options import read_options

    left = number
    with terminable(), ExitStack() as stack:
        options = read_options({"url": url, "tables": tables})
        log = stack.enter_context(options.family.temporary_stream(options.of_source, publication))
        notes().print(f"following {', '.join(map(str, options.source.tables()))}; Ctrl-C ends", soft_wrap=True)
        for run in _read(log):
            for line in _lines(run, options.family.shown):
                typer.echo(line)
                if left is not None and (left := left - 1) == 0:
                    return


def _read(log: LogStream) -> Iterator[Run]:
    position, acknowledged = 0, time.monotonic()
    while True:
        for run in log.read(ACKNOWLEDGE_SECONDS):
            yield run
            position = run.position or position
        position = max(position, log.idle_position)
        if time.monotonic() - acknowledged > ACKNOWLEDGE_SECONDS:
            log.acknowledge(position)
            acknowledged = time.monotonic()


def _lines(run: Run, shown: Callable[[int], str]) -> Iterator[str]:
    """The events of a run as JSON lines, in order. `shown` formats positions. JSON of keys and rows is unchanged."""
    from dblog.work.rows import Enveloped, in_order

    for batch in in_order([list(run.changes)] if run.changes else [], Enveloped()):
        for row in batch.to_pylist():
            yield "{" + ", ".join(f'"{name}": {text}' for name, text in _members(row, shown)) + "}"


def _members(row: dict[str, Any], shown: Callable[[int], str]) -> Iterator[tuple[str, str]]:
    yield "op", json.dumps(row["op"])
    yield "table", json.dumps(f"{row['schema']}.{row['table']}", ensure_ascii=False)
    yield "key", row["key"] or "null"
    for image in ("before", "after"):
        if row[image] is not None:
            yield image, row[image]
    yield "lsn", json.dumps(shown(row["_lsn"]))
    yield "seq", json.dumps(row["_seq"])
    yield "txid", json.dumps(row["_txid"])
    yield "committed_at", json.dumps(row["_committed_at"].isoformat())
    if row["_unchanged"]:
        yield "unchanged", json.dumps(row["_unchanged"], ensure_ascii=False)
