"""The glossary names the words that the code and the documents use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/glossary.md"
ROWS = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
TERMS = [term for term, _ in ROWS]
CODE = "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
PAGES = "\n".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")) if path != PAGE)


def uses(term: str, text: str) -> bool:
    """Whether a text has the term as a word, in the singular or plural, on one line or over two."""
    words = r"[\s_]+".join(re.escape(word) for word in term.split())
    return re.search(rf"\b{words}s?\b", text, re.IGNORECASE) is not None


def test_every_row_of_the_glossary_is_read() -> None:
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and line != "| term | meaning |"]
    assert len(ROWS) == len(table) >= 30


@pytest.mark.parametrize("term", TERMS)
def test_a_term_of_the_glossary_is_used_in_the_code_and_in_the_documents(term: str) -> None:
    assert uses(term, CODE)
    assert uses(term, PAGES)


def test_a_term_stands_once() -> None:
    assert len(TERMS) == len({term.lower() for term in TERMS})


def test_a_word_inside_of_another_is_not_a_use() -> None:
    assert uses("state store", "the state\nstores of")
    assert not uses("lane", "a plane and planes")


def test_the_glossary_is_linked_from_the_readme() -> None:
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text()
