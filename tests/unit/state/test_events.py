"""The kinds of events are declared once: what is emitted, shown and served is held to the declaration."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblog.cli.watch import LINES, STYLES
from dblog.control.api import create_app
from dblog.state import open_store
from dblog.state.events import EventKind, event

PLANNING = Path(__file__).parents[3] / "src/dblog/planning"
FROM_THE_NEWER_EVENT = {"op", "lsn"}
"""Words of a line that `dblog watch` takes out of the field `by`."""


def emitted() -> Iterator[tuple[str, set[str] | None]]:
    """Every event that the code emits: its kind and, where the call names all of them, its fields."""
    for path in PLANNING.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="tell" | "_tell"), args=[ast.Constant(value=str(kind))]):
                    names = [keyword.arg for keyword in node.keywords]
                    yield kind, None if None in names else {str(name) for name in names}
                case ast.Call(func=ast.Name(id="event"), args=[ast.Constant(value=str(kind)), _, ast.Dict(keys=keys)]):
                    yield (
                        kind,
                        {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)},
                    )


def test_what_is_emitted_is_what_is_declared() -> None:
    calls = list(emitted())
    assert {kind for kind, _ in calls} == set(EventKind)
    for kind, fields in calls:
        assert fields is None or fields == set(EventKind[kind].fields), kind


def test_a_kind_or_a_field_that_is_not_declared_is_refused() -> None:
    assert event("watermark_seen", 1.0, {"token": "t", "position": 5})["kind"] == "watermark_seen"
    with pytest.raises(ValueError, match="'watermark_lost' is not declared"):
        event("watermark_lost", 1.0, {"token": "t"})
    with pytest.raises(ValueError, match="has the fields"):
        event("watermark_seen", 1.0, {"token": "t"})


def test_watch_has_a_line_for_every_kind_from_its_own_fields() -> None:
    assert list(LINES) == list(EventKind)
    assert set(STYLES) <= set(EventKind)
    for kind in EventKind:
        words = {name for _, name, _, _ in string.Formatter().parse(LINES[kind]) if name}
        known = {*kind.fields, *(FROM_THE_NEWER_EVENT if "by" in kind.fields else ())}
        assert words <= {*known, *({"because"} if "reason" in kind.fields else ())}, kind


def test_the_http_api_takes_exactly_these_kinds() -> None:
    schemas = create_app(open_store).openapi()["components"]["schemas"]
    assert schemas["EventKind"]["enum"] == list(EventKind)
