"""The page in a real browser: what it shows, every action, and what it does when something is wrong."""

from __future__ import annotations

import re
import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from dblog.control.serve import serving
from dblog.state.pipeline import Pipeline
from dblog.state.requests import State
from dblog.state.store import Store
from tests.control.conftest import wait_until
from tests.page import world
from tests.page.conftest import PATIENCE, READ_TOKEN, TOKEN, Visit

expect.set_options(timeout=PATIENCE)


def names(page: Page) -> list[str]:
    return page.locator(".member .name a").all_inner_texts()


class TestFleet:
    def test_the_worst_pipeline_comes_first(self, store: Store, url: str, visit: Visit) -> None:
        world.fleet(store)
        page = visit(url)
        expect(page.locator(".member")).to_have_count(7)
        assert names(page)[:2] == ["warehouse", "ledger"]
        assert names(page)[-1] == "crm"
        ledger = page.locator(".member", has_text="ledger")
        expect(ledger).to_contain_text("the slot 'dblog_ledger' is lost")
        late = page.locator(".member", has_text="search_index")
        expect(late).to_contain_text("most in sink")
        expect(late.get_by_role("img", name=re.compile("capture .* spool .* sink"))).to_be_visible()
        expect(page.locator(".member", has_text="warehouse")).to_contain_text("limit in")

    def test_it_follows_what_pipelines_write(self, shop: Pipeline, store: Store, url: str, visit: Visit) -> None:
        page = visit(url)
        expect(page.locator(".member")).to_contain_text("800 ms")
        shop.say(world.status(time.time(), lag_seconds=42.0))
        expect(page.locator(".member")).to_contain_text("42 s")
        world.start(store, "another", hours=0.1)
        expect(page.locator(".member")).to_have_count(2)

    def test_two_hundred_pipelines_are_filtered_at_once(self, store: Store, url: str, visit: Visit) -> None:
        for number in range(200):
            world.start(store, f"pipeline_{number:03d}", hours=0.05)
        page = visit(url)
        expect(page.locator(".member")).to_have_count(200)
        page.get_by_label("Filter pipelines").fill("pipeline_17")
        expect(page.locator(".member")).to_have_count(10)
        page.get_by_label("Filter pipelines").fill("")
        took = page.evaluate(
            """async () => { const begun = performance.now(); await new Promise(requestAnimationFrame);
            document.querySelector('input[type=search]').dispatchEvent(new Event('input'));
            await new Promise(requestAnimationFrame); return performance.now() - begun; }"""
        )
        assert took < 1000


class TestAccess:
    def test_a_wrong_token_opens_nothing_and_the_right_one_stays_for_the_session(
        self, shop: Pipeline, guarded: str, visit: Visit
    ) -> None:
        page = visit(guarded, expected="401")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("This is not a token of the server.")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_label("Your name").fill("Maria")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".member")).to_have_count(1)
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert TOKEN not in cookie["value"]
        page.reload()
        expect(page.locator("#who")).to_have_text("Maria")
        page.goto(f"{guarded}/#/p/shop/dumps")
        page.get_by_role("button", name="Pause all dumps").click()
        wait_until(lambda: shop.settings().paused)
        assert shop.actions()[0]["by"] == "Maria"
        page.get_by_role("link", name="Actions").click()
        expect(page.locator("tbody tr").first).to_contain_text("paused = true")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.reload()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

    def test_a_reader_sees_everything_and_changes_nothing(self, shop: Pipeline, guarded: str, visit: Visit) -> None:
        page = visit(guarded, "#/p/shop/dumps", expected="401|403")
        page.get_by_label("Token").fill(READ_TOKEN)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#who")).to_contain_text("may read")
        expect(page.get_by_role("button", name="New dump")).to_be_disabled()
        expect(page.get_by_role("button", name=re.compile("^Cancel dump")).first).to_be_disabled()
        expect(page.get_by_label("Rows per second")).to_be_disabled()
        refused = page.evaluate(
            "async () => (await fetch('/api/v1/pause', {method: 'POST', headers: {'x-dblog-page': '1'}})).status"
        )
        assert refused == 403
        assert not shop.settings().paused

    def test_a_request_without_the_header_of_the_page_changes_nothing(
        self, shop: Pipeline, guarded: str, visit: Visit
    ) -> None:
        page = visit(guarded, expected="401|403")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".member")).to_have_count(1)
        assert page.evaluate("async () => (await fetch('/api/v1/pause', {method: 'POST'})).status") == 403
        assert not shop.settings().paused


class TestDumps:
    def test_a_dump_is_paused_resumed_and_cancelled(self, shop: Pipeline, url: str, visit: Visit) -> None:
        page = visit(url, "#/p/shop/dumps")
        dump = next(each for each in shop.dumps() if each.state is State.running)
        card = page.locator(".dump", has_text=dump.id)
        expect(card.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "64")
        expect(card).to_contain_text("3,444 dropped as stale")
        expect(card).to_contain_text("left")
        card.get_by_role("button", name="Pause").click()
        wait_until(lambda: shop.dump(dump.id).state is State.paused)
        expect(card).to_contain_text("somebody has paused it")
        card.get_by_role("button", name="Resume").click()
        wait_until(lambda: shop.dump(dump.id).state is State.running)
        card.locator("summary").click()
        expect(card.get_by_role("row", name="public.orders")).to_contain_text("3,100,000")
        card.get_by_role("button", name="Cancel").click()
        card.get_by_role("button", name="Really cancel?").click()
        wait_until(lambda: str(shop.dump(dump.id).wish) == "cancel")

    def test_why_a_dump_waits_is_shown(self, shop: Pipeline, url: str, visit: Visit) -> None:
        shop.say(world.status(time.time(), waiting="a commit is not visible yet"))
        page = visit(url, "#/p/shop/dumps")
        expect(page.locator(".dump").first).to_contain_text("waits: a commit is not visible yet")

    def test_the_throttle_acts_at_once(self, shop: Pipeline, url: str, visit: Visit) -> None:
        page = visit(url, "#/p/shop/dumps")
        slider = page.get_by_label("Rows per second")
        expect(slider).to_have_attribute("aria-valuetext", "20 k rows/s")
        slider.focus()
        slider.press("End")
        wait_until(lambda: shop.settings().rows_per_second == 1_000_000)
        slider.press("Home")
        wait_until(lambda: shop.settings().rows_per_second is None)
        page.get_by_label("Chunks at the same time").press("End")
        wait_until(lambda: shop.settings().chunks == 60)
        page.get_by_role("button", name="Back to the defaults").click()
        wait_until(lambda: shop.settings().chunks is None)
        page.get_by_role("button", name="Pause all dumps").click()
        wait_until(lambda: shop.settings().paused)
        page.get_by_role("button", name="Resume all dumps").click()
        wait_until(lambda: not shop.settings().paused)

    def test_the_answer_to_an_earlier_move_does_not_undo_a_later_one(
        self, shop: Pipeline, url: str, visit: Visit
    ) -> None:
        page = visit(url, "#/p/shop/dumps")
        slider = page.get_by_label("Rows per second")
        expect(slider).to_have_attribute("aria-valuetext", "20 k rows/s")
        held: list[Route] = []

        def hold_first(route: Route) -> None:
            if route.request.method == "PATCH" and not held:
                held.append(route)
            else:
                route.continue_()

        page.route("**/settings*", hold_first)
        with page.expect_request(lambda request: request.method == "PATCH"):
            slider.press("End")
        slider.press("Home")
        with page.expect_response(lambda response: "null" in (response.request.post_data or "")):
            held[0].continue_()
        assert shop.settings().rows_per_second is None
        expect(slider).to_have_attribute("aria-valuetext", "no limit")

    def test_a_dump_is_requested_with_an_estimate_and_its_commands(
        self, shop: Pipeline, url: str, visit: Visit
    ) -> None:
        page = visit(url, "#/p/shop/dumps", expected="422")
        page.get_by_role("button", name="New dump").click()
        dialog = page.get_by_role("dialog")
        tables = dialog.get_by_role("combobox", name="Tables")
        expect(dialog.locator("datalist option")).to_have_count(8)
        tables.fill("public.p*")
        expect(dialog.locator(".estimate")).to_contain_text("public.payments, public.products: about 41 k rows")
        dialog.get_by_text("Some keys").click()
        dialog.get_by_role("combobox", name="Table").fill("public.orders")
        dialog.get_by_role("textbox", name="Keys").fill("17\n18")
        dialog.get_by_text("The same on the command line").click()
        expect(dialog.get_by_label("as a command")).to_have_text(
            "dblog dump public.orders --keys 17,18 --pipeline shop"
        )
        expect(dialog.get_by_label("with curl")).to_contain_text('{"tables":"public.orders","keys":["17","18"]}')
        dialog.get_by_text("Rows under a condition").click()
        dialog.get_by_role("textbox", name="Condition").fill("total > 100; drop table orders")
        dialog.get_by_role("button", name="Request the dump").click()
        expect(dialog.get_by_role("alert")).to_contain_text(";")
        dialog.get_by_role("textbox", name="Condition").fill("total > 100")
        dialog.get_by_role("button", name="Request the dump").click()
        expect(dialog).to_be_hidden()
        newest = max(shop.dumps(), key=lambda each: each.created_at or 0)
        assert (newest.request.tables, newest.request.where) == ("public.orders", "total > 100")
        expect(page.locator(".dump", has_text=newest.id)).to_contain_text("queued")


class TestLive:
    def test_a_window_is_drawn_from_the_events(self, shop: Pipeline, url: str, visit: Visit) -> None:
        world.rounds(shop, 6, time.time() - 14.0)
        page = visit(url, "#/p/shop/live")
        expect(page.locator(".window .seen")).to_have_count(6)
        expect(page.locator(".window .bar-item").first).to_be_visible()
        page.locator(".window .drops [role=button]").first.press("Enter")
        chosen = page.get_by_role("region", name="Chosen")
        expect(chosen).to_contain_text("A row that was not delivered")
        expect(chosen).to_contain_text(re.compile("Made stale by(update|delete) at position"))
        expect(page.locator(".words li")).to_have_count(14)

    def test_the_picture_pauses_steps_and_returns(self, shop: Pipeline, url: str, visit: Visit) -> None:
        page = visit(url, "#/p/shop/live")
        expect(page.get_by_text("live", exact=True).last).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_text(re.compile("paused, .* behind"))).to_be_visible()
        world.rounds(shop, 2, time.time())
        step = page.get_by_role("button", name="Step")
        expect(step).to_be_enabled()
        expect(page.locator(".window .seen")).to_have_count(0)
        for _ in range(3):
            step.click()
        expect(page.locator(".window .seen")).to_have_count(1)
        expect(page.locator(".window .batches .batch")).to_have_count(0)
        page.get_by_role("button", name="Back to now").click()
        expect(page.locator(".window .seen")).to_have_count(2)
        page.get_by_label("Speed").select_option("0.25")
        expect(page.get_by_text(re.compile("slow motion"))).to_be_visible()

    def test_lost_events_are_admitted(self, shop: Pipeline, url: str, visit: Visit) -> None:
        page = visit(url, "#/p/shop/live")
        expect(page.get_by_text("live", exact=True).last).to_be_visible()
        shop.tell([{"at": time.time(), "kind": "offset_committed", "position": 1, "events": 1}])
        expect(page.locator(".words li")).to_have_count(1)
        key = shop.at("events")
        shop.store.append(key, [{"at": time.time(), "kind": "x", "n": n} for n in range(40)], keep=10)
        shop.store.delete(key)
        shop.tell([{"at": time.time(), "kind": "offset_committed", "position": 2, "events": 2}])
        expect(page.get_by_text(re.compile("did not reach this page"))).to_be_visible()
        expect(page.locator(".lost-band")).to_have_count(1)


class TestTables:
    def test_two_thousand_tables_are_shown_in_pages(self, store: Store, url: str, visit: Visit) -> None:
        world.start(store, "big", hours=0.05, tables=world.tables(2000))
        page = visit(url, "#/p/big/tables")
        expect(page.get_by_text("1 to 50 of 2,000 tables")).to_be_visible()
        page.get_by_role("button", name="Later").click()
        expect(page.get_by_text("51 to 100 of 2,000 tables")).to_be_visible()
        page.get_by_role("button", name="Rows").click()
        expect(page.locator("tbody tr").first).to_contain_text("public.events_1999")
        page.get_by_label("Filter tables").fill("order")
        expect(page.locator("tbody tr")).to_have_count(2)

    def test_changes_per_second_come_from_two_answers(self, shop: Pipeline, url: str, visit: Visit) -> None:
        page = visit(url, "#/p/shop/tables")
        row = page.locator("tbody tr", has_text="public.orders")
        expect(row).to_contain_text("1-")
        tables = world.tables()
        tables["public.orders"]["operations"]["update"] += 10_000
        shop.say(world.status(time.time(), tables=tables))
        expect(row.locator(".kind.update")).to_contain_text("updated")

    def test_a_table_shows_its_schemas_and_dumps(self, shop: Pipeline, url: str, visit: Visit) -> None:
        page = visit(url, "#/p/shop/tables")
        world.rounds(shop, 6, time.time() - 14.0)
        page.get_by_role("link", name="public.orders").click()
        newest = page.locator(".schemas > li").first
        expect(newest).to_contain_text("total numeric(12,2) was integer")
        expect(newest).to_contain_text("note text removed")
        expect(page.get_by_role("row", name=re.compile("^initial"))).to_contain_text("completed")
        dropped = page.get_by_role("region", name="Rows dropped as stale").locator("tbody tr")
        expect(dropped.first).to_contain_text("at position")
        key = dropped.first.locator("td").first.inner_text()
        page.get_by_label("Find a key").fill(key)
        expect(dropped).to_have_count(1)


class TestTime:
    def test_the_last_hours_are_drawn(self, shop: Pipeline, url: str, visit: Visit) -> None:
        page = visit(url, "#/p/shop/time")
        expect(page.locator("canvas")).to_have_count(6)
        lag = page.get_by_role("region", name="Lag")
        expect(lag.locator(".hidden")).to_contain_text("delivery: at least")
        page.get_by_role("button", name="15 min").click()
        expect(page.get_by_role("button", name="15 min")).to_have_attribute("aria-pressed", "true")


class TestConnection:
    def test_it_says_when_the_server_is_gone_and_goes_on_when_it_is_back(
        self, shop: Pipeline, place: str, visit: Visit
    ) -> None:
        with serving("127.0.0.1:0", place) as url:
            page = visit(url, "#/p/shop/live", expected="ERR_|Failed to load|Failed to fetch")
            expect(page.get_by_text("live", exact=True).last).to_be_visible()
        expect(page.locator("#banner")).to_contain_text("The server does not answer")
        expect(page.locator("#link-state")).to_have_class(re.compile("lost"))
        with serving(url.removeprefix("http://"), place):
            expect(page.locator("#banner")).to_be_empty()
            shop.tell([{"at": time.time(), "kind": "offset_committed", "position": 9, "events": 1}])
            expect(page.locator(".words li").first).to_contain_text("the batch is committed")

    def test_a_pipeline_that_is_silent_is_named(self, shop: Pipeline, url: str, visit: Visit) -> None:
        page = visit(url, "#/p/shop")
        expect(page.locator(".badge").first).to_have_text("running")
        shop.store.put(shop.at("status"), {**world.status(time.time()), "updated_at": time.time() - 60})
        expect(page.locator(".problem").first).to_contain_text("it has stopped writing its status")

    def test_a_name_from_the_store_is_never_markup(self, store: Store, url: str, visit: Visit) -> None:
        name = "<img src=x onerror=alert(1)>"
        world.start(store, name, hours=0.05, state="failed", error="<b>bold</b>")
        page = visit(url)
        expect(page.locator(".member")).to_contain_text("<b>bold</b>")
        page.locator(".member a").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        assert page.locator("main img, main b").count() == 0


VIEWS = [
    "",
    "#/p/shop",
    "#/p/shop/live",
    "#/p/shop/dumps",
    "#/p/shop/tables",
    "#/p/shop/tables/public.orders",
    "#/p/shop/time",
]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_is_accessible_and_fits_a_phone(
    shop: Pipeline, store: Store, url: str, visit: Visit, theme: str
) -> None:
    world.fleet(store)
    world.busy(store)
    world.rounds(shop, 3, time.time() - 8)
    page = visit(url, "", color_scheme=theme, viewport={"width": 360, "height": 740}, reduced_motion="reduce")
    problems = []
    for where in [*VIEWS, "#/p/shop/actions"]:
        page.goto(f"{url}/{where}")
        expect(page.get_by_role("heading").first).to_be_visible()
        page.wait_for_selector("#link-state.live")
        page.wait_for_load_state("networkidle") if "live" not in where else page.wait_for_selector(".window .seen")
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > 360:
            problems.append(f"{where} is {wide} px wide")
        found = Axe().run(page)
        problems += [
            f"{where} {theme}: {v['id']}: {v['help']} {[n['html'][:120] for n in v['nodes'][:3]]}"
            for v in found.response["violations"]
        ]
    assert problems == []


def test_the_keyboard_reaches_everything(shop: Pipeline, url: str, visit: Visit) -> None:
    page = visit(url)
    expect(page.locator(".member")).to_have_count(1)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.get_by_role("link", name="shop", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="shop")).to_be_visible()
    page.get_by_role("link", name="Dumps").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="New dump").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("combobox", name="Tables")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_the_theme_is_chosen_and_kept(shop: Pipeline, url: str, visit: Visit) -> None:
    page = visit(url, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(16, 21, 23)"
    page.get_by_role("button", name="Theme: auto").click()
    assert page.evaluate(ground) == "rgb(246, 247, 247)"
    page.reload()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
