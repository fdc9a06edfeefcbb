"""The page on the architecture names modules, functions and threads that exist, and all folders and threads."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/dblog"
PAGE = (ROOT / "docs/architecture.md").read_text()
MODULES = sorted(PACKAGE.rglob("*.py"))


def thread_names() -> set[str]:
    """The names that the code gives to its threads, without what is filled in."""
    found = set()
    for path in (path for path in MODULES if '"dblog-' in path.read_text()):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg in ("name", "thread_name_prefix"):
                value = node.value.values[0] if isinstance(node.value, ast.JoinedStr) else node.value
                if isinstance(value, ast.Constant) and str(value.value).startswith("dblog-"):
                    found.add(str(value.value).rstrip("-"))
    return found


def test_every_module_that_is_named_exists() -> None:
    named = re.findall(r"[\w/]+\.py\b", PAGE)
    assert len(named) > 20
    for name in named:
        assert (PACKAGE / name).is_file() or (ROOT / name).is_file(), name


def test_every_folder_is_named_and_exists() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_every_thread_of_ours_is_named_and_exists() -> None:
    assert len(thread_names()) > 5
    assert {name.rstrip("-") for name in re.findall(r"\bdblog-[a-z-]+", PAGE)} == thread_names()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\.py`: (`\w+`)", PAGE))))
def test_what_is_said_to_be_in_a_module_is_there(name: str) -> None:
    for module in re.findall(rf"`([\w/]+\.py)`: {name}", PAGE):
        assert re.search(rf"\b(def|class) {name.strip('`')}\b", (PACKAGE / module).read_text()), module


def test_the_page_is_linked_from_the_readme() -> None:
    assert "(docs/architecture.md)" in (ROOT / "README.md").read_text()
