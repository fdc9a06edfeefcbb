"""The documents say what is true: options, errors, links, names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dblog
from dblog import errors
from dblog.spark.options import OPTIONS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_option_is_in_the_documentation_as_the_code_has_it() -> None:
    page = (ROOT / "docs/spark.md").read_text()
    for option in OPTIONS:
        assert f"| `{option.name}` | {option.takes} | {option.about} | {option.shown_default} |" in page


def test_every_error_is_in_the_documentation_and_in_the_tree_at_the_top_of_its_module() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.DBLogError):
            assert f"`{name}`" in page, name
            assert re.search(rf"\b{name}\b", errors.__doc__ or ""), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`((?:src|tests|bench|docs)/[\w./]+)`", page.read_text()):
        assert (ROOT / name).exists(), name


def test_tests_that_are_named_exist() -> None:
    tests = {
        name
        for file in (ROOT / "tests").rglob("*.py")  # a suite's are in no test_*.py
        for name in re.findall(r"^ *def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    for page in PAGES:
        for name in re.findall(r"`(test_\w+)`", page.read_text()):
            assert name in tests, f"{page.name}: {name}"


def test_the_public_face_is_what_it_says() -> None:
    assert all(hasattr(dblog, name) for name in dblog.__all__)


def test_the_readmes_options_exist() -> None:
    known = {o.name for o in OPTIONS} | {"checkpointLocation", "path"}
    used = set(re.findall(r'\.option\("(\w+)"', (ROOT / "README.md").read_text()))
    assert used
    assert used <= known
