"""`dblog check`: is a database ready for capture?"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dblog.cli.program import DATABASE, FAILED, AsJson, Tables, Url, app, examples, output, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dblog.core.schema import TableName
    from dblog.sources.mysql.source import MySQL
    from dblog.sources.postgres.source import Postgres
    from dblog.sources.problems import Problem

PROGRAM = "dblog check"


@app.command(
    epilog=examples(
        "dblog check --url postgresql://app:secret@db.example.com/shop --tables 'public.*'",
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog check --tables public.orders,public.customers",
        "dblog check --tables 'public.*' --admin-sql > setup.sql",
        "dblog check --url mysql://app:secret@db.example.com --tables 'shop.*'",
    ),
    rich_help_panel=DATABASE,
)
def check(
    url: Url,
    tables: Tables,
    slot: Annotated[str | None, typer.Option(metavar="NAME", help="The replication slot of the stream.")] = None,
    publication: Annotated[str | None, typer.Option(metavar="NAME", help="The publication of the stream.")] = None,
    watermark: Annotated[
        str | None, typer.Option(metavar="HOW", help="table, or none for a stream that writes nothing to the source.")
    ] = None,
    admin_sql: Annotated[
        bool, typer.Option("--admin-sql", help="Print the whole set-up as SQL for an administrator, and do nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Is a database ready for capture? Show every problem with its fix.

    Changes nothing. Exit code 1 means that a stream would refuse to start.
    """
    from dblog.sources.mysql.source import MySQL
    from dblog.spark.options import read_options

    given = {"url": url, "tables": tables, "slot": slot, "publication": publication, "watermark": watermark}
    options = read_options({name: value for name, value in given.items() if value is not None})
    source = options.source
    with _mysql(source) if isinstance(source, MySQL) else _postgres(source) as there:
        if admin_sql:
            sql = there.admin_sql()
            print_json({"sql": sql}) if as_json else typer.echo(sql, nl=False)
            return
        problems = there.problems()
    ready = not any(p.fatal for p in problems)
    if as_json:
        told = {"source": str(options.address), **there.identity, "tables": [str(t) for t in there.tables]}
        print_json({"ready": ready, **told, "problems": [asdict(p) for p in problems]})
    else:
        _show(str(options.address), there.tables, problems)
    if not ready:
        raise typer.Exit(FAILED)


@dataclass(frozen=True)
class _Preflight:
    """The preflight of one family, over an open connection."""

    identity: Mapping[str, str | int]
    tables: Sequence[TableName]
    problems: Callable[[], Sequence[Problem]]
    admin_sql: Callable[[], str]


@contextmanager
def _postgres(source: Postgres) -> Iterator[_Preflight]:
    from dblog.sources.postgres import preflight
    from dblog.sources.postgres.connect import connect

    setup = source.setup()
    with closing(connect(source.address, application_name=PROGRAM)) as connection:
        yield _Preflight(
            {"slot": setup.slot, "publication": setup.publication},
            setup.tables,
            lambda: preflight.check(connection, setup),
            lambda: preflight.admin_sql(setup, connection.info.user),
        )


@contextmanager
def _mysql(source: MySQL) -> Iterator[_Preflight]:
    from dblog.sources.mysql import preflight
    from dblog.sources.mysql.connect import connect

    setup = source.setup()
    with closing(connect(source.address, program=PROGRAM)) as connection:
        yield _Preflight(
            {"server_id": setup.server_id},
            setup.tables,
            lambda: preflight.check(connection, setup),
            lambda: preflight.admin_sql(setup, preflight.user(connection)),
        )


def _show(source: str, tables: Sequence[TableName], problems: Sequence[Problem]) -> None:
    console = output()
    console.print(Text.assemble(("checked ", "bold"), source), soft_wrap=True)
    console.print(Text("tables  " + ", ".join(map(str, tables))), soft_wrap=True)
    for problem in problems:
        mark, style = ("✗", "red") if problem.fatal else ("+", "cyan") if problem.creatable else ("!", "yellow")
        then = "  (will be created)" if problem.creatable else ""
        console.print()
        console.print(Text.assemble((f"{mark} ", style), problem.what, (then, "dim")), soft_wrap=True)
        for line in problem.fix.splitlines():
            console.print(Text("    " + line, "dim" if problem.creatable else ""), soft_wrap=True)
    console.print()
    if fatal := sum(p.fatal for p in problems):
        console.print(Text(f"not ready: {fatal} to fix first", "bold red"))
        return
    created = sum(p.creatable for p in problems)
    things = f": {created} {'thing' if created == 1 else 'things'} will be created at the start" if created else ""
    console.print(Text(f"ready{things}", "bold green"))
