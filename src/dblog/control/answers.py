"""The models of the HTTP API's answers. OpenAPI is made from them, and from those of the requests."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
)

from dblog.control.requests import ABOUT
from dblog.core.throttle import Throttle
from dblog.state.requests import Dump, State


class Problem(BaseModel):
    """What went wrong, and what to do."""

    error: str
    hint: str | None = None


class Live(BaseModel):
    live: Literal[True] = True


class Waiting(BaseModel):
    """Since when and why a pipeline delivers nothing."""

    since: float
    reason: str | None = None


class Election(BaseModel):
    """The leader of a pipeline with standbys, and its lease."""

    leader: str | None = Field(description="machine, process and a random part; null: nobody leads")
    epoch: int = Field(description="the number of the lease: greater with every take-over and restart")
    lease_seconds: float
    lease_age: float = Field(description="seconds since the lease was renewed, by the clocks of two machines")


class Health(BaseModel):
    """Ready: the store answers, and the pipelines run or have waited for less than `unready_after` seconds."""

    live: Literal[True] = True
    ready: bool
    store: bool = Field(description="whether the state store answers")
    pipelines: dict[str, str] = Field(description="the state of each pipeline")
    waiting: dict[str, Waiting] = Field(description="pipelines that wait for their sink or restart")
    left_out: dict[str, list[str]] = Field(
        {}, description="tables that a pipeline's patterns name and that it does not follow; its status says why"
    )
    failed_tables: dict[str, list[str]] = Field(
        {}, description="tables that are set aside because they failed; the pipeline's status says why"
    )
    ha: dict[str, Election] = Field({}, description="the leaders of pipelines with standbys")


class PipelineState(BaseModel):
    name: str
    state: str


class Pipelines(BaseModel):
    pipelines: list[PipelineState]


class Table(BaseModel):
    model_config = ConfigDict(extra="allow")

    version: str | None = Field(None, description="the version of its schema")
    key: list[str] = []
    columns: list[list[str]] = Field([], description="names and types")
    rows: int | None = Field(None, description="an estimate")


class Tables(BaseModel):
    pipeline: str
    tables: dict[str, Table]


class Schemas(BaseModel):
    pipeline: str
    schemas: dict[str, dict[str, Any]] = Field(description="the schemas by version")


class SlotHealth(BaseModel):
    model_config = ConfigDict(extra="allow")

    active: bool | None = None
    wal_status: str | None = None
    retained_bytes: int | None = None
    safe_bytes: int | None = None


class FailedTable(BaseModel):
    """A table that is set aside: why, and from where on it is not delivered."""

    reason: str = Field(description="value, definition or dump")
    message: str
    position: int = Field(description="its log is delivered up to here")
    at: float
    column: str | None = None
    value: str | None = None
    key: dict[str, str] | None = None


class Retried(FailedTable):
    """A table that is taken up again as soon as the pipeline runs."""

    table: str


class Status(BaseModel):
    """The status that a pipeline wrote last. Counters begin at 0 when it starts."""

    model_config = ConfigDict(extra="allow")

    pipeline: str
    state: str = Field(
        description="running, degraded (it runs, but tables are set aside), waiting for sink, restarting, stopped, "
        "failed, lost (silent since updated_at) or never started"
    )
    error: str | None = None
    since: float | None = Field(None, description="when it began to wait for its sink, or to restart")
    reason: str | None = Field(None, description="why it waits for its sink, or restarts")
    restarts: int | None = Field(None, description="how often its query was started again after a failure")
    sink: dict[str, str] = Field({}, description="how its sink writes, as the sink says")
    ha: Election | None = Field(None, description="the leader; null for a pipeline without standbys")
    source: str | None = None
    slot: str | None = None
    host: str | None = None
    pid: int | None = None
    started_at: float | None = None
    updated_at: float | None = None
    tables: dict[str, Table] = {}
    position: int | None = Field(None, description="the log is delivered up to here")
    planned: int | None = Field(None, description="where the batch ends that is being delivered")
    captured: int | None = None
    latest: int | None = Field(None, description="the end of the database's log")
    lag_bytes: int | None = None
    lag_seconds: float | None = Field(None, description="age of the oldest commit that is not delivered")
    capture_lag_seconds: float | None = None
    events: int | None = None
    rows: int | None = None
    dropped: int | None = None
    raw_values: int | None = Field(None, description="values that their column's type cannot hold; delivered as null")
    windows: int | None = None
    batches: int | None = None
    batch_seconds: float | None = Field(None, description="duration of all batches, from plan to commit")
    last_batch_seconds: float | None = None
    selects: int | None = None
    select_seconds: float | None = None
    last_select_seconds: float | None = None
    spool_bytes: int | None = None
    slot_health: SlotHealth | None = None
    waiting: str | None = Field(None, description="what the start waits for, or why no round of a dump opens now")
    left_out: dict[str, str] = Field({}, description="tables that match the patterns but are not followed, and why")
    failed_tables: dict[str, FailedTable] = Field(
        {}, description="tables that failed and are set aside, and why; the state is degraded while there are any"
    )
    lost_commits: str | None = Field(None, description="delivered commits that a promoted server did not have")
    joining: list[str] = Field([], description="tables that are followed and dumped when open transactions have ended")


class TableDump(BaseModel):
    """The progress of the dump of one table."""

    state: State
    read: int
    emitted: int
    dropped: int
    total: int | None = None
    reason: str | None = None
    missing: list[list[str]] = Field([], description="requested keys that no row has, at most a hundred of them")
    missed: int = Field(0, description="how many keys no row has")


class DumpState(BaseModel):
    """A dump: the request, its state and its progress."""

    id: str
    kind: Literal["initial", "repair", "all", "table", "keys", "where"]
    state: State
    reason: str | None = None
    tables: str | None = None
    keys: list[list[str]] | None = Field(None, description="the requested keys; not in lists of dumps")
    where: str | None = None
    read: int
    emitted: int
    dropped: int
    total: int | None = Field(None, description="an estimate")
    seconds_left: float | None = Field(None, description="an estimate")
    created_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    progress: dict[str, TableDump] = Field({}, description="by table; not in a brief list")
    table_count: int = Field(0, description="how many tables it reads")
    tables_ended: int = Field(0, description="how many of these it has read")

    @staticmethod
    def of(dump: Dump) -> DumpState:
        found = dump.progress.tables.values()
        counts = {"table_count": len(found), "tables_ended": sum(t.state.ended for t in found)}
        return DumpState.model_validate({**dump.to_json(), **counts})


class Dumps(BaseModel):
    dumps: list[DumpState]


class Settings(BaseModel):
    """The present throttle. null means the automatic or unlimited default."""

    paused: bool = Field(description=ABOUT["paused"])
    chunk_rows: int | None = Field(description=ABOUT["chunk_rows"])
    select_seconds: float | None = Field(description=ABOUT["select_seconds"])
    chunks: int | None = Field(description=ABOUT["chunks"])
    delay_seconds: float = Field(description=ABOUT["delay_seconds"])
    rows_per_second: float | None = Field(description=ABOUT["rows_per_second"])
    max_select_seconds: float | None = Field(description=ABOUT["max_select_seconds"])
    max_lag_seconds: float | None = Field(description=ABOUT["max_lag_seconds"])
    max_delay_seconds: float | None = Field(description=ABOUT["max_delay_seconds"])
    probe: str | None = Field(description=ABOUT["probe"])
    probe_max: float | None = Field(description=ABOUT["probe_max"])

    @staticmethod
    def of(throttle: Throttle) -> Settings:
        return Settings.model_validate(asdict(throttle))
