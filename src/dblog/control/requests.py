"""The models of the HTTP API's requests. OpenAPI is made from them, and from those of the answers."""

from __future__ import annotations

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

from dblog.core.throttle import SETTINGS, read_settings
from dblog.state.events import EventKind
from dblog.state.pipeline import KEEP_EVENTS
from dblog.state.requests import MOST_KEYS, MOST_TEXT

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
