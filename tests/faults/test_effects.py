"""Effects are counted while workers are killed and lose their leases: money in the database, lines outside of it."""

from __future__ import annotations

import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from faults.durable_kinds import AsyncWorkflow, ChildWorkflow, Transfer, Workflow
from faults.harness import Fleet, Process, all_ended, freeze, rows, unfinished, until
from scheduler import Scheduler
from scheduler.model.outcome import AttemptEnd
from support.databases import Database
from support.fleet import write

pytestmark = pytest.mark.faults
Tell = Callable[[str], None]


class Form(NamedTuple):
    """``tasks`` on three workers; ``kills`` and ``freezes`` at random; ``lease`` in seconds."""

    tasks: int
    kills: int
    freezes: int
    lease: float
    timeout: float


SOAK = [pytest.mark.soak]
BANK = [
    pytest.param(Form(150, 0, 1, 0.6, 30.0), id="short"),
    pytest.param(Form(5000, 40, 8, 3.0, 900.0), id="long", marks=SOAK),
]
FLOWS = [
    pytest.param(Form(40, 2, 0, 1.0, 30.0), id="short"),
    pytest.param(Form(2000, 60, 8, 3.0, 900.0), id="long", marks=SOAK),
]


class Crew:
    """Three workers. Some are killed, and some stand still for longer than their lease."""

    def __init__(self, fleet: Fleet, jobs: Scheduler, form: Form, tell: Tell) -> None:
        self.fleet, self.jobs, self.form = fleet, jobs, form
        self.rng = random.Random(seed := random.randrange(10**6))
        tell(f"seed {seed}")
        self.workers: list[Process] = []
        self.kills = self.freezes = 0

    def start(self, arm: str = "") -> Process:
        options = {"lease": self.form.lease, "pools": dict.fromkeys(("high", "medium", "low"), (4, 4)), "processes": 4}
        return self.fleet.worker(ready=False, arm=arm, options=options)

    def pick(self) -> int | None:
        """A worker that holds tasks, so that something is interrupted; None once all is done."""
        held = "SELECT DISTINCT w.pid FROM schedd_tasks t JOIN schedd_workers w ON w.id = t.worker"

        def found() -> list[int | None]:
            pids = {row.pid for row in rows(self.jobs, held)}
            holding = [i for i, process in enumerate(self.workers) if process.pid in pids]
            return holding or ([] if unfinished(self.jobs) else [None])  # type: ignore[return-value]

        return self.rng.choice(until(found, "some worker is at work", self.form.timeout, every=0.005))

    def kill(self) -> None:
        """Not one that has ended what it held a moment ago."""
        held = "SELECT 1 FROM schedd_tasks t JOIN schedd_workers w ON w.id = t.worker WHERE w.pid = :pid"
        while (index := self.pick()) is not None:
            process = self.workers[index]
            process.kill(signal.SIGSTOP)
            if rows(self.jobs, held, pid=process.pid):
                process.kill()
                self.workers[index] = self.start()
                self.kills += 1
                return
            process.kill(signal.SIGCONT)

    def lose_a_lease(self) -> None:
        index = self.pick()
        if index is None:
            return
        process = self.workers[index]
        self.freezes += 1
        if self.jobs.database.path is None:
            process.kill(signal.SIGSTOP)  # inside a transaction, too: the server ends what stands still
        else:
            freeze(process, self.jobs)
        time.sleep(1.7 * self.form.lease)
        process.kill(signal.SIGCONT)

    def run(self, ended: Callable[[], int]) -> float:
        """Let all of it happen, evenly spread over the work. Returns seconds."""
        begun = time.monotonic()
        self.workers = [self.start() for _ in range(3)]
        faults = [self.kill] * self.form.kills + [self.lose_a_lease] * self.form.freezes
        self.rng.shuffle(faults)
        for number, fault in enumerate(faults):
            moment = self.form.tasks * 9 // 10 * (number + 1) // (len(faults) + 1)
            until(lambda: ended() >= moment, f"{moment} tasks have ended", self.form.timeout)  # noqa: B023
            fault()
        all_ended(self.jobs, timeout=self.form.timeout)
        return time.monotonic() - begun

    def lost(self) -> int:
        """Attempts that were interrupted."""
        (row,) = rows(
            self.jobs, "SELECT count(*) AS n FROM schedd_attempts WHERE outcome = :end", end=AttemptEnd.LOST.code
        )
        return int(row.n)

    def succeeded(self) -> int:
        return int(rows(self.jobs, "SELECT count(*) AS n FROM schedd_tasks WHERE state = 6")[0].n)


@pytest.fixture
def bank(jobs: Scheduler) -> Any:
    for table in ("accounts", "transfers"):
        write(jobs, f"DROP TABLE IF EXISTS {table}")
    write(jobs, "CREATE TABLE accounts (id integer PRIMARY KEY, balance bigint NOT NULL)")
    write(jobs, "CREATE TABLE transfers (task bigint NOT NULL, attempt integer NOT NULL)")
    yield
    for table in ("accounts", "transfers"):
        write(jobs, f"DROP TABLE {table}")


@pytest.mark.case(4, 6, 57)
@pytest.mark.parametrize("form", BANK)
def test_each_transfer_is_applied_once(
    fleet: Fleet, jobs: Scheduler, database: Database, bank: None, form: Form, tell: Tell
) -> None:
    accounts = 100
    write(
        jobs,
        "".join(["INSERT INTO accounts (id, balance) VALUES ", ", ".join(f"({i}, 1000)" for i in range(accounts))]),
    )
    crew = Crew(fleet, jobs, form, tell)
    expected = dict.fromkeys(range(accounts), 1000)
    with jobs.batch() as batch:
        for _ in range(form.tasks):
            source, target = crew.rng.sample(range(accounts), 2)
            amount = crew.rng.randrange(1, 100)
            batch.task(Transfer(source, target, amount))
            expected[source] -= amount
            expected[target] += amount
    for point in ("before transaction commit", "after transaction commit"):
        doomed = crew.start(point)
        doomed.expect(point)
        doomed.kill()
    seconds = crew.run(crew.succeeded)
    applied = rows(jobs, "SELECT task, attempt FROM transfers")
    balances = dict(map(tuple, rows(jobs, "SELECT id, balance FROM accounts")))
    lost = crew.lost()
    tell(
        f"{form.tasks} transfers, {crew.kills + 2} kills, {crew.freezes} leases lost, {lost} attempts interrupted, "
        f"{sum(row.attempt > 1 for row in applied)} transfers applied by a later attempt, {seconds:.0f} s"
    )
    assert crew.succeeded() == form.tasks
    assert sorted(row.task for row in applied) == sorted(int(i) for i in batch.ids)
    assert sum(balances.values()) == 1000 * accounts
    assert balances == expected
    assert lost, "nothing was interrupted"


def effects_of(fleet: Fleet, task_id: int) -> list[tuple[int, int]]:
    """(step, claim), in order."""
    lines = [line.split() for line in (fleet.notes / str(task_id)).read_text().splitlines()]
    return [(int(number), int(claim)) for number, claim in lines]


@pytest.mark.case(6, 52)
@pytest.mark.parametrize("form", FLOWS)
@pytest.mark.parametrize("kind", [Workflow, AsyncWorkflow, ChildWorkflow])
def test_a_steps_effect_is_repeated_only_if_its_worker_died_in_front_of_the_checkpoint(
    fleet: Fleet, jobs: Scheduler, kind: type[Workflow], form: Form, tell: Tell
) -> None:
    steps = 10
    with jobs.batch() as batch:
        for _ in range(form.tasks):
            batch.task(kind(steps, ms=5.0))
    crew = Crew(fleet, jobs, form, tell)
    seconds = crew.run(crew.succeeded)
    assert crew.succeeded() == form.tasks
    recorded = {
        (row.task_id, row.name): row.claim for row in rows(jobs, "SELECT task_id, name, claim FROM schedd_checkpoints")
    }
    interrupted = {
        (row.task_id, row.claim) for row in rows(jobs, "SELECT task_id, claim FROM schedd_attempts WHERE outcome <> 0")
    }
    repeated = 0
    for task_id in map(int, batch.ids):
        effects = effects_of(fleet, task_id)
        claims: defaultdict[int, list[int]] = defaultdict(list)
        last: dict[int, int] = {}
        for number, claim in effects:
            last[claim] = number
            claims[number].append(claim)
        assert sorted(claims) == list(range(steps)), f"task {task_id} left out a step: {effects}"
        for number, by in claims.items():
            *before, counted = sorted(by)
            repeated += len(before)
            assert recorded[task_id, f"step {number}"] == counted, f"task {task_id}: {effects}"
            for claim in before:  # was interrupted behind the effect, in front of the checkpoint
                assert (task_id, claim) in interrupted, f"task {task_id}: step {number} ran again: {effects}"
                assert last[claim] == number, f"task {task_id}: step {number} was recorded, and ran again: {effects}"
    lost = crew.lost()
    tell(
        f"{form.tasks} workflows of {steps} steps, {crew.kills} kills, {crew.freezes} leases lost, {lost} attempts "
        f"interrupted, {form.tasks * steps} effects and {repeated} repeated in front of their checkpoint, "
        f"{seconds:.0f} s"
    )
    assert lost, "nothing was interrupted"


@pytest.mark.case(6, 52)
@pytest.mark.parametrize("point", ["before answer commit", "after answer commit"])
def test_grouped_steps_are_recorded_from_the_first_on_without_a_gap(fleet: Fleet, jobs: Scheduler, point: str) -> None:
    """Killed at the first commit of theirs: what it had is not repeated, and all behind it is."""
    jobs.register(Workflow)
    task_id = int(jobs.task(Workflow(30, grouped=True)).schedule())
    doomed = fleet.worker(arm=point, options={"lease": 1.0})
    doomed.expect(point)
    kept = [r.name for r in rows(jobs, "SELECT name FROM schedd_checkpoints WHERE task_id = :id", id=task_id)]
    doomed.kill()
    before = len(effects_of(fleet, task_id))
    assert before >= len(kept)
    assert sorted(kept) == sorted(f"step {n}" for n in range(len(kept)))
    assert bool(kept) == (point == "after answer commit")
    fleet.worker(options={"lease": 1.0})
    all_ended(jobs, timeout=40)
    assert jobs.result(task_id, timeout=5) == sum(range(30))
    assert [number for number, _ in effects_of(fleet, task_id)][before:] == list(range(len(kept), 30))
