"""Two at once: a parent finishes while its child is being stored, crossing edges, cancel against complete.

Each race is held open on one connection while the other side comes; on PostgreSQL the test sees it wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import CycleError, Scheduler
from scheduler.model import state as st
from scheduler.model.spec import EdgeSpec
from scheduler.model.state import Otherwise, When
from scheduler.ports import FAILPOINTS
from scheduler.store.admin import retention
from scheduler.store.tasks import control
from scheduler.testing import drain, engine_of
from support.bench import (
    Bench,
    Side,
    Step,
    notify_and_step,
    run_claimed,
    wait_until_blocked,
    wait_until_blocked_or_ended,
)


@pytest.fixture
def before_finish_commits(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Calls a function once, while the next finish has written everything but its commit."""

    def set_once(work: Callable[[], None]) -> None:
        def hit(name: str) -> None:
            if name == "before finish commit":
                monkeypatch.undo()
                work()

        monkeypatch.setattr(FAILPOINTS, "hit", hit)

    return set_once


@pytest.mark.case(33)
@pytest.mark.parametrize(("end", "child_ends"), [("success", "success"), ("dead", "failed")])
def test_parent_finishes_first_and_the_enqueue_waits(
    bench: Bench, before_finish_commits: Any, end: str, child_ends: str
) -> None:
    parent = bench.step("parent").schedule()
    if end == "dead":
        bench.script.failing.add("parent")
    caller = bench.worker()
    sides: list[Side] = []

    def enqueue_meanwhile() -> None:
        sides.append(Side(lambda: caller.task(Step("child")).depend_on(parent).schedule()))
        wait_until_blocked(bench, sides[0])

    before_finish_commits(enqueue_meanwhile)
    bench.drain()
    child = sides[0].result()
    bench.drain()
    assert bench.states(parent, child) == [end, child_ends]
    assert bench.script.ran == ["parent", "child"][: 2 if end == "success" else 1]


@pytest.mark.case(33, 65)
@pytest.mark.parametrize("commits", [True, False])
def test_enqueue_is_first_and_the_parent_finishes_afterwards(bench: Bench, commits: bool) -> None:
    """The open insert holds the parent; nothing else waits for it (on SQLite every writer waits)."""
    parent, beside = bench.step("parent").schedule(), bench.step("beside").schedule()
    caller = bench.worker()
    notify_and_step(bench.jobs)
    with caller.database.open().connect() as connection, connection.begin() as transaction:
        child = caller.task(Step("child")).depend_on(parent).schedule(connection)
        side = Side(lambda: drain(bench.jobs))
        if not bench.database.is_sqlite:
            assert side.result() == 2
            assert bench.states(parent, beside) == ["claimed", "success"]
        if commits:
            transaction.commit()
        else:
            transaction.rollback()
    side.result()
    bench.drain()
    assert bench.states(parent, beside) == ["success", "success"]
    assert bench.script.ran == ["parent", "beside", "child"][: 3 if commits else 2]
    assert [t.id for t in bench.jobs.list_tasks()] == [child, beside, parent][0 if commits else 1 :]


@pytest.mark.case(31, 33)
def test_two_workers_release_one_child(bench: Bench, before_finish_commits: Any) -> None:
    left, right = bench.worker(queues=["left"]), bench.worker(queues=["right", "default"])
    parents = [bench.step(name).queue(name).schedule() for name in ("left", "right")]
    child = bench.step("child", *parents).schedule()
    for jobs in (left, right):
        notify_and_step(jobs)
        run_claimed(jobs)
    sides: list[Side] = []

    def other_finishes() -> None:
        sides.append(Side(lambda: notify_and_step(right)))
        if not bench.database.is_sqlite:
            sides[0].result()  # finishing never waits: it tries again next cycle

    before_finish_commits(other_finishes)
    notify_and_step(left)
    sides[0].result()
    drain(right)
    assert bench.states(*parents, child) == ["success"] * 3
    assert sorted(bench.script.ran) == ["child", "left", "right"]


@pytest.mark.case(34)
def test_two_writers_add_crossing_edges(bench: Bench) -> None:
    a, b = int(bench.step("a").after(1).schedule()), int(bench.step("b").after(1).schedule())
    other = bench.worker()
    with bench.jobs.database.write() as tx:
        edge = EdgeSpec(a, When.SUCCESS, Otherwise.FAIL)
        control.add_dependency(tx.at(bench.clock.now()), b, edge)
        side = Side(lambda: other.add_dependency(a, b))
        wait_until_blocked(bench, side)
    with pytest.raises(CycleError) as caught:
        side.result()
    assert caught.value.path == (a, b, a)
    assert bench.jobs.get_task_dependencies(a) == []
    assert bench.advance(1) == ["a", "b"]


@pytest.mark.case(34)
def test_crossing_edges_again_and_again(bench: Bench) -> None:
    others = [bench.worker(), bench.worker()]
    for _ in range(10):
        a, b = int(bench.step("a").after(1).schedule()), int(bench.step("b").after(1).schedule())
        together = threading.Barrier(2)

        def add(jobs: Scheduler, child: int, parent: int, start: threading.Barrier = together) -> bool:
            start.wait(10)
            try:
                jobs.add_dependency(child, parent)
            except CycleError:
                return False
            return True

        sides = [
            Side(lambda a=a, b=b: add(others[0], a, b)),  # type: ignore[misc]
            Side(lambda a=a, b=b: add(others[1], b, a)),  # type: ignore[misc]
        ]
        assert sorted(side.result() for side in sides) == [False, True]
        edges = bench.jobs.get_task_dependencies(a) + bench.jobs.get_task_dependencies(b)
        assert len(edges) == 1


@pytest.mark.case(49)
def test_complete_is_first_and_the_cancel_waits(bench: Bench, before_finish_commits: Any) -> None:
    task = int(bench.step("task").schedule())
    child = bench.step("child", task).schedule()
    other = bench.worker()
    sides: list[Side] = []

    def cancel_meanwhile() -> None:
        sides.append(Side(lambda: other.cancel_task(task)))
        wait_until_blocked(bench, sides[0])

    before_finish_commits(cancel_meanwhile)
    bench.drain()
    done = sides[0].result()
    assert (done.cancelled, done.requested, done.finished) == ((), (), {task: "success"})
    bench.drain()
    assert bench.states(task, child) == ["success", "success"]


@pytest.mark.case(49)
def test_cancel_is_first_and_wins_over_the_outcome(bench: Bench) -> None:
    task = int(bench.step("task").schedule())
    child, cleans = (
        bench.step("child", task).schedule(),
        bench.step("cleans", task, when="failure").schedule(),
    )
    notify_and_step(bench.jobs)
    run_claimed(bench.jobs)
    other = bench.worker()
    with other.database.write() as tx:
        done = control.cancel(tx.at(bench.clock.now()), [task])
        assert (done.cancelled, done.requested, done.affected) == ((), (task,), ())
        side = Side(lambda: drain(bench.jobs))
        if not bench.database.is_sqlite:
            side.result()
            assert bench.state(task) == "claimed"
    side.result()
    bench.drain()
    assert bench.states(task, child, cleans) == ["cancelled", "failed", "success"]
    assert bench.script.ran == ["task", "cleans"]


@pytest.mark.case(49)
def test_cancels_among_completions(bench: Bench) -> None:
    """A canceller and a worker go through one graph at once: neither gets an error to try again."""
    with bench.jobs.batch() as batch:
        rows = [[batch.task(Step(f"0.{n}")) for n in range(8)]]
        for row in range(1, 8):
            rows.append([batch.task(Step(f"{row}.{n}")).depend_on(rows[-1][n - 2 :][:2]) for n in range(8)])
            rows[-1][0].depend_on(rows[-2][:6], when="finished")
    ids = [int(i) for i in batch.ids]
    canceller = bench.worker()

    def cancel_some() -> list[str]:
        return [
            state.value
            for n, i in enumerate(reversed(ids[::5]))
            for state in canceller.cancel_task(i, cascade=n % 2 == 0).finished.values()
        ]

    side = Side(cancel_some)
    bench.drain()
    side.result()
    bench.drain()
    tasks = [bench.jobs.get_task(i) for i in ids]
    assert {t.state.value for t in tasks} <= {"success", "cancelled", "failed"}
    assert all(t.cancel_requested for t in tasks if t.state == "cancelled")
    assert sorted(bench.script.ran) == sorted(set(bench.script.ran))
    ran = {t.id for t in tasks if bench.jobs.get_attempts(t.id)}
    assert {t.id for t in tasks if t.state == "success"} <= ran


on_postgres = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
DAY = 86400.0


@on_postgres
@pytest.mark.case(33, 36)
def test_a_parent_that_finishes_while_its_child_is_reopened_releases_it(bench: Bench) -> None:
    dead, running = bench.step("dead").schedule(), bench.step("running").schedule()
    child = bench.step("child", dead, running).schedule()
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    (slots,) = [s for s in engine.inline_slots() if len(s.waiting) == 2]
    other = slots.waiting.pop()
    bench.script.failing.add("dead")
    slots.run_one()
    notify_and_step(bench.jobs)
    assert bench.states(dead, running, child) == ["dead", "claimed", "failed"]
    bench.script.failing.clear()
    slots.waiting.append(other)
    slots.run_one()
    caller = bench.worker()
    with caller.database.write() as tx:
        control.retry(tx.at(bench.clock.now()), dead)
        engine.step()  # records that the other parent has ended, or leaves it for later
    bench.drain()
    assert bench.states(dead, running, child) == ["success", "success", "success"]


@on_postgres
@pytest.mark.case(36)
def test_two_dead_parents_retried_at_once_revive_their_child(bench: Bench) -> None:
    bench.script.failing |= {"one", "two"}
    one, two = bench.step("one").schedule(), bench.step("two").schedule()
    child = bench.step("child", one, two).schedule()
    bench.drain()
    assert bench.states(one, two, child) == ["dead", "dead", "failed"]
    bench.script.failing.clear()
    other = bench.worker()
    with bench.jobs.database.write() as tx:
        control.retry(tx.at(bench.clock.now()), two)
        side = Side(lambda: other.retry_task(one))
        wait_until_blocked_or_ended(bench, side)
    side.result()
    bench.drain()
    assert bench.states(one, two, child) == ["success", "success", "success"]


@on_postgres
@pytest.mark.case(33, 51)
def test_a_child_stored_while_its_parent_is_swept_keeps_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = bench.ended("dead")
    bench.clock.advance(40 * DAY)
    caller = bench.worker()
    held, go = threading.Event(), threading.Event()

    def enqueue() -> int:
        with caller.database.write() as tx:
            made = caller.task(Step("child")).depend_on(parent, otherwise="wait").schedule(connection=tx.connection)
            held.set()
            go.wait(10)
        return int(made)

    side = Side(enqueue)
    assert held.wait(10)
    real = sa.Connection.execute

    def execute(self: sa.Connection, statement: Any, *args: Any, **kwargs: Any) -> Any:
        # What a statement sees was settled when it began; what it finds unlocked is a matter of the moment. As if the
        # session ended between the two.
        if "t.finished_at < :before" in str(statement) and args[0].get("state") == st.DEAD and not go.is_set():
            found = real(self, sa.text(str(statement).replace("FOR UPDATE OF t SKIP LOCKED", "")), *args, **kwargs)
            go.set()
            side.join(10)
            return found
        return real(self, statement, *args, **kwargs)

    kept = {"success": DAY, "failed": 30 * DAY, "outcomes": 90 * DAY, "events": 90 * DAY}
    with monkeypatch.context() as m, bench.jobs.database.write() as tx:
        m.setattr(sa.Connection, "execute", execute)
        for _ in range(5):
            retention.purge_batch(tx.at(bench.clock.now()), kept)
    child = side.result()
    assert bench.states(parent, child) == ["dead", "waiting"]


@pytest.mark.case(37)
def test_cancelling_crosswise_is_no_error(bench: Bench) -> None:
    """Two that lock the same rows in different orders: the server ends one, which tries again."""
    ids = [bench.step(f"task{i}").schedule() for i in range(2)]
    other = bench.worker()
    real = control.cancel
    met = threading.Barrier(2)

    def cancel(tx: Any, wanted: Any, **given: Any) -> Any:
        first, second = ids if wanted == [ids[0]] else ids[::-1]
        done = real(tx, [first])
        with contextlib.suppress(threading.BrokenBarrierError):
            met.wait(2)
        real(tx, [second])
        return done

    with pytest.MonkeyPatch.context() as m:
        m.setattr("scheduler.operations.tasks.control.cancel", cancel)
        sides = [Side(lambda i=i, j=j: j.cancel_task(i)) for i, j in zip(ids, (bench.jobs, other), strict=True)]
        for side in sides:
            side.result()
    assert bench.states(*ids) == ["cancelled", "cancelled"]
