"""What an operator does at night, in a real browser beside a real worker: from the cause to the mended rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from scheduler import Context, PermanentError, Scheduler, task
from scheduler.alerts.service import AlertService
from scheduler.client import bulks
from scheduler.config.load import load
from scheduler.console.serve import ConsoleServer
from scheduler.testing import FakeClock
from support.consoles import link, served
from support.databases import Database, one_database
from support.fleet import until

GOES_ON = threading.Event()


@task
def deliver(ctx: Context, to: str) -> str:
    """Delivers to addresses with an @ alone."""
    if "@" not in to:
        raise PermanentError("no such address")
    return to


@task
def held(ctx: Context, number: int) -> None:
    """Runs until the test lets it go."""
    GOES_ON.wait(60)


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    GOES_ON.clear()
    jobs = Scheduler(database.url)
    jobs.register(deliver)
    jobs.register(held)
    with jobs:
        yield jobs
        GOES_ON.set()


@pytest.fixture
def served_here(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsoleServer]:
    monkeypatch.setattr(bulks, "LOOK_EVERY_S", 0.1)  # for the end of a task that goes first
    with served(database) as server:
        yield server


def states(jobs: Scheduler, ids: list[int]) -> list[str]:
    return [jobs.get_task(i).state.value for i in ids]


@one_database
def test_from_the_cause_by_a_field_and_one_task_to_the_rest(
    jobs: Scheduler, served_here: ConsoleServer, page: Any
) -> None:
    ids = [int(jobs.task(deliver, f"nobody-{n}").schedule()) for n in range(5)]
    until(lambda: states(jobs, ids) == ["dead"] * 5)
    page.goto(link(served_here))
    page.get_by_role("link", name="Dead letters").first.click()
    page.get_by_role("link", name="no such address").first.click()
    for wanted, first in (("still-wrong", "dead"), ("ada@example.com", "success")):
        page.get_by_label("Before a replay, set").select_option("to")
        page.get_by_label("to", exact=True).fill(wanted)
        cause = page.url
        page.get_by_role("button", name="Plan a replay…").click()
        page.get_by_text("Nothing is changed yet").last.wait_for()
        assert states(jobs, ids).count("dead") == 5
        page.get_by_label("one task first; the rest follows if it succeeds").check()
        page.get_by_role("button", name="Do it").click()
        if first == "dead":  # the one that went first died again: the rest was left alone
            page.get_by_text("it did not succeed, so the rest was left alone").wait_for()
            assert [bulk.done for bulk in jobs.bulks.list()] == [1]
            until(lambda: states(jobs, ids) == ["dead"] * 5)
            page.goto(cause)
    until(lambda: states(jobs, ids) == ["success"] * 5)
    page.get_by_text("done", exact=True).first.wait_for()


@one_database
def test_ticked_letters_alone_are_replayed(jobs: Scheduler, served_here: ConsoleServer, page: Any) -> None:
    ids = [int(jobs.task(deliver, "x").schedule()) for _ in range(3)]
    until(lambda: states(jobs, ids) == ["dead"] * 3)
    page.goto(link(served_here))
    page.goto(served_here.url + "dead")
    page.get_by_role("link", name="no such address").first.click()
    page.get_by_label(f"Tick task {ids[1]}").check()
    page.get_by_label("the ticked ones").check()
    page.get_by_role("button", name="Plan a replay…").click()
    page.get_by_text("Nothing is changed yet").last.wait_for()
    assert jobs.bulks.list()[0].total == 1


@one_database
def test_a_worker_is_drained_and_resumed(jobs: Scheduler, served_here: ConsoleServer, page: Any) -> None:
    assert jobs.engine.wait_ready(60)
    page.goto(link(served_here))
    page.goto(served_here.url + "workers")
    page.get_by_text("Drain…").first.click()
    page.get_by_role("button", name="Drain it").click()
    until(lambda: jobs.engine.drained)
    waiting = int(jobs.task(deliver, "a@b").schedule())
    page.goto(served_here.url + "workers")
    page.get_by_role("button", name="Resume").first.click()
    until(lambda: states(jobs, [waiting]) == ["success"])


@one_database
def test_an_event_is_emitted(jobs: Scheduler, served_here: ConsoleServer, page: Any) -> None:
    page.goto(link(served_here))
    page.goto(served_here.url + "events")
    page.get_by_text("Emit…").first.click()
    page.get_by_label("Name").first.fill("paid")
    page.get_by_role("button", name="Emit", exact=True).first.click()
    page.get_by_text("paid").first.wait_for()
    assert not jobs.emit_event("paid"), "the first emit won"


@one_database
def test_a_bulk_cancel_is_stopped_amid_its_tasks_then_goes_on(
    jobs: Scheduler, served_here: ConsoleServer, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [int(jobs.task(held, n).after(3600).schedule()) for n in range(250)]
    between = threading.Event()
    page.goto(link(served_here))
    page.goto(served_here.url + "tasks?q=kind:held")
    page.get_by_label("all that match the filter").check()
    page.get_by_role("button", name="Cancel…").last.click()
    page.get_by_text("It would cancel").wait_for()
    runner = served_here.gate._bulks
    assert runner is not None
    # called after each hundred
    monkeypatch.setattr(runner, "_desk", runner._desk._replace(wake=lambda: between.wait(60)))
    page.get_by_role("button", name="Do it").click()
    page.get_by_text("100 of 250 looked at").wait_for()  # the page shows it by itself
    page.get_by_role("button", name="Stop").click()
    between.set()
    page.get_by_role("button", name="Go on").wait_for()
    assert sorted(set(states(jobs, ids))) == ["cancelled", "scheduled"]
    assert states(jobs, ids).count("cancelled") == 100
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("250 of 250 looked at").wait_for()
    assert set(states(jobs, ids)) == {"cancelled"}
    page.get_by_role("button", name="Undo what had not begun").click()
    until(lambda: set(states(jobs, ids)) == {"scheduled"})


@one_database
def test_alerts_that_a_daemon_evaluates_fire_and_are_silenced(
    database: Database, jobs: Scheduler, served_here: ConsoleServer, page: Any, tmp_path: Path
) -> None:
    rules = "[alerts]\nevery = 1\n[alerts.rules.dead_letters]\nafter = 0\nclear_after = 0\n"
    sink = f'[alerts.sinks.pager]\ntype = "command"\ncommand = ["tee", "-a", "{tmp_path}/told"]\n'
    (tmp_path / "schedd.toml").write_text(f'[store]\nurl = "{database.url}"\n{rules}{sink}')
    ids = [int(jobs.task(deliver, "x").schedule()), int(jobs.task(deliver, "y").queue("nowhere").schedule())]
    until(lambda: states(jobs, ids) == ["dead"] * 2)
    page.goto(link(served_here))
    page.goto(served_here.url + "alerts")
    page.get_by_text("No daemon evaluates alerts now").wait_for()
    service = AlertService(load(tmp_path / "schedd.toml"))
    service.start()
    try:
        firing = page.locator("tr[data-row^='dead_letters/']")
        firing.get_by_text("firing").wait_for()  # the page shows it by itself
        assert page.get_by_text("No daemon evaluates alerts now").count() == 0
        page.locator("tr[data-row^='message-']").get_by_role("time").last.wait_for()  # delivered
        assert "no such address" in (tmp_path / "told").read_text()
        firing.get_by_role("button", name="Silence 2 h").click()
        page.get_by_text("Silent: ").first.wait_for()
        assert firing.get_by_text("silenced").count() == 1
        page.get_by_role("button", name="End it").click()
        page.get_by_text("No longer silent").wait_for()
        assert firing.get_by_text("silenced").count() == 0
        firing.get_by_role("link", name="its dead letters").click()
        page.get_by_role("heading", name="Dead letters of deliver").wait_for()
        page.go_back()
        jobs.dead_letters.purge(0)
        page.get_by_text("Nothing fires.").wait_for()
        page.get_by_text("recovered").first.wait_for()
    finally:
        service.stop()


@one_database
def test_what_a_link_shows_when_retention_has_removed_its_task(
    database: Database, jobs: Scheduler, served_here: ConsoleServer, pages: Any
) -> None:
    gone = int(jobs.task(deliver, "a@b").key("order-1").schedule())
    left = int(jobs.task(deliver, "x").key("order-2").schedule())
    until(lambda: states(jobs, [gone, left]) == ["success", "dead"])
    jobs.close()
    with Scheduler.for_testing(url=database.url, clock=FakeClock(datetime.now(UTC) + timedelta(days=2))) as later:
        assert later.gc().tasks == 1
    pages.expected = ("404",)
    page = pages.new(viewport={"width": 320, "height": 640})
    page.goto(link(served_here))
    page.goto(f"{served_here.url}tasks/{gone}")
    assert page.get_by_text("It was removed").get_by_role("time").is_visible()
    assert page.get_by_text("It had ended: success").is_visible()
    for path, shown in (("k/deliver/order-1", "The newest of deliver"), ("k/held/order-2", "Tasks of other kinds")):
        assert page.goto(served_here.url + path).status == 404
        assert page.get_by_text(shown).is_visible()
        assert page.get_by_role("link", name=str(left)).first.is_visible()
        assert not Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
