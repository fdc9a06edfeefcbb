"""The models of the HTTP API's requests and answers. OpenAPI is made from them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictBool,
    StrictInt,
    StrictStr,
    model_validator,
)
from pydantic.config import JsonDict, JsonValue
from pydantic.json_schema import SkipJsonSchema

from dblog.core.throttle import SETTINGS, Throttle, read_settings
from dblog.state.events import EventKind
from dblog.state.pipeline import KEEP_EVENTS
from dblog.state.requests import MOST_KEYS, MOST_TEXT, Dump, State

ABOUT = {s.name: f"{s.about}; {s.takes}" for s in SETTINGS}
BOUNDS = {s.name: s.kind.bounds for s in SETTINGS if s.kind.bounds is not None}

Number = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""The number of an entry in a log of events."""

# Regular expressions for OpenAPI: `core.names` accepts every text that they match. Only `core.names` checks requests.
_SPACE = r"[ \t\r\n]*"
_QUOTED = r'"(?:[^"]|"")*"'
_ODD = r'\s\x00-\x20\x7f-\xa0".,!'
_NAME = rf"(?:{_QUOTED}|[^{_ODD}]+)(?:{_SPACE}\.{_SPACE}(?:{_QUOTED}|[^{_ODD}]+))?"
_ENTRY = rf"{_SPACE}(?:!{_SPACE})*{_NAME}{_SPACE}"
_PLAIN = rf"(?:{_QUOTED}|[^{_ODD}*?\[]+)"
TABLES = rf"^{_ENTRY}(?:,{_ENTRY})*$"
TABLE = rf"^{_SPACE}{_PLAIN}(?:{_SPACE}\.{_SPACE}{_PLAIN})?{_SPACE}$"
VISIBLE = r"[^\s\x00-\x20\x7f-\xa0]"


# -- requests ------------------------------------------------------------------------------------------------


class Choice(BaseModel):
    """The choice of a pipeline."""

    model_config = ConfigDict(extra="forbid")

    pipeline: Annotated[str, Field(min_length=1)] | SkipJsonSchema[None] = Field(
        None, description="the pipeline's name; not needed if the store has only one pipeline"
    )


class Listing(Choice):
    """How dumps are listed."""

    brief: bool = Field(False, description="leave out the progress of single tables")


class Following(Choice):
    """The choice of events."""

    after: Number | SkipJsonSchema[None] = Field(None, description="only entries after this number; 0: all entries")
    last: Annotated[int, Field(ge=0, le=KEEP_EVENTS)] = Field(
        0, description="begin with the last so many entries; not used with `after`"
    )
    kind: list[EventKind] = Field([], description="only these kinds; may be repeated")


def _text(value: str) -> str:
    """Refuse half a surrogate pair: JSON may contain it, but it is not valid text."""
    value.encode()
    return value


Text = Annotated[StrictStr, AfterValidator(_text)]
Scalar = Text | StrictInt | StrictBool | Annotated[FiniteFloat, Field(strict=True)]


def _alternatives(schema: JsonDict) -> None:
    """Describe which fields can be used together."""
    fields = cast(dict[str, JsonDict], schema.pop("properties"))
    no_keys: JsonDict = {"type": "array", "items": {}, "maxItems": 0}
    one: JsonDict = {"type": "string", "maxLength": MOST_TEXT, "pattern": TABLE}
    alternatives: tuple[tuple[str, JsonDict, list[JsonValue]], ...] = (
        ("Tables", {**fields, "keys": no_keys, "where": {"type": "null"}}, []),
        ("Keys", {**fields, "tables": one, "where": {"type": "null"}}, ["tables", "keys"]),
        ("Rows under a condition", {**fields, "tables": one, "keys": no_keys}, ["tables"]),
    )
    schema["anyOf"] = [
        {
            "title": title,
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        for title, properties, required in alternatives
    ]
    del schema["type"], schema["additionalProperties"]
    schema["examples"] = [
        {},
        {"tables": "public.*, !public.tmp_*"},
        {"tables": "public.orders", "keys": [17, [18]]},
        {"tables": "public.orders", "where": "created_at > now() - interval '1 day'"},
    ]


class NewDump(BaseModel):
    """What to dump: everything, the tables of some patterns, given keys of one table, or its rows under a condition."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_alternatives)

    tables: Annotated[Text, Field(json_schema_extra={"maxLength": MOST_TEXT, "pattern": TABLES})] | None = Field(
        None, description="patterns like public.*, !public.tmp_*; one table for keys or where; null for all"
    )
    keys: list[Scalar | Annotated[list[Scalar], Field(min_length=1)]] = Field(
        [],
        description="keys of the table; a composite key is a list; all keys have the same number of values",
        json_schema_extra={"maxItems": MOST_KEYS},
    )
    where: Annotated[Text, Field(json_schema_extra={"maxLength": MOST_TEXT, "pattern": VISIBLE})] | None = Field(
        None, description="a condition on the table's rows, in the database's SQL"
    )


Default = Literal["auto", "none"] | None


def _whole(value: Any) -> Any:
    """Turn a float without a fraction into an integer: in JSON, 5.0 and 5 are the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)


def _bounded(setting: str) -> Any:
    least, most = BOUNDS[setting]
    return Field(strict=True, ge=least, le=most, allow_inf_nan=False)


class Change(BaseModel):
    """Settings to change; the others stay as they are. null, auto or none restore the default of a setting."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"rows_per_second": 5000}]})

    @model_validator(mode="before")
    @classmethod
    def _explain(cls, given: Any) -> Any:
        """Let `read_settings` check the values and raise its own errors. The model only checks the JSON types."""
        if isinstance(given, dict):
            read_settings(given)
        return given

    paused: StrictBool | Default = Field(None, description=ABOUT["paused"])
    chunk_rows: Annotated[int, _bounded("chunk_rows"), WHOLE] | Default = Field(None, description=ABOUT["chunk_rows"])
    select_seconds: Annotated[float, _bounded("select_seconds")] | Default = Field(
        None, description=ABOUT["select_seconds"]
    )
    chunks: Annotated[int, _bounded("chunks"), WHOLE] | Default = Field(None, description=ABOUT["chunks"])
    delay_seconds: Annotated[float, _bounded("delay_seconds")] | Default = Field(
        None, description=ABOUT["delay_seconds"]
    )
    rows_per_second: Annotated[float, _bounded("rows_per_second")] | Default = Field(
        None, description=ABOUT["rows_per_second"]
    )
    max_select_seconds: Annotated[float, _bounded("max_select_seconds")] | Default = Field(
        None, description=ABOUT["max_select_seconds"]
    )
    max_lag_seconds: Annotated[float, _bounded("max_lag_seconds")] | Default = Field(
        None, description=ABOUT["max_lag_seconds"]
    )
    max_delay_seconds: Annotated[float, _bounded("max_delay_seconds")] | Default = Field(
        None, description=ABOUT["max_delay_seconds"]
    )
    probe: Annotated[Text, Field(json_schema_extra={"maxLength": MOST_TEXT, "pattern": VISIBLE})] | Default = Field(
        None, description=ABOUT["probe"]
    )
    probe_max: Annotated[float, _bounded("probe_max")] | Default = Field(None, description=ABOUT["probe_max"])


# -- answers -------------------------------------------------------------------------------------------------


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
