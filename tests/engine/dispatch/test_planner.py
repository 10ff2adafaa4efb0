"""What a cycle claims for which slots, where lanes are short, pools stuck and clocks set back."""

from __future__ import annotations

import pytest

from scheduler import Context, task
from scheduler.testing import FakeClock, drain, engine_of
from support.bench import Bench, run_claimed
from support.fleet import Fleet, step


@task
def rare(ctx: Context) -> None: ...


@task
def common(ctx: Context) -> None: ...


def test_room_that_a_short_lane_left_goes_to_the_others(fleet: Fleet) -> None:
    """Each lane is given a share without knowing how much is in it."""
    jobs = fleet.worker(rare, common, pools={"high": (0, 0), "medium": (8, 0), "low": (0, 0)})
    jobs.task(rare).schedule()
    with jobs.batch() as batch:
        for _ in range(40):
            batch.task(common)
    step(jobs)
    engine = engine_of(jobs)
    for _ in range(3):
        engine.step()  # without a notification
    assert len(engine.engine_state.held) == 8


@pytest.mark.case(64)
def test_what_a_stuck_pool_hands_back_is_left_to_others(fleet: Fleet, clock: FakeClock) -> None:
    """Its kind took no time so far, so more was claimed than there are slots; the next one takes long."""
    seen: list[str] = []

    @task
    def work(ctx: Context, long: bool = False) -> None:
        if long and not seen:
            clock.advance(1.5)
            step(first)  # what waits behind this handler goes back
            seen.append(str(first.get_task(waiting).state))
            step(second)
            run_claimed(second)
            step(second)
            seen.append(str(first.get_task(waiting).state))

    first, second = (fleet.worker(work, pools={"high": (0, 0), "medium": (1, 0), "low": (0, 0)}) for _ in range(2))
    first.task(work).schedule()
    drain(first)
    step(second)
    first.task(work, long=True).schedule()
    waiting = first.task(work, long=True).schedule()
    step(first)
    assert str(first.get_task(waiting).state) == "claimed"
    (slots,) = [s for s in engine_of(first).inline_slots() if s.waiting]
    slots.run_one()
    assert seen == ["scheduled", "success"]
    assert first.get_task(waiting).attempt == 1


@pytest.mark.case(5)
def test_a_clock_that_is_set_back_makes_no_kind_a_quick_one(bench: Bench) -> None:
    """Else tasks of seconds are claimed ahead by the hundred."""
    engine_state = engine_of(bench.jobs).engine_state

    def slow(ctx: Context) -> None:
        bench.clock.advance(5)

    def set_back(ctx: Context) -> None:
        bench.clock.jump(-3600)

    bench.script.bodies |= {"slow": slow, "set back": set_back}
    bench.step("slow").schedule()
    bench.drain()
    assert engine_state.means == {"Step": 5.0}
    bench.step("set back").schedule()
    bench.drain()
    assert engine_state.means == {"Step": 5.0}
