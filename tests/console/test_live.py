"""Open pages: they show what changes, and do not disturb a visitor who is typing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler import Scheduler, task
from scheduler.console.live import Snapshots
from scheduler.errors import ConfigError
from support.consoles import ask, console_on, link, served
from support.databases import Database, one_database
from support.subpath import below

pytestmark = one_database


@task
def Resize(ctx: Any, path: str) -> None: ...


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(Resize)
    yield made
    made.close()


def test_a_new_task_comes_by_itself(database: Database, jobs: Scheduler, page: Any) -> None:
    first = jobs.task(Resize, "a").schedule()
    with served(database) as server:
        page.goto(link(server))
        page.goto(server.url + "tasks")
        page.evaluate("window.mark = 1")
        second = jobs.task(Resize, "b").schedule()
        page.locator(f'[data-row="{int(second)}"]').wait_for()
        jobs.cancel_task(first)
        page.locator(f'[data-row="{int(first)}"] .s-cancelled').wait_for()
        assert page.evaluate("window.mark") == 1, "the page was not loaded again"


def test_what_is_selected_stays_until_it_is_wanted(database: Database, jobs: Scheduler, page: Any) -> None:
    first = int(jobs.task(Resize, "a").schedule())
    with served(database) as server:
        page.goto(link(server))
        page.goto(server.url + "tasks")
        page.evaluate(f"getSelection().selectAllChildren(document.querySelector('[data-row=\"{first}\"]'))")
        second = int(jobs.task(Resize, "b").schedule())
        page.get_by_text("press . to show").wait_for()
        assert page.locator(f'[data-row="{second}"]').count() == 0
        assert "Resize" in page.evaluate("getSelection().toString()")
        page.keyboard.press(".")
        page.locator(f'[data-row="{second}"]').wait_for()


def test_what_is_typed_stays(database: Database, jobs: Scheduler, page: Any) -> None:
    """In the filter, which is no part of what changes, and in a form within it."""
    first = int(jobs.task(Resize, "a").after(3600).schedule())
    with served(database) as server:
        page.goto(link(server))
        page.goto(server.url + "tasks")
        page.locator("#q").fill("kind:Res")
        second = int(jobs.task(Resize, "b").schedule())
        page.locator(f'[data-row="{second}"]').wait_for()
        assert page.locator("#q").input_value() == "kind:Res"
        page.goto(server.url + f"tasks/{first}")
        page.get_by_text("Cancel…").click()
        page.get_by_label("Reason").first.fill("wrong cust")
        jobs.update_task(first, queue="other")
        page.get_by_text("press . to show").wait_for()
        assert page.get_by_label("Reason").first.input_value() == "wrong cust"
        page.get_by_role("button", name="Cancel it").click()
        page.get_by_text(f"Task {first} is cancelled.").wait_for()
    assert jobs.audit(first)[0].reason == "wrong cust"


def test_a_cancel_can_be_undone(database: Database, jobs: Scheduler, page: Any) -> None:
    first = int(jobs.task(Resize, "a").schedule())
    with served(database) as server:
        page.goto(link(server))
        page.goto(server.url + "tasks")
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_text(f"Task {first} is cancelled.").wait_for()
        page.wait_for_load_state()  # the script runs
        page.keyboard.press("u")
        page.locator(f'[data-row="{first}"] .s-scheduled').wait_for()
    assert jobs.get_task_status(first) == "scheduled"


def test_rows_do_not_move_below_the_pointer(database: Database, jobs: Scheduler, page: Any) -> None:
    first = int(jobs.task(Resize, "a").schedule())
    with served(database) as server:
        page.goto(link(server))
        page.goto(server.url + "tasks")
        page.locator(f'[data-row="{first}"]').hover()
        second = int(jobs.task(Resize, "b").schedule())
        page.get_by_text("press . to show").wait_for()
        assert page.locator(f'[data-row="{second}"]').count() == 0
        page.mouse.move(5, 5)
        page.locator(f'[data-row="{second}"]').wait_for()


def test_viewers_share_what_is_read(database: Database, jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read anew while nothing has changed, however many look."""
    jobs.task(Resize, "a").schedule()
    clock = [1000.0]
    monkeypatch.setattr("scheduler.console.live.time.monotonic", lambda: clock[0])
    with console_on(database) as gate:
        first = ask(gate, "GET", "/tasks?fragment=1")
        for _ in range(5):
            again = ask(gate, "GET", "/tasks?fragment=1", headers={"if-none-match": first.headers["etag"]})
            assert (again.status, again.body) == (304, b"")
        clock[0] += 2
        ask(gate, "GET", "/tasks?fragment=1")
        assert gate.snapshots.made == 1
        jobs.task(Resize, "b").schedule()
        clock[0] += 2
        changed = ask(gate, "GET", "/tasks?fragment=1", headers={"if-none-match": first.headers["etag"]})
        assert changed.status == 200
        assert gate.snapshots.made == 2
        clock[0] += 60
        ask(gate, "GET", "/tasks?fragment=1")  # ages go on
        assert gate.snapshots.made == 3


def test_a_page_that_is_dear_is_made_less_often(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as long as it took, whatever has changed; a verb has it made at once."""
    clock, token = [1000.0], [0]
    monkeypatch.setattr("scheduler.console.live.time.monotonic", lambda: clock[0])
    snapshots = Snapshots(database)  # type: ignore[arg-type]  # it is not asked

    def look() -> str:
        token[0] += 1
        return str(token[0])

    monkeypatch.setattr(snapshots, "_look", look)

    def make() -> str:
        clock[0] += 0.6
        return "page"

    for seconds, made in ((0.0, 1), (5.9, 1), (0.2, 2), (5.9, 2)):
        clock[0] += seconds
        snapshots.get("now", make)
        assert snapshots.made == made
    snapshots.forget()
    snapshots.get("now", make)
    assert snapshots.made == 3


def test_nothing_stays_of_pages_that_are_not_there(database: Database) -> None:
    """Any number of them may be asked for."""
    snapshots = Snapshots(database)  # type: ignore[arg-type]  # it is not asked
    snapshots._look = lambda: "token"  # type: ignore[method-assign]

    def fail() -> str:
        raise ConfigError("there is none")

    for number in range(3):
        with pytest.raises(ConfigError):
            snapshots.get(number, fail)
        snapshots.get(-number, lambda: "page")
    snapshots.forget()
    assert snapshots._making == {}


def test_a_viewer_and_an_operator(database: Database, jobs: Scheduler, pages: Any) -> None:
    """Two visitors with two roles; the button that one does not have does nothing for them either."""
    first = int(jobs.task(Resize, "a").schedule())
    pages.expected = ("403",)
    settings = {"auth": "proxy", "trusted_proxies": ("127.0.0.1",), "groups": ("ops = operator", "* = viewer")}
    with (
        served(database, **settings) as server,
        below("/one", server.url, user="vera", groups="") as looks,
        below("/two", server.url, user="olga", groups="ops") as acts,
    ):
        vera, olga = pages.new(), pages.new()
        vera.goto(f"{looks}/tasks")
        olga.goto(f"{acts}/tasks")
        assert vera.get_by_role("button", name="Cancel", exact=True).count() == 0
        olga.get_by_role("button", name="Cancel", exact=True).click()
        olga.get_by_text(f"Task {first} is cancelled.").wait_for()
        answer = vera.evaluate(f"fetch('{looks}/tasks/{first}/retry', {{method: 'POST'}}).then(a => a.status)")
        assert answer == 403
        vera.locator("tbody .s-cancelled").wait_for()
    assert jobs.audit(first)[0].actor == "olga (proxy)"


def test_a_log_is_followed_through_a_proxy_below_a_path(database: Database, page: Any) -> None:
    """Each line as it comes, in a stream that begins where the page ends, behind the same gate."""
    written, goes_on = threading.Event(), threading.Event()

    @task
    def Talk(ctx: Any) -> None:
        ctx.log.info("first line, password=hunter2")
        written.set()
        goes_on.wait(60)
        ctx.log.info("second line")

    jobs = Scheduler(database.url)
    jobs.register(Talk)
    settings = {"auth": "proxy", "trusted_proxies": ("127.0.0.1",), "groups": ("* = viewer",)}
    with jobs, served(database, **settings) as server, below("/ops/jobs", server.url, user="vera", groups="") as url:
        made = int(jobs.task(Talk).schedule())
        assert written.wait(60)
        page.goto(f"{url}/tasks/{made}")
        page.get_by_role("button", name="Follow").click()
        page.locator("#log").get_by_text("first line").wait_for()
        assert "hunter2" not in page.locator("#log").inner_text()
        goes_on.set()
        page.locator("#log").get_by_text("second line").wait_for()
        page.get_by_text("the task has ended").wait_for()
        assert page.locator("#log").inner_text().count("first line") == 1
