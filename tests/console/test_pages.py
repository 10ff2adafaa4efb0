"""Every page in a browser: without an error, without a violation of WCAG, on a phone, in the dark, by keys alone."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from scheduler.console import pages as all_pages
from scheduler.console import routes
from scheduler.console.answers import static
from scheduler.console.render import rate_text
from scheduler.console.serve import ConsoleServer
from support.accessibility import THEMES, Accessibility
from support.consoles import ask, console_on, link
from support.databases import Database, one_database
from support.filled import Filled

all_pages.load()
PATHS = (
    *(path for path, _ in routes.navigation()),
    "/?at=5m",
    "/tasks?q=state:dead%20-queue:photos",
    "/tasks?q=kind:Nothing",
    "/tasks/{dead}",
    "/tasks/{retried}",
    "/tasks/{waiting}",
    "/tasks/{suspended}",
    "/tasks/{scheduled}",
    "/tasks/{retried}/log",
    "/tasks/{retried}?at=9m",
    "/tasks/{retried}?at=20m",
    "/tasks/{scheduled}/cancel",
    "/workers?all=1",
    "/kinds/Mail",
    "/queues/slow",
    "/audit?by=alice",
    "/keys",
    "/dead?{cause}",
    "/bulks/{bulk}",
    "/compare/{dead}",
)
PHONE = {"width": 320, "height": 640}
PAGE_BYTES, SCRIPT_BYTES, STYLE_BYTES = 30_000, 25_000, 20_000


def of(path: str, filled: Filled) -> str:
    return path.format(**filled._asdict())


@pytest.fixture(scope="module")
def looked() -> Accessibility:
    return Accessibility()


@pytest.mark.parametrize("part", [0, 1])
def test_every_page_is_accessible_in_both_themes_and_fits_a_phone(
    console: ConsoleServer, filled: Filled, page: Any, looked: Accessibility, part: int
) -> None:
    """A console error, a violation of the content security policy and an error of a script fail it, too."""
    page.goto(link(console))
    wrong = []
    for path in PATHS[part::2]:
        page.goto(console.url.rstrip("/") + of(path, filled))
        for theme in THEMES:  # without loading the page again, which takes as long as looking at it
            wrong += [f"{path}, {one}" for one in looked.violations(page, theme)]
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE)
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if wide > 0:
            wrong.append(f"{path}: {wide} px too wide for a phone")
        page.set_viewport_size({"width": 1280, "height": 800})
    assert not wrong, "\n".join(wrong)


def test_without_a_script_everything_is_there(console: ConsoleServer, filled: Filled, pages: Any) -> None:
    page = pages.new(java_script_enabled=False)
    page.goto(link(console))
    page.get_by_role("link", name="Tasks", exact=True).click()
    page.get_by_label("Filter", exact=True).fill("kind:Mail state:dead")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("link", name=str(filled.dead), exact=True).click()
    page.get_by_text("Replay…").click()
    assert page.get_by_role("button", name="Replay", exact=True).is_visible()


def test_by_keys_alone(console: ConsoleServer, filled: Filled, page: Any) -> None:
    page.goto(link(console))
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.get_by_role("heading", name="Tasks").wait_for()
    page.wait_for_load_state()  # the script runs
    page.keyboard.press("/")
    page.keyboard.type("state:dead,retry")
    page.keyboard.press("Enter")
    page.wait_for_url("**/tasks?q=*")
    page.wait_for_load_state()
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == str(filled.dead)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=f"Mail {filled.dead}").wait_for()
    page.wait_for_load_state()
    page.keyboard.press("y")
    assert page.get_by_role("button", name="Replay", exact=True).is_visible()
    page.keyboard.press("Escape")
    page.locator("#live").click(position={"x": 1, "y": 1})
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    assert page.get_by_role("dialog").get_by_text("next row").is_visible()
    page.keyboard.press("Escape")
    with page.expect_navigation():  # closing a page amid one may hang
        page.keyboard.press("z")


def test_theme_and_zone_are_remembered(console: ConsoleServer, pages: Any) -> None:
    page = pages.new(timezone_id="Asia/Tokyo")
    page.goto(link(console))
    page.get_by_label("Theme").select_option("dark")
    page.get_by_label("Times in").select_option("Asia/Tokyo")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_load_state()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.goto(console.url + "tasks")
    assert "JST" in (page.locator("tbody time").first.get_attribute("title") or "")


def test_what_pages_weigh(filled: Filled) -> None:
    with console_on(Database(filled.url, "sqlite")) as gate:
        for path in PATHS:
            size = len(gzip.compress(ask(gate, "GET", of(path, filled)).body))
            assert size <= PAGE_BYTES, f"{path}: {size}"
    assert len(static("console.js", None).body) <= SCRIPT_BYTES
    assert len(static("console.css", None).body) <= STYLE_BYTES


def test_every_page_has_a_twin_in_json_and_no_secret(filled: Filled) -> None:
    all_pages.load()
    with console_on(Database(filled.url, "sqlite"), "admin") as gate:
        for path in PATHS:
            where, _, query = of(path, filled).partition("?")
            twin = f"{'/index' if where == '/' else where}.json?{query}"
            shown, data = ask(gate, "GET", f"{where}?{query}"), ask(gate, "GET", twin)
            assert data.headers["content-type"].startswith("application/json"), path
            assert data.json is not ...
            for secret in ("hunter2", "secret-of-url", "a-token-of-ours", "abcdef"):
                assert secret not in shown.text, path
                assert secret not in data.text, path


@one_database
def test_pages_of_an_empty_store(database: Database) -> None:
    with console_on(database) as gate:
        assert "There are no tasks yet" in ask(gate, "GET", "/").text
        for path, _ in routes.navigation():
            assert ask(gate, "GET", path).status == 200, path


def test_what_waits_for_ever_has_no_end(filled: Filled) -> None:
    with console_on(Database(filled.url, "sqlite"), "viewer") as gate:
        text = ask(gate, "GET", f"/graphs/{filled.waiting}").text
    assert "not by itself: all that is left waits for what has ended" in text
    assert "not known" not in text


def test_rates_have_no_exponent() -> None:
    shown = [rate_text(one) for one in (0, 8.3e-8, 0.1, 12.345, 99.96, 2345.6)]
    assert shown == ["0", "< 0.1", "0.1", "12.3", "100", "2\u202f346"]


def test_the_entry_of_the_page_is_in_view_on_a_phone(console: ConsoleServer, pages: Any) -> None:
    page = pages.new(viewport=PHONE)
    page.goto(link(console))
    page.goto(console.url + "settings")
    at = page.locator(".side [aria-current]").bounding_box()
    assert 0 <= at["x"] <= at["x"] + at["width"] <= PHONE["width"]
    value = page.locator("tr[data-row='worker.restart_when_hung'] td").nth(1).bounding_box()
    assert value["x"] + value["width"] <= PHONE["width"]
