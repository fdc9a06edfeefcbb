"""`dblog init`: write a pipeline's file for the tables of a database."""

from __future__ import annotations

import re
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dblog.cli.program import FIRST_LOOK, AsJson, Url, app, examples, notes, print_json
from dblog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dblog.pipelines.example import Database, Found
    from dblog.sources.problems import Problem


class InitSink(StrEnum):
    ndjson = "ndjson"
    parquet = "parquet"
    delta = "delta"
    iceberg = "iceberg"


PACKAGES = {InitSink.delta: "deltalake", InitSink.iceberg: "pyiceberg"}
"""The Python package that writes a lake; the extra that brings it has the name of the sink."""


@app.command(
    epilog=examples(
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog init",
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog init --sink delta",
        "DBLOG_URL=mysql://app:secret@db.example.com/shop dblog init -o pipelines/shop.toml",
        "DBLOG_URL=postgresql://app:secret@db.example.com/shop dblog init -o -",
    ),
    rich_help_panel=FIRST_LOOK,
)
def init(
    url: Url,
    into: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to this file; - prints it. Default: <database>.toml."
        ),
    ] = None,
    sink: Annotated[InitSink, typer.Option(help="Write to a sink of this type.")] = InitSink.ndjson,
    as_json: AsJson = False,
) -> None:
    """Write a pipeline's file for a database, with comments and without the password."""
    from dblog.pipelines.config import slug
    from dblog.pipelines.example import example

    name = slug(Path(into).stem) if into not in (None, "-") else None
    found, name = _look(url, name)
    path = None if into == "-" else Path(into or f"{name}.toml")
    text = example(name, found, sink)
    if path is not None:
        _write(path, text)
    if as_json:
        print_json(_document(path, text, found))
    elif path is None:
        typer.echo(text, nl=False)
    if path is not None:
        _say(path, found, sink)


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{str(path)!r} exists", hint="name another file with -o, or print it: -o -") from None
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}", hint="name another file with -o") from None


def _look(url: str, name: str | None) -> tuple[Database, str]:
    """Read the tables and problems of the database. Returns them and a name for the pipeline."""
    from dblog.pipelines.config import slug
    from dblog.pipelines.example import Database, Found, pattern
    from dblog.spark.options import read_options

    whole = read_options({"url": url, "tables": "*.*", "slot": name or "dblog_init"})
    name = name or slug(whole.address.database)
    tables = whole.family.all_tables(whole.of_source)
    given = {"url": url, "tables": tables, "slot": name}
    ways = {"table": _problems(given, "table")}
    if any(p.fatal for p in ways["table"]):
        ways["none"] = _problems(given, "none")
    watermark = min(ways, key=lambda way: sum(p.fatal for p in ways[way]))
    fatal = [p for p in ways[watermark] if p.fatal]
    source = read_options(given).source
    wrong = {p.table: p.what for p in reversed(ways[watermark]) if p.table is not None and (p.fatal or p.left_out)}
    schemas = {**source.tables(), **source.describe(tuple(wrong))}
    found = [Found(t, source.estimate(t), schemas[t].key, wrong.get(t)) for t in sorted(schemas)]
    shown, secret = _without_secrets(str(whole.address))
    fit = ", ".join(pattern(f.table) for f in found if f.problem is None)
    rest = [p for p in _problems({**given, "tables": fit}, watermark) if p.fatal] if fit else fatal
    variable = f"{name.upper()}_PASSWORD" if secret else None
    return Database(shown, variable, found, rest, writes=watermark == "table"), name


def _problems(given: Mapping[str, str], watermark: str) -> Sequence[Problem]:
    from dblog.spark.options import read_options

    options = read_options({**given, "watermark": watermark})
    with options.family.preflight(options.of_source) as there:
        return there.problems()


def _without_secrets(masked: str) -> tuple[str, bool]:
    """A masked URL without its masked parts, and whether it had a password."""
    return re.sub(r"[?&]\w+=\*\*\*", "", masked.replace(":***@", "@")), ":***@" in masked


def _document(path: Path | None, text: str, found: Database) -> dict[str, Any]:
    return {
        "file": None if path is None else str(path),
        "text": text,
        "tables": {str(t.table): _told(t) for t in found.tables},
        "problems": [{"what": p.what, "fix": p.fix} for p in found.problems],
    }


def _told(table: Found) -> dict[str, Any]:
    return {"rows": table.rows, "key": list(table.key), "problem": table.problem}


def _say(path: Path, found: Database, sink: InitSink) -> None:
    console = notes()
    out = sum(t.problem is not None for t in found.tables)
    left = f", {out} left out" if out else ""
    many = len(found.tables) - out
    console.print(f"wrote {path}: {many} {'table' if many == 1 else 'tables'}{left}", soft_wrap=True)
    if found.problems:
        console.print(f"{len(found.problems)} to fix first: they are at the top of the file", soft_wrap=True)
    if found.variable is not None:
        console.print(f"put the password into the environment: export {found.variable}=...", soft_wrap=True)
    if find_spec(PACKAGES.get(sink, "dblog")) is None:
        console.print(f"install what writes the lake: pip install 'dblog[{sink}]'", soft_wrap=True)
    console.print(f"then: dblog check {path}; dblog run {path}", soft_wrap=True)
