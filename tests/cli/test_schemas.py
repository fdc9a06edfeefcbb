"""`dblog schemas`: what is stored of schemas, and how they differ."""

from __future__ import annotations

from typing import Any

import pytest

from dblog.state.pipeline import Pipeline
from tests.cli.program import dblog, document

FIRST = {"table": "public.orders", "key": ["id"], "columns": [["id", "bigint"], ["total", "integer"]], "seen_at": 10.0}
SECOND = {**FIRST, "columns": [["id", "bigint"], ["total", "numeric"], ["note", "text"]], "seen_at": 20.0}
OTHER = {"table": "public.items", "key": ["id"], "columns": [["id", "integer"]], "seen_at": 15.0}


@pytest.fixture
def stored(pipeline: Pipeline) -> dict[str, Any]:
    """In another order than that of their versions."""
    schemas = {"ffff0001": FIRST, "aaaa0002": SECOND, "bbbb0003": OTHER}
    for version, schema in schemas.items():
        pipeline.saw_schema(version, schema)
    return schemas


def test_they_are_listed_by_table_and_time(stored: dict[str, Any]) -> None:
    assert list(document("schemas")) == ["bbbb0003", "ffff0001", "aaaa0002"]
    assert document("schemas") == stored
    lines = dblog("schemas").stdout.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["bbbb0003", "ffff0001", "aaaa0002"]
    assert "id bigint, total integer" in lines[2]


def test_the_history_of_a_table(stored: dict[str, Any]) -> None:
    changes = ["column 'note' (text) was added", "column 'total' changed from integer to numeric"]
    assert document("schemas", "public.orders") == [
        {"version": "ffff0001", "seen_at": 10.0, "differences": ["first seen"]},
        {"version": "aaaa0002", "seen_at": 20.0, "differences": changes},
    ]
    text = dblog("schemas", "public.orders").stdout
    assert all(change in text for change in changes)
    assert "bbbb0003" not in text


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (
            ("ffff0001", "aaaa0002"),
            ["column 'note' (text) was added", "column 'total' changed from integer to numeric"],
        ),
        (("aaaa", "ffff"), ["column 'note' was dropped", "column 'total' changed from numeric to integer"]),
        (("ffff", "ffff"), []),
    ],
)
def test_two_versions_side_by_side(stored: dict[str, Any], versions: tuple[str, str], said: list[str]) -> None:
    assert document("schemas", "--diff", *versions)["differences"] == said
    assert dblog("schemas", "--diff", *versions).stdout.splitlines() == (said or ["no difference"])


def test_versions_of_two_tables(stored: dict[str, Any]) -> None:
    assert "the table is public.items, no longer public.orders" in dblog("schemas", "--diff", "ffff", "bbbb").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["public.nothing"], 3, "there is no schema of 'public.nothing'"),
        (["--diff", "ffff", "cccc"], 3, "there is no schema version 'cccc'"),
        (["--diff", "", "ffff"], 3, "there are several schema versions ''"),
        (["public.orders", "--diff", "ffff", "aaaa"], 2, "a table and --diff cannot be used together"),
    ],
)
def test_what_is_not_there(stored: dict[str, Any], arguments: list[str], code: int, said: str) -> None:
    assert said in dblog("schemas", *arguments, code=code).stderr
