"""kill -9 at every place that matters: what was claimed is reclaimed, and each task ends once."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from faults.harness import (
    Fleet,
    all_ended,
    attempts,
    freeze,
    history,
    overlapping,
    result,
    rows,
    state,
    unfinished,
    until,
)
from faults.kinds import Hold, Kills, Work
from scheduler import Scheduler
from scheduler.model import state as st
from scheduler.store.read.explain import why
from scheduler.store.read.workers import workers
from support.databases import Database

pytestmark = pytest.mark.faults
LEASE = {"lease": 0.5, "pools": {"medium": (3, 0)}}
POINTS = ("after claim", "body", "before finish commit", "after finish commit")


@pytest.mark.case(6)
@pytest.mark.parametrize("point", POINTS)
def test_killed_there_it_is_reclaimed_and_completes(
    database: Database, fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None], point: str
) -> None:
    with jobs.batch() as batch:
        for _ in range(3):
            first = batch.task(Hold("gate") if point == "body" else Work())
            batch.task(Work()).depend_on([first])
    parents, children = batch.ids[::2], batch.ids[1::2]
    victim = fleet.worker(ready=False, options=LEASE, arm=point)
    for _ in parents if point == "body" else [0]:
        victim.expect(point)
    victim.kill()

    held = {
        r.id: r.claim
        for r in rows(jobs, "SELECT id, claim FROM schedd_tasks WHERE state >= 4 AND state <= 5 AND worker IS NOT NULL")
    }
    ended = {r.id for r in rows(jobs, f"SELECT id FROM schedd_tasks WHERE state = {st.SUCCESS}")}
    assert held, "nothing was interrupted"
    ran_before = fleet.started()
    if point == "after claim":
        assert held.keys() == set(parents)
    elif point == "body":
        assert held.keys() == set(parents) == ran_before.keys()
        assert all(runs[0].end is None for runs in ran_before.values())
    elif point == "before finish commit":
        assert not ended
        assert ran_before
    else:
        assert ended
        assert ended.isdisjoint(held)

    second = fleet.worker(options=LEASE)
    second.open()
    all_ended(jobs)
    assert {r.state for r in rows(jobs, "SELECT state FROM schedd_tasks")} == {st.SUCCESS}
    for task_id in batch.ids:
        ends = history(jobs, task_id)
        assert [end for _, end in ends].count("succeeded") == 1
        if task_id in held:
            assert ends == [(1, "lost"), (2, "succeeded")]
            error = attempts(jobs, task_id)[0].error or ""
            assert f":{victim.pid} " in error
            if point in ("after claim", "body"):
                assert error.endswith("it is not known to have begun, and used no attempt") is (point == "after claim")
        else:
            assert ends == [(1, "succeeded")]
        assert not list(overlapping(fleet.runs(task_id)))
        if task_id in ended:
            assert [run.pid for run in fleet.runs(task_id)] == [victim.pid], "done before the kill, run again"
    for parent, child in zip(parents, children, strict=True):
        assert fleet.runs(child)[0].start >= (fleet.runs(parent)[-1].end or 0)
    rerun = [i for i in batch.ids if len(fleet.runs(i)) > 1]
    if point in ("body", "before finish commit"):
        assert rerun
    tell(f"killed {point}: {len(held)} claims lost, {len(rerun)} handlers run again")


@pytest.mark.case(6)
@pytest.mark.parametrize("point", ["after claim", "body"])
def test_what_had_begun_counts_as_lost_in_the_numbers(
    database: Database, fleet: Fleet, jobs: Scheduler, point: str
) -> None:
    """And what was only claimed counts as nothing."""
    ids = [jobs.task(Hold("gate")).schedule() for _ in range(3)]
    victim = fleet.worker(ready=False, options=LEASE, arm=point)
    for _ in ids if point == "body" else [0]:
        victim.expect(point)
    victim.kill()
    second = fleet.worker(options=LEASE)
    second.open()
    all_ended(jobs)
    until(lambda: jobs.stats().total.outcomes.get("succeeded") == 3, "the numbers are written")
    found, begun = jobs.stats().total, 3 if point == "body" else 0
    assert found.outcomes.get("lost", 0) == begun
    assert found.failure_rate == begun / (3 + begun)
    assert found.run.count == 3, "nobody knows how long the lost ones ran"
    assert [jobs.get_task(i).attempts_used for i in ids] == [2 if begun else 1] * 3


@pytest.mark.case(6)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("point", ["before commit beside the claim", "after commit beside the claim"])
def test_killed_while_ends_are_recorded_beside_the_claim(
    fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None], point: str
) -> None:
    """The claim may be committed by then, and its handlers under way."""
    with jobs.batch() as batch:
        for _ in range(40):
            batch.task(Work(20.0))
    victim = fleet.worker(ready=False, options=LEASE, arm=point, many=1)
    victim.expect(point)
    until(lambda: len(fleet.started()) > 3, "what was claimed beside it has begun")
    victim.kill()
    ended = {r.id for r in rows(jobs, f"SELECT id FROM schedd_tasks WHERE state = {st.SUCCESS}")}
    lost = {r.id for r in rows(jobs, "SELECT id FROM schedd_tasks WHERE state >= 4 AND state <= 5")}
    done = {i for i, runs in fleet.started().items() if runs and runs[-1].end is not None}
    assert lost
    if point.startswith("before"):
        assert done & lost - ended, "all that had ended was recorded"
    else:
        assert ended, "nothing was recorded"
    fleet.worker(options=LEASE, many=1)
    all_ended(jobs)
    for task_id in batch.ids:
        ends = history(jobs, task_id)
        assert ends == ([(1, "lost"), (2, "succeeded")] if task_id in lost else [(1, "succeeded")])
        assert not list(overlapping(fleet.runs(task_id)))
        if task_id in ended:
            assert len(fleet.runs(task_id)) == 1
    tell(f"killed {point}: {len(lost)} claims lost")


@pytest.mark.case(2, 4)
def test_a_frozen_worker_loses_its_lease_and_changes_nothing_when_it_wakes(
    fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None]
) -> None:
    """Frozen, not killed: its locks are held, so only the lease can tell."""
    task_id = jobs.task(Hold()).schedule()
    frozen = fleet.worker(ready=False, options=LEASE)
    frozen.expect("body")
    frozen.expect("ready")
    freeze(frozen, jobs)
    other = fleet.worker(options=LEASE)
    other.expect("body", task=task_id, attempt=2)
    lost = attempts(jobs, task_id)
    assert [(a.number, str(a.outcome)) for a in lost] == [(1, "lost")]
    assert f":{frozen.pid} " in (lost[0].error or "")

    frozen.open()
    frozen.kill(signal.SIGCONT)
    again = jobs.task(Hold("again")).schedule()  # a worker claims it: its handler says that the worker is well
    taken = until(lambda: frozen.reported("body") + other.reported("body"), "a worker claims it")
    assert [report["task"] for report in taken] == [again]
    for process in (frozen, other):
        process.open()
        process.open("again")
    all_ended(jobs)
    assert history(jobs, task_id) == [(1, "lost"), (2, "succeeded")]
    assert result(jobs, task_id) == 2, "the late completion of attempt 1 was recorded"
    until(lambda: frozen.lines("lease was lost"), "it logs the loss")
    assert "Traceback" not in frozen.text() + other.text()
    tell(f"{len(fleet.runs(task_id)) - 1} handler run again after a lease ran out")


@pytest.mark.case(37)
def test_a_restart_in_the_middle_of_a_graph_keeps_every_edge(fleet: Fleet, jobs: Scheduler) -> None:
    with jobs.batch() as batch:
        top = [batch.task(Work(1.0)) for _ in range(4)]
        middle = [batch.task(Hold()).depend_on(top[i : i + 2]) for i in range(0, 4, 2)]
        bottom = [batch.task(Work(1.0)).depend_on([m, top[0]]) for m in middle for _ in range(3)]
        last = batch.task(Work()).depend_on(bottom, when="finished")
        batch.task(Work()).depend_on([last], when="failure")
    edges = "SELECT parent, child, on_end, otherwise, ok FROM schedd_edges ORDER BY parent, child"
    before = rows(jobs, edges)
    victim = fleet.worker(options=LEASE)
    for _ in middle:
        victim.expect("body")
    victim.kill()
    assert rows(jobs, edges) == before
    waiting = {r.id: r.unmet for r in rows(jobs, "SELECT id, unmet FROM schedd_tasks WHERE state = 0")}
    assert waiting == dict.fromkeys(batch.ids[6:12], 1) | {batch.ids[12]: 6, batch.ids[13]: 1}

    fleet.worker(options=LEASE).open()
    all_ended(jobs)
    assert rows(jobs, edges) == before
    assert [state(jobs, i) for i in batch.ids] == ["success"] * 13 + ["skipped"]
    for parent, child, *_ in before:
        for run in fleet.runs(child):
            assert run.start >= min(r.end for r in fleet.runs(parent) if r.end)


@pytest.mark.case(74)
def test_a_handler_that_began_has_used_its_attempt_however_soon_its_worker_died(
    fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None]
) -> None:
    """And what had not begun has used none: all share the one thread that the death takes with it."""
    pools = {"high": (0, 0), "medium": (1, 0), "low": (0, 0)}
    one = {"pools": pools, "lease": 1.0, "state": "so that suspects run in this process"}
    for _ in range(20):
        jobs.task(Work()).schedule()  # so that the kind is known to be quick, and is claimed ahead
    worker = fleet.worker(options=one)
    all_ended(jobs)
    with jobs.batch() as batch:
        batch.task(Kills())
        for _ in range(20):
            batch.task(Work())
    killer = batch.ids[0]
    assert worker.wait() == -signal.SIGKILL
    lost = 0
    for _ in range(6):
        with jobs.database.read() as tx:
            states = [w.state for w in workers(tx)]
            reason = why(tx, killer)
        assert states in (["gone"], ["lost"]), "its lease may have run out by now"
        assert (
            reason is None
            or "whose process is gone" in reason
            or "which lost its lease" in reason
            or "due since" in reason
        )
        (row,) = rows(jobs, "SELECT count(*) AS n FROM schedd_tasks WHERE state = 4")
        lost += row.n
        worker = fleet.worker(ready=False, options=one)
        until(lambda: not worker.alive() or not unfinished(jobs), "it dies, or all has ended")  # noqa: B023
        if worker.alive():
            break
    assert lost > 1, "nothing but the killer was claimed"
    assert state(jobs, killer) == "dead"
    for task_id in batch.ids:
        assert jobs.get_task(task_id).attempts_used == len(fleet.runs(task_id))
    assert len(fleet.runs(killer)) == 3
    assert {state(jobs, i) for i in batch.ids[1:]} == {"success"}
    tell(f"{lost} claims of workers that died at once")


@pytest.mark.case(107)
def test_killed_before_its_own_task_begins(database: Database, fleet: Fleet, jobs: Scheduler) -> None:
    """The program has stored it as claimed by its own worker: the end of that lease brings it back."""
    victim = fleet.worker(options=LEASE, arm="after direct start")
    victim.send("schedule")
    victim.expect("after direct start")
    victim.kill()
    (task,) = rows(jobs, f"SELECT id FROM schedd_tasks WHERE state = {st.CLAIMED} AND claimed_at = created_at")
    assert task.id not in fleet.started()

    fleet.worker(options=LEASE)
    all_ended(jobs)
    assert history(jobs, task.id) == [(1, "lost"), (2, "succeeded")]
    error = attempts(jobs, task.id)[0].error or ""
    assert error.endswith("it is not known to have begun, and used no attempt")
    assert len(fleet.runs(task.id)) == 1
