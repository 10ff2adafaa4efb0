"""How fast tasks come and go, and which worker served a queue last."""

from __future__ import annotations

import pytest

from scheduler import Context, Scheduler, task
from scheduler.console.pages.now import troubles
from scheduler.model.outcome import AttemptEnd
from scheduler.model.rollup import MINUTE, Cell, Measure
from scheduler.store import rollups
from scheduler.store.read.explain import why
from scheduler.store.read.status import Status, status
from support.consoles import ask, console_on
from support.fleet import Fleet, step

SECOND = 1_000_000


@task
def mail(ctx: Context) -> None: ...


@task
def other(ctx: Context) -> None: ...


def seen(jobs: Scheduler) -> Status:
    with jobs.database.read() as tx:
        return status(tx)


def minutes(jobs: Scheduler, fleet: Fleet, count: int, arriving: int, leaving: int) -> None:
    """So many tasks a minute come, and so many others, which were there before, leave."""
    for _ in range(count):
        at = rollups.floor(jobs.database.now(), MINUTE)
        with jobs.database.write() as tx:
            code = AttemptEnd.SUCCEEDED.code
            rollups.add(tx, [Cell(MINUTE, at, "mail", "default", code, Measure.RUN, 0, leaving, leaving)])
        fleet.clock.advance(MINUTE)
        with jobs.batch() as batch:
            for _ in range(arriving):
                batch.task(mail)


@pytest.mark.parametrize(
    ("arriving", "leaving", "drained"),
    [(24, 18, None), (18, 18, None), (6, 24, True)],
    ids=["grows", "stays", "drains"],
)
def test_a_backlog_has_its_rates_and_its_end(fleet: Fleet, arriving: int, leaving: int, drained: bool | None) -> None:
    jobs = fleet.worker(mail)
    with jobs.batch() as batch:
        for _ in range(100):
            batch.task(mail)
    assert seen(jobs).flows == []
    minutes(jobs, fleet, 12, arriving, leaving)
    (flow,) = seen(jobs).flows
    assert (flow.queue, flow.number) == ("default", 100 + 12 * arriving)
    assert flow.arriving * 60 == pytest.approx(arriving, rel=0.15)
    assert flow.leaving * 60 == pytest.approx(leaving, rel=0.15)
    if drained is None:
        assert flow.drained_in is None
        assert "it never drains at that rate" in flow.describe()
    else:
        assert flow.drained_in is not None
        assert flow.drained_in / SECOND == pytest.approx(flow.number / (leaving - arriving) * 60, rel=0.25)
    with console_on(fleet.database) as gate:
        page = ask(gate, "GET", "/").text
    assert '<li data-row="flow-default">Queue default: ' in page, "the first page says it, too"
    served = seen(jobs)._replace(idle=None, stuck=[])
    (waits,) = [one.text for one in troubles(served, jobs.database.now())]
    assert flow.prospect() in waits
    jobs.pause(queue="default")
    assert seen(jobs).flows == []


def test_a_queue_that_was_renamed_names_its_last_worker_and_the_command(fleet: Fleet) -> None:
    before = fleet.worker(mail, queues=["old"])
    step(before)
    last = before._engine.worker if before._engine else 0
    fleet.clock.advance(120)
    after = fleet.worker(mail, queues=["new"])
    step(after)
    made = int(after.task(mail).queue("old").schedule())
    (problem,) = [one for one in seen(after).stuck if one.name == "unserved"]
    assert last
    assert "no live worker serves queue 'old'; worker " in problem.text
    assert "served it last, until 2026-01-01T00:00" in problem.text
    assert "`schedctl set task --queue old --to-queue new`" in (problem.remedy or "")
    with after.database.read() as tx:
        said = why(tx, made) or ""
    assert "served it last" in said
    assert "--to-queue new" in said


def test_a_kind_that_has_left_names_its_last_worker(fleet: Fleet) -> None:
    before = fleet.worker(mail)
    step(before)
    fleet.clock.advance(120)
    after = fleet.worker(other)
    step(after)
    before.task(mail).schedule()
    (problem,) = [one for one in seen(after).stuck if one.name == "unserved"]
    assert "no live worker serves kind 'mail'; worker " in problem.text
    assert "`schedctl bulk plan cancel --kind mail`" in (problem.remedy or "")
