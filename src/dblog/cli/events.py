"""`dblog events`: the change events of a database, decoded, without a stream and without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dblog.cli.number_format import place
from dblog.cli.program import DATABASE, Tables, Url, app, examples, notes
from dblog.cli.signals import terminable
from dblog.errors import ConfigError, PreconditionFailed

if TYPE_CHECKING:
    from dblog.core.schema import TableSchema
    from dblog.sources.base import LogStream, Run
    from dblog.sources.postgres.catalog import Relation
    from dblog.spark.options import Options

ACKNOWLEDGE_SECONDS = 0.25
"""An acknowledgement also wakes a server that sits on a commit."""


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
        typer.Option(metavar="NAME", help="Read through this publication; without it, one is made and dropped."),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="End after so many events.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, which is what is printed anyway.")] = False,
) -> None:
    """Print the changes of tables as they are committed, as JSON lines. Until Ctrl-C.

    Reads through a temporary replication slot and, unless told otherwise, a publication of its own; both are gone
    afterwards. Begins with what is committed from now on.
    """
    from dblog.sources.mysql.source import MySQL
    from dblog.spark.options import read_options

    left = number
    with terminable(), ExitStack() as stack:
        options = read_options({"url": url, "tables": tables})
        follow = _runs_of_mysql if isinstance(options.source, MySQL) else _runs
        for run in follow(options, publication, stack):
            for line in _lines(run):
                typer.echo(line)
                if left is not None and (left := left - 1) == 0:
                    return


def _runs_of_mysql(options: Options, publication: str | None, stack: ExitStack) -> Iterator[Run]:
    """The log of MySQL or MariaDB from now on, for ever."""
    from dblog.sources.mysql.source import MySQL

    source = options.source
    assert isinstance(source, MySQL)
    if publication is not None:
        raise ConfigError("--publication is for PostgreSQL", hint="leave it out")
    source.prepare(followed=None)
    # an id of its own: two readers of one id end each other's sessions
    log = replace(source, server_id=1 << 31 | time.time_ns() & 0x7FFFFFFF).stream(source.latest(), None)
    stack.enter_context(closing(log))
    notes().print(f"following {', '.join(map(str, source.tables()))}; Ctrl-C ends", soft_wrap=True)
    yield from _read(log)


def _runs(options: Options, publication: str | None, stack: ExitStack) -> Iterator[Run]:
    """The log from now on, for ever."""
    from dblog.databases.postgres.connect import connect, translating
    from dblog.sources.postgres.catalog import relation_schema
    from dblog.sources.postgres.pgoutput import Decoder
    from dblog.sources.postgres.slots import PASSING, check_publication, passing_publication
    from dblog.sources.postgres.source import Postgres
    from dblog.sources.postgres.stream import PostgresLog
    from dblog.sources.relational import WATERMARK

    source = options.source
    assert isinstance(source, Postgres)
    schemas = source.tables()
    if bare := [t for t, schema in schemas.items() if not schema.key]:
        raise PreconditionFailed(f"table {str(bare[0])!r} has no primary key", hint="dblog check shows what to do")
    control = stack.enter_context(closing(connect(source.address, application_name="dblog events")))
    if publication is not None:
        check_publication(control, publication)
    else:
        publication = stack.enter_context(passing_publication(control, list(schemas)))

    def resolve(relation: Relation) -> TableSchema | None:
        if (relation.schema, relation.name) not in schemas:
            return None
        with translating(f"reading the schema of {relation.name}"), control.cursor() as cursor:
            return relation_schema(cursor, relation, source.types)

    slot = PASSING + f"{time.time_ns():x}"
    decoder = Decoder(resolve, watermark=WATERMARK)
    log = PostgresLog(source.address, slot, publication, 0, decoder, temporary=True)
    stack.enter_context(closing(log))
    notes().print(f"following {', '.join(map(str, schemas))}; Ctrl-C ends", soft_wrap=True)
    yield from _read(log)


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


def _lines(run: Run) -> Iterator[str]:
    """The events of a run in order. Keys and images are JSON already, and stay as exact as they are."""
    from dblog.work.rows import Enveloped, in_order

    for batch in in_order([list(run.changes)] if run.changes else [], Enveloped()):
        for row in batch.to_pylist():
            yield "{" + ", ".join(f'"{name}": {text}' for name, text in _members(row)) + "}"


def _members(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "op", json.dumps(row["op"])
    yield "table", json.dumps(f"{row['schema']}.{row['table']}", ensure_ascii=False)
    yield "key", row["key"] or "null"
    for image in ("before", "after"):
        if row[image] is not None:
            yield image, row[image]
    yield "lsn", json.dumps(place(row["_lsn"]))
    yield "seq", json.dumps(row["_seq"])
    yield "txid", json.dumps(row["_txid"])
    yield "committed_at", json.dumps(row["_committed_at"].isoformat())
    if row["_unchanged"]:
        yield "unchanged", json.dumps(row["_unchanged"], ensure_ascii=False)
