"""Chromium, and servers of the page over state stores with pipelines that only write what pipelines write."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from dblog.control.serve import serving
from dblog.state import open_store
from dblog.state.pipeline import Pipeline
from dblog.state.store import Store
from tests.page import world

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
CHROMIUM = shutil.which("chromium")
TOKEN, READ_TOKEN = "an-operators-token", "a-readers-token"
PATIENCE = 30_000
"""How long a test waits for the page, in milliseconds."""


@pytest.fixture(scope="module")  # not longer: while it lives, no other test could run an event loop
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: scripts/chromium.sh installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "state.db")


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    store = open_store(place)
    yield store
    store.close()


@pytest.fixture
def shop(store: Store) -> Pipeline:
    pipeline = world.start(store, "shop", hours=0.3)
    world.busy(store)
    return pipeline


Visit = Callable[..., Page]


@contextmanager
def visitor(browser: Browser) -> Iterator[Visit]:
    """Open pages. At the end, none may have had an error, a refused policy or a request to another host."""
    problems: list[str] = []
    with ExitStack() as stack:

        def visit(url: str, where: str = "", *, expected: str = "$^", **settings: object) -> Page:
            """`expected` matches the errors of the console that the test causes."""
            context: BrowserContext = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE)
            page = context.new_page()

            def told(kind: str, text: str) -> None:
                if not re.search(expected, text):
                    problems.append(f"{kind}: {text}")

            page.on("console", lambda m: told(m.type, m.text) if m.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: told("page", str(error)))
            page.on("request", lambda r: None if r.url.startswith(url) else told("other host", r.url))
            page.goto(f"{url}/{where}")
            return page

        yield visit
    assert not problems


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    with visitor(browser) as visit:
        yield visit


@pytest.fixture
def url(place: str) -> Iterator[str]:
    with serving("127.0.0.1:0", place) as url:
        yield url


@pytest.fixture
def guarded(place: str) -> Iterator[str]:
    with serving("127.0.0.1:0", place, TOKEN, read_token=READ_TOKEN) as url:
        yield url
