"""A task is replaced while its worker stands at a failpoint and is killed there: the new set runs, nothing is lost."""

from __future__ import annotations

import msgspec
import pytest

from faults.harness import Fleet, all_ended, attempts, history, state
from faults.kinds import Hold, Work
from scheduler import Scheduler
from scheduler.store.admin.doctor import OK, check
from support.bench import Side

pytestmark = pytest.mark.faults
LEASE = {"lease": 0.5, "pools": {"medium": (3, 0)}}


@pytest.mark.case(6, 29)
@pytest.mark.parametrize("point", ["after claim", "body", "before finish commit", "after finish commit"])
def test_what_replaced_it_runs_whatever_becomes_of_the_worker(fleet: Fleet, jobs: Scheduler, point: str) -> None:
    old, new = (Hold("gate"), Hold("open")) if point == "body" else (Work(1.0), Work(2.0))
    first = jobs.task(old).key("k").schedule()
    child = jobs.task(Work()).depend_on(first).schedule()
    waits = point == "before finish commit"
    # There the server ends its transaction after a lease, and with it what the other side waits for.
    victim = fleet.worker(ready=False, options=LEASE | {"lease": 2.0} if waits else LEASE, arm=point)
    victim.expect(point)
    side = Side(lambda: jobs.task(new).key("k", conflict="replace").schedule())
    side.join(0.1 if waits else 10)
    assert side.is_alive() == waits  # it waits for the commit that never comes
    victim.kill()
    second = side.result()

    other = fleet.worker(options=LEASE)
    other.open("open")
    all_ended(jobs)
    payload = msgspec.json.encode(new).decode()
    if point == "after finish commit":
        assert second != first
        assert history(jobs, first) == [(1, "succeeded")]
        assert history(jobs, second) == [(1, "succeeded")]
    else:
        assert second == first
        assert history(jobs, first) == [(1, "lost"), (2, "succeeded")]
        assert attempts(jobs, first)[0].envelope.payload == msgspec.json.encode(old).decode()
        assert fleet.runs(child)[0].start >= (fleet.runs(first)[-1].end or 0)
    assert attempts(jobs, second)[-1].envelope.payload == payload
    assert state(jobs, child) == "success"
    with jobs.database.read() as tx:
        assert [f for f in check(tx) if f.level != OK] == []
