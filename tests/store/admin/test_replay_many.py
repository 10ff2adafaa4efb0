"""Many replays, many at once, and one that crashes; what cannot be replayed; groups and filters."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler import ConfigError, Context, InvalidTransitionError, Scheduler, Task, TaskId, UnknownTaskError, task
from scheduler.ports import FAILPOINTS
from scheduler.testing import drain
from support.bench import Bench, Side, Soft, Step, notify_and_step
from support.fleet import Fleet

ENDED = ("success", "failed", "cancelled", "skipped")


@pytest.mark.case(20)
def test_a_bulk_replay_is_bounded_and_begins_with_the_oldest(bench: Bench) -> None:
    made = []
    for i in range(10):
        made += bench.die(f"m{i}")
        bench.clock.advance(1)
    assert bench.jobs.dead_letters.replay_all(limit=3, by="alice") == made[:3]
    assert bench.jobs.dead_letters.metrics().count == 7
    assert bench.states(*made) == ["scheduled"] * 3 + ["dead"] * 7
    assert [a.actor for a in bench.jobs.dead_letters.audit()] == ["alice"] * 3
    assert bench.jobs.dead_letters.replay_all(kind="Other") == []
    assert bench.jobs.dead_letters.replay_all(fingerprint="0" * 12) == []
    assert len(bench.jobs.dead_letters.replay_all()) == 7


@pytest.mark.case(20)
def test_a_bulk_replay_is_of_a_hundred_by_default(bench: Bench) -> None:
    made = bench.die(*(f"m{i}" for i in range(250)))
    assert bench.jobs.dead_letters.replay_all() == made[:100]
    assert bench.jobs.dead_letters.metrics().count == 150
    assert bench.jobs.dead_letters.replay_all(limit=149) == made[100:249]
    assert bench.states(made[249]) == ["dead"]
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ConfigError, match="limit"):
            bench.jobs.dead_letters.replay_all(limit=wrong)  # type: ignore[arg-type]


@pytest.mark.case(20)
def test_a_bulk_replay_leaves_what_dies_again_meanwhile(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench.die(*(f"m{i}" for i in range(150)))
    bench.clock.advance(1)
    batches = iter(range(10))

    def run_them() -> None:
        next(batches)
        bench.clock.advance(1)
        drain(bench.worker())

    monkeypatch.setattr(bench.jobs, "_notify", run_them)
    assert bench.jobs.dead_letters.replay_all(limit=1000) == made
    assert next(batches) == 2
    assert {bench.jobs.get_task(i).replay_count for i in made} == {1}


@pytest.mark.case(20)
def test_a_held_key_does_not_stop_a_bulk_replay(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    a, b, c = bench.die("a")[0], bench.die("b", key="k")[0], bench.die("c")[0]
    second = bench.die("again", key="k")[0]  # the key of a dead letter is free
    with caplog.at_level(logging.WARNING):
        assert bench.jobs.dead_letters.replay_all() == [a, b, c]
    assert bench.states(a, b, c, second) == ["scheduled"] * 3 + ["dead"]
    assert f"task {b} has its key" in caplog.text


@pytest.mark.case(20)
@pytest.mark.parametrize("threads", [2, 8])
def test_concurrent_replays_of_one_entry(bench: Bench, threads: int) -> None:
    (dead,) = bench.die("mail")
    callers = [bench.worker() for _ in range(threads)]
    together = threading.Barrier(threads)
    errors: list[Exception] = []

    def one(caller: Scheduler, name: str) -> TaskId | None:
        caller.database.open()
        together.wait(20)
        try:
            return caller.dead_letters.replay(dead, by=name)
        except InvalidTransitionError as error:
            errors.append(error)
            return None

    sides = [Side(lambda c=c, n=n: one(c, f"caller {n}")) for n, c in enumerate(callers)]
    results = [side.result() for side in sides]
    assert sorted(results, key=str) == [dead] + [None] * (threads - 1)
    assert {str(e) for e in errors} == {f"task {dead} is scheduled; it is no dead letter"}
    assert bench.jobs.get_task(dead).replay_count == 1
    assert len(bench.jobs.dead_letters.audit(dead)) == 1


@pytest.mark.case(20)
def test_concurrent_bulk_replays_share_the_work(bench: Bench) -> None:
    made = bench.die(*(f"m{i}" for i in range(60)))
    callers = [bench.worker() for _ in range(4)]
    together = threading.Barrier(4)

    def one(caller: Scheduler) -> list[TaskId]:
        caller.database.open()
        together.wait(20)
        return list(caller.dead_letters.replay_all(limit=20))

    sides = [Side(lambda c=c: one(c)) for c in callers]
    replayed = [task_id for side in sides for task_id in side.result()]
    assert len(replayed) == len(set(replayed))
    assert {bench.jobs.get_task(i).replay_count for i in replayed} == {1}
    assert len(replayed) + bench.jobs.dead_letters.metrics().count == 60
    assert set(replayed) <= set(made)


@pytest.mark.case(20)
@pytest.mark.parametrize("how", ["replay", "copy", "bulk"])
def test_an_error_before_the_commit_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    (dead,) = bench.die("mail", key="k1")
    child = bench.step("child", dead).schedule()
    before = [bench.jobs.get_task(i) for i in (dead, child)]

    def fail(name: str) -> None:
        if name == "before replay commit":
            raise RuntimeError("power is gone")

    def run() -> Any:
        if how == "bulk":
            return bench.jobs.dead_letters.replay_all(by="alice")
        return bench.jobs.dead_letters.replay(dead, by="alice", copy=how == "copy")

    with monkeypatch.context() as patch:
        patch.setattr(FAILPOINTS, "hit", fail)
        with pytest.raises(RuntimeError, match="power"):
            run()
    assert [bench.jobs.get_task(i) for i in (dead, child)] == before
    assert bench.jobs.dead_letters.audit() == []
    assert len(bench.jobs.list_tasks()) == 2
    run()
    bench.script.failing.clear()
    assert bench.drain()[0] == "mail"


@pytest.mark.case(20)
@pytest.mark.faults
def test_a_crash_before_the_commit_loses_nothing(bench: Bench) -> None:
    """The process that replays dies with everything written but the commit."""
    made = bench.die("a", "b")
    before = [bench.jobs.get_task(i) for i in made]
    code = (
        "import os, sys\nfrom scheduler import Scheduler\nfrom scheduler.ports import FAILPOINTS\n"
        "FAILPOINTS.hit = lambda name: os._exit(9) if name == 'before replay commit' else None\n"
        "Scheduler(sys.argv[1]).dead_letters.replay_all(by='alice')\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code, bench.database.url],
        cwd=root,
        env=dict(os.environ),
        timeout=60,
        check=False,
    )
    assert done.returncode == 9
    assert [bench.jobs.get_task(i) for i in made] == before
    assert bench.jobs.dead_letters.audit() == []
    bench.script.failing.clear()
    assert bench.jobs.dead_letters.replay_all(by="bob") == made
    assert bench.drain() == ["a", "b"]


@pytest.mark.case(20, 23)
@pytest.mark.parametrize("end", ENDED)
def test_what_is_not_dead_is_not_replayed(bench: Bench, end: str) -> None:
    made = bench.ended(end, Soft if end == "failed" else Step)
    for copy in (False, True):
        with pytest.raises(InvalidTransitionError, match=f"task {made} is {end}; it is no dead letter"):
            bench.jobs.dead_letters.replay(made, copy=copy)
    with pytest.raises(InvalidTransitionError, match=end):
        bench.jobs.dead_letters.get(made)
    assert bench.jobs.dead_letters.replay_all() == []


@pytest.mark.case(20, 23)
def test_what_lives_or_never_was_is_not_replayed(bench: Bench) -> None:
    waits = bench.step("later").after(60).schedule()
    held = bench.step("held").schedule()
    notify_and_step(bench.jobs)
    for made, state in ((waits, "scheduled"), (held, "claimed")):
        with pytest.raises(InvalidTransitionError, match=f"is {state};"):
            bench.jobs.dead_letters.replay(made)
    for unknown in (4711, 0, -1, 2**63, 2**70):
        with pytest.raises(UnknownTaskError):
            bench.jobs.dead_letters.replay(unknown)
    with pytest.raises(UnknownTaskError):
        bench.jobs.dead_letters.get(4711)


class Flaky(Task, kind="flaky"):
    def run(self, ctx: Context) -> None:
        raise ConnectionRefusedError(f"port {ctx.id} refused")


@task
def divide(ctx: Context) -> None:
    raise ZeroDivisionError


@pytest.mark.case(20)
def test_groups_and_filters(fleet: Fleet, clock: Any) -> None:
    jobs = fleet.worker(Flaky, divide)
    old = jobs.task(divide).schedule()
    drain(jobs)
    clock.advance(3600)
    refused = [jobs.task(Flaky()).schedule() for _ in range(4)]
    drain(jobs)
    letters = jobs.dead_letters
    groups = letters.groups()
    assert [g.text for g in groups] == [
        "4 × ConnectionRefusedError in Flaky.run",
        "1 × ZeroDivisionError in divide",
    ]
    assert (groups[0].id, groups[0].error) == (
        refused[-1],
        f"ConnectionRefusedError: port {refused[-1]} refused",
    )
    assert [r.id for r in letters.list()] == [*reversed(refused), old]
    assert [r.id for r in letters.list(limit=2)] == refused[:1:-1]
    assert [r.id for r in letters.list(kind="divide")] == [old]
    assert [r.id for r in letters.list(error_class="ZeroDivisionError")] == [old]
    assert [r.id for r in letters.list(fingerprint=groups[1].fingerprint)] == [old]
    assert [r.id for r in letters.list(older_than=60)] == [old]
    assert len(letters.list(newer_than=timedelta(minutes=1))) == 4
    assert letters.list(kind="flaky", older_than=60) == []
    assert letters.get(old).error == "ZeroDivisionError"
    assert letters.replay_all(fingerprint=groups[0].fingerprint) == refused
    assert [g.text for g in letters.groups()] == ["1 × ZeroDivisionError in divide"]
