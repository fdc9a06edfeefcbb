"""The site of the documents has every page, asks no other host for anything, and can be built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.test_docs_debezium import check_command

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def named(nav: list[Any]) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    for entry in nav:
        (found,) = entry.values()
        yield from [found] if isinstance(found, str) else named(found)


def test_every_page_is_in_the_navigation_once_and_every_entry_exists() -> None:
    assert sorted(named(SITE["nav"])) == PAGES


def test_nothing_is_fetched_from_other_hosts() -> None:
    assert SITE["theme"]["font"] is False
    assert not {"extra_javascript", "extra_css", "repo_url", "extra"} & set(SITE)
    assert SITE["plugins"] == ["search"]


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_stay_inside_of_the_documents(name: str) -> None:
    page = DOCS / name
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("https://"):
            found = (page.parent / target).resolve()
            assert found.is_file(), f"{name}: {target}"
            assert found.is_relative_to(DOCS), f"{name}: {target} is not on the site"


@pytest.mark.parametrize("name", PAGES)
def test_every_table_of_a_page_begins_with_its_head(name: str) -> None:
    """A blank line inside of a table would make text of the rows after it."""
    text = re.sub(r"^```.*?^```", "", (DOCS / name).read_text(), flags=re.MULTILINE | re.DOTALL)
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        lines = block.splitlines()
        assert len(lines) > 2, block
        assert re.fullmatch(r"\|[-|]+\|", lines[1]), block


@pytest.mark.parametrize("page", ["docs/index.md", "README.md", "docs/upgrading.md", "deploy/README.md"])
def test_commands_and_extras_of_the_first_pages_exist(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBLOG_URL", "postgresql://localhost/shop")
    text = (ROOT / page).read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"dblog\[([\w,]+)\]", text):
        assert set(named.split(",")) <= set(extras), named
    for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^(?:\S+=\S+ )?(dblog .*)$", block, re.MULTILINE):
            for command in line.partition("  #")[0].split("; "):
                check_command(command.strip())


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    # Not --quiet, which hides warnings from --strict too.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    built = [path.read_text() for path in (tmp_path / "site").rglob("*.html")]
    assert len(built) > len(PAGES) - 1
    asked = {
        url
        for text in built
        for url in re.findall(r'<(?:script|img|iframe|source)[^>]+src="(https?://[^"]+)"', text)
        + re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect|icon)"[^>]+href="(https?://[^"]+)"', text)
        + re.findall(r'<link[^>]+href="(https?://[^"]+)"[^>]+rel="(?:stylesheet|preconnect|icon)"', text)
    }
    assert asked == set()
