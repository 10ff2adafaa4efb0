"""Caps and rates over two daemons. One of them is killed."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from faults.harness import Fleet, all_ended, history, rows, state, until
from faults.kinds import Narrow, Paced, Work
from scheduler import Scheduler

pytestmark = pytest.mark.faults
HELD = "SELECT count(*) AS n FROM schedd_tasks WHERE kind = 'Narrow' AND state >= 4 AND state <= 5"


@pytest.mark.case(58)
def test_never_more_than_two_of_six_and_a_kill_leaks_nothing(
    fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None]
) -> None:
    daemons = [fleet.daemon(worker__lease="1", pools__medium__slots="4") for _ in range(2)]
    ids = [jobs.task(Narrow(f"gate{n}")).schedule() for n in range(6)]

    def under_way() -> list[int]:
        return [i for i in ids if state(jobs, i) == "running"]

    until(lambda: len(under_way()) == 2, "two are running")
    with jobs.batch() as batch:
        for _ in range(100):
            batch.task(Work(1.0))
    jobs.wait(batch.ids, timeout=20)  # other kinds are not kept waiting
    assert under_way() == ids[:2]
    assert rows(jobs, HELD)[0].n == 2

    victim = next(d for d in daemons if d.pid == fleet.runs(ids[0])[0].pid)
    (other,) = (d for d in daemons if d is not victim)
    lost = [i for i in ids[:2] if fleet.runs(i)[0].pid == victim.pid]
    victim.kill()
    killed = time.monotonic_ns()
    # By any two: while reading the lanes is slow, newer tasks may pass a released one (engine/dispatch/lanes.py).
    until(lambda: [r.pid for i in under_way() for r in fleet.runs(i)[-1:]] == [other.pid] * 2, "its room is used again")
    for n in range(6):
        assert rows(jobs, HELD)[0].n <= 2
        other.open(f"gate{n}")
    all_ended(jobs)
    for task_id in ids:
        expected = [(1, "lost"), (2, "succeeded")] if task_id in lost else [(1, "succeeded")]
        assert history(jobs, task_id) == expected
    assert at_once(fleet, ids, killed) == 2
    tell(f"{len(lost)} of two handlers lost with their daemon, never more than two at once")


def at_once(fleet: Fleet, ids: list[int], killed: int) -> int:
    """The most runs that were under way at a time; what was interrupted ended with its daemon."""
    spans = []
    for task_id in ids:
        *lost, last = fleet.runs(task_id)
        assert last.end is not None
        assert all(run.end is None for run in lost)
        spans += [(run.start, killed) for run in lost] + [(last.start, last.end)]
    return max(sum(1 for s, e in spans if s <= start < e) for start, _ in spans)


@pytest.mark.case(59)
def test_a_rate_holds_over_two_daemons(fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None]) -> None:
    for _ in range(2):
        fleet.daemon()
    with jobs.batch() as batch:
        for _ in range(50):
            batch.task(Paced(1.0))
    all_ended(jobs)
    starts = sorted(run.start for runs in fleet.started().values() for run in runs)
    assert len(starts) == 50
    most = max(sum(1 for s in starts if start <= s < start + 2e9) for start in starts)
    assert most <= 20
    pids = {run.pid for runs in fleet.started().values() for run in runs}
    seconds = (starts[-1] - starts[0]) / 1e9
    tell(f"50 starts at 20/2s: {seconds:.2f} s from first to last (4 at best), by {len(pids)} daemons")
    assert seconds < 8
