"""Neither what quick kinds have ahead of a pool's slots nor a backlog of many keys keeps another kind out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from scheduler import Context, Scheduler, Task, task
from scheduler.engine.dispatch.lanes import LANES_PER_PLAN, LANES_PER_SCAN, LaneScanner, by_turn, flat
from scheduler.engine.dispatch.planner import allocate
from scheduler.model.lanes import LANE_SEPARATOR
from scheduler.ports import SECOND
from scheduler.store.tasks.claim import LaneClaim, LaneHead
from scheduler.store.tasks.limits import KnownLimits
from scheduler.testing import drain, engine_of
from support.fleet import Fleet, run_claimed, step
from support.plans import work_of


@task
def quick(ctx: Context, n: int) -> None: ...


@task
def other(ctx: Context) -> None: ...


def test_a_kind_without_a_known_duration_gets_in(fleet: Fleet) -> None:
    jobs = fleet.worker(quick, other)
    jobs.task(quick, 0).schedule()
    drain(jobs)  # now its duration is known, and it is claimed ahead
    with jobs.batch() as batch:
        for n in range(1200):
            batch.task(quick, n)
    engine = engine_of(jobs)
    for _ in range(4):
        step(jobs)
    assert len(engine.engine_state.held) > 100  # a line longer than the pool's eight slots
    late = jobs.task(other).schedule()
    step(jobs)
    assert jobs.get_task_status(late) == "claimed"


class Keyed(Task, max_concurrency=1, concurrency_key="{customer}"):
    customer: int

    def run(self, ctx: Context) -> None: ...


class Other(Task, max_concurrency=1, concurrency_key="{customer}"):
    """Its lanes come after those of Keyed."""

    customer: int

    def run(self, ctx: Context) -> None: ...


POOLS = {"high": (0, 0), "medium": (8, 0), "low": (0, 0)}


def backlog(jobs: Scheduler, kind: type[Keyed | Other], keys: int, each: int = 1) -> None:
    with jobs.batch() as batch:
        for n in range(keys * each):
            batch.task(kind(n % keys))


def held_kinds(jobs: Scheduler) -> Counter[str]:
    return Counter(attempt.kind.name for attempt in engine_of(jobs).engine_state.held.values())


def test_slots_are_shared_out_by_kind_then_by_lane() -> None:
    keyed = [LaneHead("default", f"Keyed\x1f{n}", 1, 0) for n in range(300)]
    for rotation in range(3):
        plan = allocate(
            by_turn([*keyed, LaneHead("default", "other", 1, 0)]), lambda pool, _: 8 * (pool == 1), 256, rotation, 256
        )
        shares = Counter({pick.lane: pick.limit for pick in plan.picks})
        assert shares.pop("other") == 4
        assert sorted(shares.values()) == [1, 1, 1, 1]


@pytest.mark.parametrize("keys", [300, 2000])
def test_a_backlog_of_many_keys_keeps_no_other_kind_out(fleet: Fleet, keys: int) -> None:
    """From the first cycle of a worker that starts on it, and at each end of a task."""
    jobs = fleet.worker(Keyed, other, pools=POOLS)
    backlog(jobs, Keyed, keys)
    engine = engine_of(jobs)
    for n in range(4):
        jobs.task(other).schedule()
        step(jobs)
        for _ in range(0 if n else keys // LANES_PER_SCAN + 1):  # it has found every lane then
            engine.step()
        if n:
            assert held_kinds(jobs)["other"] >= 1
        run_claimed(jobs)


def test_two_kinds_of_many_keys_share_the_slots(fleet: Fleet) -> None:
    jobs = fleet.worker(Keyed, Other, pools=POOLS)
    for kind in (Keyed, Other):
        backlog(jobs, kind, 600, 2)
    ran: Counter[str] = Counter()
    for _ in range(60):
        step(jobs)
        ran += held_kinds(jobs)
        run_claimed(jobs)
    assert ran.total() >= 300
    assert min(ran["Keyed"], ran["Other"]) >= 0.4 * ran.total()


def test_each_key_has_its_turn(fleet: Fleet) -> None:
    """Those behind many others, too, while these always have more."""
    jobs = fleet.worker(Keyed, pools=POOLS)
    keys = 3 * LANES_PER_SCAN
    backlog(jobs, Keyed, keys, 3)
    ran: Counter[str] = Counter()
    while ran.total() < 1.5 * keys:
        step(jobs)
        ran.update(a.claimed.lane for a in engine_of(jobs).engine_state.held.values())
        run_claimed(jobs)
    assert len(ran) == keys
    assert max(ran.values()) <= 2


def test_a_plan_looks_at_as_many_lanes_as_can_start(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    looked = 0
    of = KnownLimits.of

    def counting(self: KnownLimits, queue: str, lane: str) -> Any:
        nonlocal looked
        looked += 1
        return of(self, queue, lane)

    monkeypatch.setattr(KnownLimits, "of", counting)
    jobs = fleet.worker(Keyed, pools=POOLS)
    step(jobs)
    costs = {}
    for keys in (20, 2000):
        backlog(jobs, Keyed, keys, 2000 // keys)
        step(jobs)
        run_claimed(jobs)
        looked = ran = 0
        with work_of(jobs) as work:
            while ran < 160:
                step(jobs)
                ran += run_claimed(jobs)
        costs[keys] = looked / ran, work.done / ran
        jobs.cancel_tasks(kind="Keyed")
        drain(jobs)
    tell("; ".join(f"{keys} keys: {a:.1f} looks at a limit, {b:.1f} of work a task" for keys, (a, b) in costs.items()))
    assert costs[2000][0] <= 1.5 * costs[20][0]
    assert costs[2000][1] <= 4 * costs[20][1] + 20


class InOrder:
    def owed(self, lanes: Sequence[LaneClaim]) -> set[tuple[str, str, int]]:
        return set()


@pytest.mark.parametrize(("given", "forgotten"), [(0, True), (100, False)])
def test_lanes_that_others_have_emptied_are_read_again(given: int, forgotten: bool) -> None:
    """Another worker was there: this one neither goes idle nor asks for the rest of what it remembers."""
    scanner = LaneScanner(lambda: 0.0)
    lanes = [LaneHead("default", f"Kind{LANE_SEPARATOR}{n}", 1, 0, n) for n in range(2 * LANES_PER_PLAN)]
    scanner.add(lanes)
    first = flat(scanner._first(lambda head: True))
    assert len(first) == LANES_PER_PLAN
    picks = [LaneClaim(*head[:3], 1) for head in first]
    scanner.remember([], by_turn(picks), Counter({pick[:3]: 1 for pick in picks[:given]}), InOrder())
    assert scanner.unfinished
    left = flat(scanner._first(lambda head: True))
    assert (left == []) is forgotten
    assert not {head.id for head in left} & {head.id for head in first[given:]}


@pytest.mark.parametrize("first", ["first", "last"])
def test_a_worker_wakes_for_the_first_task_of_all_lanes(fleet: Fleet, first: str) -> None:
    """Whichever of several scans has met it: lanes are read in stretches."""
    jobs = fleet.worker(Keyed, pools=POOLS)
    keys = 2 * LANES_PER_SCAN + 10
    soon = 0 if first == "first" else keys - 1
    with jobs.batch() as batch:
        for n in range(keys):
            batch.task(Keyed(1000 + n)).after(60 if n == soon else 600)
    engine = engine_of(jobs)
    for _ in range(8):
        engine.step()
    assert engine._next_due == fleet.clock.now() + 60 * SECOND
