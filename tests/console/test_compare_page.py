"""``/compare/ID``: what differs from the last good run, secrets hidden."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from scheduler import Context, Scheduler, Secret, task
from scheduler.testing import drain
from support.consoles import ask, console_on, link, served
from support.databases import Database, one_database


@task
def Letter(ctx: Context, to: str, pin: Annotated[str, Secret]) -> None:
    ctx.log.info("writes", to=to, pin=pin)
    if to == "nobody":
        raise ValueError("no such address")


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler.for_testing(url=database.url)
    made.register(Letter)
    yield made
    made.close()


def runs(jobs: Scheduler) -> tuple[int, int]:
    """A good one, and a bad one of the same pattern."""
    good = int(jobs.task(Letter, "ada", "swordfish1").correlation("order-17").schedule())
    bad = int(jobs.task(Letter, "nobody", "hunter2222").correlation("order-18").schedule())
    drain(jobs)
    return good, bad


def test_the_last_good_run_is_found_and_secrets_are_hidden(database: Database, jobs: Scheduler) -> None:
    good, bad = runs(jobs)
    with console_on(database, "admin") as gate:
        found = ask(gate, "GET", f"/compare/{bad}.json")
        page = ask(gate, "GET", f"/compare/{bad}?with={good}")
        alone = ask(gate, "GET", f"/compare/{good}")
        assert ask(gate, "GET", "/compare/999999").status == 404
        assert ask(gate, "GET", f"/compare/{bad}?with=x").status == 422
    assert (found.json["task"], found.json["other"]) == (bad, good)
    assert [(one["path"], one["before"], one["after"]) for one in found.json["payload"]] == [
        ("to", "ada", "nobody"),
        ("pin", "***", "*** (another)"),
    ]
    assert any(line.startswith("-") and "ada" in line for line in found.json["log"])
    for text in (found.text, page.text):
        assert "swordfish1" not in text
        assert "hunter2222" not in text
    assert "There is no earlier good run" in alone.text


@one_database
def test_a_comparison_in_a_browser(database: Database, jobs: Scheduler, pages: Any) -> None:
    _, bad = runs(jobs)
    with served(database) as server:
        page = pages.new(viewport={"width": 320, "height": 640}, color_scheme="dark", bypass_csp=True)
        page.goto(link(server))
        page.goto(f"{server.url}graphs/{bad}")
        page.get_by_role("link", name="Compare with the last good run").click()
        page.get_by_role("heading", name="Payload").wait_for()
        assert page.locator("pre.diff del").count() >= 1
        assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(page, options={"resultTypes": ["violations"]})
        assert [one["id"] for one in found.response["violations"]] == []
        page.close()
