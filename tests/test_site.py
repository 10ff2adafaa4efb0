"""The site of the documentation: its pages, links and lists; once `make docs` has built it, the pages in a browser."""

from __future__ import annotations

import functools
import re
import runpy
import threading
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from support.browser import Pages

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"
SEEN = (
    "index",
    "contents",
    "agents",
    "guides/production",
    "reference/states",
    "compare/index",
    "compare/temporal",
    "explanation/clock-changes",
    "explanation/failovers",
    "explanation/faults",
    "explanation/old-snapshots",
    "explanation/performance",
    "guides/from-celery",
    "tutorial/getting-started",
)
# Where the keyboard is: its name, whether it is on the page to be seen, and whether a ring shows it.
FOCUS = """() => {
  const one = document.activeElement
  if (one === document.body) return null
  const seen = one.matches(".md-option") ? one.nextElementSibling : one
  const place = seen.getBoundingClientRect(), style = getComputedStyle(seen)
  return {
    name: (one.ariaLabel || one.title || one.textContent || one.id).trim().split(/\\s+/).join(" ").slice(0, 60),
    seen: style.visibility === "visible" && place.width > 0 && place.right > 0 && place.left < innerWidth,
    ringed: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    inside: one.closest("article") !== null,
  }
}"""


@functools.cache  # on import, each xdist worker would read all pages
def build() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "build.py"))


@functools.cache
def sections_of_index() -> dict[str, list[tuple[str, str]]]:
    made: dict[str, list[tuple[str, str]]] = build()["sections"]()
    return made


@functools.cache
def pages() -> dict[str, Any]:
    made: dict[str, Any] = build()["pages"]()
    return made


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    build()["lay_out"](place)
    return place


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_sections_of_the_index_are_the_navigation(laid_out: Path) -> None:
    settings = tomllib.loads((laid_out / "zensical.toml").read_text(encoding="utf-8"))
    sections = {name: parts for one in settings["project"]["nav"] for name, parts in one.items()}
    assert list(sections) == list(sections_of_index())
    for name in ("Start", "Learn", "How to", "Reference", "Explanation", "Migrate from", "For agents"):
        assert sections[name], name
    paths = [path for parts in sections.values() for part in parts for path in part.values()]
    assert len(paths) == len(set(paths))
    assert all((laid_out / "docs" / path).exists() for path in paths)


def test_each_page_and_file_that_it_shows_is_there(laid_out: Path) -> None:
    for page in pages().values():
        path = laid_out / "docs" / page.path
        text = path.read_text(encoding="utf-8")
        for target in re.findall(
            r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        ):
            assert (path.parent / target).exists(), f"{page.source}: {target}"


def test_a_link_to_a_missing_heading_is_found() -> None:
    page = build()["Page"]
    one = page("docs/a.md", "a.md", "# A\n\n[x](b.md#there) [y](b.md#gone) [z](c.md)\n")
    other = page("docs/b.md", "b.md", "# B\n\n## There\n\n```sh\n# gone\n```\n")
    assert build()["wrong_links"]({"a": one, "b": other}) == ["docs/a.md: b.md#gone", "docs/a.md: c.md"]


def test_pages_for_programs_list_each_page_with_a_sentence() -> None:
    text = build()["llms"](pages())
    assert text.startswith("# schedd\n\n> ")
    entries = re.findall(r"^- \[.+\]\((\S+)\): (.*)$", text, re.MULTILINE)
    assert [path for path, _ in entries] == [
        pages()[source].path for part in sections_of_index().values() for _, source in part
    ]
    assert [path for path, sentence in entries if len(sentence.split()) < 3] == []


def test_no_page_has_a_path_of_a_machine_or_an_address_of_a_registry() -> None:
    found = {
        page.source
        for page in pages().values()
        if re.search(r"/root/|/work/|--index-url|--extra-index|registry\.npmjs|pypi\.org/simple", page.text)
    }
    assert found == set()


@pytest.mark.needs("site")
def test_the_site_fetches_nothing_from_elsewhere() -> None:
    for path in SITE.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//', text), path
        assert not re.search(r'<link[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*href="(?:https?:)?//', text), path


@pytest.mark.needs("site")
def test_each_page_of_the_site_is_there_as_markdown() -> None:
    pages = [path for path in SITE.rglob("*.html") if path.name != "404.html"]
    assert len(pages) > 60
    for html in pages:
        text = html.with_suffix(".md").read_text(encoding="utf-8")
        assert text.startswith("# "), html
        assert f'<link rel="alternate" type="text/markdown" href="{html.stem}.md">' in html.read_text(encoding="utf-8")


@pytest.mark.needs("site")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("names", [SEEN[i : i + 3] for i in range(0, len(SEEN), 3)], ids=" ".join)
def test_pages_fit_and_have_no_fault_of_axe(
    pages: Pages, served: str, scheme: str, width: int, names: tuple[str, ...]
) -> None:
    page = pages.new(viewport={"width": width, "height": 844}, color_scheme=scheme)
    faults = []
    for name in names:
        page.goto(f"{served}/{name}.html")
        found = Axe().run(page)
        faults += [f"{name}: {one['id']} {one['nodes'][0]['html'][:90]}" for one in found.response["violations"]]
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            faults.append(f"{name} is wider than the window")
    assert faults == []


@pytest.mark.needs("site")
def test_a_search_finds_a_page_without_a_server(page: Any) -> None:
    page.goto((SITE / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.locator("input:focus").fill("dead letters")
    page.get_by_text(re.compile(r"\d+ results")).wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/dead-letters.html**")
    assert "Dead letters" in page.title()


def walk(page: Any) -> list[Any]:
    """Where Tab leads, from the top of a page until it leaves it."""
    found = []
    while len(found) < 400:
        page.keyboard.press("Tab")
        if (at := page.evaluate(FOCUS)) is None:
            return found
        found.append(at)
    raise AssertionError(f"the keyboard does not leave the page: {found[-3:]}")


@pytest.mark.needs("site")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_keyboard_reaches_all_and_is_always_seen(pages: Pages, served: str, width: int) -> None:
    for name in ("index", "guides/audit", "explanation/faults"):
        page = pages.new(viewport={"width": width, "height": 844})
        page.goto(f"{served}/{name}.html")
        found = walk(page)
        assert [one for one in found if not (one["name"] and one["seen"] and one["ringed"])] == [], name
        names = [one["name"] for one in found]
        assert names[0] == "Skip to content"
        assert {"Search", "Switch to dark", "This page as Markdown"} <= set(names)
        assert ("Explanation" if width > 400 else "Menu") in names


@pytest.mark.needs("site")
def test_skip_link_colours_and_search_work_by_keyboard(page: Any, served: str) -> None:
    page.goto(f"{served}/guides/audit.html")
    for key in ("Tab", "Enter", "Tab"):
        page.keyboard.press(key)
    assert page.evaluate(FOCUS)["inside"], "the skip link leads behind the navigation"
    page.reload()
    page.locator(".md-option").first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.body.dataset.mdColorScheme === 'slate'")
    page.get_by_role("button", name="Search").first.focus()
    page.keyboard.press("Enter")
    page.locator("input:focus").wait_for()
    page.keyboard.press("Escape")
    page.wait_for_function("document.activeElement.textContent.includes('Search')")
    page.keyboard.press("Enter")
    page.locator("input:focus").fill("failovers counted")
    page.get_by_text(re.compile(r"\d+ results")).wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/failovers.html**")


@pytest.mark.needs("site")
def test_the_menu_of_a_narrow_page_works_by_keyboard(pages: Pages, served: str) -> None:
    page = pages.new(viewport={"width": 390, "height": 844})
    page.goto(f"{served}/guides/audit.html")
    menu = page.get_by_role("button", name="Menu")
    menu.press("Enter")
    page.wait_for_function("document.activeElement.closest('.md-sidebar--primary')")
    page.keyboard.press("Escape")
    page.wait_for_function("document.activeElement.ariaLabel === 'Menu'")
    menu.press("Enter")
    page.wait_for_function("document.activeElement.textContent.trim() === 'Start'")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/building-tasks.html")
