"""How many workers an executor starts, over a real store, a clock that is stepped, and an engine in memory."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from scheduler import Context, Scheduler, Task, TaskState
from scheduler.config.executors import ExecutorSection as Section
from scheduler.executors.placer import Placer
from scheduler.executors.ports import PlacementPhase, Refused
from scheduler.executors.worker_placer import WorkerPlacer
from scheduler.model.placement import worker_job_key, worker_job_name
from scheduler.ports import FAILPOINTS
from scheduler.store import worker_jobs
from scheduler.store.admin.doctor_repair import repair
from scheduler.store.read.executors import executor_statuses
from scheduler.store.read.explain import why
from scheduler.store.read.snapshot import Snapshot
from scheduler.store.read.stuck_tasks import unserved_of
from scheduler.testing import FakeClock
from support.fleet import Fleet, rows, run_claimed, step, write
from support.memory_engine import MemoryEngine, NoCommands
from support.worker_engine import WorkerCommands, WorkerEngine

LOOKS = 4  # at most, while some time passes


class Work(Task, queue="a"):
    def run(self, ctx: Context) -> None: ...


class Named(Task, executor="it", queue="a"):
    def run(self, ctx: Context) -> None: ...


class Elsewhere(Task, executor="other", queue="a"):
    def run(self, ctx: Context) -> None: ...


class Capped(Task, queue="a", max_concurrency=1):
    def run(self, ctx: Context) -> None: ...


@pytest.fixture
def jobs(fleet: Fleet) -> Scheduler:
    made = fleet.worker(Work, Named, Elsewhere, Capped, queues=["local"])
    step(made)
    return made


@pytest.fixture
def engine(jobs: Scheduler) -> WorkerEngine:
    return WorkerEngine(jobs)


def placer_of(jobs: Scheduler, engine: Any, holder: str = "first", **settings: Any) -> WorkerPlacer:
    usual = {"place": "worker", "queues": ("a",), "max_workers": 4, "scale_when_older": 10.0, "cooldown": 20.0}
    section = Section(type="memory", **{**usual, **settings})
    registry, commands = jobs.registry, WorkerCommands()
    return WorkerPlacer("it", section, engine, jobs.database, registry, holder, commands, ring=lambda: None)


@pytest.fixture
def placer(jobs: Scheduler, engine: WorkerEngine) -> WorkerPlacer:
    return placer_of(jobs, engine)


def after(clock: FakeClock, seconds: float, *placers: WorkerPlacer) -> None:
    """Some seconds later, with some looks of these on the way."""
    looks = min(LOOKS, round(seconds))
    for _ in range(looks):
        clock.advance(seconds / looks)
        for placer in placers:
            placer.step()


def open_jobs(jobs: Scheduler) -> list[str]:
    with jobs.database.read() as tx:
        return [one.name for one in worker_jobs.open_workers(tx, "it")]


def done(jobs: Scheduler) -> None:
    """As if workers had run all that is due."""
    write(jobs, f"UPDATE schedd_tasks SET state = {TaskState.SUCCESS.code}, finished_at = 1 WHERE queue = 'a'")


def said(jobs: Scheduler, task_id: int) -> str:
    step(jobs)  # the daemon that places lives
    with jobs.database.read() as tx:
        return str(why(tx, task_id))


def test_the_names_of_jobs_are_read_back() -> None:
    name = worker_job_name("5005A013-0000-4000-8000-000000000000", 3, 17)
    assert (name, worker_job_key(name)) == ("schedd-5005a013-w3-17", (3, 17))


def test_a_backlog_that_gets_old_starts_workers_until_there_are_enough(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    for _ in range(50):
        jobs.task(Work()).schedule()
    after(clock, 9, placer)
    assert engine.submitted == []  # many, but young
    after(clock, 2, placer)
    assert len(engine.submitted) == 1
    after(clock, 60, placer)
    assert len(engine.submitted) == 1  # it has not begun
    assert engine.begin(engine.waiting[0])
    after(clock, 19, placer)
    assert len(engine.submitted) == 1
    after(clock, 2, placer)
    assert len(engine.submitted) == 2
    engine.begin(engine.waiting[0])
    after(clock, 22, placer)
    assert len(engine.submitted) == 4  # as many again as are at work
    for name in engine.waiting:
        engine.begin(name)
    after(clock, 100, placer)
    assert len(engine.submitted) == 4
    assert len({job.name for job in engine.submitted}) == 4
    done(jobs)
    for name in list(engine.workers):
        engine.end(name)
    after(clock, 2, placer)
    assert (open_jobs(jobs), engine.phases) == ([], {})  # none is left, nor its files
    after(clock, 100, placer)
    assert len(engine.submitted) == 4


def test_only_tasks_that_such_a_worker_could_run_count(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    jobs.task(Elsewhere()).schedule()
    jobs.task(Work()).queue("b").schedule()
    jobs.task(Work()).after(3600).schedule()
    held, capped = jobs.task(Capped()).schedule(), jobs.task(Capped()).schedule()
    write(jobs, f"UPDATE schedd_tasks SET state = {TaskState.RUNNING.code}, worker = 1, claim = 1 WHERE id = {held}")
    after(clock, 100, placer)
    assert engine.submitted == []
    jobs.pause(queue="a", reason="a test")
    late = jobs.task(Work()).schedule()
    after(clock, 100, placer)
    assert engine.submitted == []
    jobs.resume(queue="a")
    after(clock, 1, placer)
    assert len(engine.submitted) == 1
    jobs.cancel_task(late)
    assert jobs.get_task(capped).state is TaskState.SCHEDULED


def test_tasks_that_name_the_executor_count(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    jobs.task(Named()).queue("b").schedule()
    after(clock, 30, placer)
    assert engine.submitted == []
    task = jobs.task(Named()).schedule()
    after(clock, 13, placer)
    after(clock, 1, placer)
    assert len(engine.submitted) == 1
    assert "waits for a worker of executor it: pending, Resources (schedd-" in said(jobs, task)


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_submission_without_an_answer_is_one_worker(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock, lost: str
) -> None:
    jobs.task(Work()).schedule()
    setattr(engine, f"lose_{lost}", True)
    after(clock, 100, placer)
    assert len({job.name for job in engine.submitted}) == 1
    assert len(engine.phases) == len(open_jobs(jobs)) == 1


class KilledError(Exception):
    """As if the daemon had been killed here."""


@pytest.mark.parametrize("lost", ["request", "answer", "nothing", "daemon"])
def test_the_next_daemon_starts_no_second_herd(
    jobs: Scheduler, engine: WorkerEngine, clock: FakeClock, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one dies right after the submission, or before it: its lease has to run out."""

    def hit(name: str) -> None:
        if lost == "daemon" and name == "after reserve":
            raise KilledError

    first, second = placer_of(jobs, engine, "first"), placer_of(jobs, engine, "second")
    for _ in range(20):
        jobs.task(Work()).schedule()
    after(clock, 9, first)
    with monkeypatch.context() as patched, suppress(KilledError):
        patched.setattr(FAILPOINTS, "hit", hit)
        if lost in ("request", "answer"):
            setattr(engine, f"lose_{lost}", True)
        after(clock, 1, first)
    assert len(open_jobs(jobs)) == 1
    second.step()
    assert not second.leads
    after(clock, 100, second)
    assert second.leads
    assert len({job.name for job in engine.submitted}) == len(engine.phases) == 1
    after(clock, 1, first)
    assert not first.leads
    engine.begin(engine.waiting[0])
    after(clock, 25, second, first)
    assert len(engine.phases) == 2  # and goes on as the first would have


def test_of_two_jobs_of_one_name_one_works(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    jobs.task(Work()).schedule()
    after(clock, 12, placer)
    (name,) = engine.waiting
    assert engine.begin(name)
    assert not engine.begin(name)
    engine.phases[name] = PlacementPhase.RUNNING
    with jobs.database.read() as tx:
        assert list(worker_jobs.live(tx)) == [name]


def test_the_store_keeps_the_bound_and_the_lease(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    """Whatever a daemon has decided: a slow one may have lost the lease meanwhile."""
    placer.step()

    def reserve(holder: str, number: int) -> int | None:
        return jobs.database.change(lambda tx: worker_jobs.reserve(tx, "it", holder, number, 4, "5005a013"))

    assert [reserve("first", 3), reserve("first", 3), reserve("first", 1)] == [3, 1, 0]
    assert reserve("second", 1) is None
    clock.advance(60)
    assert reserve("first", 1) is None
    numbers = [worker_job_key(name)[1] for name in open_jobs(jobs)]
    assert len({*numbers}) == 4


def test_a_job_that_begins_while_it_is_given_up_stays(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    jobs.task(Work()).schedule()
    after(clock, 12, placer)
    (name,) = engine.waiting
    assert engine.begin(name)
    row, number = worker_job_key(name)
    jobs.database.change(lambda tx: worker_jobs.remove(tx, row, [number], attached=False))
    assert open_jobs(jobs) == [name]
    jobs.database.change(lambda tx: worker_jobs.remove(tx, row, [number], attached=True))
    assert open_jobs(jobs) == []


def test_a_task_is_old_from_when_its_parent_has_ended(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    parent = jobs.task(Work()).queue("local").schedule()
    jobs.task(Work()).depend_on(parent).schedule()
    after(clock, 100, placer)
    step(jobs)
    assert drain_local(jobs) == 1
    after(clock, 8, placer)
    assert engine.submitted == []
    after(clock, 4, placer)
    assert len(engine.submitted) == 1


def drain_local(jobs: Scheduler) -> int:
    """Run what this daemon itself has claimed, and record it."""
    step(jobs)
    ran = run_claimed(jobs)
    step(jobs)
    return ran


def test_doctor_forgets_workers_of_an_executor_that_no_daemon_has_any_more(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    jobs.task(Work()).schedule()
    after(clock, 12, placer)
    placer.give_up()
    jobs.database.change(repair)
    assert len(open_jobs(jobs)) == 1
    clock.advance(700)
    write(jobs, "UPDATE schedd_executors SET until = :at", at=jobs.database.now() - 700_000_000)
    assert any("1 worker" in text for text in jobs.database.change(repair))
    assert open_jobs(jobs) == []


def test_a_commit_whose_answer_was_lost_is_ones_own(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    jobs.task(Work()).schedule()
    after(clock, 12, placer)
    (name,) = engine.waiting
    assert engine.begin(name)
    (row,) = rows(jobs, "SELECT incarnation FROM schedd_workers WHERE incarnation LIKE 'of %'")
    before = str(row.incarnation)
    assert jobs.database.change(lambda tx: worker_jobs.attach(tx, name, before, again=False))
    assert jobs.database.change(lambda tx: worker_jobs.attach(tx, name, "", again=True))
    assert not jobs.database.change(lambda tx: worker_jobs.attach(tx, name, "of another", again=False))


def test_a_worker_that_is_killed_is_replaced_while_there_is_a_backlog(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    jobs.task(Work()).schedule()
    after(clock, 12, placer)
    (name,) = engine.waiting
    engine.begin(name)
    worker = engine.workers[name]
    engine.kill(name)
    placer.step()
    (row,) = rows(jobs, "SELECT lease_until FROM schedd_workers WHERE id = :id", id=worker)
    assert row.lease_until < jobs.database.now()  # the engine's word lets its lease run out
    assert open_jobs(jobs) == [name]
    write(jobs, "UPDATE schedd_workers SET state = 3 WHERE id = :id", id=worker)  # another worker has reaped it
    after(clock, 1, placer)
    assert open_jobs(jobs) == []
    after(clock, 25, placer)
    assert len(engine.submitted) == 2
    engine.begin(engine.waiting[0])
    done(jobs)
    engine.kill(next(iter(engine.workers)))
    write(jobs, "UPDATE schedd_workers SET state = 3 WHERE incarnation LIKE 'of %'")
    after(clock, 60, placer)
    assert len(engine.submitted) == 2  # nothing is due


def test_a_worker_that_the_engine_forgot_counts_while_its_lease_holds(
    jobs: Scheduler, engine: WorkerEngine, clock: FakeClock
) -> None:
    placer = placer_of(jobs, engine, max_workers=1)
    jobs.task(Work()).schedule()
    after(clock, 12, placer)
    engine.begin(engine.waiting[0])
    engine.forgets = True
    after(clock, 300, placer)
    assert len(engine.submitted) == len(open_jobs(jobs)) == 1


def test_a_job_that_outlives_its_worker_counts_and_is_ended(
    jobs: Scheduler, engine: WorkerEngine, clock: FakeClock
) -> None:
    placer = placer_of(jobs, engine, max_workers=1, grace=5.0)
    jobs.task(Work()).schedule()
    after(clock, 12, placer)
    (name,) = engine.waiting
    engine.begin(name)
    engine.end(name)
    engine.phases[name] = PlacementPhase.RUNNING  # its process hangs
    after(clock, 4, placer)
    assert (open_jobs(jobs), engine.cancelled) == ([name], [])
    after(clock, 4, placer)
    assert engine.cancelled == [name]
    assert open_jobs(jobs) == []


def test_what_has_not_begun_is_cancelled_when_nothing_is_due_any_more(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    task = jobs.task(Work()).schedule()
    after(clock, 12, placer)
    (name,) = engine.waiting
    jobs.cancel_task(task)
    after(clock, 50, placer)
    assert engine.cancelled == []
    after(clock, 20, placer)
    assert (engine.cancelled, open_jobs(jobs)) == ([name], [])
    assert not engine.begin(name)  # it was about to begin


def test_a_job_without_a_row_is_ended(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    """The engine had forgotten it, and remembers."""
    jobs.task(Work()).schedule()
    after(clock, 12, placer)
    (name,) = engine.waiting
    engine.forgets = True
    after(clock, 40, placer)  # submit_grace
    assert name not in open_jobs(jobs)
    engine.forgets = False
    after(clock, 2, placer)
    assert name in engine.cancelled


def test_the_least_number_stays_and_others_end_when_idle(
    jobs: Scheduler, engine: WorkerEngine, clock: FakeClock
) -> None:
    placer = placer_of(jobs, engine, min_workers=1)
    after(clock, 1, placer)
    jobs.task(Work()).schedule()
    engine.begin(engine.waiting[0])
    after(clock, 32, placer)
    assert [job.argv[2] for job in engine.submitted] == ["stays", "ends"]
    done(jobs)
    engine.end(engine.submitted[0].name)
    engine.phases.pop(engine.waiting[0])
    after(clock, 70, placer)
    assert [job.argv[2] for job in engine.submitted] == ["stays", "ends", "stays"]


def test_workers_that_do_not_begin_are_tried_again_ever_more_rarely(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    task = jobs.task(Work()).schedule()
    for _ in range(60):
        clock.advance(10)
        placer.step()
        for name in engine.waiting:
            engine.phases[name] = PlacementPhase.FAILED
    assert 4 <= len(engine.submitted) <= 12
    assert "but workers of executor 'it' do not begin: worker schedd-" in said(jobs, task)
    assert "the job ended before it began: Resources" in said(jobs, task)
    with jobs.database.read() as tx:
        (stuck,) = unserved_of(Snapshot(tx))
    assert "do not begin" in stuck.text
    after(clock, 300, placer)
    engine.begin(engine.waiting[0])
    after(clock, 1, placer)
    with jobs.database.read() as tx:
        scale = executor_statuses(tx)["it"].scale
    assert scale is not None
    assert (scale.wanted, scale.most, scale.trouble) == (1, 4, None)


def test_what_the_engine_never_takes_is_said_and_not_tried_at_once_again(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    task = jobs.task(Work()).schedule()
    engine.refuses = Refused("", False, "no such partition")
    after(clock, 14, placer)
    assert open_jobs(jobs) == []
    assert "the backend never takes it: no such partition" in said(jobs, task)
    engine.refuses = Refused("", True, "it is full")
    after(clock, 60, placer)
    assert len(open_jobs(jobs)) == 1
    assert "waits for a worker of executor it: submitted, it is full" in said(jobs, task)
    engine.refuses = None
    after(clock, 10, placer)
    assert [job.name for job in engine.submitted] == open_jobs(jobs)


def test_a_drained_executor_starts_none(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    placer.step()
    with jobs.database.read() as tx:
        row = executor_statuses(tx)["it"].worker
    jobs.workers.drain(row)
    task = jobs.task(Work()).schedule()
    after(clock, 60, placer)
    assert engine.submitted == []
    assert f"but executor 'it' is drained: `schedctl worker resume {row}` ends that" in said(jobs, task)
    jobs.workers.resume(row)
    after(clock, 1, placer)
    assert len(engine.submitted) == 1


def test_why_says_what_a_worker_is_waited_for(
    jobs: Scheduler, engine: WorkerEngine, placer: WorkerPlacer, clock: FakeClock
) -> None:
    placer.step()
    task, wrong = jobs.task(Work()).schedule(), jobs.task(Named()).queue("b").schedule()
    assert "waits for a worker of executor it: one is started once a task has been due for 10 s" in said(jobs, task)
    assert "the workers of executor 'it' serve queue a only, not 'b'" in said(jobs, wrong)
    write(jobs, "UPDATE schedd_executors SET until = 0")
    assert "but no live daemon starts workers for executor 'it', since" in said(jobs, task)


def test_an_executor_that_placed_tasks_may_start_workers_and_the_other_way_round(
    jobs: Scheduler, engine: WorkerEngine, clock: FakeClock
) -> None:
    tasks = Placer(
        "it", Section(type="memory"), MemoryEngine(), jobs.database, jobs.registry, "t", NoCommands(), ring=lambda: None
    )
    task = jobs.task(Named()).schedule()
    tasks.step()
    assert jobs.get_task(task).state is TaskState.CLAIMED
    tasks.give_up()
    placer = placer_of(jobs, engine)
    after(clock, 1, placer)
    assert (jobs.get_task(task).state, jobs.get_task(task).attempt) == (TaskState.SCHEDULED, 0)
    after(clock, 30, placer)
    assert len(open_jobs(jobs)) == 1
    placer.give_up()
    clock.advance(60)
    tasks.step()
    assert open_jobs(jobs) == []
    assert not engine.begin(engine.waiting[0])


@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_bounds_hold_all_is_served_and_none_is_left(
    jobs: Scheduler, engine: WorkerEngine, clock: FakeClock, seed: int
) -> None:
    """Two daemons, lost requests and answers, killed workers, jobs that begin late or never."""
    rng, most = random.Random(seed), 4
    made = {"max_workers": most, "scale_when_older": 2.0, "cooldown": 2.0, "idle": 5.0, "submit_grace": 5.0}
    placers = [placer_of(jobs, engine, holder, **made) for holder in ("first", "second")]
    idle: dict[str, int] = {}

    def second(number: int, *, hostile: bool) -> None:
        clock.advance(1)
        if hostile and rng.random() < 0.1:
            jobs.task(Work()).schedule()
        if hostile and rng.random() < 0.1:
            setattr(engine, rng.choice(["lose_request", "lose_answer"]), True)
        if hostile and rng.random() < 0.03:
            placers.reverse()
            clock.advance(rng.choice([0, 20]))
        for name in list(engine.waiting):
            if rng.random() < 0.3:
                engine.begin(name) if not hostile or rng.random() < 0.9 else engine.kill(name)
        for name in list(engine.workers):
            if hostile and rng.random() < 0.03:
                worker = engine.workers[name]
                engine.kill(name)
                write(jobs, "UPDATE schedd_workers SET state = 3 WHERE id = :id", id=worker)
                continue
            if _serve_one(jobs):
                idle[name] = number
            elif number - idle.setdefault(name, number) >= 5:
                engine.end(name)
        placers[0].step()
        alive = [name for name, phase in engine.phases.items() if not phase.over]
        assert len(alive) <= most
        assert len(engine.workers) <= most

    for _ in range(10):
        jobs.task(Work()).schedule()
    for number in range(150):
        second(number, hostile=True)
    for number in range(150, 700):
        if not engine.phases and not open_jobs(jobs) and not _due(jobs):
            break
        second(number, hostile=False)
    assert (engine.phases, open_jobs(jobs), _due(jobs)) == ({}, [], 0)
    assert len(engine.submitted) > 1


def _serve_one(jobs: Scheduler) -> bool:
    first = "(SELECT min(id) FROM schedd_tasks WHERE queue = 'a' AND state = 1)"
    if not _due(jobs):
        return False
    write(jobs, f"UPDATE schedd_tasks SET state = {TaskState.SUCCESS.code}, finished_at = 1 WHERE id = {first}")
    return True


def _due(jobs: Scheduler) -> int:
    (row,) = rows(jobs, "SELECT count(*) AS n FROM schedd_tasks WHERE queue = 'a' AND state = 1")
    return int(row.n)
