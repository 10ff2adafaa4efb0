"""A program that runs tasks itself stores one as claimed by its own worker: as a claim would have it, and only then."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import AsyncContext, Context, Priority, Scheduler, Task, TaskState, task
from scheduler.engine.direct_starts import OTHERS_S, REFUSED_S, DirectStarts
from scheduler.errors import StoreUnavailableError
from scheduler.model.lanes import fairness_of
from scheduler.ports import FAILPOINTS
from scheduler.store import due_work, reaper
from scheduler.store.db.tx import Tx
from scheduler.store.tasks import direct
from scheduler.testing import FakeClock, drain, engine_of
from support.databases import Database
from support.fleet import Fleet, ends, rows, run_claimed, step, until, write

MEDIUM = {"high": (1, 0), "medium": (2, 1), "low": (1, 0)}
CLAIM = "SELECT state, worker, claim, attempt, claimed_at, created_at, started_at FROM schedd_tasks WHERE id = :id"


class Gates:
    """Where handlers wait, by name."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        self.ran: list[int] = []


gates = Gates()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    global gates
    gates = Gates()
    yield
    gates.open.set()


@task
def quick(ctx: Context, n: int = 0) -> int:
    gates.ran.append(ctx.id)
    gates.begun.release()
    return n


@task
async def quick_async(ctx: AsyncContext, n: int = 0) -> int:
    gates.ran.append(ctx.id)
    return n


@task
def held(ctx: Context) -> None:
    gates.begun.release()
    assert gates.open.wait(30)


class Capped(Task, max_concurrency=1):
    def run(self, ctx: Context) -> None: ...


class Rated(Task, rate_limit="1/h"):
    def run(self, ctx: Context) -> None: ...


class Keyed(Task, fairness_key="{customer}"):
    customer: str = "a"

    def run(self, ctx: Context) -> None: ...


class Isolated(Task, isolation="process"):
    def run(self, ctx: Context) -> None: ...


KINDS = (quick, quick_async, held, Capped, Rated, Keyed, Isolated)


@pytest.fixture
def program(database: Database) -> Iterator[Scheduler]:
    """A program with a running engine that has nothing to do."""
    jobs = Scheduler(database.url, pools=MEDIUM, metrics=True, lease=30.0)
    for kind in KINDS:
        jobs.register(kind)
    with jobs:
        assert jobs.engine.wait_ready(30)
        rest(jobs)
        yield jobs
        gates.open.set()


@pytest.fixture
def inline(fleet: Fleet) -> Scheduler:
    """A worker that is stepped by hand, and whose own calls may start tasks."""
    jobs = fleet.worker(*KINDS, pools=MEDIUM, metrics=True)
    step(jobs)
    jobs.submitter.start_here = starts(jobs).store
    return jobs


def starts(jobs: Scheduler) -> DirectStarts:
    return engine_of(jobs).direct_starts


def rest(jobs: Scheduler) -> None:
    """Wait until the loop has seen to everything."""
    state = jobs.engine.engine_state
    until(lambda: not (state.dispatching or state.rung or state.held or jobs.engine.dispatch.lost_commits.pending))


def started(jobs: Scheduler) -> int:
    """How many tasks the metrics say were started directly."""
    assert jobs._engine is not None
    jobs._engine.dispatch._count_direct_starts()
    (family,) = (f for f in jobs.metrics() if f.metric.name == "schedd_direct_starts_total")
    return int(family.samples[0].value)


def at(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object], point: str = "after direct start") -> None:
    """Do something between the commit and the hand-over, once."""

    def hit(name: str) -> None:
        if name == point:
            monkeypatch.setattr(FAILPOINTS, "hit", lambda _: None)
            do()

    monkeypatch.setattr(FAILPOINTS, "hit", hit)


@pytest.mark.case(107)
@pytest.mark.parametrize("kind", [quick, quick_async])
def test_a_task_starts_as_it_is_stored(program: Scheduler, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    rings: list[None] = []
    monkeypatch.setattr(program.engine.notifier, "notify", lambda: rings.append(None))
    made = program.task(kind, 7).correlation("order 7").schedule()
    assert program.result(made, timeout=30) == 7
    (row,) = rows(program, CLAIM, id=made)
    assert (row.claim, row.attempt, row.claimed_at) == (1, 1, row.created_at)
    assert row.started_at >= row.claimed_at
    assert program.get_task(made).correlation == "order 7"
    rest(program)
    assert ends(program, made) == ["succeeded"]
    assert not rings
    assert started(program) == 1
    assert not program.engine.engine_state.reserved


@pytest.mark.case(107)
def test_it_is_claimed_as_by_a_cycle(inline: Scheduler) -> None:
    """Each column but the times is what a claim writes."""
    inline.submitter.start_here, direct_start = (lambda spec: None), inline.submitter.start_here
    by_cycle = inline.task(Keyed("b")).correlation("c").priority(Priority.HIGH).timeout(9).schedule()
    step(inline)
    (claimed,) = engine_of(inline).engine_state.held.values()
    usual = claimed.claimed, dict(rows(inline, "SELECT * FROM schedd_tasks WHERE id = :id", id=by_cycle)[0]._mapping)
    run_claimed(inline)
    step(inline)
    inline.submitter.start_here = direct_start
    at_once = inline.task(Keyed("b")).correlation("c").priority(Priority.HIGH).timeout(9).schedule()
    (claimed,) = engine_of(inline).engine_state.held.values()
    same = claimed.claimed, dict(rows(inline, "SELECT * FROM schedd_tasks WHERE id = :id", id=at_once)[0]._mapping)
    moved = {"id", "run_at", "created_at", "claimed_at"}
    assert usual[0]._replace(**dict.fromkeys(moved, 0)) == same[0]._replace(**dict.fromkeys(moved, 0))
    assert {k: v for k, v in usual[1].items() if k not in moved} == {k: v for k, v in same[1].items() if k not in moved}
    assert drain(inline) == 1


@pytest.mark.case(107)
@pytest.mark.parametrize(
    "make",
    [
        lambda jobs: jobs.task(quick).after(60),
        lambda jobs: jobs.task(quick).key("k"),
        lambda jobs: jobs.task(quick, 1).queue("other"),
        lambda jobs: jobs.task(Capped()),
        lambda jobs: jobs.task(Rated()),
        lambda jobs: jobs.task(Isolated()),
    ],
    ids=["later", "keyed", "paused queue", "capped", "rated", "child process"],
)
def test_what_may_have_to_wait_is_stored_as_ever(inline: Scheduler, make: Callable[[Scheduler], Any]) -> None:
    inline.pause(queue="other")
    step(inline)
    made = make(inline).schedule()
    assert inline.get_task(made).state is TaskState.SCHEDULED
    assert not engine_of(inline).engine_state.reserved
    assert started(inline) == 0


@pytest.mark.case(107)
def test_nothing_starts_while_the_loop_reads_what_is_paused(inline: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look is not due any more by then, and the pause not known yet."""
    usual, made = due_work.poll, []

    def poll(tx: Tx, *, every: bool, polls: bool) -> due_work.DueWork:
        seen = usual(tx, every=every, polls=polls)
        made.append(inline.task(quick).queue("other").schedule())
        return seen

    inline.pause(queue="other")
    engine_of(inline).look_soon()
    with monkeypatch.context() as patched:
        patched.setattr(due_work, "poll", poll)
        step(inline)
    assert len(made) == 1
    assert started(inline) == 0
    assert not engine_of(inline).periodic.looking


@pytest.mark.case(107)
def test_a_task_that_is_due_goes_before(inline: Scheduler) -> None:
    """Whatever its lane, if its priority is as high; one that this worker does not serve, or is due later, does not."""
    other = inline.task(quick).priority(Priority.LOW).schedule()
    drain(inline)
    assert started(inline) == 1
    far = inline.task(quick).after(3600).schedule()
    write(inline, "UPDATE schedd_tasks SET state = 1, kind = 'Foreign', lane = 'Foreign' WHERE id = :id", id=other)
    assert engine_of(inline).engine_state.was_woken()
    first = inline.task(Keyed()).schedule()
    assert inline.get_task(first).state is TaskState.CLAIMED
    write(inline, "UPDATE schedd_tasks SET kind = 'quick', lane = 'quick' WHERE id = :id", id=other)
    run_claimed(inline)
    second = inline.task(quick).schedule()
    assert inline.get_task(second).state is TaskState.CLAIMED, "low tasks take no slot of medium ones"
    write(inline, "UPDATE schedd_tasks SET priority = 0 WHERE id = :id", id=other)
    drain(inline)
    write(inline, "UPDATE schedd_tasks SET state = 1, run_at = created_at WHERE id = :id", id=other)
    third = inline.task(quick).schedule()
    assert inline.get_task(third).state is TaskState.SCHEDULED
    assert started(inline) == 3
    drain(inline)
    assert inline.get_task(third).state is TaskState.SUCCESS
    assert inline.get_task(far).state is TaskState.SCHEDULED


@pytest.mark.case(107)
def test_the_database_is_not_asked_each_time_while_something_goes_before(
    inline: Scheduler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, asked = direct.store_claimed, []
    monkeypatch.setattr(direct, "store_claimed", lambda *given: asked.append(given[-1]) or usual(*given))
    write(inline, "UPDATE schedd_workers SET state = 3")
    for waited, times in ((0.0, 1), (0.0, 1), (REFUSED_S, 2)):
        clock.advance(waited)
        engine_of(inline).engine_state.was_woken()
        inline.task(quick).schedule()
        assert len([served for served in asked if served is not None]) == times
    write(inline, "UPDATE schedd_workers SET state = 0")
    assert drain(inline) == 3


@pytest.mark.case(107)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_the_whole_look_follows_where_something_is_claimable(
    inline: Scheduler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes first for a while then."""
    usual, looks = direct.store_claimed, []
    monkeypatch.setattr(direct, "store_claimed", lambda *given: looks.append(given[-1] is not None) or usual(*given))

    def start() -> list[bool]:
        looks.clear()
        made = inline.task(quick).schedule()
        assert inline.get_task(made).state is TaskState.CLAIMED
        assert drain(inline) == 1
        return looks

    assert start() == [False]
    inline.task(quick).after(3600).schedule()
    assert engine_of(inline).engine_state.was_woken()
    assert start() == [False, True]
    assert start() == [True]
    clock.advance(OTHERS_S)
    step(inline)
    assert start() == [False, True]


@pytest.mark.case(107)
def test_the_loop_hears_of_a_handler_that_goes_on(program: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may sleep for long otherwise, and nobody would know that the task runs."""
    nudges: list[None] = []
    state = program.engine.engine_state
    usual = state.nudge
    monkeypatch.setattr(state, "nudge", lambda: nudges.append(usual()))
    made = program.task(held).schedule()
    assert gates.begun.acquire(timeout=30)
    assert len(nudges) == 1, "before the handler"
    until(lambda: program.get_task(made).state is TaskState.RUNNING)


@pytest.mark.case(107)
def test_many_lanes_are_not_looked_through(inline: Scheduler) -> None:
    with inline.batch() as batch:
        for n in range(direct.MOST_LANES):
            batch.task(Keyed(f"{n}")).after(60)
    made = inline.task(quick).schedule()
    assert inline.get_task(made).state is TaskState.SCHEDULED


@pytest.mark.case(107)
def test_no_more_start_than_there_are_slots(program: Scheduler) -> None:
    first = program.task(held).priority(Priority.LOW).schedule()
    assert gates.begun.acquire(timeout=30)
    second = program.task(held).priority(Priority.LOW).schedule()
    until(lambda: not program.engine.engine_state.rung)
    assert program.get_task(second).state is TaskState.SCHEDULED
    gates.open.set()
    program.wait([first, second], timeout=30)
    assert started(program) == 1


@pytest.mark.case(107)
def test_many_callers_share_the_slots(program: Scheduler) -> None:
    """Each task runs once, and never more at a time than there are slots."""
    made: list[int] = []

    def call() -> None:
        for _ in range(20):
            made.append(program.task(quick).schedule())

    callers = [threading.Thread(target=call) for _ in range(6)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    for one in made:
        program.result(one, timeout=60)
    rest(program)
    assert Counter(gates.ran) == Counter(made)
    assert {end for one in made for end in ends(program, one)} <= {"succeeded", "handed back"}
    assert not program.engine.engine_state.reserved


@pytest.mark.case(107)
def test_a_reserved_slot_is_taken_for_the_plan(inline: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    def cycle() -> None:
        inline.submitter.start_here, back = (lambda spec: None), inline.submitter.start_here
        for _ in range(3):
            inline.task(quick).priority(Priority.LOW).schedule()
        step(inline)
        inline.submitter.start_here = back

    at(monkeypatch, cycle)
    inline.task(quick).priority(Priority.LOW).schedule()
    assert len(engine_of(inline).engine_state.held) == 1, "there is one slot"
    assert drain(inline) == 4


@pytest.mark.both_databases
@pytest.mark.case(107)
@pytest.mark.parametrize("stored", [False, True])
def test_a_commit_that_failed_gives_the_slot_back(
    inline: Scheduler, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Or whose answer was lost: then the task is stored, runs once, and has used no attempt before."""
    usual = direct.store_claimed

    def broken(*given: Any) -> Any:
        if stored:
            usual(*given)
        raise StoreUnavailableError("the connection broke")

    monkeypatch.setattr(direct, "store_claimed", broken)
    with pytest.raises(StoreUnavailableError):
        inline.task(quick).schedule()
    monkeypatch.setattr(direct, "store_claimed", usual)
    assert not engine_of(inline).engine_state.reserved
    assert inline.get_task(inline.task(quick).schedule()).state is TaskState.SCHEDULED, "while that is not known"
    drain(inline)
    drain(inline)
    assert len(gates.ran) == 1 + stored
    assert len(set(gates.ran)) == 1 + stored
    assert {r.attempt - r.attempt_base for r in rows(inline, "SELECT attempt, attempt_base FROM schedd_tasks")} == {1}
    at_once = inline.task(quick).schedule()
    assert inline.get_task(at_once).state is TaskState.CLAIMED


@pytest.mark.case(107)
def test_a_lookup_of_lost_commits_leaves_alone_what_is_about_to_be_handed_over(
    inline: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        engine_of(inline).dispatch.lost_commits.on_uncertain_commit()
        step(inline)

    at(monkeypatch, look)
    made = inline.task(quick).schedule()
    assert inline.get_task(made).state is TaskState.CLAIMED
    assert drain(inline) == 1
    assert ends(inline, made) == ["succeeded"]


@pytest.mark.case(107)
@pytest.mark.parametrize("where", ["_may_start", "_served", "_give_back"])
def test_an_interrupt_leaves_no_slot_reserved(inline: Scheduler, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A stop would wait for it in vain, and no other task would have the slot."""
    write(inline, "UPDATE schedd_workers SET state = 3")  # so that nothing starts
    with monkeypatch.context() as patched:
        usual = getattr(DirectStarts, where)
        calls: list[None] = []

        def interrupted(*given: Any) -> Any:
            calls.append(None)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return usual(*given)

        patched.setattr(DirectStarts, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            inline.task(quick).schedule()
    assert not engine_of(inline).engine_state.reserved


@pytest.mark.case(107)
def test_a_commit_that_is_lost_during_a_cycle_is_looked_for(inline: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next cycle, not by the next renewal of the lease."""
    dispatch, usual = engine_of(inline).dispatch, direct.store_claimed
    scan, stored, go = dispatch.lanes.scan, threading.Event(), threading.Event()

    def broken(*given: Any) -> Any:
        usual(*given)
        stored.set()
        assert go.wait(30)
        raise StoreUnavailableError("the connection broke")

    def call() -> None:
        with pytest.raises(StoreUnavailableError):
            inline.task(quick).schedule()

    def scanning(*given: Any, **options: Any) -> Any:
        go.set()
        caller.join(30)
        return scan(*given, **options)

    caller = threading.Thread(target=call)
    with monkeypatch.context() as patched:
        patched.setattr(direct, "store_claimed", broken)
        patched.setattr(dispatch.lanes, "scan", scanning)
        caller.start()
        assert stored.wait(30)
        step(inline)
    assert drain(inline) == 1
    assert len(gates.ran) == 1


@pytest.mark.case(107)
def test_an_engine_that_drains_gives_it_back(program: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """And waits for what is about to be handed over."""
    stopped: list[int] = []
    stopper = threading.Thread(target=lambda: stopped.extend(program.stop()))

    def drain_now() -> None:
        stopper.start()
        until(lambda: program.engine.draining)

    at(monkeypatch, drain_now)
    made = program.task(quick).schedule()
    stopper.join(30)
    assert not stopped
    assert not gates.ran
    (row,) = rows(
        program, "SELECT state, worker, attempt - attempt_base AS used FROM schedd_tasks WHERE id = :id", id=made
    )
    assert (row.state, row.worker, row.used) == (TaskState.SCHEDULED.code, None, 0)
    program.start()
    program.result(made, timeout=30)
    assert gates.ran == [made]


@pytest.mark.case(107)
def test_a_lease_that_is_lost_meanwhile(
    fleet: Fleet, inline: Scheduler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker has reclaimed the task by then: it runs there, and here no more."""
    other = fleet.worker(*KINDS, pools=MEDIUM)

    def lose() -> None:
        clock.advance(120)
        with other.database.write() as tx:
            reaper.reap(tx)
        step(other)

    at(monkeypatch, lose)
    made = inline.task(quick).schedule()
    step(inline)
    drain(other)
    drain(inline)
    assert gates.ran == [made]
    assert ends(inline, made) == ["lost", "succeeded"]
    assert not engine_of(inline).engine_state.held


@pytest.mark.case(107)
@pytest.mark.parametrize("meanwhile", [False, True])
def test_nothing_begins_under_a_lease_that_has_run_out(
    inline: Scheduler, monkeypatch: pytest.MonkeyPatch, meanwhile: bool
) -> None:
    """Nobody has reclaimed anything yet."""
    state = engine_of(inline).engine_state
    until_then = state.lease_expires_at

    def run_out() -> None:
        state.lease_expires_at = state.monotonic()

    if meanwhile:
        at(monkeypatch, run_out)
    else:
        run_out()
    made = inline.task(quick).schedule()
    assert (inline.get_task(made).state is TaskState.SCHEDULED) is not meanwhile
    assert not gates.ran
    assert not state.reserved
    assert not state.started_here
    state.lease_expires_at = until_then
    drain(inline)
    assert gates.ran == [made]


@pytest.mark.case(107)
def test_a_worker_that_was_declared_dead_stores_it_as_ever(inline: Scheduler) -> None:
    write(inline, "UPDATE schedd_workers SET state = 3")
    made = inline.task(quick).schedule()
    assert inline.get_task(made).state is TaskState.SCHEDULED
    assert not engine_of(inline).engine_state.reserved


@pytest.mark.case(107)
def test_a_callers_transaction_and_a_batch_are_left_out(program: Scheduler) -> None:
    """A caller may keep his transaction open for as long as he likes: no slot is reserved for that."""
    with program.database.open().begin() as connection:
        made = program.task(quick).schedule(connection=connection)
        (state,) = connection.execute(sa.text("SELECT state FROM schedd_tasks WHERE id = :i"), {"i": made}).one()
        assert state == TaskState.SCHEDULED.code
    program.result(made, timeout=30)
    rest(program)
    assert started(program) == 0


@pytest.mark.case(107)
@pytest.mark.parametrize("seed", range(4))
def test_caps_pauses_priorities_and_turns_hold_as_without(fleet: Fleet, seed: int) -> None:
    """After each of many random steps: caps, slots and pauses hold, and each direct start had nothing before it."""
    rng = random.Random(seed)
    jobs = fleet.worker(*KINDS, pools=MEDIUM, metrics=True, max_concurrent_tasks=rng.choice([0, 2]))
    step(jobs)
    usual, engine = starts(jobs), engine_of(jobs)
    paused: set[str] = set()

    def waiting(tx: Tx, priority: int) -> int:
        served = "run_at <= :now AND kind <> 'Isolated' AND (priority <= :priority OR :most > 0)"
        sql = f"SELECT id FROM schedd_tasks WHERE state BETWEEN 1 AND 3 AND {served}"
        return len(tx.run(sql, now=tx.now, priority=priority, most=engine.options.max_concurrent).fetchall())

    def watched(spec: Any) -> Any:
        with jobs.database.read() as tx:
            before = waiting(tx, spec.priority)
        made = usual.store(spec)
        if made is not None:
            assert not before, "something was due before it"
            assert spec.queue not in paused
            assert spec.kind not in ("Capped", "Rated")
        return made

    jobs.submitter.start_here = watched
    for _ in range(120):
        engine.engine_state.means.clear()  # so that nothing is claimed ahead of the slots
        match rng.randrange(8):
            case 0 | 1 | 2 | 3:
                kind = rng.choice([lambda: jobs.task(quick), lambda: jobs.task(Keyed(rng.choice("abc")))] * 3 + [
                    lambda: jobs.task(Capped()), lambda: jobs.task(Rated())
                ])  # fmt: skip
                builder = kind().priority(rng.choice(list(Priority))).queue(rng.choice(["default", "other"]))
                (builder.after(rng.choice([1, 30])) if rng.random() < 0.1 else builder).schedule()
            case 4:
                step(jobs)
            case 5:
                for slots in engine.inline_slots():
                    slots.run_one()
            case 6:
                run_claimed(jobs)
                step(jobs)
            case _:
                fleet.clock.advance(rng.random())
                if rng.random() < 0.3:
                    if paused:
                        jobs.resume(queue=paused.pop())
                    else:
                        paused.add("other")
                        jobs.pause(queue="other")
                    step(jobs)
        now = rows(jobs, "SELECT kind, priority FROM schedd_tasks WHERE state BETWEEN 4 AND 5")
        assert sum(one.kind == "Capped" for one in now) <= 1
        assert len(now) <= sum(threads + tasks for threads, tasks in MEDIUM.values())
        assert not engine.options.max_concurrent or len(now) <= engine.options.max_concurrent
        assert len(rows(jobs, "SELECT 1 FROM schedd_attempts WHERE outcome = 0 AND task_id IN "
                              "(SELECT id FROM schedd_tasks WHERE kind = 'Rated')")) <= 1  # fmt: skip
    for queue in paused:
        jobs.resume(queue=queue)
    drain(jobs)
    assert started(jobs) > 0
    assert len(gates.ran) == len(set(gates.ran))


@pytest.mark.case(107)
def test_a_direct_start_is_a_turn_of_its_key(inline: Scheduler) -> None:
    """A customer whose tasks have started directly has no turn more than the others when a backlog comes."""
    for _ in range(6):
        inline.task(Keyed("direct")).schedule()
        drain(inline)
    assert started(inline) == 6
    clock = next(iter(engine_of(inline).dispatch.planner.turns._clocks.values()))
    assert clock.next["direct"] == 6
    with inline.batch() as batch:
        for _ in range(4):
            batch.task(Keyed("direct"))
            batch.task(Keyed("other"))
    engine_of(inline).engine_state.means.clear()
    step(inline)
    begun = Counter(fairness_of(a.claimed.lane).key for a in engine_of(inline).engine_state.held.values())
    assert begun == {"direct": 1, "other": 2}
