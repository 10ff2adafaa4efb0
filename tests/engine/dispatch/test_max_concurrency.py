"""``max_concurrency``: never more at once than the kind says, over all workers. Other kinds are not delayed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, task
from scheduler.model.texts import rfc3339
from scheduler.ports import FOREVER
from scheduler.store.db import statements as statement
from scheduler.store.read.explain import why
from scheduler.testing import FakeClock, drain, engine_of
from support.bench import Side
from support.databases import Database
from support.fleet import Fleet, let_pass, rows, run_claimed, step, write

LEASE = 30.0
HELD = "SELECT count(*) AS n FROM schedd_tasks WHERE kind = :kind AND state >= 4 AND state <= 5"


@task(max_concurrency=2)
def narrow(ctx: Context, n: int = 0) -> int:
    return n


@task(max_concurrency=1, concurrency_key="{customer}")
def each(ctx: Context, customer: str, n: int = 0) -> None: ...


@task
def wide(ctx: Context, n: int = 0) -> None: ...


def held(jobs: Scheduler, kind: str = "narrow") -> int:
    return int(rows(jobs, HELD, kind=kind)[0].n)


def why_of(jobs: Scheduler, task_id: int) -> str | None:
    with jobs.database.read() as tx:
        return why(tx, task_id)


@pytest.mark.case(58)
def test_two_of_six_at_once_over_two_workers_and_others_run_beside(fleet: Fleet) -> None:
    workers = [fleet.worker(narrow, wide, lease=LEASE) for _ in range(2)]
    for n in range(6):
        workers[0].task(narrow, n).schedule()
    for n in range(12):
        workers[0].task(wide, n).schedule()
    most = []
    for turn in range(12):
        one = workers[turn % 2]
        step(one)
        most.append(held(one))
        if turn == 1:
            assert held(one, "wide") == 12, "the full kind took slots from the other"
        if turn % 3 == 2:
            run_claimed(one)
    for one in workers:
        drain(one)
        most.append(held(one))
    assert max(most) == 2
    counts = rows(workers[0], "SELECT state, count(*) AS n FROM schedd_tasks GROUP BY state")
    assert [(row.state, row.n) for row in counts] == [(6, 18)]


@pytest.mark.case(58)
def test_the_cap_holds_for_each_concurrency_key(fleet: Fleet) -> None:
    jobs, other = fleet.worker(each), fleet.worker(each)
    ids = [jobs.task(each, name, n).schedule() for n in range(3) for name in ("ada", "bob")]
    for one in (jobs, other, jobs):
        step(one)
        lanes = [row.lane for row in rows(one, "SELECT lane FROM schedd_tasks WHERE state = 4 ORDER BY lane")]
        assert lanes == ["each\x1fada", "each\x1fbob"]
    assert (why_of(jobs, ids[2]) or "").endswith(
        f"its kind is at its cap of 1 for concurrency key 'ada': task {ids[0]} holds it"
    )
    assert drain(jobs) == 6


@pytest.mark.case(58)
def test_a_crash_leaks_no_slot(fleet: Fleet, clock: FakeClock) -> None:
    first, second = fleet.worker(narrow, lease=LEASE), fleet.worker(narrow, lease=LEASE)
    ids = [first.task(narrow, n).schedule() for n in range(4)]
    step(second)
    assert drain(second) == 4
    ids = [first.task(narrow, n).schedule() for n in range(4)]
    step(first)
    fleet.kill(first)
    step(second)
    assert held(second) == 2, "what a dead worker holds counts until it is reclaimed"
    let_pass(clock, LEASE, second)
    assert drain(second) == 0
    clock.advance(2)
    assert drain(second) == 4
    assert [second.get_task(i).attempt for i in ids] == [2, 2, 1, 1]


@pytest.mark.case(58)
def test_only_one_worker_at_a_time_claims_of_a_capped_kind(
    database: Database, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second worker comes while the first has claimed and not yet committed."""
    first, second = fleet.worker(narrow), fleet.worker(narrow)
    step(first)
    step(second)
    for n in range(6):
        first.task(narrow, n).schedule()
    from scheduler.engine.dispatch import cycle as turn

    sides: list[Side] = []
    claim = turn.claim.claim

    def claim_and_let_the_other_in(*args: Any) -> Any:
        claimed = claim(*args)
        if not sides and claimed:
            sides.append(Side(lambda: step(second)))
            if not database.is_sqlite:  # whose one writer has to wait
                sides[0].join(20)
        return claimed

    monkeypatch.setattr(turn.claim, "claim", claim_and_let_the_other_in)
    step(first)
    sides[0].result()
    assert held(first) == 2
    assert [len(engine_of(one).engine_state.held) for one in (first, second)] == [2, 0]
    if not database.is_sqlite:
        assert 0 < engine_of(second)._pause() < 1, "it looks again soon"


def test_what_is_suspended_is_not_counted_and_a_suspect_is(fleet: Fleet) -> None:
    jobs = fleet.worker(narrow)
    ids = [jobs.task(narrow, n).schedule() for n in range(4)]
    step(jobs)
    sql = "UPDATE schedd_tasks SET state = 3, worker = NULL, run_at = :never WHERE id = :id"
    write(jobs, sql, id=ids[0], never=FOREVER)
    step(jobs)
    assert [jobs.get_task_status(i) for i in ids] == ["suspended", "claimed", "claimed", "scheduled"]
    write(jobs, "UPDATE schedd_tasks SET lane = '!' || lane WHERE id = :id", id=ids[1])
    step(jobs)
    assert jobs.get_task_status(ids[3]) == "scheduled"


def test_a_full_kind_is_not_asked_for_again_and_again(fleet: Fleet) -> None:
    jobs = fleet.worker(narrow)
    ids = [jobs.task(narrow, n).schedule() for n in range(3)]
    step(jobs)
    engine = engine_of(jobs)
    while engine.step() <= 0:
        assert engine.cycles < 10
    before = engine.cycles
    for _ in range(5):
        assert engine.step() > 0
    assert engine.cycles == before
    since = rfc3339(jobs.database.now(), exact=False)
    assert why_of(jobs, ids[2]) == f"due since {since}; its kind is at its cap of 2: tasks {ids[0]}, {ids[1]} hold it"


def test_the_end_of_one_wakes_the_others_if_there_is_more(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker has no slot for the next one, which the second would take at once."""
    first = fleet.worker(narrow, wide, pools={"medium": (2, 0)})
    notified: list[int] = []
    step(first)
    monkeypatch.setattr(engine_of(first).notifier, "notify", lambda: notified.append(1))
    for n in range(2):
        first.task(narrow, n).schedule()
    step(first)
    run_claimed(first)
    notified.clear()
    step(first)
    assert held(first) == 0
    assert not notified, "no task waited for that"
    for n in range(3):
        first.task(narrow, n).schedule()
    step(first)
    monkeypatch.setattr(engine_of(first), "draining", True)
    run_claimed(first)
    notified.clear()
    engine_of(first).step()
    assert held(first) == 0
    assert notified


def test_the_newest_program_sets_the_cap(fleet: Fleet, clock: FakeClock) -> None:
    @task(kind="narrow", max_concurrency=3)
    def newer(ctx: Context, n: int = 0) -> None: ...

    @task(kind="narrow")
    def unaware(ctx: Context, n: int = 0) -> None: ...

    old, bare = fleet.worker(narrow, lease=LEASE), fleet.worker(unaware, lease=LEASE)
    step(bare)
    step(old)
    for n in range(9):
        old.task(narrow, n).schedule()
    step(old)
    assert held(old) == 2
    step(bare)
    assert held(old) == 8 + 1, "until a worker renews, it knows nothing of limits declared meanwhile"
    run_claimed(bare)
    step(bare)
    assert held(old) == 2
    let_pass(clock, LEASE / 3, old, bare)
    for n in range(9):
        old.task(narrow, n).schedule()
    step(bare)
    assert held(old) == 2
    new = fleet.worker(newer, lease=LEASE)
    step(new)
    step(bare)
    assert held(old) == 3


def test_kinds_without_limits_cost_no_statement(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = fleet.worker(wide)
    jobs.task(wide).schedule()
    drain(jobs)
    seen: list[str] = []
    raw = statement._raw

    def saw(_c: Any, _cursor: Any, text: str, *_: Any) -> None:
        seen.append(text)

    def saw_raw(connection: sa.Connection, text: str, bound: Any) -> Any:
        seen.append(text)
        return raw(connection, text, bound)

    sa.event.listen(jobs.database.open(), "before_cursor_execute", saw)
    monkeypatch.setattr(statement, "_raw", saw_raw)
    jobs.task(wide).schedule()
    drain(jobs)
    assert seen
    assert not [s for s in seen if "schedd_kinds" in s or "schedd_starts" in s]


def test_a_cap_counts_what_threads_really_run(database: Database) -> None:
    """On a started engine: eight slots, two handlers at a time."""
    now = [0]
    most = [0]
    lock, go_on = threading.Lock(), threading.Event()

    @task(max_concurrency=2)
    def body(ctx: Context, n: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        if n < 2:
            go_on.wait(20)
        with lock:
            now[0] -= 1

    jobs = Scheduler(database.url)
    jobs.register(body)
    ids = [jobs.task(body, n).schedule() for n in range(40)]
    with jobs:
        while now[0] < 2:
            go_on.wait(0.005)
        go_on.set()
        jobs.wait(ids, timeout=20)
    jobs.close()
    assert most == [2]
