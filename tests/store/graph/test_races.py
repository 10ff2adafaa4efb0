"""Two at once: a parent finishes while its child is being stored, crossing edges, cancel against complete.

Each race is held open on one connection while the other side comes; on PostgreSQL the test sees it wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from scheduler import CycleError, Scheduler
from scheduler.model.spec import EdgeSpec
from scheduler.model.state import Otherwise, When
from scheduler.ports import FAILPOINTS
from scheduler.store.tasks import control
from scheduler.testing import drain
from support.bench import Bench, Side, Step, ring_and_step, run_claimed


def wait_until_blocked(bench: Bench, side: Side) -> None:
    """On PostgreSQL: until a session waits for a lock. SQLite shows none: its one write lock decides."""
    if bench.database.is_sqlite:
        return
    pause = threading.Event()
    for _ in range(2000):
        with bench.jobs.database.read() as connection:
            waiting = connection.exec_driver_sql(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).scalar_one()
        if waiting:
            return
        assert side.is_alive(), "it did not wait"
        pause.wait(0.005)
    raise AssertionError("nobody waits for a lock")


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
    ring_and_step(bench.jobs)
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
        ring_and_step(jobs)
        run_claimed(jobs)
    sides: list[Side] = []

    def other_finishes() -> None:
        sides.append(Side(lambda: ring_and_step(right)))
        if not bench.database.is_sqlite:
            sides[0].result()  # finishing never waits: it tries again next turn

    before_finish_commits(other_finishes)
    ring_and_step(left)
    sides[0].result()
    drain(right)
    assert bench.states(*parents, child) == ["success"] * 3
    assert sorted(bench.script.ran) == ["child", "left", "right"]


@pytest.mark.case(34)
def test_two_writers_add_crossing_edges(bench: Bench) -> None:
    a, b = int(bench.step("a").after(1).schedule()), int(bench.step("b").after(1).schedule())
    other = bench.worker()
    with bench.jobs.database.write() as connection:
        edge = EdgeSpec(a, When.SUCCESS, Otherwise.FAIL)
        control.add_dependency(connection, b, edge, bench.clock.now())
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
    ring_and_step(bench.jobs)
    run_claimed(bench.jobs)
    other = bench.worker()
    with other.database.write() as connection:
        done = control.cancel(connection, [task], bench.clock.now())
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
    """A canceller and a worker go through one graph at once: neither is told to try again."""
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
