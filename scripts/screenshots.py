"""Make the screenshots of docs/page.md from the page itself: `.venv/bin/python -m scripts.screenshots`.

It serves a state store with made-up pipelines, written as running pipelines write them, and opens it in Chromium.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path

from playwright.sync_api import sync_playwright

from dblog.control.serve import serving
from dblog.state import open_store
from dblog.state.pipeline import Pipeline
from tests.page import world
from tests.page.conftest import CHROMIUM, FLAGS

FOLDER = Path(__file__).parents[1] / "docs" / "images"
SHOTS = [
    ("fleet", "", 1280, "light"),
    ("fleet-phone", "", 390, "dark"),
    ("overview", "#/p/shop", 1280, "light"),
    ("live", "#/p/shop/live", 1280, "light"),
    ("live-dark", "#/p/shop/live", 1280, "dark"),
    ("dumps", "#/p/shop/dumps", 1280, "light"),
    ("tables", "#/p/shop/tables", 1280, "light"),
    ("time", "#/p/shop/time", 1280, "dark"),
]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, closing(open_store(f"{folder}/state.db")) as store:
        world.fleet(store)
        world.busy(store)
        with serving("127.0.0.1:0", f"{folder}/state.db") as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            for name, where, width, theme in SHOTS:
                shop = Pipeline(store, "shop")
                context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
                page = context.new_page()
                shop.store.delete(shop.at("events"))
                if "live" in name:
                    world.rounds(shop, 10, time.time() - 17)
                alive(store)
                page.goto(f"{url}/{where}")
                page.wait_for_selector("#link-state.live")
                page.wait_for_timeout(1500)
                alive(store)
                page.wait_for_timeout(2500)
                page.screenshot(path=FOLDER / f"page-{name}.png")
                context.close()
            browser.close()


def alive(store: object) -> None:
    """Let the pipelines say again that they run."""
    for name in ("shop", "billing", "search_index", "warehouse", "audit_kafka"):
        pipeline = Pipeline(store, name)  # type: ignore[arg-type]
        document = pipeline.store.get(pipeline.at("status"))
        assert document is not None
        value = {**document.value, "events": document.value["events"] + 900}
        for table, counted in value["tables"].items():
            counts = {"create": 60, "update": 210, "delete": 9} if "order" in table else {"update": 12}
            for kind, more in counts.items():
                counted["operations"][kind] += more
        pipeline.say(value)
        delivery = pipeline.store.get(pipeline.at("delivery"))
        if delivery is not None:
            pipeline.deliver(delivery.value)


if __name__ == "__main__":
    main()
