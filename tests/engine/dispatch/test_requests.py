"""What a running attempt asks for is done once, also when the commit came through and its answer did not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scheduler import AsyncContext, Context, PermanentError, RetryPolicy, Scheduler, Snooze, Task, TaskState, task
from scheduler.engine import state as engine_state
from scheduler.errors import LeaseLost, StoreUnavailableError
from scheduler.model.checkpoint import CheckpointType
from scheduler.ports import FAILPOINTS
from scheduler.store import reaper
from scheduler.store.durable import checkpoints
from scheduler.store.graph import parents as relatives
from scheduler.store.requests import children as asked_children
from scheduler.testing import FakeClock, engine_of
from support.databases import Database
from support.fleet import Fleet, ends, let_pass, rows, run_claimed, step, until, write
from support.lost_answers import fail_a_step, fail_at

ERRORS = pytest.mark.parametrize(
    "error", [StoreUnavailableError("the connection broke"), ValueError("unforeseen")], ids=["away", "unforeseen"]
)


@task
def child(ctx: Context, n: int) -> int:
    ctx.state.append(n)
    return 2 * n


class Parent(Task, kind="parent"):
    def run(self, ctx: Context) -> Any:
        step = ctx.step("step", lambda: ctx.state.append("step") or 5)
        spawned = ctx.spawn(child, 1)
        first = ctx.emit_event("event")
        ctx.sleep_for(0.01)
        payload = ctx.await_event("event", timeout=60)
        return [step, spawned.created, first, payload, ctx.await_task(spawned), ctx.map(child, [2, 3])]


class AsyncParent(Task, kind="async-parent"):
    async def run(self, ctx: AsyncContext) -> Any:
        async def five() -> int:
            ctx.state.append("step")
            return 5

        step = await ctx.step("step", five)
        spawned = await ctx.spawn(child, 1)
        first = await ctx.emit_event("event")
        await ctx.sleep_for(0.01)
        payload = await ctx.await_event("event", timeout=60)
        return [step, spawned.created, first, payload, await ctx.await_task(spawned), await ctx.map(child, [2, 3])]


class Impatient(Task, kind="impatient"):
    def run(self, ctx: Context) -> str:
        try:
            ctx.await_event("never", timeout=0.2)
        except TimeoutError:
            return "timed out"
        return "it came"


@pytest.fixture
def jobs(database: Database, error: Exception, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    """Every second commit of answers is made, and fails then."""
    commits: list[int] = []

    def hit(name: str) -> None:
        if name == "after answer commit":
            commits.append(1)
            if len(commits) % 2:
                raise error

    jobs = Scheduler(database.url)
    jobs.state = []
    for kind in (child, Parent, AsyncParent, Impatient):
        jobs.register(kind)
    with jobs:
        monkeypatch.setattr(FAILPOINTS, "hit", hit)
        yield jobs
        jobs.stop()
    assert len(commits) > 1


@ERRORS
@pytest.mark.case(9, 52, 56)
@pytest.mark.parametrize("kind", [Parent, AsyncParent])
def test_what_is_asked_for_twice_is_done_once(jobs: Scheduler, kind: type[Task]) -> None:
    parent = jobs.task(kind()).schedule()
    assert jobs.result(parent, 60) == [5, True, True, None, 2, [4, 6]]
    assert sorted(map(str, jobs.state)) == ["1", "2", "3", "step"]
    assert rows(jobs, "SELECT count(*) AS n FROM schedd_tasks")[0].n == 4


@ERRORS
@pytest.mark.case(9, 55)
def test_what_has_not_come_in_time_is_not_awaited_again(jobs: Scheduler) -> None:
    waiting = jobs.task(Impatient()).schedule()
    assert jobs.result(waiting, 60) == "timed out"
    # 1: on a slow machine its time is over before it asks again.
    assert rows(jobs, "SELECT claim FROM schedd_tasks")[0].claim <= 2
    assert not rows(jobs, "SELECT 1 FROM schedd_waits")


class Twice(Task, kind="twice", retry=RetryPolicy(min_wait=0, max_wait=0, max_attempts=2, jitter=0)):
    """Its last attempt reads what the first one recorded."""

    def run(self, ctx: Context) -> Any:
        # Too long to be read with the claim: the handler asks for it.
        first = len(ctx.step("first", lambda: ctx.state.append("first") or "1" * 2000))
        if ctx.attempt == 1:
            raise ValueError("again")
        return [first, *ctx.map(child, [2])]


@pytest.mark.case(9, 52)
@pytest.mark.parametrize("module", [checkpoints, asked_children], ids=["recorded", "ends"])
def test_what_was_recorded_is_read_once_the_database_is_back(
    database: Database, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    name = "read" if module is checkpoints else "results"
    usual, tries = getattr(module, name), []

    def away(*args: Any) -> Any:
        tries.append(args)
        if len(tries) == 1:
            raise StoreUnavailableError("the connection broke")
        return usual(*args)

    monkeypatch.setattr(engine_state, "_OUTAGE_POLL_S", 0.0)
    monkeypatch.setattr(module, name, away)
    with Scheduler(database.url, state=[]) as jobs:
        jobs.register(Twice)
        jobs.register(child)
        assert jobs.result(jobs.task(Twice()).schedule(), 60) == [2000, 4]
        assert jobs.state == ["first", 2]
    assert len(tries) > 1


class Reads(Task, kind="reads"):
    """What its parents returned, and how they ended."""

    def run(self, ctx: Context) -> Any:
        return [list(ctx.results().values()), list(ctx.dependency_failures())]


class AsyncReads(Task, kind="async-reads"):
    async def run(self, ctx: AsyncContext) -> Any:
        return [list((await ctx.results()).values()), list(await ctx.dependency_failures())]


@pytest.mark.case(9, 63)
@pytest.mark.parametrize("name", ["parent_results", "dependency_failures"])
@pytest.mark.parametrize("kind", [Reads, AsyncReads])
def test_what_parents_returned_is_read_once_the_database_is_back(
    database: Database, monkeypatch: pytest.MonkeyPatch, kind: type[Task], name: str
) -> None:
    """A task without a retry policy was dead."""
    usual, tries = getattr(relatives, name), []

    def away(*args: Any) -> Any:
        tries.append(args)
        if len(tries) < 3:
            raise StoreUnavailableError("the connection broke")
        return usual(*args)

    monkeypatch.setattr(engine_state, "_OUTAGE_POLL_S", 0.0)
    monkeypatch.setattr(relatives, name, away)
    with Scheduler(database.url, state=[]) as jobs:
        jobs.register(kind)
        jobs.register(child)
        jobs.register(Ends)
        good, bad = jobs.task(child, 4).schedule(), jobs.task(Ends("dead")).schedule()
        reader = jobs.task(kind()).depend_on(good).depend_on(bad, when="finished").schedule()
        assert jobs.result(reader, 60) == [[8, None], [bad]]
    assert len(tries) == 3


class Loses(Task, kind="loses"):
    """Notes the error that it gets in place of its parents' results."""

    def run(self, ctx: Context) -> None:
        try:
            ctx.state.append(ctx.results())
        except LeaseLost as error:
            ctx.state.append(error)
            raise


class AsyncLoses(Task, kind="async-loses"):
    async def run(self, ctx: AsyncContext) -> None:
        try:
            ctx.state.append(await ctx.results())
        except LeaseLost as error:
            ctx.state.append(error)
            raise


@pytest.mark.case(4, 9)
@pytest.mark.parametrize("kind", [Loses, AsyncLoses])
def test_unless_the_lease_is_lost_meanwhile(
    database: Database, monkeypatch: pytest.MonkeyPatch, kind: type[Task]
) -> None:
    """Nothing is known of parents then, and nothing is made up."""
    jobs = Scheduler(database.url, state=[])

    def away(*_: Any) -> Any:
        if jobs.state:
            return []
        assert jobs._engine is not None
        for attempt in list(jobs._engine.engine_state.held.values()):
            attempt.lost = True
        raise StoreUnavailableError("the connection broke")

    monkeypatch.setattr(engine_state, "_OUTAGE_POLL_S", 0.0)
    monkeypatch.setattr(relatives, "parent_results", away)
    with jobs:
        jobs.register(kind)
        jobs.task(kind()).schedule()
        until(lambda: jobs.state)
    assert isinstance(jobs.state[0], LeaseLost)


class Ends(Task, kind="ends"):
    how: str

    def run(self, ctx: Context) -> str:
        if self.how == "dead":
            raise PermanentError("no")
        if self.how == "snoozed":
            raise Snooze(60)
        return self.how


@pytest.fixture
def letters() -> list[Any]:
    return []


@pytest.fixture
def worker(fleet: Fleet, letters: list[Any]) -> Scheduler:
    return fleet.worker(Ends, on_dead_letter=letters.append)


@pytest.mark.case(9)
def test_an_end_whose_commit_was_not_answered_is_reported_as_any_other(
    worker: Scheduler, letters: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "scheduler.engine")
    ids = [worker.task(Ends(how)).schedule() for how in ("dead", "success", "snoozed")]
    child = worker.task(Ends("success")).depend_on([ids[1]]).schedule()
    step(worker)
    assert run_claimed(worker) == 3
    fail_a_step(worker, monkeypatch, "after finish commit")
    notified: list[int] = []
    monkeypatch.setattr(engine_of(worker).notifier, "notify", lambda: notified.append(1))
    step(worker)
    assert [letter.id for letter in letters] == ids[:1]
    assert notified, "what it released is not known any more: others may look"
    logged = [r for r in caplog.records if getattr(r, "task", None) in ids]
    assert [(r.getMessage().partition(":")[0], r.levelname) for r in logged] == [("attempt dead", "ERROR")]
    assert [worker.get_task_status(i) for i in ids] == [TaskState.DEAD, TaskState.SUCCESS, TaskState.SCHEDULED]
    assert run_claimed(worker) == 1
    step(worker)
    assert worker.get_task_status(child) is TaskState.SUCCESS
    assert not engine_of(worker).engine_state.held


@pytest.mark.case(9)
def test_an_end_that_another_worker_recorded_instead_is_not(
    worker: Scheduler, letters: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the commit did not come through, and the lease runs out before it is tried again."""
    task_id = worker.task(Ends("dead")).schedule()
    step(worker)
    assert run_claimed(worker) == 1
    fail_a_step(worker, monkeypatch, "before finish commit")
    engine = engine_of(worker)
    with worker.database.write() as tx:
        reaper.reap(tx, dead_peers=[engine.registration.incarnation])
    engine.dispatch.run(engine._conn(), claiming=False)
    assert not letters
    assert "outcome dropped" in caplog.text
    assert ends(worker, task_id) == ["lost"]


class Numbers(Task, kind="numbers"):
    """An event's name may look like the number of a repeat."""

    def run(self, ctx: Context) -> Any:
        return [ctx.emit_event(name) for name in ("foo", "foo", "foo#2", "foo#2", "foo#2#1")]


@pytest.mark.case(9, 54)
@pytest.mark.parametrize("nth", range(1, 6))
def test_what_failed_before_its_commit_is_not_taken_for_something_else(
    database: Database, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    hits = fail_at(monkeypatch, "before answer commit", nth)
    with Scheduler(database.url) as jobs:
        jobs.register(Numbers)
        assert jobs.result(jobs.task(Numbers()).schedule(), 60) == [True, False, True, False, True]
        assert len(hits) == 6


@task(rate_limit="1/h")
def rated(ctx: Context) -> None: ...


@pytest.mark.case(9, 59)
def test_a_start_that_a_commit_without_answer_counted_is_given_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = fleet.worker(rated)
    task_id = jobs.task(rated).schedule()
    fail_a_step(jobs, monkeypatch, "after claim")
    assert jobs.get_task_status(task_id) is TaskState.CLAIMED
    step(jobs)
    step(jobs)
    assert run_claimed(jobs) == 1
    step(jobs)
    assert jobs.get_task_status(task_id) is TaskState.SUCCESS


@pytest.mark.case(9)
def test_a_claim_that_is_committed_late_is_found(
    worker: Scheduler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stood still while it committed, its connection was cut, and the engine has looked already."""
    late = worker.task(Ends("success")).after(1).schedule()
    worker.task(Ends("success")).schedule()
    fail_a_step(worker, monkeypatch, "after claim")
    step(worker)
    assert run_claimed(worker) == 1
    engine = engine_of(worker)
    write(worker, "UPDATE schedd_tasks SET state = 4, claim = 1, worker = :w WHERE id = :id", w=engine.worker, id=late)
    let_pass(clock, 15, worker)
    assert run_claimed(worker) == 1
    step(worker)
    assert worker.get_task_status(late) is TaskState.SUCCESS


class Changes(Task, kind="changes", retry=RetryPolicy(min_wait=0, max_wait=0, max_attempts=2, jitter=0)):
    def run(self, ctx: Context) -> None:
        if ctx.attempt == 1:
            ctx.step("x", lambda: 1)
            raise ValueError("again")
        ctx.sleep_for(0, name="x")


@pytest.mark.case(9, 52)
def test_what_was_recorded_as_something_else_is_done_anew(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, "before answer commit", 2)
    with Scheduler(database.url) as jobs:
        jobs.register(Changes)
        jobs.result(jobs.task(Changes()).schedule(), 60)
        assert [row.type for row in rows(jobs, "SELECT type FROM schedd_checkpoints")] == [CheckpointType.SLEEP]


class Books(Task, kind="books"):
    def run(self, ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.result = 5


@pytest.mark.case(4, 9)
def test_a_success_whose_own_commit_was_not_answered_is_one(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler was told that it failed."""
    jobs = fleet.worker(Books, Ends)
    parent = jobs.task(Books()).schedule()
    child = jobs.task(Ends("success")).depend_on([parent]).schedule()
    step(jobs)
    notified: list[int] = []
    with monkeypatch.context() as broken:
        fail_at(broken, "after transaction commit")
        assert run_claimed(jobs) == 1
        broken.setattr(engine_of(jobs).notifier, "notify", lambda: notified.append(1))
        step(jobs)
    assert notified
    assert "dropped" not in caplog.text
    assert jobs.result(parent, 0) == 5
    assert ends(jobs, parent) == ["succeeded"]
    assert run_claimed(jobs) == 1, "what it released is claimed at once"
    step(jobs)
    assert jobs.get_task_status(child) is TaskState.SUCCESS
