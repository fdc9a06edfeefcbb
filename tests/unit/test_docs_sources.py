"""`docs/adding-a-source.md` names every member of a source and says what its default is; the example is small."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from dblog.databases.families import GROUP, Address, Entry
from dblog.sources.base import LogStream, Selection, Source
from dblog.sources.family import Family, Slots
from dblog.sources.simple import SimpleFamily, SimpleSource, SimpleStream
from tests.sources import journal, journal_family

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/adding-a-source.md").read_text()
LINES = {"journal": 170, "journal_family": 60, "journal_file": 130}
"""The most lines that each module of the example may have: adding a source is little work."""


def members(protocol: type) -> dict[str, Any]:
    """What an implementation must have, by name."""
    return {name: getattr(protocol, name) for name in dir(protocol) if not name.startswith("_")}


@pytest.mark.parametrize("protocol", [Family, Source, LogStream, Selection, Slots, Address], ids=lambda p: p.__name__)
def test_every_member_is_named_and_has_a_contract(protocol: type) -> None:
    found = members(protocol)
    assert found
    for name, member in found.items():
        assert f"`{name}`" in PAGE, name
        said = inspect.getdoc(member)
        assert said, f"{protocol.__name__}.{name} has no docstring"
    assert f"`{protocol.__name__}`" in PAGE or protocol in (Slots, Address)


def test_every_field_of_an_entry_is_named() -> None:
    for field in dataclasses.fields(Entry):
        assert f"`{field.name}`" in PAGE, field.name
    assert f'[project.entry-points."{GROUP}"]' in PAGE


SIMPLE = {SimpleSource: Source, SimpleStream: LogStream, SimpleFamily: Family}


@pytest.mark.parametrize("simple", SIMPLE, ids=lambda of: of.__name__)
def test_every_member_is_needed_or_has_a_default(simple: type) -> None:
    """A member of a protocol that is neither would return None."""
    needed: frozenset[str] = simple.__abstractmethods__  # type: ignore[attr-defined]
    defaults = {name for name in vars(simple) if not name.startswith("_")} - needed
    assert members(SIMPLE[simple]).keys() <= needed | defaults
    assert needed <= members(SIMPLE[simple]).keys() | {"catalog"}


def table_of(first: str) -> dict[str, str]:
    """The defaults by member, in the table of the page that has this member."""
    (found,) = (part for part in PAGE.split("\n\n") if part.startswith("| member") and f"`{first}`" in part)
    rows = [line.strip("| ").split(" | ") for line in found.splitlines()[2:]]
    return {name: default for names, _, default in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize(
    ("simple", "first"),
    [(SimpleSource, "write_watermark"), (SimpleStream, "idle_position"), (SimpleFamily, "own_options")],
    ids=lambda of: getattr(of, "__name__", None),
)
def test_the_page_says_which_members_are_needed(simple: type, first: str) -> None:
    defaults = table_of(first)
    assert defaults.keys() == members(SIMPLE[simple]).keys() | simple.__abstractmethods__  # type: ignore[attr-defined]
    assert {name for name, default in defaults.items() if default == "**needed**"} == simple.__abstractmethods__  # type: ignore[attr-defined]
    assert all(defaults.values())


@pytest.mark.parametrize(
    ("example", "simple"),
    [
        (journal.JournalSource, SimpleSource),
        (journal.JournalStream, SimpleStream),
        (journal_family.JournalFamily, SimpleFamily),
    ],
    ids=lambda of: of.__name__,
)
def test_the_example_has_the_needed_members_and_no_others(example: type, simple: type) -> None:
    mine = {name for name in vars(example) if not name.startswith("_")}
    assert mine == simple.__abstractmethods__  # type: ignore[attr-defined]


def test_the_example_is_small() -> None:
    lines = {name: len((ROOT / f"tests/sources/{name}.py").read_text().splitlines()) for name in LINES}
    assert {name: count for name, count in lines.items() if count > LINES[name]} == {}


def test_the_page_is_linked() -> None:
    assert "docs/adding-a-source.md" in (ROOT / "README.md").read_text()
