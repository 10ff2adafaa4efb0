"""The audit: who changed what, through which door, and why, recorded with each change or not at all."""

from __future__ import annotations

import asyncio
import getpass
from datetime import timedelta
from typing import Any

import pytest

from scheduler import ConfigError, InvalidScheduleError, InvalidTransitionError, RetryPolicy, UnknownTaskError
from scheduler.errors import UnknownWorkerError
from scheduler.model.texts import ranges
from scheduler.store.admin import retention
from scheduler.store.admin.would_remove import would_remove
from scheduler.store.read import explain
from support.bench import Bench, Step, notify_and_step


def entries(bench: Bench, **wanted: Any) -> list[tuple[str, Any, str | None, str | None]]:
    """Oldest first: action, what it was about, who and why."""
    found = bench.jobs.audit(**wanted)
    return [(e.action, e.task_id or e.subject, e.actor, e.reason) for e in reversed(found)]


def why(bench: Bench, task_id: int) -> str:
    with bench.jobs.database.read() as tx:
        return explain.why(tx, task_id) or ""


def test_each_verb_says_who_and_why(bench: Bench) -> None:
    jobs = bench.jobs
    (dead,) = bench.die("dead")
    gone = bench.step("gone").after(60).schedule()
    jobs.task(Step("nightly")).key("nightly").daily_at(3, 0).schedule()
    with jobs.acting("alice", reason="wrong customer", via="http"):
        jobs.cancel_task(gone)
        jobs.retry_task(gone)
        jobs.dead_letters.replay(dead)
        jobs.schedules.pause("nightly")
        jobs.schedules.resume("nightly")
        made = jobs.schedules.trigger("nightly")
        jobs.schedules.delete("nightly")
        jobs.emit_event("paid")
    why = ("alice", "wrong customer")
    assert entries(bench) == [
        ("schedule registered", "schedule nightly", getpass.getuser(), None),
        ("cancel", gone, *why),
        ("retry", gone, *why),
        ("replay", dead, *why),
        ("schedule paused", "schedule nightly", *why),
        ("schedule resumed", "schedule nightly", *why),
        ("schedule triggered", made, *why),
        ("schedule deleted", "schedule nightly", *why),
        ("event emitted", "event paid", *why),
    ]
    assert {e.via for e in jobs.audit(by="alice")} == {"http"}
    assert jobs.audit(gone)[-1].before == "scheduled"
    assert jobs.audit(action="schedule registered")[0].after["kind"] == "Step"


def test_what_changes_nothing_is_not_recorded(bench: Bench) -> None:
    jobs = bench.jobs
    for _ in range(3):  # as each start of a program does
        jobs.task(Step("nightly")).key("nightly").daily_at(3, 0).schedule()
    jobs.emit_event("paid")
    jobs.emit_event("paid")
    jobs.schedules.resume("nightly")
    done = bench.step("done").schedule()
    bench.drain()
    jobs.cancel_task(done)
    with pytest.raises(InvalidTransitionError):
        jobs.retry_task(done)
    assert [action for action, *_ in entries(bench)] == ["schedule registered", "event emitted"]
    jobs.task(Step("nightly")).key("nightly").daily_at(4, 0).schedule()
    (changed,) = jobs.audit(action="schedule replaced")
    assert set(changed.before) == set(changed.after) == {"recurrence"}
    assert len(jobs.audit(action="schedule")) == 2


def test_it_commits_and_rolls_back_with_the_change(bench: Bench) -> None:
    with bench.jobs.database.write() as tx:
        bench.jobs.emit_event("paid", connection=tx.connection)
        tx.connection.rollback()
    assert entries(bench) == []


def test_a_bulk_has_one_name_and_its_filter(bench: Bench) -> None:
    a, b = bench.die("a", "b")
    with bench.jobs.acting("alice", reason="fixed"):
        assert bench.jobs.dead_letters.replay_all(kind="Step") == [a, b]
    first, second = bench.jobs.audit()
    assert {first.task_id, second.task_id} == {a, b}
    assert first.bulk is not None
    assert first.bulk == second.bulk
    assert first.filter is not None
    assert first.filter["kind"] == "Step"
    assert [e.task_id for e in bench.jobs.audit(bulk=first.bulk)] == [b, a]
    c, d = bench.die("c", "d")
    assert bench.jobs.retry_failed(kind="Step") == [a, b, c, d]
    assert {e.filter["kind"] for e in bench.jobs.audit(action="retry") if e.filter} == {"Step"}


def test_why_says_who_cancelled_it(bench: Bench) -> None:
    task = bench.step("x").after(60).schedule()
    below = bench.step("y", task).schedule()
    with bench.jobs.acting("alice", reason="wrong customer"):
        bench.jobs.cancel_task(task, cascade=True)
    assert why(bench, task).endswith(" by alice: wrong customer")
    assert "alice" not in why(bench, below)
    assert bench.jobs.audit(task)[0].detail == {"cascade": True, "dependants": 1}


def test_filters_and_pages(bench: Bench) -> None:
    clock = bench.clock
    tasks = [int(bench.step(str(i)).after(60).schedule()) for i in range(4)]
    for i, task in enumerate(tasks):
        with bench.jobs.acting("alice" if i % 2 else "bob"):
            bench.jobs.cancel_task(task)
        clock.advance(60)
    first = bench.jobs.audit(limit=3)
    assert [e.task_id for e in first] == tasks[:0:-1]
    assert [e.task_id for e in bench.jobs.audit(limit=3, cursor=first[-1].id)] == tasks[:1]
    assert [e.task_id for e in bench.jobs.audit(by="alice")] == [tasks[3], tasks[1]]
    since = first[0].at - timedelta(seconds=60)
    assert [e.task_id for e in bench.jobs.audit(since=since)] == tasks[:1:-1]
    assert [e.task_id for e in bench.jobs.audit(until=since)] == tasks[1::-1]
    assert bench.jobs.audit(via="cli") == []
    for wrong in ({"limit": 0}, {"task": "x"}, {"by": 3}, {"cursor": 0}):
        with pytest.raises(ConfigError):
            bench.jobs.audit(**wrong)
    with pytest.raises(InvalidScheduleError):
        bench.jobs.audit(since="yesterday")  # type: ignore[arg-type]


def test_acting_is_of_one_coroutine(bench: Bench) -> None:
    jobs = bench.jobs
    tasks = [int(bench.step(str(i)).after(60).schedule()) for i in range(2)]

    async def cancel(who: str, task: int, go: asyncio.Event) -> None:
        with jobs.acting(who):
            await go.wait()
            await asyncio.to_thread(jobs.cancel_task, task)

    async def both() -> None:
        go = asyncio.Event()
        work = asyncio.gather(cancel("alice", tasks[0], go), cancel("bob", tasks[1], go))
        await asyncio.sleep(0)
        go.set()
        await work

    asyncio.run(both())
    assert {e.task_id: e.actor for e in jobs.audit()} == {tasks[0]: "alice", tasks[1]: "bob"}
    for wrong in ("", "x" * 256, "nul\0", 3):
        with pytest.raises(ConfigError, match="by is a text"), jobs.acting(wrong):  # type: ignore[arg-type]
            pass


def test_it_is_kept_for_a_time_of_its_own(bench: Bench) -> None:
    task = bench.step("x").after(60).schedule()
    bench.jobs.cancel_task(task)
    bench.clock.advance(100)
    database = bench.jobs.database
    kept = {"success": 0.0, "failed": 0.0, "outcomes": 0.0, "events": 0.0, "audit": 150.0}
    for left in (1, 0):
        with database.write() as tx:
            assert would_remove(tx, kept).audit == 1 - left
            retention.purge_batch(tx, kept)
        assert len(bench.jobs.audit(task)) == left
        bench.clock.advance(100)


def test_ranges() -> None:
    assert ranges([5, 1, 2, 3]) == "1-3, 5"
    assert ranges([]) == ""


def test_a_changed_retry_policy_is_recorded(bench: Bench) -> None:
    task = bench.step("x").after(60).schedule()
    bench.jobs.set_retry_policy(task, RetryPolicy(max_attempts=3))
    (entry,) = bench.jobs.audit(task)
    assert entry.action == "patch"
    assert '"max_attempts":3' in entry.after["retry"]


def test_awaited_verbs_are_the_actors_own(bench: Bench) -> None:
    task = bench.step("x").after(60).schedule()

    async def change() -> list[str | None]:
        with bench.jobs.acting("alice", via="http"):
            await bench.jobs.cancel_async(task)
            await bench.jobs.pause_async(queue="mail")
            await bench.jobs.resume_async(queue="mail")
        return [entry.actor for entry in await bench.jobs.audit_async(via="http")]

    assert asyncio.run(change()) == ["alice"] * 3


def test_workers_are_steered_from_programs(bench: Bench) -> None:
    jobs = bench.jobs
    bench.drain()
    (worker,) = jobs.workers.list()
    with jobs.acting("alice", reason="deploy", via="page"):
        jobs.workers.drain(worker.id)
        bench.drain()
        assert [one.state for one in jobs.workers.list()] == ["draining"]
        jobs.workers.resume(worker.id)
        bench.drain()
        assert [one.state for one in jobs.workers.list()] == ["live"]
        jobs.workers.restart(worker.id)
    about = f"worker {worker.id}"
    assert entries(bench) == [(verb, about, "alice", "deploy") for verb in ("drain", "resume", "restart")]
    assert {entry.via for entry in jobs.audit()} == {"page"}
    for wrong in (0, worker.id + 1):
        with pytest.raises(UnknownWorkerError):
            jobs.workers.drain(wrong)
    with pytest.raises(ConfigError):
        jobs.workers.drain("1")  # type: ignore[arg-type]


def test_what_a_person_submits_is_recorded_and_what_a_program_schedules_is_not(bench: Bench) -> None:
    jobs = bench.jobs
    bench.step("by the program").schedule()
    with jobs.batch() as batch:
        batch.task(Step("by the program, too"))
    with jobs.acting("alice", reason="again", via="page"):
        one = jobs.submit("Step", {"name": "by hand"})
        kept = bench.step("k").key("k").schedule()
        bench.step("k").key("k").schedule()  # the key is held: nothing is stored
        with jobs.batch() as batch:
            two = batch.task(Step("a"))
            batch.task(Step("b")).depend_on([two])
    first, second = batch.ids
    assert entries(bench) == [("submit", int(i), "alice", "again") for i in (one, kept, first, second)]
    with jobs.database.write() as tx, jobs.acting("alice"):
        bench.step("gone").schedule(tx.connection)
        tx.connection.rollback()
    assert len(jobs.audit()) == 4


def test_an_added_dependency_is_recorded(bench: Bench) -> None:
    parent, child = (bench.step(name).after(60).schedule() for name in "ab")
    with bench.jobs.acting("alice"):
        bench.jobs.add_dependency(child, parent, when="finished")
    (entry,) = bench.jobs.audit(child)
    assert (entry.action, entry.actor) == ("dependency added", "alice")
    assert entry.after == {"parent": int(parent), "when": "finished", "otherwise": "fail"}


def test_upkeep_from_programs(bench: Bench) -> None:
    jobs = bench.jobs
    done = bench.step("x").schedule()
    bench.drain()
    bench.clock.advance(30 * 86400)
    assert jobs.gc(dry_run=True).tasks == 1
    assert entries(bench) == []
    bench.execute("UPDATE schedd_tasks SET result_until = NULL, result = NULL")
    with jobs.acting("alice", via="page"):
        assert jobs.gc().tasks == 1
    (entry,) = jobs.audit()
    assert (entry.action, entry.actor, entry.via, entry.detail["removed"]["tasks"]) == ("cleanup", "alice", "page", 1)
    child, parent = (bench.step(name).after(60).schedule() for name in "bc")
    jobs.add_dependency(child, parent)
    bench.execute("UPDATE schedd_tasks SET unmet = 7 WHERE id = :id", id=int(child))
    assert {f.check for f in jobs.doctor() if f.level == "problem"} >= {"unmet counts"}
    with jobs.acting("alice"):
        assert jobs.repair()
    assert "unmet counts" not in {f.check for f in jobs.doctor() if f.level == "problem"}
    assert jobs.audit()[0].action == "repair"
    with pytest.raises(UnknownTaskError):
        jobs.get_task(done)


def test_every_group_of_verbs_has_awaited_forms(bench: Bench) -> None:
    jobs = bench.jobs
    (dead,) = bench.die("dead")
    bench.script.failing.clear()
    jobs.task(Step("nightly")).key("nightly").daily_at(3, 0).schedule()
    task, parent = (bench.step(name).after(60).schedule() for name in "xy")
    (worker,) = jobs.workers.list()

    async def change() -> None:
        with jobs.acting("alice", via="page"):
            await jobs.add_dependency_async(task, parent)
            await jobs.set_retry_policy_async(task, RetryPolicy(max_attempts=3))
            await jobs.schedules.pause_async("nightly")
            await jobs.schedules.resume_async("nightly")
            await jobs.schedules.trigger_async("nightly")
            await jobs.schedules.delete_async("nightly")
            await jobs.dead_letters.replay_async(dead)
            await jobs.live_settings.kind_async("Step", max_concurrency=2)
            await jobs.workers.drain_async(worker.id)
            await jobs.submit_async("Step", {"name": "z"})
            await jobs.gc_async()
            await jobs.repair_async()

    asyncio.run(change())
    assert [entry.action for entry in reversed(jobs.audit(via="page"))] == [
        *("dependency added", "patch", "schedule paused", "schedule resumed", "schedule triggered", "schedule deleted"),
        *("replay", "settings changed", "drain", "submit"),
    ]


def test_force_from_programs_ends_what_runs(bench: Bench) -> None:
    running = int(bench.step("running").schedule())
    notify_and_step(bench.jobs)
    done = bench.jobs.cancel_task(running, force=True)
    assert done.requested == (running,)
    (entry,) = bench.jobs.audit(running)
    assert entry.detail["force"] is True
