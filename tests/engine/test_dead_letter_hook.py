"""The hook that gets dead letters; metrics and purge."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from scheduler import ConfigError, Context, DeadLetter, RetryPolicy, Task, UnknownTaskError
from scheduler.errors import StoreUnavailableError
from scheduler.model.task_filter import BEFORE, TaskFilter, Term
from scheduler.operations import bulk
from scheduler.ports import SystemClock
from scheduler.store import reaper
from scheduler.store.admin import retention
from scheduler.testing import drain
from support.bench import Bench, Soft, Step
from support.fleet import Fleet, ends, let_pass, rows, step
from support.lost_answers import lose_the_answer


class Flaky(Task, kind="flaky"):
    def run(self, ctx: Context) -> None:
        raise ConnectionRefusedError(f"port {ctx.id} refused")


@pytest.mark.case(21)
def test_a_throwing_hook_is_called_once_and_changes_nothing(
    fleet: Fleet, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    letters: list[tuple[DeadLetter, str]] = []

    def hook(letter: DeadLetter) -> None:
        letters.append((letter, jobs.get_task_status(letter.id).value))  # the commit is done: every reader sees it
        raise RuntimeError("the pager is broken")

    jobs = fleet.worker(Flaky, on_dead_letter=hook)
    made = jobs.task(Flaky()).key("k").with_retry(RetryPolicy(1, 1, max_attempts=2, jitter=0)).schedule()
    drain(jobs)
    assert letters == []
    clock.advance(1)
    drain(jobs)
    drain(jobs)
    ((letter, state),) = letters
    assert state == "dead"
    record = jobs.dead_letters.get(made)
    for name in DeadLetter.__struct_fields__[:-1]:
        assert getattr(letter, name) == getattr(record, name), name
    assert letter.finished_at == clock.datetime
    assert [r.getMessage() for r in caplog.records if r.exc_info] == ["on_dead_letter raised"]
    assert ends(jobs, made) == ["retried", "dead"]
    jobs.dead_letters.replay(made)
    drain(jobs)
    clock.advance(1)
    drain(jobs)
    assert [letter.attempt for letter, _ in letters] == [2, 4]


@pytest.mark.case(21)
def test_the_hook_of_a_real_engine_holds_nothing_up(fleet: Fleet) -> None:
    """It has a thread of its own: tasks run while it hangs, and a stop waits for it."""
    entered, gate, letters = threading.Event(), threading.Event(), []

    def hook(letter: DeadLetter) -> None:
        entered.set()
        gate.wait(20)
        letters.append(letter.id)
        raise SystemExit(3)

    fleet.clock = SystemClock()  # type: ignore[assignment]
    jobs = fleet.worker(Flaky, Step, state=Bench(fleet.database).script)
    jobs.on_dead_letter = hook
    jobs.start()
    try:
        dead = [jobs.task(Flaky()).schedule() for _ in range(2)]
        assert entered.wait(20)
        assert jobs.result(jobs.task(Step("beside")).schedule(), timeout=20) == "beside"
        gate.set()
    finally:
        jobs.stop()
    assert sorted(letters) == dead
    assert [r.state for r in jobs.dead_letters.list()] == ["dead", "dead"]


@pytest.mark.case(21, 66)
@pytest.mark.parametrize("answers", ["lost", "there"])
def test_the_hook_gets_tasks_that_kill_their_workers(
    fleet: Fleet, clock: Any, monkeypatch: pytest.MonkeyPatch, answers: str
) -> None:
    """Also if the commit that set them aside came through without its answer."""
    letters: list[DeadLetter] = []
    jobs = fleet.worker(Flaky)
    made = jobs.task(Flaky()).schedule()
    for _ in range(5):
        victim = fleet.worker(Flaky)
        step(victim)
        fleet.kill(victim)
        watcher = fleet.worker(on_dead_letter=letters.append)
        if answers == "lost":
            with monkeypatch.context() as patch:
                lost = lose_the_answer(watcher, patch, reaper, "reap")
                while not lost:
                    with suppress(StoreUnavailableError):
                        let_pass(clock, 40, watcher)
        let_pass(clock, 40, watcher)
        fleet.kill(watcher)
        if letters:
            break
    (letter,) = letters
    assert (letter.id, letter.error_class) == (made, "WorkerDied")
    assert jobs.get_task_status(made) == "dead"


@pytest.mark.case(21)
def test_kinds_without_dead_letters_and_dependants_call_no_hook(bench: Bench) -> None:
    letters: list[DeadLetter] = []
    bench.jobs.on_dead_letter = letters.append
    bench.ended("failed", Soft)
    dead = bench.ended("dead")
    assert bench.state(bench.step("child", dead).schedule()) == "failed"
    bench.drain()
    assert [letter.id for letter in letters] == [dead]


def test_a_hook_must_be_a_plain_function(bench: Bench) -> None:
    async def hook(letter: DeadLetter) -> None: ...

    for wrong in (hook, "mail me"):
        with pytest.raises(ConfigError, match="on_dead_letter"):
            bench.worker(on_dead_letter=wrong)
        with pytest.raises(ConfigError, match="on_dead_letter"):
            bench.jobs.on_dead_letter = wrong  # type: ignore[assignment]


# purge and metrics


@pytest.mark.case(22)
def test_metrics_of_an_empty_queue(bench: Bench) -> None:
    bench.ended("success")
    found = bench.jobs.dead_letters.metrics()
    assert (found.count, found.oldest_age, found.kinds) == (0, None, {})
    assert bench.jobs.dead_letters.list() == []
    assert bench.jobs.dead_letters.groups() == []
    assert bench.jobs.dead_letters.replay_all() == []
    assert bench.jobs.dead_letters.purge(0) == 0


@pytest.mark.case(22)
def test_purge_removes_only_what_is_older(bench: Bench) -> None:
    (old,) = bench.die("old")
    bench.clock.advance(3600)
    (young,) = bench.die("young")
    other = bench.ended("failed", Soft)
    found = bench.jobs.dead_letters.metrics()
    assert (found.count, found.oldest_age, found.kinds) == (2, timedelta(hours=1), {"Step": 2})
    assert bench.jobs.dead_letters.purge(timedelta(hours=2)) == 0
    assert bench.jobs.dead_letters.purge(3600) == 0  # not older than that yet
    bench.clock.advance(1)
    assert bench.jobs.dead_letters.purge(timedelta(hours=1), kind="Other") == 0
    assert bench.jobs.dead_letters.purge(timedelta(hours=1), by="alice") == 1
    assert bench.jobs.dead_letters.metrics().oldest_age == timedelta(seconds=1)
    with pytest.raises(UnknownTaskError):
        bench.jobs.get_task(old)
    assert bench.states(young, other) == ["dead", "failed"]
    (entry,) = bench.jobs.dead_letters.audit(old)
    assert (entry.actor, entry.action, entry.detail) == ("alice", "purge", {"error": "PermanentError: old failed"})
    assert bench.state(bench.step("child", old).schedule()) == "failed"  # by its recorded outcome
    with pytest.raises(UnknownTaskError):
        bench.jobs.dead_letters.replay(old)
    with pytest.raises(ConfigError):
        bench.jobs.dead_letters.purge(None)  # type: ignore[arg-type]


@pytest.mark.case(22)
def test_purge_in_batches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench.die(*(f"m{i}" for i in range(25)))
    bench.clock.advance(1)
    wanted = TaskFilter((Term("ended", (bench.jobs.database.now(),), how=BEFORE),))
    removed: list[int] = []
    monkeypatch.setattr(bulk, "BATCH", 10)
    bulk.purge(bench.jobs.desk, wanted, bulk.Run(each=lambda done: removed.append(done.size)))
    assert removed == [10, 20, 25]
    assert len(rows(bench.jobs, "SELECT task_id FROM schedd_outcomes")) == len(made)


@pytest.mark.case(22, 36)
def test_what_waits_for_a_purged_parent_ends(bench: Bench) -> None:
    dead, live = bench.die("dead")[0], bench.step("live").after(60).schedule()
    waits = bench.step("waits", dead, otherwise="wait").schedule()
    below = bench.step("below", waits).schedule()
    cleans = bench.step("cleans", waits, when="failure").schedule()
    runs = bench.step("runs", dead, live, when="finished").schedule()
    bench.clock.advance(1)
    assert bench.states(waits, below, runs) == ["waiting", "waiting", "waiting"]
    assert bench.jobs.dead_letters.purge(0) == 1
    assert bench.states(waits, below, cleans, runs) == ["failed", "failed", "scheduled", "waiting"]
    assert bench.jobs.get_last_error(waits) == f"not run: task {dead} was removed"
    assert bench.drain() == ["cleans"]
    assert bench.advance(60) == ["live", "runs"]


@pytest.mark.case(22)
def test_the_audit_outlives_the_outcome(bench: Bench) -> None:
    (dead,) = bench.die("dead")
    bench.jobs.dead_letters.replay(dead, by="alice")
    bench.drain()
    bench.clock.advance(1)
    bench.jobs.dead_letters.purge(0)
    kept = {"success": 1e9, "failed": 1e9, "outcomes": 60.0, "events": 1e9, "audit": 3600.0}
    for passed, left in ((3598, 2), (3, 0)):
        bench.clock.advance(passed)
        with bench.jobs.database.write() as tx:
            retention.purge_batch(tx, kept)
        assert len(bench.jobs.dead_letters.audit(dead)) == left
