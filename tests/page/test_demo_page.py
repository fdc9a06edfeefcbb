"""`dblog demo --ui`: the page over a real pipeline, and the live window of a real dump."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.page.conftest import PATIENCE, Visit
from tests.spark.test_demo import LAST_LINE, scratch, start

pytestmark = [pytest.mark.spark, pytest.mark.slow]
expect.set_options(timeout=PATIENCE)

__all__ = ["scratch"]


def test_the_demo_shows_its_windows_until_it_is_interrupted(scratch: Path, visit: Visit) -> None:
    process = start(scratch, "--ui", "--rows", "20000")
    said = ""
    try:
        assert process.stdout is not None
        while (found := re.search(r"http://127\.0\.0\.1:\d+", said)) is None:
            line = process.stdout.readline()
            assert line, said
            said += line
        page = visit(found[0], expected="ERR_|Failed to")
        expect(page.locator(".member")).to_have_count(3, timeout=4 * PATIENCE)
        name = page.locator(".member .name a", has_text="orders").first.inner_text()
        page.goto(f"{found[0]}/#/p/{name}/dumps")
        page.get_by_role("button", name="New dump").click(timeout=2 * PATIENCE)
        page.get_by_text("Everything").click()
        page.get_by_role("button", name="Request the dump").click()
        page.get_by_role("link", name="Live window").click()
        expect(page.locator(".window .seen").first).to_be_attached(timeout=4 * PATIENCE)
        expect(page.locator(".window .bar-item").first).to_be_attached(timeout=2 * PATIENCE)
        expect(page.locator(".words")).to_contain_text("the batch is committed")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, said + out + err
    assert re.fullmatch(LAST_LINE, out.splitlines()[-1]), out
