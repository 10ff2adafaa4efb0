"""Tasks that name an executor: stored, left alone by workers, counted under caps, patched, copied, and shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler import Context, Resources, Scheduler, Task, TaskState
from scheduler.config.executors import ExecutorSection as Section
from scheduler.executors.placer import Placer
from scheduler.executors.ports import Capabilities, Executor, Job, PlacementPhase, Refused, Seen
from scheduler.store import placements, reaper
from scheduler.store.admin import transfer
from scheduler.store.admin.doctor import check as diagnose
from scheduler.store.admin.doctor_repair import repair
from scheduler.store.db.database import Database as Store
from scheduler.store.placements import Placement
from scheduler.store.read.explain import why
from scheduler.store.read.snapshot import Snapshot
from scheduler.store.read.stuck_tasks import unserved_of
from scheduler.testing import FakeClock, drain
from support.databases import Database
from support.fleet import Fleet, rows, step, write
from support.memory_engine import MemoryEngine, NoCommands

pytestmark = pytest.mark.both_databases


class Fit(Task, executor="batch", resources=Resources(cpu=2), executor_options={"nice": 1}, concurrency_key="{who}"):
    who: str = "a"

    def run(self, ctx: Context) -> str:
        return self.who


class Capped(Task, executor="batch", max_concurrency=2):
    def run(self, ctx: Context) -> None: ...


class Plain(Task, max_concurrency=2):
    def run(self, ctx: Context) -> None: ...


class Rated(Task, executor="batch", rate_limit="3/hour"):
    def run(self, ctx: Context) -> None: ...


TYPES = (Fit, Capped, Plain, Rated)


@pytest.fixture
def jobs(fleet: Fleet) -> Scheduler:
    made = fleet.worker(*TYPES)
    step(made)  # a worker publishes the kinds and their limits
    return made


def placer_of(jobs: Scheduler, engine: Executor | None = None, name: str = "batch", **settings: Any) -> Placer:
    section = Section(type="memory", **{"max_pending": 50, **settings})
    engine = MemoryEngine() if engine is None else engine
    return Placer(name, section, engine, jobs.database, jobs.registry, "holder", NoCommands(), ring=lambda: None)


def lane(jobs: Scheduler, task_id: int) -> str:
    return str(rows(jobs, "SELECT lane FROM schedd_tasks WHERE id = :id", id=task_id)[0].lane)


def test_where_it_runs_is_stored_and_shown(jobs: Scheduler) -> None:
    task = jobs.get_task(jobs.task(Fit()).schedule())
    assert (task.executor, task.resources, task.executor_options) == ("batch", Resources(cpu=2), {"nice": 1})
    changed = jobs.task(Fit()).executor("other", {"x": [1]}).resources(memory="1G", gpu=2).schedule()
    task = jobs.get_task(changed)
    assert (task.executor, task.executor_options) == ("other", {"x": [1]})
    assert task.resources == Resources(memory=1024**3, gpu=2)
    same = jobs.get_task(jobs.task(Fit()).executor("batch").schedule())
    assert same.executor_options == {"nice": 1}
    local = jobs.get_task(jobs.task(Fit()).executor("local").schedule())
    assert (local.executor, local.executor_options, lane(jobs, local.id)) == (None, None, "Fit\x1fa")


def test_drain_runs_them_whatever_they_name(jobs: Scheduler) -> None:
    task_id = jobs.task(Fit("b")).schedule()
    assert drain(jobs) == 1
    assert jobs.result(task_id) == "b"


def test_workers_leave_them_alone_unless_they_are_to_take_any(fleet: Fleet, database: Database) -> None:
    worker, any_worker = fleet.worker(*TYPES), Scheduler(database.url, clock=fleet.clock, any_executor=True)
    task_id = worker.task(Fit()).schedule()
    assert worker._options.any_executor is False
    assert any_worker._options.any_executor is True
    engine = worker._make_engine()
    engine.inline = True
    assert not engine.dispatch.planner.serves(worker_head(worker, task_id))
    any_worker.register(Fit)
    assert any_worker._make_engine().dispatch.planner.serves(worker_head(worker, task_id))
    any_worker.close()


def worker_head(jobs: Scheduler, task_id: int) -> Any:
    from scheduler.store.tasks.claim import LaneHead

    return LaneHead("default", lane(jobs, task_id), 1, 0, task_id)


def test_a_new_payload_keeps_the_executor(jobs: Scheduler) -> None:
    task_id = jobs.task(Fit()).after(60).schedule()
    jobs.update_task(task_id, payload={"who": "z"})
    assert lane(jobs, task_id) == "@batch\x1fFit\x1fz"


def test_dead_ones_are_replayed_and_copied_for_their_executor(jobs: Scheduler) -> None:
    task_id = jobs.task(Fit()).schedule()
    write(jobs, f"UPDATE schedd_tasks SET state = {TaskState.DEAD.code}, finished_at = 1 WHERE id = :id", id=task_id)
    copy = jobs.dead_letters.replay(task_id, copy=True)
    assert (lane(jobs, copy), jobs.get_task(copy).executor) == ("@batch\x1fFit\x1fa", "batch")
    assert jobs.get_task(copy).executor_options == {"nice": 1}
    jobs.dead_letters.replay(task_id)
    assert lane(jobs, task_id) == "@batch\x1fFit\x1fa"


def test_a_cap_counts_what_is_placed_and_what_workers_hold(jobs: Scheduler) -> None:
    """In whichever lane: of its executor, of workers, in quarantine."""
    engine = MemoryEngine()
    placer = placer_of(jobs, engine)
    ids = [jobs.task(Capped()).schedule() for _ in range(5)]
    placer.step()
    placer.step()
    assert len(engine.jobs) == 2
    local = jobs.task(Capped()).executor("local").schedule()
    step(jobs)
    assert jobs.get_task(local).state is TaskState.SCHEDULED
    jobs.cancel_task(ids[0])
    placer.step()
    assert sum(jobs.get_task(i).state is TaskState.CLAIMED for i in ids) == 2


def test_a_rate_counts_claims(jobs: Scheduler) -> None:
    engine = MemoryEngine()
    placer = placer_of(jobs, engine)
    for _ in range(5):
        jobs.task(Rated()).schedule()
    placer.step()
    placer.step()
    assert len(engine.jobs) == 3


def test_pauses_and_drains_keep_tasks_from_being_placed(jobs: Scheduler) -> None:
    engine = MemoryEngine()
    placer = placer_of(jobs, engine)
    jobs.pause(kind="Fit")
    jobs.task(Fit()).schedule()
    placer.step()
    assert not engine.jobs
    jobs.resume(kind="Fit")
    write(jobs, "UPDATE schedd_workers SET drain_requested = 1 WHERE host = 'executor'")
    placer.step()
    assert not engine.jobs
    write(jobs, "UPDATE schedd_workers SET drain_requested = NULL WHERE host = 'executor'")
    placer.step()
    assert len(engine.jobs) == 1


def test_slots_bound_what_is_placed_and_the_highest_level_comes_first(jobs: Scheduler) -> None:
    engine = MemoryEngine()
    placer = placer_of(jobs, engine, max_pending=2, max_running=3)
    low = [jobs.task(Fit()).priority("low").schedule() for _ in range(3)]
    high = [jobs.task(Fit("h")).priority("high").schedule() for _ in range(2)]
    placer.step()
    assert engine.tasks() == high
    for task_id in high:
        engine.attach(jobs, task_id)
    placer.step()
    assert engine.tasks() == [*high, low[0]]
    placer.step()
    assert len(engine.jobs) == 3


def test_queues_of_an_executor_are_placed_though_tasks_name_none(jobs: Scheduler) -> None:
    engine = MemoryEngine()
    placer = placer_of(jobs, engine, queues=("gpu",))
    placed = jobs.task(Plain()).queue("gpu").schedule()
    jobs.task(Plain()).schedule()
    placer.step()
    assert engine.tasks() == [placed]
    waiting = jobs.task(Plain()).queue("gpu").schedule()
    jobs.pause(queue="gpu")
    with jobs.database.read() as tx:
        assert "gpu" not in str([one.text for one in unserved_of(Snapshot(tx)) if waiting in one.tasks])


def test_status_says_that_no_daemon_places(jobs: Scheduler, clock: FakeClock) -> None:
    step(jobs)
    task_id = jobs.task(Fit()).schedule()
    with jobs.database.read() as tx:
        (one,) = unserved_of(Snapshot(tx))
    assert "no daemon has had [executors.batch] in its configuration" in one.text
    placer = placer_of(jobs, MemoryEngine(), max_pending=1)
    placer.step()
    with jobs.database.read() as tx:
        assert unserved_of(Snapshot(tx)) == []
    jobs.cancel_task(task_id)
    placer.step()
    jobs.task(Fit()).schedule()
    clock.advance(60)
    with jobs.database.read() as tx:
        (one,) = unserved_of(Snapshot(tx))
    assert "no live daemon places tasks for executor 'batch', since" in one.text


def test_one_daemon_places_at_a_time(jobs: Scheduler, clock: FakeClock) -> None:
    first, engine = placer_of(jobs), MemoryEngine()
    second = Placer(
        "batch",
        Section(type="memory"),
        engine,
        jobs.database,
        jobs.registry,
        "another",
        NoCommands(),
        ring=lambda: None,
    )
    first.step()
    second.step()
    assert (first.leads, second.leads, engine.asked) == (True, False, 0)
    first.give_up()
    second.step()
    assert (first.leads, second.leads) == (False, True)
    clock.advance(60)
    first.step()
    second.step()
    assert (first.leads, second.leads) == (True, False)


def test_an_engine_that_is_away_is_left_alone_and_told_of(jobs: Scheduler, clock: FakeClock) -> None:
    engine = MemoryEngine()
    placer = placer_of(jobs, engine)
    placer.step()
    engine.away = "no route to host"
    placer.step()
    asked = engine.asked
    jobs.task(Fit()).schedule()
    placer.step()
    assert engine.asked == asked
    with jobs.database.read() as tx:
        (one,) = unserved_of(Snapshot(tx))
        assert "the backend of executor 'batch' cannot be asked: no route to host" in one.text
    engine.away = ""
    clock.advance(5)
    placer.step()
    with jobs.database.read() as tx:
        assert (unserved_of(Snapshot(tx)), len(engine.jobs)) == ([], 1)


def test_a_job_that_is_refused_for_a_while_is_submitted_again(jobs: Scheduler, clock: FakeClock) -> None:
    engine = MemoryEngine()
    placer = placer_of(jobs, engine)
    task_id = jobs.task(Fit()).schedule()
    engine.refuses = Refused("", True, "quota exceeded", 30.0)
    placer.step()
    placer.step()
    assert engine.submissions == 1
    with jobs.database.read() as tx:
        assert "quota exceeded; it is submitted again at" in str(why(tx, task_id))
    engine.refuses = None
    clock.advance(31)
    placer.step()
    assert (engine.tasks(), engine.submissions) == ([task_id], 2)
    assert jobs.get_task(task_id).attempts_used == 1  # its first, which has not begun


def test_a_job_that_is_refused_for_good_fails_its_task(jobs: Scheduler) -> None:
    letters: list[int] = []
    engine = MemoryEngine()
    engine.refuses = Refused("", False, "no such partition")
    placer = placer_of(jobs, engine)
    placer._dead_letters.hook = lambda letter: letters.append(letter.id)
    task_id = jobs.task(Fit()).schedule()
    waits = jobs.task(Plain()).depend_on(task_id, when="failure").schedule()
    placer.step()
    task = jobs.get_task(task_id)
    assert (task.state, task.error_class) == (TaskState.DEAD, "ExecutorRefused")
    assert task.error == "executor batch never takes it: no such partition"
    assert (letters, jobs.get_task(waits).state) == ([task_id], TaskState.SCHEDULED)


def test_a_job_that_cannot_be_made_keeps_no_other_from_its_place(
    jobs: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = MemoryEngine()
    placer = placer_of(jobs, engine)
    broken, fine = jobs.task(Fit()).schedule(), jobs.task(Fit()).schedule()
    make = placer._submissions._make

    def make_but_one(placement: Placement) -> Job:
        if placement.task_id == broken:
            raise ValueError("what is stored is no JSON")
        return make(placement)

    monkeypatch.setattr(placer._submissions, "_make", make_but_one)
    placer.step()
    assert engine.tasks() == [fine]
    assert jobs.get_task(broken).state is TaskState.DEAD
    assert "its job cannot be made: ValueError: what is stored is no JSON" in str(jobs.get_task(broken).error)


def test_preempted_before_they_begin_they_wait_for_another_job(jobs: Scheduler, clock: FakeClock) -> None:
    """However often: it is no fault of theirs."""
    engine = MemoryEngine()
    placer = placer_of(jobs, engine)
    task_id = jobs.task(Fit()).schedule()
    for _ in range(5):
        placer.step()
        engine.phases = dict.fromkeys(engine.phases, PlacementPhase.PREEMPTED)
        placer.step()
        clock.advance(10)
    assert jobs.get_task(task_id).state in (TaskState.SCHEDULED, TaskState.CLAIMED)


def test_an_attempt_that_was_preempted_by_force_is_not_used(jobs: Scheduler, clock: FakeClock) -> None:
    engine = MemoryEngine()
    placer = placer_of(jobs, engine)
    task_id = jobs.task(Fit()).schedule()
    placer.step()
    engine.attach(jobs, task_id)
    write(jobs, "UPDATE schedd_tasks SET state = 5, started_at = 1 WHERE id = :id", id=task_id)
    engine.phases = dict.fromkeys(engine.phases, PlacementPhase.PREEMPTED)
    placer.step()
    jobs.database.change(reaper.reap)
    task = jobs.get_task(task_id)
    assert (task.state, task.attempts_used) == (TaskState.SCHEDULED, 0)


def test_one_that_ended_without_names_of_its_own_may_be_the_second(jobs: Scheduler) -> None:
    """So the engine's word does not end the lease of the first."""
    engine = MemoryEngine()
    engine.capabilities = Capabilities(names_unique=False)
    placer = placer_of(jobs, engine)
    task_id = jobs.task(Fit()).schedule()
    placer.step()
    engine.attach(jobs, task_id)
    engine.phases = dict.fromkeys(engine.phases, PlacementPhase.FAILED)
    placer.step()
    assert jobs.database.change(reaper.reap) == []
    assert jobs.get_task(task_id).state is TaskState.CLAIMED


def test_a_job_that_the_engine_knows_again_after_its_end_is_cancelled(jobs: Scheduler, clock: FakeClock) -> None:
    """A server that was restarted with less than it had takes it for running, for as long as it likes."""
    engine = MemoryEngine()
    placer, other = placer_of(jobs, engine, grace=5.0), placer_of(jobs, engine, grace=5.0, name="other")
    task_id, another = jobs.task(Fit()).schedule(), jobs.task(Fit()).executor("other").schedule()
    placer.step()
    other.step()
    engine.attach(jobs, task_id)
    before = dict(engine.jobs)
    (lost,) = [name for name, job in before.items() if job.labels["task"] == str(task_id)]
    _run_out(jobs)
    engine.jobs = {name: job for name, job in before.items() if name != lost}
    clock.advance(60)
    placer.step()  # it is placed again
    (name,) = set(engine.jobs) - set(before)
    prefix, *_ = lost.rpartition(f"-{task_id}-")
    foreign = {"schedd-0-1-1": before[lost], f"{prefix}-w1-1": before[lost]}
    engine.jobs |= {lost: before[lost]} | foreign
    engine.phases |= dict.fromkeys((*before, *foreign, name), PlacementPhase.RUNNING)
    for seconds, times in ((0, 0), (4, 0), (1, 1), (4, 1), (1, 2)):
        clock.advance(seconds)
        placer.step()
        assert engine.cancelled == [f"handle-{task_id}-1"] * times
    engine.phases[lost] = PlacementPhase.CANCELLED
    clock.advance(60)
    placer.step()
    assert lost not in engine.jobs
    assert len(engine.cancelled) == 2
    assert jobs.get_task(another).state is TaskState.CLAIMED


def _run_out(jobs: Scheduler) -> None:
    """The leases of all jobs run out, and their workers are dead."""
    write(jobs, "UPDATE schedd_workers SET lease_until = 1 WHERE incarnation LIKE 'job-%'")
    assert jobs.database.change(reaper.reap) != []


def test_the_doctor_gives_back_what_no_daemon_looks_after(jobs: Scheduler, clock: FakeClock) -> None:
    placer = placer_of(jobs)
    kept, cancelled = jobs.task(Fit()).schedule(), jobs.task(Fit()).schedule()
    placer.step()
    jobs.cancel_task(cancelled)
    assert jobs.database.change(repair) == []
    clock.advance(700)
    with jobs.database.read() as tx:
        found = {one.check: one for one in diagnose(tx)}
    assert found["placements"].tasks == (kept, cancelled)
    assert jobs.database.change(repair) == [
        f"gave back, since no daemon places for their executor, 2 tasks: {kept}, {cancelled}"
    ]
    assert [jobs.get_task(i).state for i in (kept, cancelled)] == [TaskState.SCHEDULED, TaskState.CANCELLED]


def test_what_is_replaced_while_it_waits_runs_as_what_it_is_now(jobs: Scheduler) -> None:
    engine = MemoryEngine()
    placer = placer_of(jobs, engine)
    task_id = jobs.task(Fit("a")).key("k").schedule()
    placer.step()
    again = jobs.task(Fit("b")).key("k", conflict="replace").executor("local").schedule()
    assert again == task_id
    placer.step()
    assert jobs.get_task(task_id).state is TaskState.SCHEDULED
    assert (lane(jobs, task_id), engine.cancelled) == ("Fit\x1fb", [f"handle-{task_id}-1"])


def test_a_store_with_jobs_does_not_move(jobs: Scheduler, empty_database: Database) -> None:
    placer = placer_of(jobs)
    jobs.task(Fit()).schedule()
    placer.step()
    jobs.stop_now()
    target = Store(empty_database.url, FakeClock(), auto_migrate=True)
    with pytest.raises(Exception, match="1 task has a job of an executor"):
        transfer.copy(jobs.database, target)
    target.dispose()


def test_retention_removes_placements(jobs: Scheduler, clock: FakeClock) -> None:
    placer = placer_of(jobs)
    task_id = jobs.task(Fit()).schedule()
    placer.step()
    jobs.cancel_task(task_id)
    placer.step()
    with jobs.database.read() as tx:
        assert len(placements.placements_of(tx, task_id)) == 1
    clock.advance(90 * 86400)
    assert jobs.cleanup_tasks("cancelled", 3600) == 1
    assert rows(jobs, "SELECT * FROM schedd_placements") == []


def test_what_an_engine_can_do_is_said() -> None:
    assert Capabilities() == Capabilities(names_unique=False, can_find=True, has_logs=False)


ODD = "a\0b\ud800"  # NUL, and half of a surrogate pair: no database takes them
KEPT = "a�b?"


class OddWords(MemoryEngine):
    """What it says of jobs, and what these wrote, cannot be stored as it is."""

    capabilities = Capabilities(names_unique=True, has_logs=True)

    def observe(self) -> Sequence[Seen]:
        return [replace(seen, reason=ODD, node=ODD) for seen in super().observe()]

    def logs(self, handle: str, tail: int) -> str | None:
        return ODD


def test_what_a_backend_says_of_one_job_keeps_no_other_from_being_placed(jobs: Scheduler) -> None:
    engine = OddWords()
    placer = placer_of(jobs, engine)
    first = jobs.task(Fit()).schedule()
    placer.step()
    engine.phases = dict.fromkeys(engine.phases, PlacementPhase.FAILED)
    second = jobs.task(Fit("b")).schedule()
    placer.step()
    assert engine.tasks()[-1] == second
    (ended,) = rows(jobs, "SELECT reason, node FROM schedd_placements WHERE task_id = :id", id=first)
    assert (ended.reason, ended.node) == (f"the job ended before it took the task up: {KEPT}", KEPT)


@pytest.mark.parametrize("later", [True, False])
def test_a_refusal_in_odd_words_is_stored(jobs: Scheduler, later: bool) -> None:
    engine = MemoryEngine()
    engine.refuses = Refused("", later, ODD)
    placer = placer_of(jobs, engine)
    task_id = jobs.task(Fit()).schedule()
    placer.step()
    (placed,) = rows(jobs, "SELECT reason FROM schedd_placements WHERE task_id = :id", id=task_id)
    assert placed.reason.endswith(KEPT)


def test_a_backend_that_is_away_in_odd_words_is_told_of(jobs: Scheduler) -> None:
    engine = MemoryEngine()
    engine.away = ODD
    placer_of(jobs, engine).step()
    (row,) = rows(jobs, "SELECT trouble FROM schedd_executors")
    assert row.trouble == KEPT
