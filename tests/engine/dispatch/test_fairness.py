"""Fairness keys: within a kind customers take turns by weight, whatever each has waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import pytest

from scheduler import ConfigError, Context, PayloadError, RetryPolicy, Scheduler, Task, task
from scheduler.engine.dispatch.lane_turns import LaneTurns
from scheduler.engine.dispatch.lanes import LANES_PER_PLAN, LANES_PER_SCAN, by_turn
from scheduler.engine.dispatch.planner import allocate
from scheduler.model.lanes import (
    Fairness,
    base_lane,
    executor_of,
    fair_lane,
    fairness_of,
    kind_of,
    placed_lane,
    rank_of,
    with_rank,
    without_key,
)
from scheduler.store.tasks import limits
from scheduler.store.tasks.claim import LaneHead
from scheduler.testing import drain, engine_of
from support.fleet import Fleet, run_claimed, step
from support.plans import work_of

POOLS = {"high": (0, 0), "medium": (8, 0), "low": (0, 0)}
ran: list[str] = []
home: list[Scheduler] = []  # that runs the handlers


class Import(Task, fairness_key="{customer}"):
    customer: str

    def run(self, ctx: Context) -> None:
        ran.append(self.customer)


class Export(Task, fairness_key="{customer}", fairness_weight=2):
    customer: str

    def run(self, ctx: Context) -> None:
        ran.append(f"export {self.customer}")


class OneEach(Task, fairness_key="{customer}", max_concurrency=1, concurrency_key="{customer}"):
    customer: str

    def run(self, ctx: Context) -> None:
        ran.append(self.customer)


class Capped(Task, fairness_key="{customer}", max_concurrency=2):
    customer: str

    def run(self, ctx: Context) -> None:
        ran.append(self.customer)


@task
def plain(ctx: Context) -> None:
    ran.append("plain")


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    ran.clear()


@pytest.fixture
def jobs(fleet: Fleet) -> Scheduler:
    return fleet.worker(Import, Export, OneEach, Capped, plain, pools=POOLS)


def backlog(
    jobs: Scheduler, tasks: Mapping[str, int], kind: Any = Import, weights: Mapping[str, float] | None = None
) -> None:
    with jobs.batch() as batch:
        for customer, number in tasks.items():
            for _ in range(number):
                builder = batch.task(kind(customer))
                if weights is not None:
                    builder.fairness_weight(weights[customer])


def run(*workers: Scheduler, most: int, ahead: bool = False) -> Counter[str]:
    """Run so many tasks or a few more, and count the first ones by customer. ``ahead``: claim quick ones ahead."""
    before = len(ran)
    while (now := len(ran)) - before < most:
        for jobs in workers:
            if not ahead:
                engine_of(jobs).engine_state.means.clear()
            step(jobs)
            run_claimed(jobs)
        assert len(ran) > now
    return Counter(ran[before : before + most])


def assert_shares(counted: Counter[str], weights: Mapping[str, float]) -> None:
    for key, weight in weights.items():
        due = counted.total() * weight / sum(weights.values())
        assert abs(counted[key] - due) <= 0.05 * due, (key, counted)


def test_marks_of_lanes() -> None:
    lane = fair_lane(with_rank(5, "Train\x1fa"), "ada", 2.5)
    for marked, executor in ((lane, None), ("!" + lane, None), (placed_lane("slurm", lane), "slurm")):
        assert fairness_of(marked) == Fairness("ada", 2.5)
        assert (rank_of(marked), base_lane(marked), kind_of(marked), executor_of(marked)) == (
            5,
            "Train\x1fa",
            "Train",
            executor,
        )
    assert without_key(lane) == with_rank(5, "Train")
    assert with_rank(5, fair_lane("Train\x1fa", "ada", 2.5)) == lane
    assert fair_lane("Train", "", 1) == "Train"
    assert fairness_of("Train") == Fairness()
    assert fairness_of("~ada\x1ebroken\x1fTrain") == Fairness("ada", 1.0)
    for written, weight in ("9" * 30, 1000.0), ("0", 0.001), ("0.0000001", 0.001):  # only by SQL: nobody is held up
        assert fairness_of(f"~ada\x1e{written}\x1fTrain") == Fairness("ada", weight)


@pytest.mark.case(105)
@pytest.mark.parametrize("ahead", [False, True])
def test_shares_follow_the_weights(jobs: Scheduler, ahead: bool) -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    backlog(jobs, dict.fromkeys(weights, 700), weights=weights)
    assert_shares(run(jobs, most=1000, ahead=ahead), weights)


@pytest.mark.case(105)
def test_shares_of_two_daemons(fleet: Fleet) -> None:
    workers = [fleet.worker(Import, pools=POOLS) for _ in range(2)]
    weights = {"a": 1.0, "b": 3.0}
    backlog(workers[0], dict.fromkeys(weights, 900), weights=weights)
    assert_shares(run(*workers, most=1000), weights)


@pytest.mark.case(105)
def test_a_backlog_of_one_customer_delays_no_other(jobs: Scheduler) -> None:
    """Those that come later start once the tasks that run have ended, in turn with it."""
    backlog(jobs, {"big": 990})
    run(jobs, most=16)
    engine_of(jobs).engine_state.means.clear()
    step(jobs)
    ran.clear()
    backlog(jobs, {f"small {n}": 1 for n in range(9)})
    run(jobs, most=8 + 2 * 9)
    assert len({customer for customer in ran if customer.startswith("small")}) == 9


def test_pools_take_turns_of_keys_one_after_another() -> None:
    """A second pool that has room gives no key a second turn before the others have had their first."""
    lanes = [fair_lane("Import", f"customer {n}") for n in range(40)]
    heads = [LaneHead("default", lane, 1, 0) for lane in lanes]
    plan = allocate(by_turn(heads), lambda pool, _: 8 if pool else 0, 256, 0, 256, share=LaneTurns().share)
    assert [(pick.lane, pick.limit) for pick in plan.picks] == [(lane, 1) for lane in lanes[:16]]
    heavy = LaneHead("default", fair_lane("Import", "heavy", 20), 1, 0)
    plan = allocate(
        by_turn([*heads[:3], heavy]), lambda pool, _: 8 if pool else 0, 256, 0, 256, share=LaneTurns().share
    )
    assert [pick.limit for pick in plan.picks] == [1, 1, 1, 13]


def test_pools_after_one_with_more_slots_than_keys_take_the_turns_that_follow() -> None:
    heads = [LaneHead("default", fair_lane("Import", f"customer {n}"), 1, 0) for n in range(5)]
    for first, second in product(range(1, 16), range(1, 6)):
        take = LaneTurns().share(heads)
        given = Counter(dict(take(first)))
        given.update(dict(take(second)))
        assert max(given.values()) - min(given[head] for head in heads) <= 1, (first, second)


@pytest.mark.timeout(60)
def test_turns_go_on_where_a_step_is_lost_in_the_sum(jobs: Scheduler) -> None:
    backlog(jobs, {"one": 1, "other": 1})
    run(jobs, most=2)
    for clock in engine_of(jobs).dispatch.planner.turns._clocks.values():
        clock.now = 1e17
    backlog(jobs, {"one": 20, "other": 20})
    assert run(jobs, most=40) == {"one": 20, "other": 20}


@pytest.mark.case(105)
def test_kinds_take_turns_before_keys(jobs: Scheduler) -> None:
    backlog(jobs, {f"customer {n}": 20 for n in range(20)})
    backlog(jobs, {"one": 400}, kind=Export)
    counted = Counter(customer.partition(" ")[0] for customer in run(jobs, most=400).elements())
    assert abs(counted["export"] - 200) <= 8


def test_a_key_that_comes_back_has_saved_up_nothing(jobs: Scheduler) -> None:
    backlog(jobs, {"idle": 1, "busy": 500})
    run(jobs, most=301)
    backlog(jobs, {"idle": 100, "new": 100})
    assert_shares(run(jobs, most=150), {"idle": 1, "busy": 1, "new": 1})


def test_tasks_without_a_key_are_one_of_them(jobs: Scheduler) -> None:
    with jobs.batch() as batch:
        for _ in range(60):
            batch.task(plain)
            batch.task(plain).fairness_key("a")
            batch.task(plain).fairness_key("b").fairness_weight(2)
    run(jobs, most=96)
    with jobs.database.read() as tx:
        rows = tx.run("SELECT lane, count(*) AS n FROM schedd_tasks WHERE state < 4 GROUP BY lane").fetchall()
    done = {fairness_of(row.lane).key: 60 - row.n for row in rows}
    assert all(abs(done[key] - due) <= 1 for key, due in {"": 24, "a": 24, "b": 48}.items())


def test_a_live_weight_goes_before_that_of_the_tasks(jobs: Scheduler) -> None:
    backlog(jobs, {"a": 900, "b": 900})
    jobs.live_settings.key(None, "b", weight=4)
    run(jobs, most=50)
    assert_shares(run(jobs, most=500), {"a": 1, "b": 4})
    jobs.live_settings.key("Import", "b", weight=1)
    jobs.live_settings.key("Import", "a", weight=3)
    run(jobs, most=50)
    assert not engine_of(jobs).dispatch.limits.known.concern("default", "Import")  # so tasks are claimed ahead
    assert_shares(run(jobs, most=300), {"a": 3, "b": 1})


def test_a_cap_counts_the_tasks_of_all_keys(jobs: Scheduler) -> None:
    backlog(jobs, {"a": 3, "b": 3}, kind=Capped)
    step(jobs)
    held = Counter(attempt.claimed.lane for attempt in engine_of(jobs).engine_state.held.values())
    assert held.total() == 2
    with jobs.database.read() as tx:
        assert limits.held(tx, ["Capped", "Capp", "ed"]) == {"Capped": 2, "Capp": 0, "ed": 0}
    run(jobs, most=6)
    assert Counter(ran[:4]) == {"a": 2, "b": 2}


def test_keys_with_a_cap_each_keep_their_shares(jobs: Scheduler) -> None:
    backlog(jobs, {f"customer {n}": 4 for n in range(60)}, kind=OneEach)
    assert max(run(jobs, most=120).values()) <= 3


def test_a_capped_queue_shares_by_weight(jobs: Scheduler) -> None:
    jobs.live_settings.queue("default", max_concurrency=1)
    backlog(jobs, {"a": 120, "b": 120}, weights={"a": 1, "b": 3})
    run(jobs, most=4)
    assert_shares(run(jobs, most=100), {"a": 1, "b": 3})


def test_lanes_of_a_key_take_turns(jobs: Scheduler) -> None:
    """Two weights of one key are two lanes."""
    backlog(jobs, {"a": 30})
    backlog(jobs, {"a": 30}, weights={"a": 1.5})
    backlog(jobs, {"b": 60})
    step(jobs)
    lanes = Counter(attempt.claimed.lane for attempt in engine_of(jobs).engine_state.held.values())
    assert lanes.keys() == {"~a\x1fImport", "~a\x1e1.5\x1fImport", "~b\x1fImport"}


def test_each_of_very_many_keys_has_its_turn(jobs: Scheduler) -> None:
    keys = 3 * LANES_PER_SCAN
    backlog(jobs, {f"customer {n}": 3 for n in range(keys)})
    counted = run(jobs, most=keys * 3 // 2)
    assert len(counted) == keys
    assert max(counted.values()) <= 2


def test_a_heavy_one_of_very_many_keys(jobs: Scheduler) -> None:
    keys = 2 * LANES_PER_PLAN
    backlog(jobs, {f"customer {n}": 4 for n in range(keys)} | {"heavy": 40})
    jobs.live_settings.key(None, "heavy", weight=6)
    counted = run(jobs, most=2 * keys)
    assert 7 <= counted["heavy"] <= 18


def test_a_claim_costs_what_can_start(fleet: Fleet, tell: Callable[[str], None]) -> None:
    jobs = fleet.worker(Import, pools=POOLS)
    costs = {}
    for keys in (20, 2000):
        backlog(jobs, {f"customer {n}": 2000 // keys for n in range(keys)})
        run(jobs, most=24)
        before = len(ran)
        with work_of(jobs) as work:
            run(jobs, most=160)
        costs[keys] = work.done / (len(ran) - before)
        jobs.cancel_tasks(kind="Import")
        drain(jobs)
    tell("; ".join(f"{keys} keys: {cost:.1f} of work a task" for keys, cost in costs.items()))
    assert costs[2000] <= 4 * costs[20] + 20


@task(retry=RetryPolicy(min_wait=0.001, max_wait=0.001))
def parent(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise ValueError
    ctx.spawn(plain)
    home[0].task(plain).schedule()
    home[0].task(plain).fairness_key("own").schedule()
    home[0].task(Export("of its type")).schedule()


def test_children_inherit_key_and_weight(fleet: Fleet) -> None:
    jobs = fleet.worker(parent, plain, Export)
    home[:] = [jobs]
    top = jobs.task(parent).fairness_key("ada").fairness_weight(3).schedule()
    drain(jobs)
    fleet.clock.advance(1)
    drain(jobs)
    with jobs.database.read() as tx:
        lanes = tx.run("SELECT lane FROM schedd_tasks WHERE id <> :id ORDER BY lane", id=int(top)).scalars().all()
        assert sorted(lanes) == sorted(
            ["~ada\x1e3\x1fplain", "~ada\x1e3\x1fplain", "~own\x1fplain", "~of its type\x1e2\x1fExport"]
        )
    assert jobs.get_task(top).fairness_key == "ada"  # after a retry, too


def test_a_new_payload_derives_the_key_again(jobs: Scheduler) -> None:
    derived = jobs.task(Import("a")).schedule()
    jobs.update_task(derived, payload={"customer": "b"})
    given = jobs.task(plain).fairness_key("c").fairness_weight(2).schedule()
    assert [jobs.get_task(i).fairness_key for i in (derived, given)] == ["b", "c"]
    copies = [jobs.copy_task(i) for i in (derived, given)]
    assert [jobs.get_task(i).fairness_key for i in copies] == ["b", "c"]
    with jobs.database.read() as tx:
        assert tx.run("SELECT lane FROM schedd_tasks WHERE id = :id", id=int(copies[1])).scalar() == "~c\x1e2\x1fplain"


def test_wrong_keys_and_weights_are_refused(jobs: Scheduler) -> None:
    wrong: Any
    for wrong in ("", "x" * 65, "a\nb", "a\x1fb", "\x9b", None, 5, "\ud800"):
        with pytest.raises(PayloadError, match="a fairness key"):
            jobs.task(plain).fairness_key(wrong)
    for wrong in (0, -1, 1001, float("nan"), "2", True, None):
        with pytest.raises(ConfigError, match="a fairness weight is a number"):
            jobs.task(plain).fairness_weight(wrong)
    with pytest.raises(PayloadError, match="a fairness key is a text of 1 to 64 characters"):
        jobs.task(Import("x" * 65))
    bad: Any = task(kind="bad", fairness_key="{no}")(lambda ctx: None)
    with pytest.raises(ConfigError, match=r"fairness_key '\{no\}': no field 'no'"):
        jobs.register(bad)
    with pytest.raises(ConfigError, match="a fairness weight"):
        task(kind="bad", fairness_weight=0)(bad.function)
    with pytest.raises(ConfigError, match="name the kind, too"):
        jobs.live_settings.key(None, "a", max_concurrency=1)


def test_a_published_kind_makes_the_same_lane(fleet: Fleet, jobs: Scheduler) -> None:
    step(jobs)
    other = fleet.worker()
    lanes = []
    for made in (jobs.task(Export("a")), other.task("Export", {"customer": "a"})):
        task_id = made.schedule()
        with jobs.database.read() as tx:
            lanes.append(tx.run("SELECT lane FROM schedd_tasks WHERE id = :id", id=int(task_id)).scalar())
    assert lanes == ["~a\x1e2\x1fExport"] * 2
