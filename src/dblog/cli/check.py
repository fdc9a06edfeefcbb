"""`dblog check`: is a database ready for capture?"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dblog.cli.program import DATABASE, FAILED, AsJson, Tables, Url, app, examples, output, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dblog.core.schema import TableName
    from dblog.sources.mysql.preflight import Problem as MyProblem
    from dblog.sources.mysql.source import MySQL
    from dblog.sources.postgres.preflight import Problem


@app.command(
    epilog=examples(
        "dblog check --url postgresql://app:secret@db.example.com/shop --tables 'public.*'",
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog check --tables public.orders,public.customers",
        "dblog check --tables 'public.*' --admin-sql > setup.sql",
    ),
    rich_help_panel=DATABASE,
)
def check(
    url: Url,
    tables: Tables,
    slot: Annotated[str | None, typer.Option(metavar="NAME", help="The replication slot of the stream.")] = None,
    publication: Annotated[str | None, typer.Option(metavar="NAME", help="The publication of the stream.")] = None,
    admin_sql: Annotated[
        bool, typer.Option("--admin-sql", help="Print the whole set-up as SQL for an administrator, and do nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Is a database ready for capture? Show every problem with its fix.

    Changes nothing. Exit code 1 means that a stream would refuse to start.
    """
    from dblog.sources.mysql.source import MySQL
    from dblog.sources.postgres import preflight
    from dblog.sources.postgres.connect import connect
    from dblog.spark.options import read_options

    given = {"url": url, "tables": tables, "slot": slot, "publication": publication}
    options = read_options({name: value for name, value in given.items() if value is not None})
    source = options.source
    if isinstance(source, MySQL):
        _check_mysql(source, admin_sql, as_json)
        return
    setup = source.setup()
    with closing(connect(source.address, application_name="dblog check")) as connection:
        if admin_sql:
            sql = preflight.admin_sql(setup, connection.info.user)
            print_json({"sql": sql}) if as_json else typer.echo(sql, nl=False)
            return
        problems = preflight.check(connection, setup)
    ready = not any(p.fatal for p in problems)
    if as_json:
        print_json(
            {
                "ready": ready,
                "source": str(options.address),
                "slot": setup.slot,
                "publication": setup.publication,
                "tables": [str(t) for t in setup.tables],
                "problems": [asdict(p) for p in problems],
            }
        )
    else:
        _show(str(options.address), setup.tables, problems)
    if not ready:
        raise typer.Exit(FAILED)


def _check_mysql(source: MySQL, admin_sql: bool, as_json: bool) -> None:
    from dblog.sources.mysql import preflight
    from dblog.sources.mysql.connect import connect

    if admin_sql:
        sql = "".join(f"{statement};\n" for statement in preflight.WATERMARK_SQL)
        print_json({"sql": sql}) if as_json else typer.echo(sql, nl=False)
        return
    tables = tuple(source.names())
    with closing(connect(source.address, program="dblog check")) as connection:
        problems = preflight.check(connection, tables)
    ready = not any(p.fatal for p in problems)
    if as_json:
        told = {"source": str(source.address), "tables": [str(t) for t in tables]}
        print_json({"ready": ready, **told, "problems": [asdict(p) for p in problems]})
    else:
        _show(str(source.address), tables, problems)
    if not ready:
        raise typer.Exit(FAILED)


def _show(source: str, tables: Sequence[TableName], problems: Sequence[Problem | MyProblem]) -> None:
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
    console.print(Text("ready" + (f": {created} things will be created at the start" if created else ""), "bold green"))
