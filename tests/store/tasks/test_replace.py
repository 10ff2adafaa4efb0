"""conflict="replace": another set of payload, options, envelope and edges under the same id."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import (
    Context,
    CycleError,
    PermanentError,
    Priority,
    Retry,
    RetryPolicy,
    Scheduler,
    Snooze,
    TaskCancelledError,
    TaskId,
    TaskState,
    UnknownDependencyError,
    task,
)
from scheduler.ports import FAILPOINTS, SystemClock
from scheduler.store.admin.doctor import OK, check
from scheduler.testing import FakeClock, drain, engine_of
from support.bench import Side
from support.fleet import Fleet, ends, let_pass, rows, run_claimed, step, write

LONG = "x" * 5000


@task
def note(ctx: Context, text: str) -> str:
    """Notes its text; some texts are orders."""
    ctx.state.append(text[:20])
    if text.startswith("die"):
        raise PermanentError(text)
    if text.startswith("fail"):
        raise ValueError(text)
    if text.startswith("snooze"):
        raise Snooze(5)
    if text.startswith("again"):
        raise Retry(after=5)
    return text


def put(jobs: Scheduler, text: str, *parents: int, key: str = "k", **options: Any) -> TaskId:
    return replacing(jobs, text, *parents, key=key, **options).schedule()


def replacing(jobs: Scheduler, text: str, *parents: int, key: str = "k", **options: Any) -> Any:
    """A builder; ``options``: its methods, each with its argument."""
    builder = jobs.task(note, text).key(key, conflict="replace").depend_on(list(parents))
    for method, value in options.items():
        builder = getattr(builder, method)(value)
    return builder


def sound(jobs: Scheduler) -> None:
    """The doctor finds nothing wrong, and nothing of a replacement is left behind."""
    with jobs.database.read() as tx:
        found = check(tx)
    # Whether a worker is there that takes what waits is up to the test.
    assert [f for f in found if f.level != OK and f.check != "ready tasks"] == []
    left = rows(jobs, "SELECT task_id FROM schedd_task_values WHERE name = 'replacement'")
    held = rows(jobs, "SELECT id FROM schedd_tasks WHERE rerun = 1 AND state >= 4 AND state <= 5")
    assert sorted(row[0] for row in left) == sorted(row[0] for row in held)


def bring_to(jobs: Scheduler, clock: FakeClock, state: str) -> TaskId:
    """A task with key k in this state, that worker ``jobs`` knows nothing of."""
    if state == "waiting":
        parent = jobs.task(note, "parent").after(3600).schedule()
        made = put(jobs, "old", parent)
    elif state == "retry":
        made = put(jobs, "fail", with_retry=RetryPolicy(min_wait=60, max_attempts=2))
        drain(jobs)
    elif state == "later":
        made = put(jobs, "old", after=3600)
    elif state == "handed back":
        made = put(jobs, "snooze")
        drain(jobs)
    else:
        made = put(jobs, "old")
    if state == "suspended":
        write(jobs, "UPDATE schedd_tasks SET state = 3, claimed_at = 5, attempt = 1, claim = 1 WHERE id = :id", id=made)
    assert jobs.get_task_status(made) in (state, "scheduled")
    return made


BEFORE = ("waiting", "scheduled", "later", "retry", "handed back", "suspended")


@pytest.mark.case(28)
@pytest.mark.parametrize("state", BEFORE)
def test_the_whole_set_is_replaced_and_survives_a_restart(fleet: Fleet, clock: FakeClock, state: str) -> None:
    jobs = fleet.worker(note, state=[])
    first = bring_to(jobs, clock, state)
    write(
        jobs,
        "UPDATE schedd_tasks SET error = 'old', progress = 5, lane = '!note', suspect = 2 WHERE id = :id",
        id=first,
    )
    attempt = jobs.get_task(first).attempt
    jobs.state.clear()
    clock.advance(7)
    again = (
        jobs.task(note, "new" + LONG)
        .key("k", conflict="replace", retention=timedelta(hours=2))
        .priority(Priority.HIGH)
        .queue("other")
        .with_retry(RetryPolicy(min_wait=1, max_attempts=3, strategy="fixed"))
        .timeout(9)
        .after(30)
        .headers({"h": 1})
        .correlation("c")
        .causation("cause")
        .subject("s")
        .sequence(4)
        .payload_ref("file:///x")
        .schedule()
    )
    assert (again, again.created) == (first, False)
    found = jobs.get_task(first)
    assert found.payload == json.dumps({"text": "new" + LONG}, separators=(",", ":"))
    assert (found.state, found.priority, found.queue, found.timeout) == (
        "scheduled",
        Priority.HIGH,
        "other",
        timedelta(seconds=9),
    )
    assert (found.retry, found.max_attempts) == (RetryPolicy(min_wait=1, max_attempts=3, strategy="fixed"), 3)
    assert (found.headers, found.correlation, found.causation, found.subject) == ({"h": 1}, "c", "cause", "s")
    assert (found.sequence, found.payload_ref, found.error, found.progress) == (4, "file:///x", None, None)
    assert found.created_at == clock.datetime
    assert found.run_at == clock.datetime + timedelta(seconds=30)
    assert (found.attempt, found.attempts_used) == (attempt, 0)
    assert jobs.get_task_dependencies(first) == []
    fleet.kill(jobs)
    other = fleet.worker(note, state=[])
    sound(other)
    drain(other)
    assert "new" not in "".join(other.state)
    clock.advance(30)
    drain(other)
    assert other.state == ["new" + LONG[:17]]
    assert other.result(first, timeout=0) == "new" + LONG
    until = rows(other, "SELECT key_until FROM schedd_tasks WHERE id = :id", id=first)[0].key_until
    assert until == clock.now() + 7200 * 10**6
    # And what was said first is gone, not merely written over: without any option, the defaults hold again.
    clock.advance(timedelta(hours=2))
    second = put(other, "late" + LONG, after=99, headers={"h": 2}, subject="s", queue="other", timeout=5)
    assert put(other, "plain") == second
    found = other.get_task(second)
    assert (found.queue, found.headers, found.subject, found.timeout) == ("default", {}, None, None)
    assert (found.payload, found.correlation, found.retry) == ('{"text":"plain"}', str(second), None)
    assert rows(other, "SELECT name FROM schedd_task_values WHERE task_id = :id", id=second) == []
    sound(other)


@pytest.mark.case(28)
@pytest.mark.parametrize("state", BEFORE)
def test_the_edges_are_replaced_too(fleet: Fleet, clock: FakeClock, state: str) -> None:
    jobs = fleet.worker(note, state=[])
    first = bring_to(jobs, clock, state)
    old_parents = [edge.parent for edge in jobs.get_task_dependencies(first)]
    child = jobs.task(note, "child").depend_on(first).schedule()
    parent = jobs.task(note, "new parent").after(60).schedule()
    jobs.state.clear()
    assert put(jobs, "new", parent) == first
    assert jobs.get_task_status(first) is TaskState.WAITING
    assert [edge.parent for edge in jobs.get_task_dependencies(first)] == [parent]
    for old in old_parents:
        jobs.cancel_task(old)  # would have ended it
    sound(jobs)
    drain(jobs)
    assert jobs.state == []
    fleet.kill(jobs)
    other = fleet.worker(note, state=[])
    clock.advance(60)
    drain(other)
    assert other.state == ["new parent", "new", "child"]
    assert other.get_task_status(child) is TaskState.SUCCESS
    sound(other)


@pytest.mark.case(28)
def test_edges_that_are_decided_already_count_at_once(fleet: Fleet) -> None:
    jobs = fleet.worker(note, state=[])
    done, dead = jobs.task(note, "done").schedule(), jobs.task(note, "die").schedule()
    drain(jobs)
    later = jobs.task(note, "later").after(60).schedule()
    first = put(jobs, "old", later)
    child = jobs.task(note, "child").depend_on(first, when="failure").schedule()
    assert put(jobs, "new", done) == first
    assert jobs.get_task_status(first) is TaskState.SCHEDULED
    broken = put(jobs, "never", done, dead)
    assert (broken, jobs.get_task_status(first)) == (first, TaskState.FAILED)
    assert jobs.get_task(first).ended_by == dead
    drain(jobs)
    assert jobs.get_task_status(child) is TaskState.SUCCESS
    sound(jobs)
    new = put(jobs, "its key is free")
    assert new.created
    assert new != first


@pytest.mark.case(28)
def test_a_cycle_by_replacing_is_refused_and_nothing_is_changed(fleet: Fleet) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "one")
    second = put(jobs, "two", first, key="two")
    third = jobs.task(note, "three").depend_on(second).schedule()
    before = [jobs.get_task(i) for i in (first, second, third)]
    for parents, path in (([third], (first, second, third, first)), ([first], (first, first))):
        with pytest.raises(CycleError) as raised:
            put(jobs, "new", *parents)
        assert raised.value.path == path
    with pytest.raises(UnknownDependencyError):
        put(jobs, "new", 999)
    batch = jobs.batch()
    middle = batch.task(note, "middle").depend_on(third)
    batch.task(note, "new").key("k", conflict="replace").depend_on(middle)
    with pytest.raises(CycleError), batch:
        pass
    engine = sa.create_engine(fleet.database.url)
    with engine.connect() as connection, connection.begin():
        with pytest.raises(CycleError):
            replacing(jobs, "new", third).schedule(connection=connection)
        jobs.task(note, "kept").schedule(connection=connection)
    engine.dispose()
    assert [jobs.get_task(i) for i in (first, second, third)] == before
    assert len(rows(jobs, "SELECT id FROM schedd_tasks")) == 4
    assert put(jobs, "new", key="two") == second  # a path through its own old edges is none
    assert put(jobs, "new", third) == first
    assert put(jobs, "newer", key="two") == second
    drain(jobs)
    assert set(jobs.state) == {"newer", "three", "new", "kept"}


@pytest.mark.case(28)
def test_two_that_would_wait_for_each_other_by_replacing_at_once(fleet: Fleet) -> None:
    one, two = fleet.worker(note, state=[]), fleet.worker(note, state=[])
    first, second = put(one, "a", key="a"), put(one, "b", key="b")
    sides = [Side(lambda: put(one, "a2", second, key="a")), Side(lambda: put(two, "b2", first, key="b"))]
    for side in sides:
        side.join(20)
    errors = [side._error for side in sides if side._error is not None]
    assert [type(error) for error in errors] == [CycleError]
    drain(one)
    assert {one.get_task_status(i) for i in (first, second)} == {TaskState.SUCCESS}
    sound(one)


@pytest.mark.case(28)
def test_in_a_batch_with_edges_both_ways(fleet: Fleet) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "old", after=3600)
    with jobs.batch() as batch:
        parent = batch.task(note, "parent")
        middle = batch.task(note, "new").key("k", conflict="replace").depend_on(parent)
        batch.task(note, "child").depend_on(middle)
    assert batch.ids[1] == first
    assert [i.created for i in batch.ids] == [True, False, True]
    assert batch.ids[2] == batch.ids[0] + 1  # no id is used up
    drain(jobs)
    assert jobs.state == ["parent", "new", "child"]
    sound(jobs)


@pytest.mark.case(28)
@pytest.mark.parametrize("commits", [True, False])
def test_in_the_callers_transaction(fleet: Fleet, commits: bool) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "old")
    engine = sa.create_engine(fleet.database.url)
    with engine.connect() as connection, connection.begin() as transaction:
        assert replacing(jobs, "new").schedule(connection=connection) == first
        if not commits:
            transaction.rollback()
    engine.dispose()
    drain(jobs)
    assert jobs.state == ["new" if commits else "old"]


@task
def awaits(ctx: Context, awaited: int) -> None:
    ctx.await_task(awaited)


@pytest.mark.case(28)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("unseen", ["a child", "a grandchild", "who awaits it", "a cycle"])
def test_in_a_callers_transaction_that_cannot_see_what_waits_for_it(fleet: Fleet, level: str, unseen: str) -> None:
    """A snapshot that is older than an edge or a wait: such a transaction is refused, and the caller begins again."""
    jobs = fleet.worker(note, awaits)
    broken = jobs.task(note, "die").schedule()
    drain(jobs)
    blocked = jobs.task(note, "later").after(timedelta(hours=1)).schedule()
    top = put(jobs, "one", blocked)
    below = put(jobs, "below", top if unseen == "a grandchild" else blocked, key="b")
    lowest = put(jobs, "lowest", below, key="c")
    engine = sa.create_engine(fleet.database.url, isolation_level=level)  # type: ignore[arg-type]
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT count(*) FROM schedd_tasks"))
        new = replacing(jobs, "two", broken)
        if unseen == "who awaits it":
            waiting = jobs.task(awaits, int(top)).schedule()
            drain(jobs)
        elif unseen == "a cycle":
            put(jobs, "below", top, key="b")
            new = replacing(jobs, "two", lowest)
        else:
            waiting = jobs.task(note, "child").depend_on([top if unseen == "a child" else lowest]).schedule()
        refused = level != "READ COMMITTED"
        if refused:
            with pytest.raises(sa.exc.OperationalError, match="could not serialize access"):
                new.schedule(connection=connection)
            connection.rollback()
        if unseen == "a cycle":
            with pytest.raises(CycleError):
                new.schedule(connection=connection)
            connection.rollback()
        else:
            assert new.schedule(connection=connection) == top
            connection.commit()
    engine.dispose()
    drain(jobs)
    if unseen != "a cycle":
        assert [jobs.get_task_status(i).simple for i in (top, waiting)] == ["Failed", "Failed"]


@pytest.mark.case(25, 28)
def test_what_has_ended_is_left_as_it_is(fleet: Fleet, clock: FakeClock) -> None:
    """A success keeps its result, though not its key; keep returns the newest."""
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "one")
    child = jobs.task(note, "child").depend_on(first).schedule()
    drain(jobs)
    second = put(jobs, "two")
    assert second.created
    assert second != first
    assert jobs.result(first, timeout=0) == "one"
    assert jobs.task(note, "three").key("k").schedule() == second
    drain(jobs)
    assert jobs.state == ["one", "child", "two"]
    assert jobs.get_task_status(child) is TaskState.SUCCESS
    for end in ("die", "cancelled"):
        ended = put(jobs, end)
        if end == "cancelled":
            jobs.cancel_task(ended)
        drain(jobs)
        new = put(jobs, "anew")
        assert new.created
        assert new != ended
        drain(jobs)
    sound(jobs)


# while an attempt is under way


@pytest.mark.case(29)
@pytest.mark.parametrize("begun", [False, True])
def test_a_running_task_runs_once_more_and_releases_nothing_before(fleet: Fleet, clock: FakeClock, begun: bool) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "one")
    child = jobs.task(note, "child").depend_on(first).schedule()
    step(jobs)
    if begun:
        write(jobs, "UPDATE schedd_tasks SET state = 5 WHERE id = :id", id=first)
    again = put(jobs, "two", priority="low", subject="s")
    assert (again, again.created) == (first, False)
    shown = jobs.get_task(first)
    assert (shown.payload, shown.subject, shown.rerun) == ('{"text":"one"}', None, True)  # what is under way
    assert jobs.state == []
    run_claimed(jobs)
    assert jobs.state == ["one"]
    engine_of(jobs).dispatch.run(engine_of(jobs)._connection, claiming=False)
    now = jobs.get_task(first)
    assert (now.state, now.payload, now.result, now.rerun) == ("scheduled", '{"text":"two"}', None, False)
    assert (now.priority, now.subject) == (Priority.LOW, "s")
    assert jobs.get_task_status(child) is TaskState.WAITING
    with pytest.raises(TimeoutError):
        jobs.result(first, timeout=0)
    assert jobs.task(note, "keep").key("k").schedule() == first
    sound(jobs)
    drain(jobs)
    assert jobs.state == ["one", "two", "child"]
    assert jobs.result(first, timeout=0) == "two"
    assert ends(jobs, first) == ["succeeded", "succeeded"]
    sound(jobs)


@pytest.mark.case(29)
@pytest.mark.parametrize(
    ("old", "end"),
    [("die", "replaced"), ("fail", "replaced"), ("again", "replaced"), ("snooze", "snoozed"), (LONG, "succeeded")],
)
def test_however_the_attempt_under_way_ends(fleet: Fleet, clock: FakeClock, old: str, end: str) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, old, with_retry=RetryPolicy(min_wait=60, max_attempts=2))
    child = jobs.task(note, "child").depend_on(first).schedule()
    step(jobs)
    put(jobs, "new")
    run_claimed(jobs)
    drain(jobs)
    assert jobs.state == [old[:20], "new", "child"]
    assert ends(jobs, first) == [end, "succeeded"]
    assert bool(jobs.get_attempts(first)[0].error) == (end == "replaced")
    found = jobs.get_task(first)
    assert (found.state, found.error, found.result, found.max_attempts) == ("success", None, "new", 1)
    assert jobs.dead_letters.list() == []
    assert jobs.get_task_status(child) is TaskState.SUCCESS
    sound(jobs)


@pytest.mark.case(29)
def test_the_re_run_has_a_budget_and_a_time_of_its_own(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "old", with_retry=RetryPolicy(max_attempts=5))
    step(jobs)
    put(jobs, "fail", after=60, with_retry=RetryPolicy(min_wait=1, max_attempts=2, strategy="fixed", jitter=0))
    clock.advance(20)
    run_claimed(jobs)
    drain(jobs)
    assert jobs.state == ["old"]
    clock.advance(40)
    drain(jobs)
    assert jobs.get_task_status(first) is TaskState.RETRY
    clock.advance(1)
    drain(jobs)
    assert jobs.state == ["old", "fail", "fail"]
    assert ends(jobs, first) == ["succeeded", "retried", "dead"]
    assert [a.number for a in jobs.get_attempts(first)] == [1, 2, 3]
    sound(jobs)


@pytest.mark.case(29)
def test_the_last_of_several_counts(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(note, state=[])
    old = jobs.task(note, "old parent").schedule()
    drain(jobs)
    first = put(jobs, "one", old)
    step(jobs)
    parents = [jobs.task(note, f"parent {n}").after(3600).schedule() for n in range(2)]
    for n, parent in enumerate(parents):
        put(jobs, f"try {n}" + LONG, parent)
        assert {e.parent for e in jobs.get_task_dependencies(first)} == {old, parent}
    put(jobs, "last", old)
    run_claimed(jobs)
    drain(jobs)
    assert jobs.state == ["old parent", "one", "last"]
    assert [e.parent for e in jobs.get_task_dependencies(first)] == [old]
    sound(jobs)


@pytest.mark.case(29)
@pytest.mark.parametrize("ends_when", ["before", "during", "after", "broken", "broken after"])
def test_new_edges_hold_for_the_re_run_only(fleet: Fleet, clock: FakeClock, ends_when: str) -> None:
    jobs, other = fleet.worker(note, state=[], queues=["default"]), fleet.worker(note, state=[], queues=["other"])
    text = "die" if "broken" in ends_when else "parent"
    parent = jobs.task(note, text).queue("other").schedule()
    first = put(jobs, "one")
    child = jobs.task(note, "child").depend_on(first, when="finished").schedule()
    step(jobs)
    if ends_when == "before":
        drain(other)
    put(jobs, "two", parent)
    if ends_when in ("during", "broken"):
        drain(other)
    run_claimed(jobs)
    drain(jobs)
    sound(jobs)
    if "after" in ends_when:
        assert jobs.get_task_status(first) is TaskState.WAITING
        assert jobs.get_task_status(child) is TaskState.WAITING
        drain(other)
    drain(jobs)
    if "broken" in ends_when:
        assert jobs.state == ["one", "child"]
        assert (jobs.get_task_status(first), jobs.get_task(first).ended_by) == ("failed", parent)
    else:
        assert jobs.state == ["one", "two", "child"]
    sound(jobs)


@pytest.mark.case(29)
@pytest.mark.parametrize("deaths", [1, 4])
def test_a_worker_that_dies_with_it_leaves_the_new_set(fleet: Fleet, clock: FakeClock, deaths: int) -> None:
    jobs, parent_of = fleet.worker(note, state=[]), fleet.worker(note, state=[])
    parent = parent_of.task(note, "parent").after(3600).schedule()
    first = put(jobs, "one")
    if deaths > 1:
        write(
            jobs, "UPDATE schedd_tasks SET suspect = 5, deaths = :n, lane = '!note' WHERE id = :id", id=first, n=deaths
        )
    step(jobs)
    put(jobs, "two" + LONG, parent)
    fleet.kill(jobs)
    other = fleet.worker(note, state=[])
    step(other)
    let_pass(clock, 100, other)
    assert ends(other, first) == ["lost"]
    assert other.get_task_status(first) is TaskState.WAITING
    sound(other)
    other.retry_task(parent)
    drain(other)
    assert other.state == ["parent", "two" + LONG[:17]]
    assert other.get_task_status(first) is TaskState.SUCCESS
    assert other.get_attempts(first)[0].envelope.payload == '{"text":"one"}'
    sound(other)


@pytest.mark.case(29)
def test_what_was_claimed_but_never_began_is_handed_back_as_the_new_set(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "one")
    step(jobs)
    put(jobs, "fail", with_retry=RetryPolicy(min_wait=1, max_attempts=2, strategy="fixed", jitter=0))
    clock.advance(2)
    step(jobs)  # it waited for too long
    drain(jobs)
    clock.advance(1)
    drain(jobs)
    assert jobs.state == ["fail", "fail"]
    assert jobs.get_task_status(first) is TaskState.DEAD
    sound(jobs)


@pytest.mark.case(29, 48)
def test_a_cancel_afterwards_means_the_new_set_too(fleet: Fleet) -> None:
    jobs = fleet.worker(note, state=[])
    parent = jobs.task(note, "parent").after(3600).schedule()
    first = put(jobs, "one")
    step(jobs)
    put(jobs, "two", parent, subject="s")
    jobs.cancel_task(first)
    run_claimed(jobs)
    drain(jobs)
    assert jobs.get_task_status(first) is TaskState.CANCELLED
    with pytest.raises(TaskCancelledError):
        jobs.result(first, timeout=0)
    assert ends(jobs, first) == ["cancelled"]
    assert jobs.state == ["one"]
    sound(jobs)
    jobs.retry_task(first)
    assert (jobs.get_task(first).subject, jobs.get_task_status(first)) == ("s", "waiting")
    jobs.retry_task(parent)
    drain(jobs)
    assert jobs.state == ["one", "parent", "two"]
    sound(jobs)


@pytest.mark.case(29, 48)
def test_a_cancel_before_means_the_old_set_only(fleet: Fleet) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "one")
    step(jobs)
    jobs.cancel_task(first)
    assert put(jobs, "two") == first
    drain(jobs)  # the handler hears of the cancel before it begins
    assert jobs.state == ["two"]
    assert (jobs.get_task_status(first), ends(jobs, first)) == ("success", ["cancelled", "succeeded"])
    assert jobs.get_task(first).cancel_requested is None
    sound(jobs)
    third = put(jobs, "three")
    step(jobs)
    for text in ("four", "five"):
        jobs.cancel_task(third)
        put(jobs, text)
    run_claimed(jobs)  # it does not
    drain(jobs)
    assert jobs.state == ["two", "three", "five"]
    sound(jobs)


@pytest.mark.case(29, 48)
def test_a_cancel_before_does_not_mean_the_new_set_though_the_worker_dies(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "one")
    step(jobs)
    jobs.cancel_task(first)
    put(jobs, "two")
    fleet.kill(jobs)
    other = fleet.worker(note, state=[])
    step(other)
    let_pass(clock, 100, other)
    drain(other)
    assert other.state == ["two"]
    assert (other.get_task_status(first), ends(other, first)) == ("success", ["lost", "succeeded"])
    sound(other)


@pytest.mark.case(29, 30)
@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("old", ["one", "die", "fail"])
def test_its_key_is_held_until_the_new_set_has_run(fleet: Fleet, old: str, cancelled: bool) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, old)
    step(jobs)
    run_claimed(jobs)
    if cancelled:
        jobs.cancel_task(first)  # means the old set
    put(jobs, "two")
    engine_of(jobs).dispatch.run(engine_of(jobs)._connection, claiming=False)
    assert jobs.get_task_status(first) is TaskState.SCHEDULED
    assert jobs.task(note, "beside it").key("k").schedule() == first
    drain(jobs)
    assert jobs.state == [old, "two"]
    sound(jobs)


@pytest.mark.case(29, 48)
@pytest.mark.parametrize("by", ["who spawned it", "a cascade"])
def test_a_cancel_from_above_means_the_new_set_too(fleet: Fleet, by: str) -> None:
    jobs = fleet.worker(note, state=[])
    above = jobs.task(note, "die").schedule()
    drain(jobs)
    one = jobs.task(note, "one").key("k")
    first = (one.depend_on(above, otherwise="run") if by == "a cascade" else one).schedule()
    step(jobs)
    jobs.retry_task(above)
    if by == "who spawned it":
        write(jobs, "UPDATE schedd_tasks SET spawned_by = :above WHERE id = :id", above=above, id=first)
    else:
        below = jobs.task(note, "below").depend_on(above).schedule()
    put(jobs, "two", *([above] if by == "a cascade" else []))
    jobs.cancel_task(above, cascade=by == "a cascade")
    assert jobs.get_task(first).cancel_requested is not None
    run_claimed(jobs)
    drain(jobs)
    assert jobs.state == ["die", "one"]
    assert (jobs.get_task_status(first), ends(jobs, first)) == ("cancelled", ["cancelled"])
    if by == "a cascade":
        assert jobs.get_task_status(below) is TaskState.CANCELLED
    sound(jobs)


@pytest.mark.case(4, 29)
def test_what_the_old_set_did_to_its_workers_is_not_held_against_the_new_one(fleet: Fleet) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "one")
    write(jobs, "UPDATE schedd_tasks SET suspect = 5, deaths = 2, lane = '!note' WHERE id = :id", id=first)
    put(jobs, "two")
    (left,) = rows(jobs, "SELECT suspect, deaths, lane FROM schedd_tasks")
    assert tuple(left) == (0, 0, "note")


@pytest.mark.case(29, 34)
def test_the_new_set_has_not_started_whatever_the_old_one_had(fleet: Fleet) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "snooze")
    drain(jobs)
    put(jobs, "two")
    parent = jobs.task(note, "parent").after(3600).schedule()
    jobs.add_dependency(first, parent)
    assert jobs.get_task_status(first) is TaskState.WAITING
    jobs.retry_task(parent)
    drain(jobs)
    assert jobs.state == ["snooze", "parent", "two"]
    sound(jobs)


@pytest.mark.case(29, 30)
def test_the_key_of_what_cannot_be_read_is_free_again(fleet: Fleet) -> None:
    jobs = fleet.worker(note, state=[])
    first = put(jobs, "one")
    step(jobs)
    put(jobs, "two")
    write(jobs, "UPDATE schedd_task_values SET value = 'broken' WHERE name = 'replacement'")
    run_claimed(jobs)
    drain(jobs)
    assert jobs.get_task_status(first) is TaskState.DEAD
    assert jobs.task(note, "three").key("k").schedule() != first
    drain(jobs)
    assert jobs.state == ["one", "three"]


@task
def durable(ctx: Context, text: str) -> str:
    """Two steps, and a sleep between them."""
    first = ctx.step("first", lambda: ctx.state.append(f"{text} first") or text)
    ctx.sleep_for(60)
    ctx.state.append(f"{text} second")
    return f"{first}, {text}"


@pytest.mark.case(29, 52)
@pytest.mark.parametrize("running", [False, True])
def test_no_step_of_the_old_set_counts_for_the_new_one(fleet: Fleet, clock: FakeClock, running: bool) -> None:
    """While it sleeps it begins anew at once; while it runs, once its attempt gives up the slot."""
    jobs = fleet.worker(durable, state=[])

    def call(text: str) -> TaskId:
        return jobs.task(durable, text).key("k", conflict="replace").schedule()

    first = call("one")
    if running:
        step(jobs)
        call("two")
        drain(jobs)
    else:
        drain(jobs)
        assert jobs.get_task_status(first) is TaskState.SUSPENDED
        assert call("two") == first
        drain(jobs)
    assert jobs.state == ["one first", "two first"]
    sound(jobs)
    clock.advance(60)
    drain(jobs)
    assert jobs.state == ["one first", "two first", "two second"]
    assert jobs.result(first, timeout=0) == "two, two"
    sound(jobs)


@pytest.mark.case(29, 61)
def test_a_handler_may_replace_its_own_task(fleet: Fleet) -> None:
    @task(kind="next")
    def again(ctx: Context, page: int) -> int:
        ctx.state.append(page)
        if page < 3:
            jobs.task(again, page + 1).key("pages", conflict="replace").schedule()
        return page

    jobs = fleet.worker(again, state=[])
    first = jobs.task(again, 1).key("pages").schedule()
    child = jobs.task(again, 9).depend_on(first).schedule()
    drain(jobs)
    assert jobs.state == [1, 2, 3, 9]
    assert jobs.result(first, timeout=0) == 3
    assert jobs.get_task(first).causation == str(first)
    assert jobs.get_task_status(child) is TaskState.SUCCESS
    sound(jobs)


# racing the commit of the finish


def at_failpoint(monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[[], None]) -> list[str]:
    hits: list[str] = []

    def hit(reached: str) -> None:
        if reached == name and not hits:
            hits.append(reached)
            work()

    monkeypatch.setattr(FAILPOINTS, "hit", hit)
    return hits


@pytest.mark.case(29)
@pytest.mark.parametrize("old", ["one", "die"])
def test_a_change_that_lands_while_the_finish_commits_still_runs(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    jobs, caller = fleet.worker(note, state=[]), fleet.worker(note, state=[])
    caller.database.open()
    first = put(jobs, old)
    step(jobs)
    sides: list[Side] = []

    def replace() -> None:
        sides.append(Side(lambda: put(caller, "two")))
        sides[0].join(0.3)
        assert sides[0].is_alive()  # it waits for the commit

    hits = at_failpoint(monkeypatch, "before finish commit", replace)
    run_claimed(jobs)
    step(jobs)
    assert hits
    second = sides[0].result()
    drain(jobs)
    assert jobs.state == [old, "two"]
    assert second != first  # it had ended: a new task has the key
    assert jobs.result(second, timeout=0) == "two"
    sound(jobs)


@pytest.mark.case(29)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_finish_does_not_wait_for_a_session_that_replaces(fleet: Fleet) -> None:
    """On PostgreSQL the caller's transaction may stay open; what it holds is recorded after it."""
    jobs, caller = fleet.worker(note, state=[]), fleet.worker(note, state=[])
    bystander = jobs.task(note, "bystander").schedule()
    parent = jobs.task(note, "parent").after(3600).schedule()
    first = put(jobs, "one")
    step(jobs)
    run_claimed(jobs)
    with caller.database.write() as tx:
        replacing(caller, "two", parent).schedule(connection=tx.connection)
        step(jobs)
        assert jobs.get_task_status(bystander) is TaskState.SUCCESS
        assert jobs.get_task_status(first) is TaskState.CLAIMED
    step(jobs)
    assert jobs.get_task_status(first) is TaskState.WAITING
    sound(jobs)
    # Nor for one that holds a parent of the new set when the attempt ends.
    step(jobs)
    second = put(jobs, "one", key="other")
    step(jobs)
    put(jobs, "two", parent, key="other")
    run_claimed(jobs)
    with caller.database.write() as tx:
        tx.connection.execute(sa.text("UPDATE schedd_tasks SET subject = 'x' WHERE id = :id"), {"id": int(parent)})
        step(jobs)
        assert jobs.get_task_status(second) is TaskState.CLAIMED
    step(jobs)
    jobs.retry_task(parent)
    drain(jobs)
    assert jobs.state[-2:] == ["two", "two"]
    sound(jobs)


@pytest.mark.case(29)
def test_replaced_again_and_again_while_it_runs_and_ends(fleet: Fleet) -> None:
    """Real threads on real time: the last payload of every caller's last word is run, and handlers never overlap."""
    running = threading.Semaphore(1)
    overlapped: list[str] = []
    ran: list[str] = []

    @task(kind="alone")
    def alone(ctx: Context, text: str) -> None:
        if not running.acquire(blocking=False):
            overlapped.append(text)
            return
        try:
            ran.append(text)
        finally:
            running.release()

    callers = [fleet.worker(alone) for _ in range(3)]
    workers = [fleet.worker(alone) for _ in range(2)]
    for each in (*callers, *workers):
        each.clock = each.database.clock = SystemClock()
    for worker in workers:
        worker.start()
    last: list[TaskId] = [TaskId(0)] * 3

    def call(n: int) -> None:
        for i in range(60):
            last[n] = callers[n].task(alone, f"{n} {i}").key("k", conflict="replace").schedule()

    sides = [Side(lambda n=n: call(n)) for n in range(3)]  # type: ignore[misc]
    for side in sides:
        side.join(60)
        side.result()
    newest = max(last)
    callers[0].wait([newest], timeout=30)
    for worker in workers:
        assert worker.stop(drain=10) == []
    assert overlapped == []
    assert ran[-1] in {f"{n} 59" for n in range(3)}
    payload = json.loads(callers[0].get_task(newest).payload or "")
    assert ran[-1] == payload["text"]
    sound(callers[0])
