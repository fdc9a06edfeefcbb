"""The API does what its own OpenAPI description says, for whatever anybody sends."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, StopReason, events, from_schema
from schemathesis.openapi import from_dict

from dblog.control.api import create_app
from dblog.control.requests import TABLE, TABLES, Change
from dblog.core.names import parse_patterns, parse_table
from dblog.core.throttle import SETTINGS, Throttle, read_settings
from dblog.errors import ConfigError
from dblog.state import open_store
from dblog.state.pipeline import Pipeline
from dblog.state.requests import MOST_KEYS, MOST_TEXT

TOKEN = "a-token-of-the-tests"
CONFIG = {
    "seed": 1,
    "continue-on-failure": True,
    "headers": {"Authorization": f"Bearer {TOKEN}"},
    "generation": {"max-examples": 25, "database": "none"},
    "operations": [
        {  # Who asks after the health of what does not run is told so with a 503.
            "include-path-regex": "^/health",
            "checks": {"not_a_server_error": {"expected-statuses": ["2xx", "4xx", 503]}},
        },
        {  # That all keys have the same number of values cannot be described.
            "include-name": "POST /api/v1/dumps",
            "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 401, 404, 422]}},
        },
    ],
}
LONG = (("maxLength", MOST_TEXT), ("maxItems", MOST_KEYS))


def quick(description: Any) -> Any:
    """A description without the limits that take long to generate for; they have their own tests."""
    if isinstance(description, dict):
        return {name: quick(value) for name, value in description.items() if (name, value) not in LONG}
    return [quick(each) for each in description] if isinstance(description, list) else description


@pytest.mark.slow
def test_every_route_keeps_to_its_description(shop: Pipeline, place: str) -> None:
    app = create_app(lambda: open_store(place), token=TOKEN)
    app.state.hub.close()  # A stream of events ends when it has caught up.
    described = from_dict(quick(app.openapi()), config=SchemathesisConfig.from_dict(CONFIG))
    described.app = app
    wrong: list[str] = []
    answered: dict[str, set[int]] = {}
    for event in from_schema(described).execute():
        if isinstance(event, events.ScenarioFinished):
            checks = [check for made in event.recorder.checks.values() for check in made]
            wrong += [
                f"{event.recorder.label}: {check.failure_info.failure}\n{check.failure_info.code_sample}"
                for check in checks
                if check.status is not Status.SUCCESS and check.failure_info
            ]
            statuses = (i.response.status_code for i in event.recorder.interactions.values() if i.response)
            answered.setdefault(event.recorder.label, set()).update(statuses)
        elif isinstance(event, events.NonFatalError | events.FatalError):
            wrong.append(repr(event))
        elif isinstance(event, events.EngineFinished):
            assert event.stop_reason is StopReason.COMPLETED
    assert not wrong, "\n\n".join(wrong)
    assert 201 in answered["POST /api/v1/dumps"]
    routes = [f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods]
    assert 401 in answered.pop("POST /api/v1/session"), "nobody guesses the token"
    routes.remove("POST /api/v1/session")
    assert [route for route in routes if not answered[route] & {200, 201, 404, 503}] == []


def accepts(parse: Any, text: str) -> bool:
    try:
        parse(text)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize(("pattern", "parse"), [(TABLES, parse_patterns), (TABLE, parse_table)])
def test_patterns_of_tables_are_described_as_they_are_read(pattern: str, parse: Any) -> None:
    @settings(max_examples=300, derandomize=True, database=None)
    @given(st.text('ab*?[].,!" \n"', max_size=8))
    @example("a, !b.*")
    @example('"a""b"."."')
    def agree(text: str) -> None:
        assert bool(re.search(pattern, text)) == accepts(parse, text)

    @settings(max_examples=100, derandomize=True, database=None)
    @given(st.from_regex(pattern))
    def accepted(text: str) -> None:
        assert accepts(parse, text), text

    agree()
    accepted()


def test_settings_are_described_as_they_are_read() -> None:
    described = Change.model_json_schema()["properties"]
    assert list(described) == [s.name for s in SETTINGS]
    assert set(described) == set(Throttle.__dataclass_fields__)
    numbers = {n: v for n, d in described.items() for v in d["anyOf"] if v.get("type") in ("integer", "number")}
    assert len(numbers) == 9
    for name, limits in numbers.items():
        least, most = limits["minimum"], limits["maximum"]
        assert read_settings({name: least}) == {name: least}
        assert read_settings({name: most}) == {name: most}
        for beyond in (least - abs(least) / 2 - 0.5, most * 2):
            with pytest.raises(ConfigError):
                read_settings({name: beyond})
    for text, fine in (("x" * MOST_TEXT, True), ("x" * (MOST_TEXT + 1), False), (" ", False)):
        assert accepts(lambda t: read_settings({"probe": t}), text) is fine


@pytest.mark.parametrize(
    ("given", "fine"),
    [
        ({"chunks": 5.0}, True),
        ({"chunks": 5.5}, False),
        ({"chunks": "5"}, False),
        ({"chunks": True}, False),
        ({"chunks": "auto"}, True),
        ({"paused": None}, True),
        ({"paused": "true"}, False),
        ({"probe_max": float("nan")}, False),
        ({"rows_per_second": 5}, True),
        ([], False),
    ],
)
def test_a_setting_has_the_type_that_is_described(given: Any, fine: bool) -> None:
    try:
        TypeAdapter(Change).validate_python(given)
    except (ConfigError, ValidationError):
        assert not fine
    else:
        assert fine
