"""Graphs that recur as one: each fire time a graph of its own, overlap, catch-up and cancelling for the whole."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import CycleError, DuplicateScheduleError, InvalidScheduleError
from support.bench import Bench, Step

START = datetime(2026, 1, 1, tzinfo=UTC)  # where FakeClock starts
HOUR = timedelta(hours=1)


def etl(bench: Bench, name: str = "etl") -> Any:
    """Load and clean side by side, then report."""
    dag = bench.jobs.recurring(name).hourly_at(0)
    load = dag.task(Step("load")).key("load")
    clean = dag.task(Step("clean"))
    dag.task(Step("report")).depend_on([load, clean])
    return dag


def counts(bench: Bench, name: str = "etl") -> list[tuple[str, dict[str, int]]]:
    return [(r.state.value, {s.value: n for s, n in r.states.items()}) for r in bench.jobs.schedules.runs(name)]


@pytest.mark.both_databases
def test_each_slot_is_a_graph_with_one_correlation(bench: Bench) -> None:
    seen: list[Any] = []
    bench.script.bodies["report"] = lambda ctx: seen.append(
        (ctx.slot, ctx.correlation_id, sorted(ctx.results().values()))
    )
    with bench.jobs.recurring("etl").hourly_at(0) as dag:
        load = dag.task(Step("load")).key("load")
        clean = dag.task(Step("clean"))
        dag.task(Step("report")).depend_on([load, clean])
    assert bench.drain() == []
    assert sorted(bench.advance(3600)) == ["clean", "load", "report"]
    bench.advance(3600)
    first, second = (f"etl@2026-01-01T0{hour}:00:00Z" for hour in (1, 2))
    assert seen == [(START + HOUR, first, ["clean", "load"]), (START + 2 * HOUR, second, ["clean", "load"])]
    tasks = bench.jobs.list_tasks(correlation=first)
    assert sorted(t.key or "" for t in tasks) == [f"{first}/Step", f"{first}/Step-2", f"{first}/load"]
    assert {(t.schedule, t.slot) for t in tasks} == {("etl", START + HOUR)}
    assert counts(bench) == [("success", {"success": 3})] * 2
    (schedule,) = bench.jobs.schedules.list()
    assert (schedule.kind, schedule.tasks) == ("(graph)", 3)


def test_overlap_is_of_the_whole(bench: Bench) -> None:
    """The first tasks of a run have long ended while its last one waits for its time."""
    dag = bench.jobs.recurring("etl").hourly_at(0).overlap("skip")
    dag.task(Step("late")).after(timedelta(hours=1.5)).depend_on(dag.task(Step("early")))
    dag.schedule()
    assert bench.advance(3600) == ["early"]
    assert bench.advance(3600) == []
    assert bench.advance(1800) == ["late"]
    assert bench.advance(1800) == ["early"]
    assert [run.slot for run in bench.jobs.schedules.runs("etl")] == [START + 3 * HOUR, START + HOUR]


def test_a_fixed_delay_counts_from_the_end_of_the_last_task(bench: Bench) -> None:
    dag = bench.jobs.recurring("etl").every(HOUR, mode="fixed_delay")
    dag.task(Step("late")).after(1800).depend_on(dag.task(Step("early")))
    dag.schedule()
    assert bench.advance(3600) == ["early"]
    assert bench.jobs.schedules.get("etl").next_at is None
    assert bench.advance(1800) == ["late"]
    assert bench.jobs.schedules.get("etl").next_at == START + 2.5 * HOUR


@pytest.mark.parametrize(("catchup", "slots"), [("skip", [3]), ("last", [3]), ("all", [1, 2, 3]), ("none", [])])
def test_catch_up_is_of_the_whole(bench: Bench, catchup: Any, slots: list[int]) -> None:
    etl(bench).catchup(catchup).schedule()
    bench.clock.advance(3.5 * HOUR)
    assert len(bench.drain()) == 3 * len(slots)
    runs = bench.jobs.schedules.runs("etl")
    assert [run.slot for run in reversed(runs)] == [START + hour * HOUR for hour in slots]
    if catchup == "last":
        assert {task.missed for task in bench.jobs.list_tasks()} == {3}


@pytest.mark.both_databases
def test_a_run_is_cancelled_as_one(bench: Bench) -> None:
    dag = bench.jobs.recurring("etl").hourly_at(0)
    dag.task(Step("late")).depend_on(dag.task(Step("early")).after(7200))
    dag.schedule()
    bench.advance(3600)
    bench.advance(3600)
    done = bench.jobs.schedules.cancel("etl", slot=START + HOUR)
    assert len(done.cancelled) == 2
    assert counts(bench) == [("scheduled", {"waiting": 1, "scheduled": 1}), ("cancelled", {"cancelled": 2})]
    by_hand = bench.jobs.schedules.trigger("etl")
    run = bench.jobs.schedules.runs("etl")[0]
    assert (run.first, run.origin, run.run) == (by_hand, "trigger", bench.jobs.get_task(by_hand).correlation)
    assert len(bench.jobs.schedules.cancel("etl", run=run.run).cancelled) == 2
    assert len(bench.jobs.schedules.cancel("etl").cancelled) == 2


def test_a_run_that_fails_says_so(bench: Bench) -> None:
    bench.script.failing.add("load")
    etl(bench).schedule()
    bench.advance(3600)
    (run,) = bench.jobs.schedules.runs("etl")
    assert (run.state.value, run.finished_at) == ("dead", START + HOUR)
    assert "load failed" in (run.error or "")


def test_registered_again_and_in_a_set(bench: Bench) -> None:
    etl(bench).schedule()
    before = bench.jobs.schedules.get("etl")
    etl(bench).schedule()
    assert bench.jobs.schedules.get("etl") == before
    change = bench.jobs.schedules.sync([etl(bench), etl(bench, "other")], owner="app")
    assert (change.added, change.updated) == (("other",), ("etl",))
    with pytest.raises(DuplicateScheduleError, match="belongs to the set"):
        bench.jobs.task(Step("etl")).key("etl").hourly_at(0).schedule()
    assert bench.jobs.schedules.sync([], owner="app").removed == ("etl", "other")


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (lambda b, d: d.hourly_at(0), InvalidScheduleError, "has 0 tasks"),
        (lambda b, d: d.task(Step("a")), InvalidScheduleError, "has no recurrence"),
        (lambda b, d: d.hourly_at(0).task(Step("a")).depend_on(7), InvalidScheduleError, "same graph only"),
        (lambda b, d: d.hourly_at(0).task(Step("a")).at(START), InvalidScheduleError, "times of its own"),
        (
            lambda b, d: d.hourly_at(0).task(Step("a")).correlation("c"),
            InvalidScheduleError,
            "correlation of their run",
        ),
        (lambda b, d: d.hourly_at(0).task(Step("a")).key("k", conflict="replace"), InvalidScheduleError, "conflict"),
        (lambda b, d: d.hourly_at(0).task(Step("a")).jitter(5), InvalidScheduleError, "needs a recurrence"),
        (lambda b, d: (a := d.every(9).task(Step("a"))).depend_on(d.task(Step("b")).depend_on(a)), CycleError, "Step"),
    ],
)
def test_mistakes_store_nothing(bench: Bench, build: Any, error: type[Exception], says: str) -> None:
    dag = bench.jobs.recurring("etl")
    build(bench, dag)
    with pytest.raises(error, match=says), dag:
        pass
    assert bench.jobs.schedules.list() == []
