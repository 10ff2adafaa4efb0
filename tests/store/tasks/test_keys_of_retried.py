"""A key and what runs again: no handler completes under a key that another task holds, or has completed since."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, DuplicateKeyError, Scheduler, TaskId, TaskState, task
from scheduler.store.read.explain import why
from scheduler.testing import FakeClock, drain
from support.bench import Bench, Side
from support.fleet import Fleet

DAY = timedelta(days=1)
RETENTION = {"success": 86400.0, "failed": 30 * 86400.0, "outcomes": 90 * 86400.0}

WAYS: dict[str, Callable[[Scheduler, TaskId], Any]] = {
    "retry": lambda jobs, dead: jobs.retry_task(dead),
    "replay": lambda jobs, dead: jobs.dead_letters.replay(dead),
    "replay with that key": lambda jobs, dead: jobs.dead_letters.replay(dead, key="k"),
    "copy with that key": lambda jobs, dead: jobs.dead_letters.replay(dead, key="k", copy=True),
}
BULK: dict[str, Callable[[Scheduler], list[TaskId]]] = {
    "retry": lambda jobs: jobs.retry_failed(key="k"),
    "replay": lambda jobs: list(jobs.dead_letters.replay_all(key="k")),
}


def why_of(bench: Bench, task_id: int) -> str:
    with bench.jobs.database.read() as tx:
        return why(tx, task_id) or ""


@pytest.mark.case(70)
@pytest.mark.parametrize(
    ("way", "other"),
    [("retry", "scheduled"), ("replay", "success"), *((way, "success past its retention") for way in WAYS)],
)
def test_nothing_runs_again_under_a_key_that_another_task_has(bench: Bench, way: str, other: str) -> None:
    (dead,) = bench.die("mail", key="k")
    bench.script.failing.clear()
    holder = bench.step("again").key("k").schedule()
    if other != "scheduled":
        assert bench.drain() == ["again"]
    if other == "success past its retention":
        bench.clock.advance(2 * DAY)
    before = bench.jobs.get_task(dead)
    with pytest.raises(DuplicateKeyError) as raised:
        WAYS[way](bench.jobs, dead)
    assert (raised.value.existing_id, raised.value.completed) == (holder, other != "scheduled")
    assert bench.jobs.get_task(dead) == before
    assert f"task {holder} has completed under" in why_of(bench, dead) or other == "scheduled"
    assert f"`schedctl dlq replay {dead} --copy`" in why_of(bench, dead)
    assert bench.drain() == (["again"] if other == "scheduled" else [])


@pytest.mark.case(70)
@pytest.mark.parametrize("way", BULK)
def test_bulk_leaves_a_key_that_was_completed_and_goes_on(
    bench: Bench, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    (dead,) = bench.die("mail", key="k")
    bench.script.failing.clear()
    holder = bench.step("again").key("k", retention=60).schedule()
    bench.drain()
    bench.clock.advance(60)
    (later,) = bench.die("later", key="k")
    bench.script.failing.clear()
    with caplog.at_level(logging.WARNING):
        assert BULK[way](bench.jobs) == [later]  # it was made after that success
    assert f"task {holder} has its key" in caplog.text
    assert bench.states(dead, later) == ["dead", "scheduled"]


@pytest.mark.case(70)
@pytest.mark.parametrize(
    ("root", "other"), [("retry", "success past its retention"), ("replay", "success"), ("bulk", "scheduled")]
)
def test_a_revival_behind_a_parent_leaves_a_child_whose_key_another_task_has(
    bench: Bench, caplog: pytest.LogCaptureFixture, root: str, other: str
) -> None:
    bench.script.failing.add("parent")
    parent = bench.step("parent").schedule()
    child = bench.step("child", parent).key("k").schedule()
    below = bench.step("below", child).schedule()
    beside = bench.step("beside", parent).key("free").schedule()
    bench.drain()
    bench.script.failing.clear()
    holder = bench.step("again").key("k", retention=60).schedule()
    if other != "scheduled":
        bench.drain()
    if other == "success past its retention":
        bench.clock.advance(60)
    with caplog.at_level(logging.WARNING):
        if root == "retry":
            bench.jobs.retry_task(parent)
        elif root == "replay":
            bench.jobs.dead_letters.replay(parent)
        else:
            assert bench.jobs.retry_failed(kind="Step") == [parent]
    assert f"task {holder} has its key" in caplog.text
    assert sorted(bench.drain()) == sorted(["parent", "beside", *(["again"] if other == "scheduled" else [])])
    assert bench.states(parent, child, below, beside) == ["success", "failed", "failed", "success"]
    assert f"task {holder}" in why_of(bench, child)
    assert "schedule it anew under another key" in why_of(bench, child)


@pytest.mark.case(70)
def test_of_two_with_one_key_that_would_be_revived_the_first_is(bench: Bench) -> None:
    bench.script.failing.add("parent")
    parent = bench.step("parent").schedule()
    bench.drain()
    first = bench.step("first", parent).key("k").schedule()  # both ended as they were stored, and took no key
    second = bench.step("second", parent).key("k").schedule()
    bench.script.failing.clear()
    bench.jobs.retry_task(parent)
    assert bench.drain() == ["parent", "first"]
    assert bench.states(first, second) == ["success", "failed"]


@pytest.mark.case(70)
def test_a_copy_has_a_key_of_its_own(bench: Bench) -> None:
    (dead,) = bench.die("mail", key="k" * 255)
    bench.script.failing.clear()
    bench.step("again").key("k" * 255).schedule()
    bench.drain()
    copies = [bench.jobs.dead_letters.replay(dead, copy=True) for _ in range(2)]
    keys = [bench.jobs.get_task(copy).key for copy in copies]
    assert keys == [f"{'k' * 225}~copy-{copy}" for copy in copies]
    assert bench.drain() == ["mail", "mail"]
    assert bench.step("x").key(keys[0]).schedule() == copies[0]


@pytest.mark.case(70)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("way", ["retry", "replay", "revival"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_key_that_another_transaction_takes_in_that_moment(fleet: Fleet, way: str, commits: bool) -> None:
    """The unique index lets the second one wait for the first, and it looks again then."""

    @task(kind="mortal")
    def mortal(ctx: Context, text: str) -> None:
        if text in ctx.state:
            raise ValueError(text)

    jobs, bystander = fleet.worker(mortal, state={"root"}), fleet.worker(mortal)
    root = jobs.task(mortal, "root")
    dead = (root if way == "revival" else root.key("k")).schedule()
    child = jobs.task(mortal, "child").key("k").depend_on(dead).schedule() if way == "revival" else None
    drain(jobs)
    jobs.state.clear()
    holder: list[TaskId] = []
    held, go = threading.Event(), threading.Event()

    def take() -> None:
        with bystander.database.open().connect() as connection, connection.begin() as transaction:
            holder.append(bystander.task(mortal, "y").key("k").schedule(connection=connection))
            held.set()
            go.wait(20)
            if not commits:
                transaction.rollback()

    side = Side(take)
    assert held.wait(20)

    @sa.event.listens_for(jobs.database.open(), "before_cursor_execute")
    def soon(_c: Any, _cursor: Any, sql: str, *_rest: Any) -> None:
        if "SET held_key = key" in sql:
            threading.Timer(0.1, go.set).start()

    def again() -> None:
        if way == "replay":
            jobs.dead_letters.replay(dead)
        else:
            jobs.retry_task(dead)

    if commits and way != "revival":
        with pytest.raises(DuplicateKeyError) as raised:
            again()
        assert raised.value.existing_id == holder[0]
    else:
        again()
    side.result()
    assert go.is_set()
    keyed = dead if child is None else child
    assert jobs.get_task_status(keyed).terminal == commits
    drain(jobs)
    succeeded = [t.id for t in jobs.list_tasks(key="k", status="success")]
    assert succeeded == (holder if commits else [keyed])


@pytest.mark.case(71)
def test_a_completed_key_is_remembered_while_a_dead_letter_with_it_can_be_replayed(
    fleet: Fleet, clock: FakeClock
) -> None:
    @task(kind="mortal")
    def mortal(ctx: Context) -> None:
        if ctx.state:
            raise ValueError

    jobs = fleet.worker(mortal, state=[1], retention=RETENTION)
    dead = jobs.task(mortal).key("k").schedule()
    drain(jobs)
    jobs.state.clear()
    done = jobs.task(mortal).key("k").schedule()
    drain(jobs)
    for _ in range(29):
        clock.advance(DAY)
        drain(jobs)
        with pytest.raises(DuplicateKeyError) as raised:
            jobs.dead_letters.replay(dead)
        assert raised.value.existing_id == done
    assert jobs.cleanup_completed_tasks(0) == 0
    jobs.dead_letters.purge(older_than=DAY)
    assert jobs.cleanup_completed_tasks(0) == 1


@pytest.mark.case(71)
def test_a_completed_key_is_forgotten_when_only_later_tasks_have_failed(fleet: Fleet, clock: FakeClock) -> None:
    @task(kind="mortal")
    def mortal(ctx: Context) -> None:
        if ctx.state:
            raise ValueError

    jobs = fleet.worker(mortal, state=[], retention=RETENTION)
    done = jobs.task(mortal).key("k").schedule()
    drain(jobs)
    clock.advance(DAY)
    jobs.state.append(1)
    dead = jobs.task(mortal).key("k").schedule()
    drain(jobs)
    clock.advance(DAY)
    drain(jobs)
    assert [t.id for t in jobs.list_tasks()] == [dead]
    assert done != dead
    jobs.dead_letters.replay(dead)
    assert jobs.get_task_status(dead) is TaskState.SCHEDULED
