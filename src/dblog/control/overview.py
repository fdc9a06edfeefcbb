"""The routes that the page needs beside those of the API: all pipelines, their last hours, actions, and estimates."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from dblog.control.fleet import Fleet, History, Overview, fleet, overview, points
from dblog.control.requests import TABLES, Choice
from dblog.control.stores import Stores
from dblog.core.names import parse_patterns, parse_table, select_tables
from dblog.state.history import KEEP_SAMPLES, SAMPLE_SECONDS, samples
from dblog.state.pipeline import KEEP_ACTIONS, Pipeline, pipelines
from dblog.state.requests import MOST_KEYS, MOST_TEXT

MOST_NAMED = 100
"""How many tables an estimate names at most."""


class Hours(Choice):
    seconds: float = Field(KEEP_SAMPLES * SAMPLE_SECONDS, gt=0, le=86_400, description="how far back")


class Last(Choice):
    limit: int = Field(100, ge=1, le=KEEP_ACTIONS, description="how many entries at most")


class Wanted(Choice):
    tables: (
        Annotated[str, Field(json_schema_extra={"maxLength": MOST_TEXT, "pattern": TABLES})] | SkipJsonSchema[None]
    ) = Field(None, description="patterns like public.*, !public.tmp_*; without it all tables")
    keys: int = Field(0, ge=0, le=MOST_KEYS, description="how many keys are requested; 0: all rows")


class Action(BaseModel):
    """What a user did."""

    model_config = ConfigDict(extra="allow")

    at: float
    by: str
    action: str = Field(description="dump, pause, resume, cancel or settings")
    dump: str | None = None
    changed: dict[str, Any] | None = Field(None, description="the settings that were changed")


class Actions(BaseModel):
    actions: list[Action] = Field(description="the newest first")


class Estimate(BaseModel):
    """What a dump would read. A condition is not counted: its rows are found by reading all."""

    tables: list[str] = Field(description=f"the tables, at most {MOST_NAMED} of them")
    count: int = Field(description="how many tables")
    rows: int | None = Field(description="how many rows; null if it is not known for some table")
    rows_per_second: float | None = Field(description="how fast the last dumps were; null if there were none")
    seconds: float | None


def overview_routes(stores: Stores, prefix: str) -> APIRouter:
    router = APIRouter(prefix=prefix, tags=["page"])

    @router.get("/fleet")
    def all_pipelines() -> Fleet:
        """All pipelines with their lag, rates and what is wrong with them, the worst first."""
        with stores.open() as store:
            return fleet([Pipeline(store, name) for name in pipelines(store)])

    @router.get("/overview")
    def one_pipeline(choice: Annotated[Choice, Query()]) -> Overview:
        """One pipeline, as in the list of all, with more numbers and without its tables."""
        with stores.pipeline(choice) as pipeline:
            return overview(pipeline)

    @router.get("/history")
    def history(wanted: Annotated[Hours, Query()]) -> History:
        """Samples of the last hours, one every 15 s: lag, rates, duration of batches."""
        with stores.pipeline(wanted) as pipeline:
            found = samples(pipeline, int(wanted.seconds / SAMPLE_SECONDS) + 1)
            return History(pipeline=pipeline.name, points=points(found))

    @router.get("/actions")
    def actions(last: Annotated[Last, Query()]) -> Actions:
        """What users did: who, when and what, the newest first."""
        with stores.pipeline(last) as pipeline:
            return Actions.model_validate({"actions": pipeline.actions(last.limit)})

    @router.get("/estimate")
    def estimate(wanted: Annotated[Wanted, Query()]) -> Estimate:
        """What a dump would read, and how long that would take."""
        with stores.pipeline(wanted) as pipeline:
            return _estimated(pipeline, wanted)

    return router


def _estimated(pipeline: Pipeline, wanted: Wanted) -> Estimate:
    known = {parse_table(name): table for name, table in pipeline.status().get("tables", {}).items()}
    tables = tuple(sorted(known))
    if wanted.tables is not None:
        schemas = {table.schema for table in known}
        default = {"default_schema": schemas.pop()} if len(schemas) == 1 else {}
        tables = select_tables(parse_patterns(wanted.tables, **default), known)
    counts = [known[table].get("rows") for table in tables]
    rows = wanted.keys or (None if None in counts else sum(counts))
    rate = _rate(pipeline)
    return Estimate(
        tables=[str(table) for table in tables[:MOST_NAMED]],
        count=len(tables),
        rows=rows,
        rows_per_second=rate,
        seconds=None if rows is None or not rate else rows / rate,
    )


def _rate(pipeline: Pipeline) -> float | None:
    """Rows per second of the last dump that ran for a while, within the present limit."""
    ran = [d for d in pipeline.dumps() if d.read and d.progress.active_seconds > 0]
    ran.sort(key=lambda d: d.progress.finished_at or d.progress.started_at or 0.0)
    limit = pipeline.settings().rows_per_second
    if not ran:
        return limit
    rate = ran[-1].read / ran[-1].progress.active_seconds
    return rate if limit is None else min(rate, limit)
