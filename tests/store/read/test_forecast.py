"""What the schedules will run, and when that is more than the slots take; estimates of running graphs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from scheduler import ConfigError, RetryPolicy
from scheduler.model.demand import Use, collisions, load
from scheduler.ports import SECOND
from scheduler.store.read.estimate import graph_estimate
from scheduler.store.read.forecast import MAX_FIRES, Forecast, forecast, group_text
from scheduler.store.read.graph import graph
from scheduler.store.rollups import expected
from support.bench import Bench, Soft, Step

HOUR = 3600 * SECOND


def used(bench: Bench, minutes: float, name: str = "usual", kind: type[Step] = Step) -> None:
    """Let the kind have run that long, three times."""
    bench.script.bodies[name] = lambda ctx: bench.clock.advance(minutes * 60)
    for _ in range(3):
        bench.jobs.task(kind(name)).schedule()
    bench.drain()
    bench.jobs.engine.write_rollups()


def seen(bench: Bench, hours: float = 24.0) -> Forecast:
    with bench.jobs.database.read() as tx:
        return forecast(tx, hours)


def start_at(bench: Bench, text: str) -> None:
    """Move the clock on to this time (UTC)."""
    wanted = datetime.fromisoformat(text).replace(tzinfo=UTC)
    bench.clock.advance(wanted.timestamp() - bench.clock.now() / SECOND)


def test_fire_times_durations_and_collisions(bench: Bench) -> None:
    bench.worker(pools={"high": (0, 0), "medium": (2, 0), "low": (0, 0)})
    start_at(bench, "2026-03-10T00:00:00")
    used(bench, 20)
    start_at(bench, "2026-03-10T12:00:00")
    for number in range(5):
        bench.step("usual").key(f"nightly-{number}").daily_at(2, 30).schedule()
    bench.step("usual").key("alone").daily_at(7, 0).schedule()
    paused = bench.step("usual").key("paused").daily_at(2, 30).schedule()
    bench.jobs.schedules.pause(paused)
    bench.drain()  # the worker goes on to live
    found = seen(bench)
    nightly = next(one for one in found.schedules if one.name == "nightly-0")
    (fire,) = nightly.fires
    assert (fire - found.since) / HOUR == 14.5
    assert nightly.p50 is not None
    assert 15 * 60 <= nightly.p50 / SECOND <= 25 * 60
    assert nightly.pools == ("medium",)
    (one,) = found.collisions
    assert (one.start, one.wants, one.slots) == (fire, 5, 2)
    assert one.names == tuple(f"nightly-{n}" for n in range(5)), "what is paused wants nothing"
    assert group_text(one.group) == "medium thread"
    assert max(found.load[one.group]) == pytest.approx(5)
    assert not found.truncated


def test_one_that_fires_each_second_is_bounded_and_counts_as_a_base(bench: Bench) -> None:
    bench.worker(pools={"high": (0, 0), "medium": (3, 0), "low": (0, 0)})
    used(bench, 4 / 60)
    bench.jobs.task(Step("usual")).key("often").every(1).schedule()
    bench.jobs.task(Step("usual")).key("minutes").cron("* * * * *").schedule()
    found = seen(bench)
    often = next(one for one in found.schedules if one.name == "often")
    assert (len(often.fires), often.fire_count, often.every) == (MAX_FIRES, 86_400, SECOND)
    assert next(one for one in found.schedules if one.name == "minutes").fire_count == 1440
    (one,) = found.collisions
    assert (one.start, one.end, one.slots) == (found.since, found.until, 3)
    assert one.wants == 4
    assert "often" in one.names


def test_a_graph_wants_its_slots_one_after_the_other(bench: Bench) -> None:
    used(bench, 30)
    with bench.jobs.recurring("etl").daily_at(3, 0) as dag:
        first = dag.task(Step("usual")).key("extract")
        dag.task(Step("usual")).key("load").depend_on(first)
    (one,) = seen(bench).schedules
    assert (one.kind, one.tasks, len(one.fires)) == ("graph", 2, 1)
    assert one.p50 is not None
    assert one.p50 / SECOND == pytest.approx(3600, rel=0.3)
    with bench.jobs.database.read() as tx:
        assert set(expected(tx, {"Step", "Other"})) == {"Step"}


def test_the_change_of_a_clock_is_said(bench: Bench) -> None:
    start_at(bench, "2026-03-28T12:00:00")
    bench.step("a").key("berlin").cron("30 2 * * *", tz="Europe/Berlin").schedule()
    bench.step("b").key("utc").cron("30 2 * * *").schedule()
    found = seen(bench)
    (change,) = found.clock_changes
    assert change.tz == "Europe/Berlin"
    assert datetime.fromtimestamp(change.at / SECOND, UTC) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    assert (change.before, change.after) == (HOUR, 2 * HOUR)
    assert change.names == ("berlin",)
    berlin = next(one for one in found.schedules if one.name == "berlin")
    assert berlin.fires == [change.at], "a skipped time fires after the gap"
    assert seen(bench, 6).clock_changes == []


def test_what_cannot_be_known_is_said(bench: Bench) -> None:
    bench.jobs.task(Soft("new")).key("new").daily_at(4, 0).schedule()
    bench.jobs.task(Step("slow")).key("delay").every(timedelta(hours=2), "fixed_delay").schedule()
    bench.step("x").key("broken").daily_at(1, 0).schedule()
    bench.execute("UPDATE schedd_schedules SET recurrence = 'nothing' WHERE name = 'broken'")
    found = {one.name: one for one in seen(bench).schedules}
    assert found["new"].p50 is None
    assert found["delay"].approximate
    assert found["delay"].fire_count == 12
    assert found["broken"].trouble is not None
    assert seen(bench).collisions == []
    for hours in (0, -1, 1000):
        with pytest.raises(ConfigError, match="hours"):
            seen(bench, hours)


def test_collisions_of_plain_uses() -> None:
    uses = [Use("a", 0, 100, "x"), Use("a", 50, 150, "y"), Use("a", 60, 70, "z"), Use("b", 0, 10, "x")]
    assert collisions(uses, {"a": 2, "b": 1}, {})[0][1:] == (60, 70, 3, 2, ("x", "y", "z"))
    assert [c[1:4] for c in collisions(uses, {"a": 2}, {"a": 0.5})] == [(50, 100, 4)]
    assert collisions(uses, {}, {}) == []
    assert load(uses, 0, 200, 4)["b"] == [0.2, 0, 0, 0]
    assert sum(load(uses, 0, 200, 4)["a"]) * 50 == pytest.approx(210)


def test_an_estimate_of_a_running_graph(bench: Bench) -> None:
    bench.worker(pools={"high": (0, 0), "medium": (2, 0), "low": (0, 0)})
    used(bench, 10)
    top = int(bench.step("top").schedule())
    left, right = int(bench.step("left", top).schedule()), int(bench.step("right", top).schedule())
    bottom = int(bench.step("bottom", left, right).schedule())
    bench.script.bodies["top"] = lambda ctx: None
    with bench.jobs.database.read() as tx:
        found = graph_estimate(tx, graph(tx, top))
    assert found.path in ([top, left, bottom], [top, right, bottom])
    assert found.low is not None
    assert found.high is not None
    assert 25 <= found.low / SECOND / 60 <= 35
    assert found.low <= found.high
    assert found.blockers[0] == (top, 3)
    bench.drain()
    with bench.jobs.database.read() as tx:
        over = graph_estimate(tx, graph(tx, top))
    assert (over.remaining, over.low, over.path) == (0, None, [])


def test_what_waits_for_ever_is_no_part_of_the_estimate(bench: Bench) -> None:
    used(bench, 10)
    bench.script.failing.add("dies")
    dies = int(bench.step("dies").schedule())
    waits = int(bench.step("waits", dies, otherwise="wait").schedule())
    other = int(bench.step("other", waits, when="finished").schedule())
    retried = int(bench.step("again").with_retry(RetryPolicy(600, 600, max_attempts=2, jitter=0)).schedule())
    below = int(bench.step("below", retried, waits, when="finished").schedule())
    bench.drain()
    with bench.jobs.database.read() as tx:
        found = graph_estimate(tx, graph(tx, dies))
    assert found.stuck == [waits, other, below]
