"""Parents with names: their results are arguments, fields, and ``ctx.results["name"]``."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler import (
    AsyncContext,
    ConfigError,
    Context,
    PayloadError,
    RetryPolicy,
    Scheduler,
    Task,
    TaskState,
    task,
)
from scheduler.testing import FakeClock, drain
from support.databases import Database


@task
def load(ctx: Context, table: str) -> list[str]:
    return [table, "rows"]


@task
def count(ctx: Context, rows: list[str], factor: int = 1) -> int:
    return len(rows) * factor


@task
def join(ctx: Context, left: list[str], right: list[str], *, sep: str) -> str:
    return sep.join(left + right)


@task
def fail(ctx: Context) -> None:
    raise ValueError("no")


@task
async def later(ctx: AsyncContext, rows: list[str] | None) -> dict[str, Any]:
    return {"rows": rows, "by name": await ctx.results["rows"], "all": len(await ctx.results())}


@task
def wants_number(ctx: Context, rows: int) -> None: ...


@task
def nothing(ctx: Context) -> str:
    return "came after"


class Report(Task, rename="camel"):
    month_name: str
    sum_of_rows: int = 0

    def run(self, ctx: Context) -> Any:
        return [self.month_name, self.sum_of_rows, ctx.results["other"], ctx.headers]


KINDS = (load, count, join, fail, later, wants_number, nothing, Report)


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler.for_testing(url=database.url, clock=FakeClock())
    for kind in KINDS:
        made.register(kind)
    yield made
    made.close()


def test_a_result_is_the_argument_of_its_name(jobs: Scheduler) -> None:
    loaded = jobs.task(load, "sales").schedule()
    counted = jobs.task(count, factor=10).depend_on(loaded, name="rows").schedule()
    drain(jobs)
    assert jobs.result(counted) == 20


def test_several_have_theirs_in_a_mapping(jobs: Scheduler) -> None:
    with jobs.batch() as batch:
        a, b = batch.task(load, "a"), batch.task(load, "b")
        batch.task(join, sep="-").depend_on({"right": a, "left": b})
    drain(jobs)
    assert jobs.result(batch.ids[2]) == "b-rows-a-rows"


def test_then_passes_results_on(jobs: Scheduler) -> None:
    last = jobs.task(load, "sales").then(count, factor=3).then(nothing).schedule()
    drain(jobs)
    assert jobs.result(last) == "came after"
    tasks = {t.kind: t for t in jobs.list_tasks()}
    assert jobs.result(tasks["count"].id) == 6


def test_then_in_a_batch_and_in_a_recurring_graph(jobs: Scheduler) -> None:
    with jobs.batch() as batch:
        batch.task(load, "x").then(count)
    with jobs.recurring("nightly").daily_at(2, 0) as graph:
        graph.task(load, "y").then(count, factor=5)
    jobs.schedules.trigger("nightly")
    drain(jobs)
    assert jobs.result(batch.ids[1]) == 2
    (run,) = [t for t in jobs.list_tasks(kind="count") if t.schedule == "nightly"]
    assert jobs.result(run.id) == 10


def test_an_async_handler(jobs: Scheduler) -> None:
    loaded = jobs.task(load, "sales").schedule()
    made = jobs.task(later).depend_on(loaded, name="rows").schedule()
    drain(jobs)
    assert jobs.result(made) == {"rows": ["sales", "rows"], "by name": ["sales", "rows"], "all": 1}


def test_a_class_gets_its_fields_and_any_other_name_by_ctx(jobs: Scheduler) -> None:
    loaded = jobs.task(load, "sales").schedule()
    counted = jobs.task(count).depend_on(loaded, name="rows").schedule()
    made = (
        jobs.task(Report("May")).headers({"from": "me"}).depend_on({"sum_of_rows": counted, "other": loaded}).schedule()
    )
    drain(jobs)
    assert jobs.result(made) == ["May", 2, ["sales", "rows"], {"from": "me"}]


def test_one_that_did_not_succeed_gives_none(jobs: Scheduler) -> None:
    failed = jobs.task(fail).schedule()
    made = jobs.task(later).depend_on(failed, when="finished", name="rows").schedule()
    drain(jobs)
    assert jobs.result(made) == {"rows": None, "by name": None, "all": 1}


def test_a_result_that_does_not_fit_ends_the_task_and_says_so(jobs: Scheduler) -> None:
    made = jobs.task(load, "sales").then(wants_number).with_retry(RetryPolicy(max_attempts=5)).schedule()
    drain(jobs)
    found = jobs.get_task(made)
    assert (found.state, found.attempt) == (TaskState.DEAD, 1)
    assert "payload of wants_number does not fit: Expected `int`, got `array` - at `$.rows`" in str(found.error)


def test_by_keys_in_one_batch(jobs: Scheduler) -> None:
    """A task with a key is stored before the ids of its parents in the batch are known."""
    first = jobs.task(load, "old").key("k").schedule()
    with jobs.batch() as batch:
        held = batch.task(load, "new").key("k")
        other = batch.task(load, "other").key("o")
        batch.task(join, sep="+").depend_on({"left": held, "right": other}).key("joined")
    assert batch.ids[0] == first
    drain(jobs)
    assert jobs.result(batch.ids[2]) == "old+rows+other+rows"


def test_a_replacement_brings_its_own_names(jobs: Scheduler) -> None:
    a, b = (jobs.task(load, name).schedule() for name in "ab")
    made = jobs.task(count).depend_on(a, name="rows").key("c").schedule()
    jobs.task(join, sep=" ").depend_on({"left": a, "right": b}).key("j").schedule()
    replaced = jobs.task(join, sep=" ").depend_on({"left": b, "right": a}).key("j", conflict="replace").schedule()
    assert jobs.task(count, ["x"]).key("c", conflict="replace").schedule() == made
    jobs.update_task(made, payload={"rows": ["one"]})
    drain(jobs)
    assert jobs.result(replaced) == "b rows a rows"
    assert jobs.result(made) == 1


def test_names_survive_changes_and_copies(jobs: Scheduler) -> None:
    loaded = jobs.task(load, "sales").schedule()
    made = jobs.task(count).depend_on(loaded, name="rows").schedule()
    jobs.update_task(made, headers={"by": "hand"})
    jobs.update_task(made, payload={"factor": 7})
    copy = jobs.copy_task(made)
    alone = jobs.copy_task(made, dependencies=False, payload={"rows": ["a"]})
    drain(jobs)
    assert jobs.get_task(made).headers["by"] == "hand"
    assert [jobs.result(one) for one in (made, copy, alone)] == [14, 14, 1]


def test_by_the_name_of_its_kind_where_the_handler_is_not(jobs: Scheduler, database: Database) -> None:
    drain(jobs)
    other = Scheduler.for_testing(url=database.url, clock=FakeClock())
    loaded = jobs.task(load, "sales").schedule()
    made = other.task("count", {"factor": 2}).depend_on(loaded, name="rows").schedule()
    with pytest.raises(PayloadError, match="missing required field `rows`"):
        other.task("count", {"factor": 2}).schedule()
    with pytest.raises(PayloadError, match="missing required field `rows`"):
        jobs.task("count", {"factor": 2}).schedule()
    drain(jobs)
    assert jobs.result(made) == 4
    other.close()


def test_errors_when_it_is_scheduled(jobs: Scheduler) -> None:
    a, b = (jobs.task(load, name).schedule() for name in "ab")
    for says, call in [
        (
            "count has no parameter 'row' for the result of a parent: there are rows, factor",
            lambda: jobs.task(count).depend_on(a, name="row"),
        ),
        (
            "nothing has no parameter 'x' for the result of a parent: it has none",
            lambda: jobs.task(nothing).depend_on(a, name="x"),
        ),
        (
            "count gets 'rows' twice: as an argument, and from a parent",
            lambda: jobs.task(count, ["x"]).depend_on(a, name="rows"),
        ),
        (
            f"depend_on names two tasks 'rows': {a} and {b}",
            lambda: jobs.task(count).depend_on(a, name="rows").depend_on(b, name="rows"),
        ),
        ("a name is for one task", lambda: jobs.task(count).depend_on([a, b], name="rows")),
        ("the name of a parent", lambda: jobs.task(Report("May")).depend_on({"": a})),
        ("depend_on takes task ids and builders, not 'x'", lambda: jobs.task(Report("May")).depend_on({"a": "x"})),
    ]:
        with pytest.raises(ConfigError, match=says):
            call()
    for says, call in [
        (
            "payload of count does not fit: missing a required argument: 'rows'; pass it, or name a parent so",
            lambda: jobs.task(count).depend_on(a).schedule(),
        ),
        ("missing a required argument: 'rows'", lambda: jobs.task(count).daily_at(1, 0)),
        ("missing a required argument: 'right'", lambda: jobs.task(join, sep=" ").depend_on(a, name="left").schedule()),
        ("missing a required argument: 'rows'", lambda: drain_spawned(jobs)),
        ("the header schedd-parents is schedd's own", lambda: jobs.task(nothing).headers({"schedd-parents": {}})),
    ]:
        with pytest.raises(PayloadError, match=says):
            call()
    chain = jobs.task(load, "x").then(count)
    chain.schedule()
    with pytest.raises(ConfigError, match="this chain is stored already"):
        chain.schedule()
    assert len(jobs.list_tasks()) == 4


def drain_spawned(jobs: Scheduler) -> None:
    with jobs.batch() as batch:
        batch.task(count)


def test_headers_of_a_stranger_name_no_other_task(jobs: Scheduler) -> None:
    """A message brings its headers along; only tasks that this one depends on count."""
    secret = jobs.task(load, "secret").schedule()
    drain(jobs)
    made = jobs.task(count, ["mine"]).schedule()
    with jobs.database.write() as tx:
        headers = f'{{"schedd-parents": {{"rows": {secret}, "factor": "x"}}}}'
        tx.run("UPDATE schedd_tasks SET headers = :h, extras = 1 WHERE id = :id", h=headers, id=int(made))
    drain(jobs)
    assert jobs.result(made) == 1


def _tracked_by(made: Callable[[], object]) -> int:
    """How many objects the collector tracks more when a hundred are held."""
    kept = [made()]
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        kept += [made() for _ in range(100)]
        return len(gc.get_objects()) - before
    finally:
        gc.enable()


def test_a_builder_holds_one_object_for_the_collector(jobs: Scheduler) -> None:
    """A batch holds thousands of them, and each full collection walks what they hold."""
    for made in (lambda: jobs.task(load, "sales"), lambda: jobs.task(count, ["a"], 2)):
        assert min(_tracked_by(made) for _ in range(5)) <= 110  # a thread of the test runner may make some meanwhile
