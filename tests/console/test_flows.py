"""What an operator does at night, in a real browser beside a real worker: from the cause to the mended rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler import Context, PermanentError, Scheduler, task
from scheduler.console.serve import Server
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
def served_here(database: Database) -> Iterator[Server]:
    with served(database) as server:
        yield server


def states(jobs: Scheduler, ids: list[int]) -> list[str]:
    return [jobs.get_task(i).state.value for i in ids]


@one_database
def test_from_the_cause_by_a_field_and_one_task_to_the_rest(jobs: Scheduler, served_here: Server, page: Any) -> None:
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
def test_ticked_letters_alone_are_replayed(jobs: Scheduler, served_here: Server, page: Any) -> None:
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
def test_a_worker_is_drained_and_resumed(jobs: Scheduler, served_here: Server, page: Any) -> None:
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
def test_an_event_is_emitted(jobs: Scheduler, served_here: Server, page: Any) -> None:
    page.goto(link(served_here))
    page.goto(served_here.url + "events")
    page.get_by_text("Emit…").first.click()
    page.get_by_label("Name").first.fill("paid")
    page.get_by_role("button", name="Emit", exact=True).first.click()
    page.get_by_text("paid").first.wait_for()
    assert not jobs.emit_event("paid"), "the first emit won"
