"""Keys: the caller's names for pieces of work, held while they live or are retained."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import (
    Context,
    DuplicateKeyError,
    InvalidTransitionError,
    ResultExpiredError,
    Scheduler,
    TaskId,
    TaskState,
    UnknownTaskError,
    task,
)
from scheduler.ports import SystemClock
from scheduler.testing import FakeClock, drain
from support.fleet import Fleet, ends, let_pass, rows, run_claimed, step, write
from support.processes import Child
from support.statements import listen

DAY = timedelta(days=1)


@task
def echo(ctx: Context, text: str) -> str:
    if isinstance(ctx.state, list):
        ctx.state.append(text)
    return text


@task
def other(ctx: Context, text: str) -> str:
    return text


@task
def fail(ctx: Context, text: str) -> None:
    raise ValueError(text)


def keyed(jobs: Scheduler, text: str, kind: Any = echo, key: str = "k", **options: Any) -> TaskId:
    task_id: TaskId = jobs.task(kind, text).key(key, **options).schedule()
    return task_id


@pytest.mark.case(25)
def test_keep_returns_the_holder_and_its_payload_until_it_has_run(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(echo, state=[])
    first = keyed(jobs, "original")
    assert first.created
    again = keyed(jobs, "changed")
    assert (again, again.created) == (first, False)
    step(jobs)
    assert keyed(jobs, "while claimed") == first
    run_claimed(jobs)
    step(jobs)
    assert keyed(jobs, "after the success") == first
    drain(jobs)
    assert jobs.state == ["original"]
    assert jobs.result(first, timeout=0) == "original"
    assert [record.id for record in jobs.list_tasks(key="k")] == [first]


@pytest.mark.case(25)
@pytest.mark.parametrize(
    ("retention", "held"), [(None, DAY), (timedelta(hours=1), timedelta(hours=1)), (3 * DAY, 3 * DAY)]
)
def test_within_retention_the_same_id_and_result_afterwards_a_new_task(
    fleet: Fleet, clock: FakeClock, retention: timedelta | None, held: timedelta
) -> None:
    jobs = fleet.worker(echo, state=[])
    first = keyed(jobs, "one", retention=retention)
    clock.advance(100)
    drain(jobs)
    clock.advance(held - timedelta(microseconds=1))
    again = keyed(jobs, "two", retention=retention)
    assert (again, again.created) == (first, False)
    assert jobs.result(again, timeout=0) == "one"
    drain(jobs)
    assert jobs.state == ["one"]
    clock.advance(timedelta(microseconds=1))
    new = keyed(jobs, "two", retention=retention)
    assert new != first
    assert new.created
    drain(jobs)
    assert jobs.state == ["one", "two"]
    assert keyed(jobs, "three") == new


@pytest.mark.case(25)
def test_a_retention_longer_than_a_day_keeps_row_and_result_through_the_sweeps(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(echo, state=[], retention={"success": 3600.0, "failed": 3600.0, "outcomes": 7200.0})
    first = keyed(jobs, "one", retention=10 * DAY)
    plain = jobs.task(echo, "plain").schedule()
    drain(jobs)
    for _ in range(9):
        clock.advance(DAY)
        drain(jobs)
    with pytest.raises(UnknownTaskError):
        jobs.get_task(plain)
    assert keyed(jobs, "two") == first
    assert jobs.result(first, timeout=0) == "one"
    clock.advance(DAY)
    drain(jobs)
    assert keyed(jobs, "two").created


@pytest.mark.case(25)
def test_without_a_key_a_result_expires_by_itself(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(echo)
    task_id = jobs.task(echo, "x").schedule()
    drain(jobs)
    clock.advance(DAY)
    with pytest.raises(ResultExpiredError):
        jobs.result(task_id, timeout=0)


@pytest.mark.case(25)
def test_keep_in_batches_and_in_the_callers_transaction(fleet: Fleet) -> None:
    jobs = fleet.worker(echo, state=[])
    first = keyed(jobs, "one")
    with jobs.batch() as batch:
        held = batch.task(echo, "two").key("k")
        twice = batch.task(echo, "three").key("new")
        again = batch.task(echo, "four").key("new")
        batch.task(echo, "five").depend_on([held, twice, again])
    assert [i.created for i in batch.ids] == [False, True, False, True]
    assert batch.ids[0] == first
    assert batch.ids[1] == batch.ids[2]
    assert {edge.parent for edge in jobs.get_task_dependencies(batch.ids[3])} == {first, batch.ids[1]}
    engine = sa.create_engine(fleet.database.url)
    with engine.connect() as connection, connection.begin():
        assert jobs.task(echo, "six").key("k").schedule(connection=connection) == first
    engine.dispose()
    drain(jobs)
    assert jobs.state == ["one", "three", "five"]


@pytest.mark.case(25)
def test_the_holder_is_returned_although_the_newcomers_parent_has_failed(fleet: Fleet) -> None:
    jobs = fleet.worker(echo, fail)
    dead = jobs.task(fail, "x").schedule()
    drain(jobs)
    first = keyed(jobs, "one")
    again = jobs.task(echo, "two").key("k").depend_on(dead).schedule()
    assert (again, again.created) == (first, False)
    with pytest.raises(DuplicateKeyError):
        jobs.task(echo, "two").key("k", conflict="reject").depend_on(dead).schedule()


@pytest.mark.case(26)
def test_different_kinds_have_keys_of_their_own(fleet: Fleet) -> None:
    jobs = fleet.worker(echo, other)
    ids = [keyed(jobs, "x", kind) for kind in (echo, other, echo, other)]
    assert [i.created for i in ids] == [True, True, False, False]
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work(n)`` in threads that all start together; what each returned or raised."""
    barrier, done = threading.Barrier(count), [None] * count

    def one(n: int) -> None:
        barrier.wait()
        try:
            done[n] = work(n)
        except Exception as error:
            done[n] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=one, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


@pytest.mark.case(27)
@pytest.mark.parametrize("conflict", ["keep", "reject", "replace"])
def test_fifty_concurrent_calls_make_one_row(fleet: Fleet, conflict: str) -> None:
    callers = [fleet.worker(echo, state=[]) for _ in range(5)]
    for jobs in callers:
        jobs.database.open()
    done = at_once(50, lambda n: keyed(callers[n % 5], str(n), conflict=conflict))
    made = [i for i in done if isinstance(i, TaskId) and i.created]
    assert len(made) == 1, done
    assert [row.id for row in rows(callers[0], "SELECT id FROM schedd_tasks")] == made
    rest = [i for i in done if i is not made[0]]
    if conflict == "reject":
        assert [error.existing_id for error in rest] == made * 49
    else:
        assert rest == made * 49
    drain(callers[0])
    assert len(callers[0].state) == 1
    assert callers[0].task(echo, "next").schedule() <= made[0] + (1 if fleet.database.is_sqlite else 50)


@pytest.mark.case(27)
@pytest.mark.parametrize("conflict", ["keep", "reject", "replace"])
def test_fifty_calls_of_five_processes_make_one_row(
    fleet: Fleet, clock: FakeClock, tmp_path: Path, conflict: str
) -> None:
    clock.jump(timedelta(days=36500))  # theirs is the system's
    given = ("-m", "support.keyed_caller", fleet.database.url, conflict)
    callers = [Child(tmp_path, (*given, str(n)), dict(os.environ)) for n in range(5)]
    try:
        for caller in callers:
            caller.says("ready")
        for caller in callers:
            caller.tell("go")
        got = [word for caller in callers for word in caller.says("got").split()[1:]]
    finally:
        for caller in callers:
            caller.close()
    jobs = fleet.worker(echo, state=[])
    ((made,),) = rows(jobs, "SELECT id FROM schedd_tasks")
    assert sorted(got) == sorted([f"{made}:True"] + [f"{made}:False"] * 49)
    drain(jobs)
    assert len(jobs.state) == 1
    assert conflict != "replace" or jobs.state[0].endswith(" 9")  # a caller's last word


@pytest.mark.case(27)
@pytest.mark.parametrize("conflict", ["keep", "replace"])
def test_batches_whose_keyed_tasks_wait_for_each_other_take_their_keys_in_one_order(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, conflict: str
) -> None:
    jobs = fleet.worker(echo, state=[])
    taken: list[str] = []

    def note(text: str, values: list[Any]) -> None:
        if "ON CONFLICT (kind" in text or "t.held_key = " in text:
            taken.extend([value for value in values if value in ("a", "b", "c", "d")][:1])

    listen(monkeypatch, before=note)
    for text in ("first", "again"):
        taken.clear()
        with jobs.batch() as batch:
            before = None
            for key in "cadb":
                builder = batch.task(echo, f"{text} {key}").key(key, conflict=conflict)
                if before is not None:
                    builder.depend_on(before)
                before = builder
        assert list(dict.fromkeys(taken)) == sorted("cadb")
        assert [jobs.get_task(i).key for i in batch.ids] == list("cadb")
        assert [i.created for i in batch.ids] == [text == "first"] * 4
        assert [e.parent for e in jobs.get_task_dependencies(batch.ids[3])] == [batch.ids[2]]
    drain(jobs)
    text = "first" if conflict == "keep" else "again"
    assert jobs.state == [f"{text} {key}" for key in "cadb"]


@pytest.mark.case(27)
def test_keyed_chains_in_opposite_orders_at_once(fleet: Fleet) -> None:
    callers = [fleet.worker(echo) for _ in range(4)]
    for jobs in callers:
        jobs.database.open()
    keys = [f"k{n}" for n in range(12)]

    def store(n: int) -> dict[str, int]:
        with callers[n % 4].batch() as batch:
            before = None
            order = keys if n % 2 else keys[::-1]
            for key in order:
                builder = batch.task(echo, str(n)).key(key)
                if before is not None:
                    builder.depend_on(before)
                before = builder
        return dict(zip(order, map(int, batch.ids), strict=True))

    done = at_once(8, store)
    assert all(ids == done[0] for ids in done), done
    assert len(rows(callers[0], "SELECT id FROM schedd_tasks")) == 12


@pytest.mark.case(27)
def test_a_keyed_task_of_a_batch_that_its_edges_end_takes_no_key(fleet: Fleet) -> None:
    jobs = fleet.worker(echo, fail, state=[])
    dead = jobs.task(fail, "x").schedule()
    drain(jobs)
    with jobs.batch() as batch:
        between = batch.task(echo, "between").depend_on(dead)
        last = batch.task(echo, "last").key("k").depend_on(between)
        batch.task(echo, "after").depend_on(last)
    assert [jobs.get_task_status(i) for i in batch.ids] == ["failed"] * 3
    assert [jobs.get_task(i).ended_by for i in batch.ids] == [dead, *batch.ids[:2]]
    assert keyed(jobs, "its key is free").created


@pytest.mark.case(27)
def test_keys_in_opposite_orders_at_once_do_not_deadlock(fleet: Fleet) -> None:
    callers = [fleet.worker(echo) for _ in range(4)]
    keys = [f"k{n}" for n in range(20)]

    def store(n: int) -> list[TaskId]:
        with callers[n % 4].batch() as batch:
            for key in keys if n % 2 else reversed(keys):
                batch.task(echo, str(n)).key(key)
        return batch.ids if n % 2 else batch.ids[::-1]

    done = at_once(8, store)
    assert all(ids == done[0] for ids in done), done
    assert len(rows(callers[0], "SELECT id FROM schedd_tasks")) == 20


@pytest.mark.case(27)
def test_a_batch_takes_its_keys_in_one_order(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is why those above do not meet head-on; PostgreSQL needs a second to notice that two do."""
    jobs = fleet.worker(echo)
    taken: list[str] = []

    def note(text: str, values: list[Any]) -> None:
        if "ON CONFLICT" in text:
            taken.extend(dict.fromkeys(re.findall(r"key-\w", str(values))))

    listen(monkeypatch, before=note)
    mixed = ["key-c", "key-a", "key-d", "key-b"]
    with jobs.batch() as batch:
        for key in mixed:
            batch.task(echo, "x").key(key)
    assert taken == sorted(mixed)
    assert [jobs.get_task(i).key for i in batch.ids] == mixed
    taken.clear()
    with jobs.batch() as batch:  # one of them has a holder
        for key in ("key-f", "key-c", "key-e"):
            batch.task(echo, "x").key(key)
    assert taken == ["key-e", "key-f"]


@pytest.mark.case(27)
def test_a_batch_of_keys_takes_those_whose_retention_is_over(fleet: Fleet) -> None:
    """By the statement that takes all of them, or after it."""
    jobs = fleet.worker(echo)
    with jobs.batch() as batch:
        for key in "abc":
            batch.task(echo, key).key(key, retention=60)
    drain(jobs)
    fleet.clock.advance(30)
    with jobs.batch() as held:
        for key in "dab":
            held.task(echo, key).key(key)
    assert [task_id.created for task_id in held.ids] == [True, False, False]
    assert held.ids[1:] == batch.ids[:2]
    fleet.clock.advance(31)
    with jobs.batch() as again:
        for key in "abcde":
            again.task(echo, "x" * 2000).key(key)
    assert [task_id.created for task_id in again.ids] == [True, True, True, False, True]
    assert again.ids[3] == held.ids[0]
    drain(jobs)
    assert jobs.get_task(again.ids[0]).state.value == "success"


@pytest.mark.case(27)
def test_calls_while_the_holders_come_and_go(fleet: Fleet) -> None:
    """Each call gets a task of its key that really is there, however fast the holders end and free it."""
    callers = [fleet.worker(fail) for _ in range(3)]
    worker = fleet.worker(fail)
    worker.clock = worker.database.clock = SystemClock()
    worker.start()
    done = at_once(6, lambda n: [keyed(callers[n % 3], "x", fail) for _ in range(25)])
    ids = {i for each in done for i in each}
    ended = worker.wait(ids, timeout=30)
    assert worker.stop(drain=10) == []
    assert {record.state for record in ended.values()} == {TaskState.DEAD}
    stored = {row.id for row in rows(worker, "SELECT id FROM schedd_tasks")}
    assert stored == ids


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.case(27)
@pytest.mark.parametrize("conflict", ["keep", "reject", "replace"])
def test_a_holder_may_come_and_go_between_two_statements(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, conflict: str
) -> None:
    """On PostgreSQL each statement has its own view: no holder at the look, one at the insert, then none again."""
    jobs, bystander = fleet.worker(echo), fleet.worker(echo)
    bystander.database.open()
    met: list[TaskId] = []
    meddles = False

    def meddle(text: str, _: object) -> None:
        nonlocal meddles
        if meddles:
            return
        meddles = True
        if "held_key" in text and not met:
            met.append(keyed(bystander, "one"))
        elif "ON CONFLICT" in text and len(met) == 1:
            met.append(met[0])
            bystander.cancel_task(met[0])
        meddles = False

    listen(monkeypatch, after=meddle)
    new = keyed(jobs, "two", conflict=conflict)
    assert len(met) == 2
    assert new.created
    assert new != met[0]
    assert jobs.get_task(new).payload == '{"text":"two"}'


@pytest.mark.case(27)
def test_a_call_that_finds_the_key_held_uses_up_no_id(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(echo, state=[])
    first = keyed(jobs, "one")
    for conflict in ("keep", "replace", "reject"):
        for _ in range(3):
            with contextlib.suppress(DuplicateKeyError):
                assert keyed(jobs, conflict, conflict=conflict) == first
            with contextlib.suppress(DuplicateKeyError), jobs.batch() as batch:
                batch.task(echo, conflict).key("k", conflict=conflict)
                batch.task(echo, conflict).key("k", conflict=conflict)
    drain(jobs)
    keyed(jobs, "retained")
    assert jobs.task(echo, "next").schedule() == first + 1
    clock.advance(DAY)
    assert [keyed(jobs, "x"), keyed(jobs, "y"), keyed(jobs, "z", key="z")] == [first + 2, first + 2, first + 3]


@pytest.mark.case(30)
def test_reject_names_the_holder_and_stores_nothing(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(echo)
    first = keyed(jobs, "one", conflict="reject")
    for advance in (0, 0, 3600):
        with pytest.raises(DuplicateKeyError) as raised:
            keyed(jobs, "two", conflict="reject")
        assert (raised.value.existing_id, raised.value.key, raised.value.kind) == (first, "k", "echo")
        drain(jobs)
        clock.advance(advance)
    batch = jobs.batch()
    batch.task(echo, "a")
    batch.task(echo, "b").key("k", conflict="reject")
    with pytest.raises(DuplicateKeyError), batch:
        pass
    assert len(rows(jobs, "SELECT id FROM schedd_tasks")) == 1
    clock.advance(DAY)
    assert keyed(jobs, "two", conflict="reject").created


@pytest.mark.case(30)
@pytest.mark.parametrize("end", ["dead", "failed", "cancelled", "cancelled while running", "skipped"])
def test_keys_of_tasks_that_did_not_succeed_are_free_again(fleet: Fleet, end: str) -> None:
    @task(dead_letter=False, kind="mortal")
    def mortal(ctx: Context, text: str) -> None:
        raise ValueError(text)

    jobs = fleet.worker(echo, fail, mortal)
    kind = {"dead": fail, "failed": mortal}.get(end, echo)
    if end == "skipped":
        parent = jobs.task(echo, "parent").schedule()
        first = jobs.task(echo, "x").key("k", conflict="reject").depend_on(parent, when="failure").schedule()
    else:
        first = keyed(jobs, "x", kind, conflict="reject")
    if end == "cancelled while running":
        step(jobs)
    if end.startswith("cancelled"):
        jobs.cancel_task(first)
    drain(jobs)
    assert jobs.get_task_status(first) == end.split()[0]
    second = keyed(jobs, "y", kind, conflict="reject")
    assert second.created
    assert second != first
    assert jobs.get_task(first).key == "k"  # still shown


@pytest.mark.case(4, 30)
@pytest.mark.parametrize("end", ["dead", "cancelled"])
def test_the_key_of_what_ends_with_its_worker_is_free_again(fleet: Fleet, clock: FakeClock, end: str) -> None:
    jobs = fleet.worker(echo, lease=30)
    first = keyed(jobs, "x")
    if end == "dead":  # it has killed two workers already
        write(jobs, "UPDATE schedd_tasks SET suspect = 2, deaths = 2, lane = '!' || lane")
    step(jobs)
    if end == "cancelled":
        jobs.cancel_task(first)
    fleet.kill(jobs)
    other = fleet.worker(echo, lease=30)
    step(other)
    let_pass(clock, 60, other)
    assert other.get_task_status(first) == end
    assert keyed(other, "y") != first


@pytest.mark.case(30, 48, 50)
@pytest.mark.parametrize("by", ["a cascade", "who spawned it", "its life's end"])
def test_the_key_of_what_was_cancelled_by_something_else_is_free_again(fleet: Fleet, clock: FakeClock, by: str) -> None:
    jobs = fleet.worker(echo)
    above = jobs.task(echo, "above").after(3600).schedule()
    builder = jobs.task(echo, "x").key("k").after(3600)
    if by == "a cascade":
        builder = builder.depend_on(above)
    first = (builder.max_duration(60) if by == "its life's end" else builder).schedule()
    if by == "who spawned it":
        write(jobs, "UPDATE schedd_tasks SET spawned_by = :above WHERE id = :id", above=above, id=first)
    if by == "its life's end":
        clock.advance(60)
        drain(jobs)
    else:
        jobs.cancel_task(above, cascade=by == "a cascade")
    assert jobs.get_task_status(first) is TaskState.CANCELLED
    assert keyed(jobs, "y") != first


@pytest.mark.case(30)
def test_a_retried_task_takes_its_key_back_if_it_is_free(fleet: Fleet) -> None:
    jobs = fleet.worker(fail)
    first = keyed(jobs, "x", fail, conflict="reject")
    drain(jobs)
    jobs.retry_task(first)
    with pytest.raises(DuplicateKeyError) as raised:
        keyed(jobs, "y", fail, conflict="reject")
    assert raised.value.existing_id == first
    drain(jobs)
    second = keyed(jobs, "y", fail, conflict="reject")
    for call in (lambda: jobs.retry_task(first), lambda: keyed(jobs, "z", fail, conflict="reject")):
        with pytest.raises(DuplicateKeyError) as raised:
            call()
        assert raised.value.existing_id == second
    drain(jobs)
    assert ends(jobs, first) == ["dead"] * 2


@pytest.mark.case(23)
def test_retry_of_unknown_running_and_finished_tasks(fleet: Fleet) -> None:
    jobs = fleet.worker(echo, fail)
    for unknown in (1, 10**6, 0, -1, 2**63):
        with pytest.raises(UnknownTaskError, match=f"no task {unknown}$"):
            jobs.retry_task(unknown)
    running = jobs.task(echo, "x").schedule()
    waiting = jobs.task(echo, "y").depend_on(running).schedule()
    step(jobs)
    before = jobs.get_task(running)
    with pytest.raises(InvalidTransitionError, match=rf"task {running} is claimed; .* once it has ended"):
        jobs.retry_task(running)
    with pytest.raises(InvalidTransitionError, match=rf"task {waiting} is waiting"):
        jobs.retry_task(waiting)
    assert jobs.get_task(running) == before
    drain(jobs)
    done = jobs.get_task(running)
    with pytest.raises(InvalidTransitionError, match=rf"task {running} has succeeded"):
        jobs.retry_task(running)
    assert jobs.get_task(running) == done


@pytest.mark.case(23)
def test_retry_of_what_failed_runs_it_again_with_a_whole_budget(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(fail)
    task_id = jobs.task(fail, "x").with_automatic_retry().schedule()
    for _ in range(2):
        for _ in range(5):
            drain(jobs)
            clock.advance(timedelta(hours=1))
        assert jobs.get_task_status(task_id) is TaskState.DEAD
        jobs.retry_task(task_id)
        assert jobs.get_task(task_id).attempts_used == 0
        assert jobs.get_last_error(task_id) is None
    assert [a.number for a in jobs.get_attempts(task_id)] == list(range(1, 11))
    drain(jobs)
    jobs.retry_task(task_id)  # it waits for a retry: it runs now instead
    assert drain(jobs) == 1
