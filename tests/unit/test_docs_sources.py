"""`docs/adding-a-source.md` names every member of the protocols that a source implements."""

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
from tests.sources import journal, journal_family

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/adding-a-source.md").read_text()


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


@pytest.mark.parametrize(
    ("example", "protocol"),
    [
        (journal_family.JournalFamily, Family),
        (journal_family.JournalAddress, Address),
        (journal.JournalSource, Source),
        (journal.JournalStream, LogStream),
        (journal.JournalSelection, Selection),
    ],
    ids=lambda of: of.__name__,
)
def test_the_example_has_every_member(example: type, protocol: type) -> None:
    mine = {name for name in dir(example) if not name.startswith("_")} | set(getattr(example, "__annotations__", ()))
    mine |= set(re.findall(r"self\.([a-z]\w*) = ", inspect.getsource(example)))
    assert members(protocol).keys() <= mine


def test_the_page_is_linked() -> None:
    assert "docs/adding-a-source.md" in (ROOT / "README.md").read_text()
