"""The file that `dblog init` writes for a database: it runs as it is, and comments show further settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dblog.core.schema import TableName
from dblog.sources.problems import Problem

MOST_TABLES = 50
"""How many tables the file lists at most."""


@dataclass(frozen=True)
class Found:
    """A table of the database."""

    table: TableName
    rows: int | None
    key: tuple[str, ...]
    problem: str | None = None
    """Why it cannot be captured; None if it can."""


@dataclass(frozen=True)
class Database:
    """What `dblog init` has found in a database."""

    url: str
    """The URL without secrets."""
    variable: str | None
    """The environment variable for the password; None if the URL has none."""
    tables: Sequence[Found]
    problems: Sequence[Problem]
    """Other problems because of which a stream cannot run."""
    writes: bool
    """Whether watermarks can be written."""


def example(name: str, found: Database, sink: str = "ndjson") -> str:
    """The text of `<name>.toml`. `sink` is one of SINKS."""
    sinks = (SINKS[sink] + _MORE_SINKS).format(name=name)
    parts = [_head(name, found), _source(found), _PIPELINE.format(name=name), _tables(found), sinks]
    return "\n".join(parts)


def _head(name: str, found: Database) -> str:
    lines = [
        f"# A pipeline. dblog check {name}.toml checks whether it can run; dblog run {name}.toml runs it.",
        "# docs/pipelines.md lists all settings.",
    ]
    if found.problems:
        lines += ["#", "# Fix these problems first:"]
        for problem in found.problems:
            lines += [f"#   {_line(problem.what)}", *(f"#       {_line(fix)}" for fix in problem.fix.splitlines())]
    return "\n".join([*lines, ""])


def _source(found: Database) -> str:
    lines = ["[source]", f"url = {_toml(found.url)}"]
    if found.variable is not None:
        lines.append(f'password = {{ env = "{found.variable}" }}  # or {{ file = "/run/secrets/..." }}')
    lines += ["tables = [", *(f"    {_toml(f'{_quoted(s)}.*')}," for s in _schemas(found))]
    for table in found.tables:
        if table.problem is not None:
            lines.append(f"    {_toml('!' + pattern(table.table))},  # {_line(table.problem)}")
    lines.append("]")
    if not found.writes:
        lines.append('watermark = "none"  # this user may not write the watermark table')
    lines.append('# dump = "never"  # deliver only changes from now on, and no full state of the tables first')
    fit = [t for t in found.tables if t.problem is None]
    lines += ["", f"# {len(fit)} tables:" if len(fit) != 1 else "# 1 table:"]
    lines += [f"#   {_line(str(t.table))}, {_rows(t)}, key {_line(', '.join(t.key))}" for t in fit[:MOST_TABLES]]
    if len(fit) > MOST_TABLES:
        lines.append(f"#   and {len(fit) - MOST_TABLES} more")
    return "\n".join([*lines, ""])


_PIPELINE = """\
[pipeline]
# name = "{name}"  # the name in dblog status
# every = 5  # seconds from batch to batch
# http = "127.0.0.1:8080"  # the HTTP API, with metrics

# [throttle]  # limits on dumps; dblog set changes them at any time
# rows_per_second = 50000
"""


def _tables(found: Database) -> str:
    fit = next((t for t in found.tables if t.problem is None), None)
    name = _toml(pattern(fit.table)) if fit is not None else '"public.customers"'
    return f"""\
# [[table]]  # columns, names, masks and filters of a table
# match = {_line(name)}
# exclude = ["notes"]
# mask = {{ email = "sha256" }}
"""


_LAKE = """\
[[sink]]
type = "{kind}"  # {what}; needs pip install 'dblog[{kind}]'
path = "{{name}}-lake"  # a folder beside this file, with a table for each table
# mode = "history"  # keep every state of a row; "log" keeps every change
"""
SINKS: Mapping[str, str] = {
    "ndjson": """\
[[sink]]
type = "ndjson"  # every change as a line of JSON
path = "{name}-changes"
""",
    "parquet": """\
[[sink]]
type = "parquet"  # every change as a row of Parquet files
path = "{name}-changes"
""",
    "delta": _LAKE.format(kind="delta", what="tables of Delta Lake with the rows as they are"),
    "iceberg": _LAKE.format(kind="iceberg", what="tables of Apache Iceberg with the rows as they are"),
}
"""The sink in the file, by its type: those that need no more than a folder."""
_MORE_SINKS = """
# [[sink]]  # further sinks; each has its own stream
# type = "sql"
# url = {{ env = "TARGET_URL" }}
"""


def _schemas(found: Database) -> list[str]:
    return list(dict.fromkeys(t.table.schema for t in found.tables))


def _rows(table: Found) -> str:
    return "rows not counted" if table.rows is None else f"about {table.rows:,} rows"


def pattern(table: TableName) -> str:
    """The pattern that matches this table only."""
    return f"{_quoted(table.schema)}.{_quoted(table.name)}"


def _quoted(name: str) -> str:
    plain = re.fullmatch(r'[^\s".,!*?\[\]]+', name)
    return name if plain else '"' + name.replace('"', '""') + '"'


def _toml(text: str) -> str:
    """A text as a TOML string."""
    literal = '"' in text and not re.search(r"['\x00-\x1f\x7f]", text)
    return f"'{text}'" if literal else json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _line(text: str) -> str:
    """A text on one line, without the control characters that a TOML comment must not have."""
    return re.sub(r"[\x00-\x1f\x7f]+", " ", text)
