"""Turns a dump request into cursors on the captured tables, or into the reason why it cannot be done."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dblog.core.condition import check_condition
from dblog.core.dump import of_keys
from dblog.core.names import named_tables, parse_patterns, select_tables
from dblog.core.offset import Cursor
from dblog.core.pace import Pace
from dblog.core.schema import TableName
from dblog.errors import ConfigError, TableUnreadable
from dblog.sources.base import Source
from dblog.state.requests import Request, TableProgress

NAMED = 100
"""How many missing keys a dump lists at most."""


@dataclass(frozen=True)
class Admission:
    """A table's part in a request: the cursor to add, and its progress before the dump begins."""

    cursor: Cursor
    progress: TableProgress


def admit(dump: str, request: Request, captured: Collection[TableName], source: Source, pace: Pace) -> list[Admission]:
    """One admission for each table of the request. A table that cannot be dumped gets a failed cursor."""
    try:
        tables = _tables(request, captured, source.default_schema)
    except ConfigError as error:
        return [_refused(dump, TableName("", request.tables or ""), error.message)]
    if not tables:
        wanted = (
            "the stream captures no table" if request.tables is None else f"no captured table matches {request.tables}"
        )
        return [_refused(dump, TableName("", request.tables or ""), wanted)]
    return [_admit(dump, request, table, captured, source, pace) for table in tables]


def _tables(request: Request, captured: Collection[TableName], default_schema: str) -> tuple[TableName, ...]:
    """The captured tables that match the request, and tables that it names but that are not captured."""
    if request.tables is None:
        return tuple(sorted(captured))
    patterns = parse_patterns(request.tables, "tables", default_schema=default_schema)
    named = named_tables(patterns)
    return select_tables(patterns, {*captured, *named})


def _admit(
    dump: str, request: Request, table: TableName, captured: Collection[TableName], source: Source, pace: Pace
) -> Admission:
    try:
        key = source.key(table)
        if table not in captured:
            return _refused(dump, table, f"table {table} is not captured by this stream")
        if request.keys:
            missing = source.missing(table, request.keys)
            progress = TableProgress(total=len(request.keys), missing=tuple(missing[:NAMED]), missed=len(missing))
            return Admission(of_keys(dump, table, request.keys, key, pace), progress)
        if request.where is not None:
            check_condition(request.where)
            source.check_condition(table, request.where)
            return Admission(Cursor(dump, table, pace.first_rows, where=request.where), TableProgress())
        return Admission(Cursor(dump, table, pace.first_rows), TableProgress(total=source.estimate(table)))
    except (TableUnreadable, ConfigError) as error:
        return _refused(dump, table, error.message)


def _refused(dump: str, table: TableName, reason: str) -> Admission:
    return Admission(Cursor(dump, table, 1, failed=reason), TableProgress())
