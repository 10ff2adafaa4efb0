"""Machines whose clocks are ten minutes off: times are the server's, so nothing is early, and no lease is stolen."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from faults.harness import Fleet, all_ended, connect, history, until
from faults.kinds import Hold, SkewedClock, Work
from scheduler import Scheduler
from scheduler.ports import SECOND
from support.databases import Database

pytestmark = [
    pytest.mark.faults,
    pytest.mark.case(47),
    pytest.mark.parametrize("dialect", ["postgresql"], indirect=True),
]
OFF = 600.0
LATE = 15.0  # seconds that a start may be late on a busy machine; ten minutes would be much more
LONG = [pytest.mark.soak]


@pytest.mark.parametrize(
    ("since", "offset"),
    [
        pytest.param("from the start", OFF, id="ahead from the start"),
        pytest.param("set meanwhile", -OFF, id="set behind meanwhile"),
        pytest.param("from the start", -OFF, id="behind from the start", marks=LONG),
        pytest.param("set meanwhile", OFF, id="set ahead meanwhile", marks=LONG),
    ],
)
def test_nothing_starts_early(
    fleet: Fleet, jobs: Scheduler, offset: float, since: str, tell: Callable[[str], None]
) -> None:
    worker = fleet.worker(clock=offset if since == "from the start" else 0.0)
    before = time.monotonic()
    due = [int(jobs.task(Work()).after(2.0).schedule()) for _ in range(5)]
    after = time.monotonic()
    if since == "set meanwhile":
        worker.send("clock", offset=offset)
        until(lambda: worker.lines("the clock jumped"), "it notices")
    until(lambda: all(fleet.runs(i) for i in due), "they start")
    starts = [fleet.runs(i)[0].start / 1e9 for i in due]
    tell(f"due in 2 s, started after {min(starts) - before:.3f} to {max(starts) - before:.3f} s")
    assert min(starts) >= before + 1.0  # half of a round trip may take most of it, and by that the offset is wrong
    assert max(starts) < after + 2.0 + LATE
    (line,) = worker.lines("this machine's clock is")
    match = re.search(r"is ([\d.]+) s (ahead of|behind) the server's", line)
    assert match is not None, line
    assert abs(float(match[1]) - OFF) < 1
    assert match[2] == ("ahead of" if offset > 0 else "behind")


@pytest.mark.parametrize("offset", [OFF, -OFF], ids=["ahead", "behind"])
def test_a_caller_whose_clock_is_off_schedules_by_the_servers(
    database: Database, fleet: Fleet, jobs: Scheduler, offset: float
) -> None:
    """From the start, and set later in a program that only schedules."""
    clock = SkewedClock()
    clock.offset = round(offset * SECOND)
    with connect(database.url, clock=clock) as caller:
        caller.stop()
        for _ in range(2):
            made = caller.get_task(caller.task(Work()).after(60.0).schedule())
            wanted = jobs.database.now() / SECOND + 60.0
            assert abs(made.run_at.timestamp() - wanted) < LATE
            clock.offset = -clock.offset


def test_no_lease_is_stolen(fleet: Fleet, jobs: Scheduler) -> None:
    lease = {"lease": 2.0}  # seconds; a busy machine renews one of this length in time
    owner = fleet.worker(options=lease)
    held = int(jobs.task(Hold()).schedule())
    owner.expect("body")
    others = [fleet.worker(options=lease, clock=offset) for offset in (OFF, -OFF)]
    for _ in range(3):
        time.sleep(2.0)  # leases run out in real time
        for other in others:
            other.send("clock", offset=OFF)
        others.reverse()
        others[0].send("clock", offset=-OFF)
    owner.open()
    all_ended(jobs)
    assert history(jobs, held) == [(1, "succeeded")]
    assert len(fleet.runs(held)) == 1
    for other in others:  # one that a busy machine kept from renewing may lose its own, with no task
        assert not [line for line in other.lines("lost its lease: ") if ": 0 tasks" not in line]
