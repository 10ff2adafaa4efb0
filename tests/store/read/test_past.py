"""Timelines and past states, against what was seen at the time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduler import ConfigError, RetryPolicy, UnknownTaskError
from scheduler.model.state import TaskState
from scheduler.model.timeline import Phase
from scheduler.ports import SECOND
from scheduler.store.read.graph import graph
from scheduler.store.read.past import graph_at, states_at, status_at, task_at, timeline
from support.bench import Bench


class Witness:
    """Looks at tasks from time to time, and remembers what it saw."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.seen: dict[int, dict[int, str]] = {}

    def look(self) -> int:
        with self.bench.jobs.database.read() as tx:
            rows = tx.run("SELECT id, state FROM schedd_tasks").fetchall()
            self.seen[tx.now] = {row.id: TaskState.from_code(row.state).value for row in rows}
            return tx.now

    def compare(self, *, unknown: set[int] = frozenset()) -> int:  # type: ignore[assignment]
        """Each past state that is known is what was seen; of tasks not in ``unknown`` it is known. How many were."""
        known = 0
        for instant, states in self.seen.items():
            with self.bench.jobs.database.read() as tx:
                found = states_at(tx, list(self.seen[max(self.seen)]), instant)
            assert set(states) <= set(found), "it had been made by then"
            for task_id, seen in states.items():
                answer = found[task_id]
                if answer is None:
                    assert task_id in unknown, f"task {task_id} at {instant} was {seen}"
                    continue
                held = {"claimed", "running"}
                assert answer.value == seen or {answer.value, seen} <= held, f"task {task_id} at {instant}"
                known += 1
        return known


@pytest.fixture
def witness(bench: Bench) -> Witness:
    return Witness(bench)


def pass_time(bench: Bench, witness: Witness, seconds: float = 10) -> None:
    bench.clock.advance(seconds / 2)
    witness.look()
    bench.clock.advance(seconds / 2)


def test_states_at_any_time_are_those_that_were_seen(bench: Bench, witness: Witness) -> None:
    bench.worker(max_concurrent_tasks=1)  # ends are written before anything else runs, so that they are seen in time

    def work(ctx: Any) -> None:
        pass_time(bench, witness)

    def flaky(ctx: Any) -> None:
        pass_time(bench, witness)
        if ctx.attempt < 3:
            raise OSError("not yet")

    bench.script.bodies |= {"top": work, "left": flaky, "right": work, "bottom": work}
    bench.script.failing.add("dies")
    retry = RetryPolicy(30, 30, max_attempts=3, jitter=0)
    top = int(bench.step("top").schedule())
    left = int(bench.step("left", top).with_retry(retry).schedule())
    right = int(bench.step("right", top).schedule())
    bottom = int(bench.step("bottom", left, right).schedule())
    dies = int(bench.step("dies").schedule())
    later = int(bench.step("later").after(timedelta(seconds=95)).schedule())
    doomed = int(bench.step("doomed").after(3600).schedule())
    for _ in range(8):
        pass_time(bench, witness)
        bench.drain()
        witness.look()
        bench.clock.advance(1)
    bench.jobs.cancel_task(doomed)
    pass_time(bench, witness)
    bench.jobs.retry_task(dies)
    pass_time(bench, witness)
    bench.script.failing.clear()
    bench.drain()
    for _ in range(6):
        pass_time(bench, witness)
        bench.drain()
    bench.jobs.rerun(right, downstream=False)
    pass_time(bench, witness)
    bench.drain()
    pass_time(bench, witness)
    assert bench.states(top, left, right, bottom, dies, later, doomed) == [*["success"] * 6, "cancelled"]
    assert witness.compare(unknown={bottom, right}) > 100


def test_a_task_that_runs_and_one_that_is_to_come(bench: Bench) -> None:
    made = bench.clock.now()
    bench.clock.advance(5)
    task = int(bench.step("task").after(60).schedule())
    seen: dict[str, Any] = {}

    def body(ctx: Any) -> None:
        bench.clock.advance(7)
        with bench.jobs.database.read() as tx:
            seen["spans"] = timeline(tx, task).spans
            seen["past"] = task_at(tx, task, tx.now - 3 * SECOND)
            seen["waits"] = task_at(tx, task, tx.now - 20 * SECOND)

    bench.script.bodies["task"] = body
    bench.advance(70)
    assert [s.phase for s in seen["spans"]][:2] == [Phase.PLANNED, Phase.READY]
    assert seen["spans"][-1].end is None
    assert seen["past"].attempt == 1
    assert seen["waits"].span.phase is Phase.PLANNED
    with bench.jobs.database.read() as tx:
        before = task_at(tx, task, made)
        assert (before.existed, before.state) == (False, None)
        assert states_at(tx, [task], made) == {}
        with pytest.raises(ConfigError, match="still to come"):
            task_at(tx, task, tx.now + SECOND)
        with pytest.raises(UnknownTaskError):
            task_at(tx, 10**9, made)


def test_marks_and_steps(bench: Bench) -> None:
    def body(ctx: Any) -> None:
        ctx.step("fetch", lambda: bench.clock.advance(2))

    bench.script.bodies["task"] = body
    task = int(bench.step("task").after(10).schedule())
    with bench.jobs.acting("alice", reason="wrong customer"):
        bench.jobs.cancel_task(task)
    bench.clock.advance(10)
    bench.jobs.retry_task(task)
    bench.advance(1)
    with bench.jobs.database.read() as tx:
        found = timeline(tx, task)
    assert found.marks[0].text == "cancel by alice: wrong customer"
    assert [(s.name, s.claim) for s in found.steps] == [("fetch", found.spans[-1].claim)]
    assert [s.phase for s in found.spans].count(Phase.ENDED) == 1


def test_a_graph_at_a_past_time(bench: Bench) -> None:
    bench.script.bodies["top"] = lambda ctx: bench.clock.advance(10)
    top = int(bench.step("top").schedule())
    below = int(bench.step("below", top).schedule())
    start = bench.jobs.database.now()
    bench.drain()
    bench.clock.advance(100)
    late = int(bench.step("late", below).schedule())
    bench.drain()
    with bench.jobs.database.read() as tx:
        whole = graph(tx, top)
        then = graph_at(tx, whole, start + 5 * SECOND)
        now = graph_at(tx, whole, tx.now)
    assert then.states == {top: TaskState.RUNNING, below: TaskState.WAITING}
    assert then.absent == [late]
    assert set(now.states.values()) == {TaskState.SUCCESS}


def test_what_retention_removed_is_unknown(bench: Bench) -> None:
    top = int(bench.step("top").schedule())
    below = int(bench.step("below", top).schedule())
    bench.drain()
    then = bench.jobs.database.now()
    bench.clock.advance(100)
    bench.execute("INSERT INTO schedd_outcomes (task_id, state, removed_at) VALUES (:id, 6, 1)", id=top)
    bench.execute("DELETE FROM schedd_tasks WHERE id = :id", id=top)
    with bench.jobs.database.read() as tx:
        found = graph_at(tx, graph(tx, below), then)
        assert found.states[top] is None
        assert status_at(tx, then).counts == {TaskState.SUCCESS: 1}


def test_the_status_of_a_past_hour(bench: Bench) -> None:
    bench.script.bodies["long"] = lambda ctx: bench.clock.advance(600)
    done = [int(bench.step(f"s{n}").schedule()) for n in range(3)]
    bench.drain()
    long = int(bench.step("long").schedule())
    planned = int(bench.step("planned").after(900).schedule())
    bench.drain()
    then = bench.jobs.database.now() - 300 * SECOND
    bench.jobs.cancel_task(planned)
    bench.clock.advance(3 * 3600)
    unborn = [int(bench.step("unborn").schedule()) for _ in range(4)]
    bench.drain()
    with bench.jobs.database.read() as tx:
        found = status_at(tx, then)
        few = status_at(tx, then, limit=2)
    assert found.running == [long]
    assert found.counts == {TaskState.SUCCESS: 3, TaskState.RUNNING: 1, TaskState.SCHEDULED: 1}
    assert (found.looked_at, found.more) == (5, False)
    assert len(found.workers) == 1
    assert (few.looked_at, few.more) == (2, True)
    assert not set(unborn) & set(done)
