"""The tables of a pipeline as the page shows them: a page of a sorted list, and one table in detail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from dblog.control.requests import Choice
from dblog.control.stores import Stores
from dblog.state.pipeline import Pipeline
from dblog.state.requests import Dump, State

MOST_ROWS = 200
"""How many tables one page of the list has at most."""
MOST_DUMPS = 20
"""How many dumps of a table its detail has at most."""

MOST_DROPPED = 50
"""How many dropped rows of a table its detail has at most."""
LOOKED_AT = 4000
"""How many events are looked through for dropped rows."""

Operations = dict[str, int]


class Page(Choice):
    search: str = Field("", max_length=200, description="only tables whose names contain this text")
    sort: Literal["name", "rows", "changes"] = "name"
    descending: bool = False
    skip: int = Field(0, ge=0, le=10**6)
    limit: int = Field(50, ge=1, le=MOST_ROWS)


class OneTable(Choice):
    table: str = Field(min_length=1, max_length=400, description="the name as in the list of tables")
    key: str = Field("", max_length=400, description="only dropped rows whose key contains this text")


class TableUse(BaseModel):
    """A dump of a table."""

    dump: str
    state: State
    read: int
    emitted: int
    dropped: int
    total: int | None = None
    reason: str | None = None
    started_at: float | None = None
    finished_at: float | None = None


class Row(BaseModel):
    """A table in the list."""

    name: str
    rows: int | None = Field(None, description="an estimate")
    version: str | None = Field(None, description="the version of its schema")
    key: list[str] = []
    columns: int = 0
    operations: Operations = Field({}, description="captured changes by operation, since the pipeline started")
    last_dump: TableUse | None = None


class Rows(BaseModel):
    at: float | None = Field(description="when the pipeline said this")
    count: int = Field(description="how many tables match")
    rows: list[Row]


class Names(BaseModel):
    tables: list[str]


class SchemaVersion(BaseModel):
    version: str
    key: list[str]
    columns: list[list[str]] = Field(description="names and types")
    seen_at: float | None = None
    current: bool


class DroppedRow(BaseModel):
    """A row of a dump that was not delivered: the log has a newer event of its key."""

    at: float
    dump: str
    key: list[str]
    by: dict[str, Any] | None = Field(None, description="the newer event: op, lsn, seq")


class TableDetail(BaseModel):
    row: Row
    at: float | None
    schemas: list[SchemaVersion] = Field(description="every schema with which changes were captured, the newest first")
    dumps: list[TableUse] = Field(description="its last dumps, the newest first")
    dropped: list[DroppedRow] = Field(description="rows of it that were dropped as stale, the newest first")


def grid_routes(stores: Stores, prefix: str) -> APIRouter:
    router = APIRouter(prefix=prefix + "/tables", tags=["page"])

    @router.get("/names")
    def names(choice: Annotated[Choice, Query()]) -> Names:
        """The names of the tables that the pipeline follows."""
        with stores.pipeline(choice) as pipeline:
            return Names(tables=sorted(pipeline.status().get("tables", ())))

    @router.get("/page")
    def page(wanted: Annotated[Page, Query()]) -> Rows:
        """A part of the sorted list of tables, with changes by operation and the last dump of each."""
        with stores.pipeline(wanted) as pipeline:
            return _page(pipeline, wanted)

    @router.get("/one")
    def one(wanted: Annotated[OneTable, Query()]) -> TableDetail:
        """One table: its schemas over time and its dumps."""
        with stores.pipeline(wanted) as pipeline:
            return _detail(pipeline, wanted.table, wanted.key)

    return router


def _page(pipeline: Pipeline, wanted: Page) -> Rows:
    status = pipeline.status()
    text = wanted.search.lower()
    found = [(n, t) for n, t in status.get("tables", {}).items() if text in n.lower()]
    order: dict[str, Callable[[tuple[str, Mapping[str, Any]]], Any]] = {
        "name": lambda each: each[0],
        "rows": lambda each: (each[1].get("rows") or 0, each[0]),
        "changes": lambda each: (sum(each[1].get("operations", {}).values()), each[0]),
    }
    found.sort(key=order[wanted.sort], reverse=wanted.descending)
    dumps = _newest_first(pipeline.dumps())
    rows = [_row(name, table, dumps) for name, table in found[wanted.skip : wanted.skip + wanted.limit]]
    return Rows(at=status.get("updated_at"), count=len(found), rows=rows)


def _detail(pipeline: Pipeline, name: str, key: str) -> TableDetail:
    status = pipeline.status()
    table = status.get("tables", {}).get(name)
    schemas = [(version, s) for version, s in pipeline.schemas().items() if s.get("table") == name]
    if table is None and not schemas:
        raise HTTPException(404, f"pipeline {pipeline.name!r} follows no table {name!r}")
    dumps = _newest_first(pipeline.dumps())
    current = (table or {}).get("version")
    found = [
        SchemaVersion(
            version=version,
            key=schema.get("key", []),
            columns=schema.get("columns", []),
            seen_at=schema.get("seen_at"),
            current=version == current,
        )
        for version, schema in schemas
    ]
    found.sort(key=lambda each: (each.current, each.seen_at or 0.0), reverse=True)
    uses = [_use(dump, name) for dump in dumps if name in dump.progress.tables][:MOST_DUMPS]
    return TableDetail(
        row=_row(name, table or {}, dumps),
        at=status.get("updated_at"),
        schemas=found,
        dumps=uses,
        dropped=_dropped(pipeline, name, key),
    )


def _dropped(pipeline: Pipeline, name: str, key: str) -> list[DroppedRow]:
    """The rows of a table that the last events say were dropped."""
    events = (e for _, e in reversed(pipeline.events(limit=LOOKED_AT)) if e.get("kind") == "row_dropped")
    found = (DroppedRow.model_validate(e) for e in events if e.get("table") == name)
    return list(islice((row for row in found if key in ", ".join(row.key)), MOST_DROPPED))


def _row(name: str, table: Mapping[str, Any], dumps: list[Dump]) -> Row:
    last = next((dump for dump in dumps if name in dump.progress.tables), None)
    return Row(
        name=name,
        rows=table.get("rows"),
        version=table.get("version"),
        key=table.get("key", []),
        columns=len(table.get("columns", ())),
        operations=table.get("operations", {}),
        last_dump=None if last is None else _use(last, name),
    )


def _use(dump: Dump, name: str) -> TableUse:
    progress = dump.progress.tables[name]
    return TableUse(
        dump=dump.id,
        state=progress.state,
        read=progress.read,
        emitted=progress.emitted,
        dropped=progress.dropped,
        total=progress.total,
        reason=progress.reason,
        started_at=dump.progress.started_at,
        finished_at=dump.progress.finished_at,
    )


def _newest_first(dumps: list[Dump]) -> list[Dump]:
    return sorted(dumps, key=lambda d: d.progress.finished_at or d.progress.started_at or 0.0, reverse=True)
