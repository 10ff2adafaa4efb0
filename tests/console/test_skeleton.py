"""The console's page of now, its list of tasks and a verb, in a browser."""

from __future__ import annotations

from typing import Any

from scheduler import Scheduler, task
from support.consoles import console_on, link, post, served
from support.databases import Database, one_database


@task
def Mail(ctx: Any, to: str) -> None:
    raise ValueError("mailbox full")


def failing(database: Database) -> tuple[Scheduler, int]:
    from scheduler.testing import drain

    jobs = Scheduler.for_testing(url=database.url)
    jobs.register(Mail)
    made = jobs.task(Mail, "ada@example.com").schedule()
    drain(jobs)
    return jobs, int(made)


@one_database
def test_a_dead_task_is_seen_and_retried_by_its_button(database: Database, page: Any) -> None:
    jobs, task_id = failing(database)
    with served(database) as server:
        page.goto(link(server))
        assert page.get_by_role("heading", name="Now").is_visible()
        page.get_by_role("link", name="Tasks", exact=True).click()
        row = page.locator(f'[data-row="{task_id}"]')
        assert "dead" in row.inner_text()
        row.get_by_role("button", name="Retry").click()
        page.get_by_text(f"Task {task_id} runs again.").wait_for()
        assert "scheduled" in page.locator(f'[data-row="{task_id}"]').inner_text()
    entry = jobs.audit(task_id)[0]
    assert (entry.action, entry.via) == ("retry", "page")
    assert entry.actor is not None
    assert entry.actor.startswith("os:")
    jobs.close()


def test_a_verb_is_recorded_with_who_and_why(database: Database) -> None:
    jobs, task_id = failing(database)
    with console_on(database, "operator") as gate:
        answer = post(gate, f"/tasks/{task_id}/retry", reason="the mailbox is empty now", next="/tasks?q=state:dead")
    assert (answer.status, answer.headers["location"]) == (303, "/tasks?q=state:dead")
    entry = jobs.audit(task_id)[0]
    assert (entry.action, entry.actor, entry.via) == ("retry", "ada", "page")
    assert entry.reason == "the mailbox is empty now"
    jobs.close()
