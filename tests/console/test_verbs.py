"""Verbs by their buttons in a real browser, and what they have done in the store; test_flows.py has the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from scheduler import Context, PermanentError, Scheduler, task
from scheduler.console.serve import ConsoleServer
from support.consoles import link, served
from support.databases import Database, one_database
from support.fleet import until

pytestmark = one_database


@task
def work(ctx: Context, n: int, password: str = "") -> int:
    """Fails for negative numbers."""
    if n < 0:
        raise PermanentError("negative")
    return n


class Desk(NamedTuple):
    """A program with a worker, and an open page of the console beside it."""

    jobs: Scheduler
    server: ConsoleServer
    page: Any

    def enter(self) -> None:
        """Open the console with a link for one use."""
        self.page.goto(link(self.server))

    def press(self, path: str, action: str, **fields: str) -> None:
        """Go to a page, open the form of a verb, fill it in, and press its button."""
        self.page.goto(self.server.url.rstrip("/") + path)
        form = self.page.locator(f'form[action$="{action}"]').first
        asks = self.page.locator("details.ask", has=form)
        if asks.count():
            asks.first.locator("summary").click()
        for name, value in fields.items():
            field = form.locator(f'[name="{name}"]').first
            if field.evaluate("f => f.type") == "checkbox":
                field.check()
            elif field.evaluate("f => f.tagName") == "SELECT":
                field.select_option(value)
            elif field.evaluate("f => f.type") != "hidden":
                field.fill(value)
        with self.page.expect_navigation():
            form.get_by_role("button").last.click()
        assert not self.page.locator(".refusal").count(), self.page.locator(".refusal").inner_text()

    def state(self, task_id: int) -> str:
        return self.jobs.get_task(task_id).state.value

    def done(self, *payload: Any) -> int:
        """A task that has ended."""
        task_id = int(self.jobs.task(work, *payload).schedule())
        until(lambda: self.jobs.get_task(task_id).state.terminal)
        return task_id


@pytest.fixture
def desk(database: Database, page: Any) -> Iterator[Desk]:
    jobs = Scheduler(database.url)
    jobs.register(work)
    with served(database) as server, jobs:
        yield Desk(jobs, server, page)


def test_of_a_task(desk: Desk) -> None:
    desk.enter()
    dead, good = desk.done(-1), desk.done(1)
    desk.press(f"/tasks/{dead}", f"/tasks/{dead}/retry")
    until(lambda: desk.jobs.get_task(dead).attempt >= 2 and desk.state(dead) == "dead")
    desk.press(f"/tasks/{dead}", f"/tasks/{dead}/replay", copy="1", reason="another try")
    until(lambda: any(t.original_id == dead for t in desk.jobs.list_tasks()))
    desk.press(f"/tasks/{good}", f"/tasks/{good}/rerun", reason="again")
    until(lambda: desk.jobs.get_task(good).attempt >= 2 and desk.state(good) == "success")
    number = len(desk.jobs.list_tasks())
    desk.press(f"/tasks/{good}", f"/tasks/{good}/copy")
    assert len(desk.jobs.list_tasks()) == number + 1
    later = int(desk.jobs.task(work, 2, password="hunter2").after(3600).schedule())
    desk.press(f"/tasks/{later}", f"/tasks/{later}/patch", priority="high")
    assert desk.jobs.get_task(later).priority.name.lower() == "high"
    desk.press(f"/tasks/{later}", f"/tasks/{later}/reveal")
    assert "hunter2" in desk.page.content()
    desk.press(f"/tasks/{later}", f"/tasks/{later}/cancel")
    assert desk.state(later) == "cancelled"
    made = [entry.action for entry in desk.jobs.audit(limit=50) if entry.via == "page"]
    assert {"retry", "rerun", "copy", "patch", "reveal", "cancel"} <= set(made), made


def test_of_many_tasks(desk: Desk) -> None:
    desk.enter()
    dead = desk.done(-1)
    desk.press("/tasks?q=state:dead", "/tasks/views/save", name="the dead")
    assert desk.page.get_by_role("link", name="the dead").is_visible()
    desk.press("/tasks?q=state:dead", "/tasks/views/forget")
    assert not desk.page.get_by_role("link", name="the dead").count()
    desk.page.goto(f"{desk.server.url}tasks?q=state:dead")
    desk.page.get_by_label(f"Tick task {dead}").check()
    desk.page.get_by_role("button", name="Purge…").click()
    desk.page.get_by_role("button", name="Do it").click()
    until(lambda: not desk.jobs.list_tasks())


def test_of_queues_kinds_and_everything(desk: Desk) -> None:
    desk.enter()
    desk.done(1)
    desk.press("/kinds/work", "/pause", reason="upkeep")
    assert [(one.scope, one.name) for one in desk.jobs.pauses()] == [("kind", "work")]
    desk.press("/kinds/work", "/resume")
    desk.press("/", "/pause", reason="fire")
    assert [one.scope for one in desk.jobs.pauses()] == ["all"]
    desk.press("/", "/resume")
    assert not desk.jobs.pauses()


def test_of_schedules(desk: Desk) -> None:
    desk.enter()
    desk.jobs.task(work, 5).key("nightly").daily_at(2, 30).schedule()
    desk.press("/schedules/nightly", "/schedules/pause/nightly")
    assert desk.jobs.schedules.get("nightly").paused
    desk.press("/schedules/nightly", "/schedules/resume/nightly")
    assert not desk.jobs.schedules.get("nightly").paused
    desk.press("/schedules/nightly", "/schedules/trigger/nightly")
    until(lambda: [t.state.value for t in desk.jobs.list_tasks()] == ["success"])
    desk.press("/schedules/nightly", "/schedules/delete/nightly")
    assert not desk.jobs.schedules.list()


def test_of_limits_and_slots(desk: Desk) -> None:
    desk.enter()
    desk.done(1)
    desk.press("/kinds/work", "/kinds/set/work", max_concurrency="3")
    desk.press("/settings", "/settings/pool", pool="low", slots="2")
    desk.page.goto(f"{desk.server.url}settings")
    shown = desk.page.locator("#live").inner_text()
    assert "work" in shown
    assert "low" in shown
    desk.press("/settings", "/settings/reset")
