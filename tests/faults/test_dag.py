"""A large random graph on real daemons that are killed at random moments."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from faults.harness import Fleet, all_ended, overlapping, rows, until
from faults.kinds import Work
from scheduler import RetryPolicy, Scheduler
from scheduler.model.outcome import AttemptEnd

pytestmark = pytest.mark.faults
TASKS = 1000
KILLS = 5
ENOUGH = RetryPolicy(min_wait=0, max_wait=0, max_attempts=KILLS + 1, jitter=0.0, strategy="fixed")  # each may cost one


@pytest.mark.timeout(240)
def test_a_thousand_tasks_and_five_kills(fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None]) -> None:
    seed = int(os.environ.get("SCHEDD_SEED", random.randrange(10**6)))
    tell(f"seed {seed} (SCHEDD_SEED={seed} runs it again)")
    rng = random.Random(seed)
    with jobs.batch() as batch:
        builders = []
        for index in range(TASKS):
            builder = (
                batch.task(Work(rng.uniform(0.0, 8.0)))
                .priority(rng.choice(["high", "medium", "low"]))
                .with_retry(ENOUGH)
            )
            near = range(max(0, index - 60), index)
            builder.depend_on([builders[i] for i in rng.sample(near, min(len(near), rng.randrange(4)))])
            builders.append(builder)
    ids = batch.ids
    edges = rows(jobs, "SELECT parent, child FROM schedd_edges")
    assert len(edges) > TASKS

    settings = {"worker__lease": "0.5"}
    daemon = fleet.daemon(ready=False, **settings)
    interrupted = 0
    for moment in sorted(rng.sample(range(TASKS // 20, TASKS - TASKS // 10), KILLS)):
        until(lambda: _started(fleet) >= moment, f"{moment} tasks have started", 60, 0.002)  # noqa: B023
        daemon.kill()
        held = rows(jobs, "SELECT id FROM schedd_tasks WHERE state >= 4 AND state <= 5")
        interrupted += len(held)
        daemon = fleet.daemon(ready=False, **settings)
    all_ended(jobs, timeout=60)

    assert interrupted, "nothing was interrupted"
    found = rows(jobs, "SELECT id, state FROM schedd_tasks WHERE state <> 6")
    assert not found, f"did not succeed: {found[:10]}"
    succeeded = rows(
        jobs,
        "SELECT task_id FROM schedd_attempts WHERE outcome = :end",
        end=AttemptEnd.SUCCEEDED.code,
    )
    assert sorted(r.task_id for r in succeeded) == sorted(ids), "a task ended other than once"
    runs = {i: fleet.runs(i) for i in ids}
    assert all(r[-1].end for r in runs.values())
    assert not [i for i, r in runs.items() if list(overlapping(r))], "a task ran beside itself"
    for parent, child in edges:
        assert min(r.start for r in runs[child]) >= max(r.end for r in runs[parent] if r.end)
    again = sum(len(r) > 1 for r in runs.values())
    cut = sum(run.end is None for r in runs.values() for run in r)
    assert cut, "no handler was interrupted"
    tell(f"{TASKS} tasks, {len(edges)} edges, {KILLS} kills: {interrupted} claims lost, {again} tasks run again")


def _started(fleet: Fleet) -> int:
    return len(os.listdir(fleet.notes))
