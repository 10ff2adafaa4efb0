"""How long it takes until work goes on: after a daemon was killed, after the server restarted."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from faults.harness import Fleet, Mother, all_ended, connect, rows, until
from faults.kinds import Hold, Work
from scheduler import Scheduler
from support.databases import Database
from support.own_server import OwnServer

pytestmark = [pytest.mark.faults, pytest.mark.alone]
LEASE = 2.0
TURN = 0.7  # seconds for a cycle; five times as long as this machine takes to begin a handler, if that is more


def latency_of(jobs: Scheduler, fleet: Fleet) -> float:
    """The longest of some tasks' ways from here to their handlers, in seconds: what this machine takes at present."""
    longest = 0
    for _ in range(3):
        begun = time.monotonic_ns()
        made = jobs.task(Work()).schedule()
        jobs.wait(made, timeout=30)
        longest = max(longest, fleet.runs(made)[0].start - begun)
    return longest / 1e9


@pytest.mark.case(6, 10)
def test_after_a_kill_its_tasks_run_again_within_the_lease(
    database: Database, fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None]
) -> None:
    """SQLite: at once, since who holds no lock on its socket is dead."""
    daemons = [fleet.daemon(worker__lease=str(LEASE), pools__medium__slots="8") for _ in range(2)]
    time.sleep(0.5 * LEASE)  # one that has just begun does not reap at once
    latency = latency_of(jobs, fleet)
    with jobs.batch() as batch:
        for _ in range(12):
            batch.task(Hold())
    until(lambda: all(fleet.runs(i) for i in batch.ids), "all are under way")
    pid = fleet.runs(batch.ids[0])[0].pid
    (victim,), (other,) = [d for d in daemons if d.pid == pid], [d for d in daemons if d.pid != pid]
    held = [i for i in batch.ids if fleet.runs(i)[0].pid == victim.pid]
    killed = time.monotonic_ns()
    victim.kill()
    other.open()
    until(lambda: all(len(fleet.runs(i)) == 2 for i in held), "they run again", timeout=3 * LEASE)
    took = max(fleet.runs(i)[1].start - killed for i in held) / 1e9
    tell(f"{len(held)} tasks run again {took:.2f} s after the kill, the lease being {LEASE:g} s")
    latency = max(latency, latency_of(jobs, fleet))
    assert took < (2.5 if database.is_sqlite else LEASE) + min(max(TURN, 5 * latency), 0.9 * LEASE)
    all_ended(jobs)


@pytest.mark.case(9)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_after_a_restart_of_the_server_work_goes_on_within_five_seconds(
    database: Database, mother: Mother, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """One server stops as it should, the other one crashes; both are away at once, as waiting takes longest."""
    with ExitStack() as stack:
        places = []
        for mode in ("fast", "immediate"):
            server = stack.enter_context(OwnServer())
            url = server.migrated()
            (tmp_path / mode).mkdir()
            fleet = Fleet(url, tmp_path / mode, mother)
            stack.callback(fleet.close)
            jobs = stack.enter_context(connect(url))
            jobs.stop()  # it only schedules
            daemons = [fleet.daemon(url=url) for _ in range(2)]
            jobs.wait([jobs.task(Work()).schedule() for _ in range(20)], timeout=20)
            server.stop(mode)
            for daemon in daemons:
                until(lambda: daemon.lines("the database is away"), "it notices")  # noqa: B023
            places.append((mode, server, fleet, jobs))
        time.sleep(4.0)  # so that they have come to their longest pause between tries
        for mode, server, fleet, jobs in places:
            server.start()
            back = time.monotonic_ns()
            ids = [jobs.task(Work()).schedule() for _ in range(20)]
            jobs.wait(ids, timeout=20)
            took = (min(fleet.runs(i)[0].start for i in ids) - back) / 1e9
            every = (max(fleet.runs(i)[0].end or 0 for i in ids) - back) / 1e9
            tell(f"{mode}: {took:.2f} s until a handler begins, {every:.2f} s until all twenty have ended")
            assert every < 5.0
            assert not rows(jobs, "SELECT 1 FROM schedd_tasks WHERE state <> 6")
