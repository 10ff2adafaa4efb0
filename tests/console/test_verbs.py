"""Verbs by their forms, and what they have done in the store; test_flows.py presses the others in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any, NamedTuple

import pytest

from scheduler import Context, PermanentError, Scheduler, task
from scheduler.console.gate import Gate
from scheduler.console.render import ActionDone
from support.consoles import Answer, ask, console_on, link, post, served
from support.databases import Database, one_database
from support.fleet import until

pytestmark = one_database


@task
def work(ctx: Context, n: int, password: str = "") -> int:
    """Fails for negative numbers."""
    if n < 0:
        raise PermanentError("negative")
    return n


class _Forms(HTMLParser):
    """The forms of a page as a browser without a script sees them: the fields, and what each holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.actions: dict[str, dict[str, str]] = {}  # the first form of each action
        self._fields: dict[str, str] | None = None
        self._select = self._area = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        name = given.get("name", "")
        if tag == "form":
            self._fields = {}
            self.actions.setdefault(given.get("action", ""), self._fields)
        elif self._fields is None:
            return
        elif tag in ("input", "button") and name:
            ticked = given.get("type") not in ("checkbox", "radio") or "checked" in given
            if ticked or name not in self._fields:
                self._fields[name] = given.get("value", "") if ticked else ""
        elif tag == "select":
            self._select = name
        elif tag == "option" and ("selected" in given or self._select not in self._fields):
            self._fields[self._select] = given.get("value", "")
        elif tag == "textarea":
            self._area = name
            self._fields[name] = ""

    def handle_data(self, data: str) -> None:
        if self._area and self._fields is not None:
            self._fields[self._area] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._fields = None
        self._area = "" if tag == "textarea" else self._area


class Desk(NamedTuple):
    """A program with a worker, and a visitor of its console."""

    jobs: Scheduler
    gate: Gate

    def page(self, path: str) -> str:
        answer = ask(self.gate, "GET", path)
        assert answer.status == 200, path
        return answer.text

    def press(self, path: str, action: str, **fields: str) -> Answer:
        """Go to a page, open the form of a verb, fill it in, and press its button. No script takes part in that."""
        forms = _Forms(self.page(path)).actions
        found = next(one for one in forms if one.endswith(action))
        assert fields.keys() <= forms[found].keys(), forms[found]
        filled = {name: value for name, value in forms[found].items() if value}
        return self.send(found, **filled | fields)

    def send(self, action: str, **fields: str) -> Answer:
        answer = post(self.gate, action, **fields)
        assert answer.status in (200, 303), answer.text
        assert 'class="refusal"' not in answer.text
        return answer

    def state(self, task_id: int) -> str:
        return self.jobs.get_task(task_id).state.value

    def done(self, *payload: Any) -> int:
        """A task that has ended."""
        task_id = int(self.jobs.task(work, *payload).schedule())
        until(lambda: self.jobs.get_task(task_id).state.terminal)
        return task_id


@pytest.fixture
def desk(database: Database) -> Iterator[Desk]:
    jobs = Scheduler(database.url)
    jobs.register(work)
    with console_on(database, "admin") as gate, jobs:
        yield Desk(jobs, gate)


def test_of_a_task(desk: Desk) -> None:
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
    assert "hunter2" in desk.press(f"/tasks/{later}", f"/tasks/{later}/reveal").text
    desk.press(f"/tasks/{later}", f"/tasks/{later}/cancel")
    assert desk.state(later) == "cancelled"
    made = [entry.action for entry in desk.jobs.audit(limit=50) if entry.via == "page"]
    assert {"retry", "rerun", "copy", "patch", "reveal", "cancel"} <= set(made), made


def test_of_views(desk: Desk) -> None:
    desk.press("/tasks?q=state:dead", "/tasks/views/save", name="the dead")
    assert "the dead" in desk.page("/tasks")
    desk.press("/tasks?q=state:dead", "/tasks/views/forget")
    assert "the dead" not in desk.page("/tasks")


def test_of_ticked_tasks(database: Database, desk: Desk, pages: Any) -> None:
    """Their boxes lie outside of the form, so this one needs a browser."""
    dead = desk.done(-1)
    with served(database) as server:
        page = pages.new()
        page.goto(link(server))
        page.goto(f"{server.url}tasks?q=state:dead")
        page.get_by_label(f"Tick task {dead}").check()
        page.get_by_role("button", name="Purge…").click()
        page.get_by_role("button", name="Do it").click()
        until(lambda: not desk.jobs.list_tasks())
        page.close()  # it would look for the console that is about to stop


def test_of_queues_kinds_and_everything(desk: Desk) -> None:
    desk.done(1)
    desk.press("/kinds/work", "/pause", reason="upkeep")
    assert [(one.scope, one.name) for one in desk.jobs.pauses()] == [("kind", "work")]
    desk.press("/kinds/work", "/resume")
    desk.press("/", "/pause", reason="fire")
    assert [one.scope for one in desk.jobs.pauses()] == ["all"]
    desk.press("/", "/resume")
    assert not desk.jobs.pauses()


def test_of_schedules(desk: Desk) -> None:
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
    desk.done(1)
    desk.press("/kinds/work", "/kinds/set/work", max_concurrency="3")
    desk.press("/settings", "/settings/pool", pool="low", slots="2")
    shown = desk.page("/settings")
    assert "work" in shown
    assert "low" in shown
    desk.press("/settings", "/settings/reset")


def test_what_a_verb_says_fits_into_a_cookie(desk: Desk) -> None:
    """Browsers drop a longer one, and proxies refuse it."""
    name = "日" * 255
    desk.jobs.task(work, 1).key(name).every(3600).schedule()
    (cookie,) = desk.send(f"/schedules/pause/{name}").cookies
    assert len(cookie) < 4096
    answer = ask(desk.gate, "GET", "/schedules", headers={"cookie": cookie.partition(";")[0]})
    assert f"Schedule {name} is paused." in answer.text
    assert "Undo: resume it" in answer.text
    long = desk.gate._sealed(ActionDone('"' * 1500, ok=False))
    assert len(long) < 4000
    found = desk.gate._flashes.open("flash", long)
    assert found is not None
    assert len(found["text"]) > 500
